//! Whole documents packed into sequences: none is cut, but where that is asked for.
//!
//! Documents are taken in order, and as many as fit make a sequence (`next fit`), so that what a sequence
//! holds is known without a search; what is left is padding. [`Packing::best_fit`] searches, and leaves less.
//! No token is asked to foretell the next document's first, and none the padding. Which sequences a step reads
//! is a function of (seed, step).

use std::ops::Range;
use std::sync::Arc;

use annulus_sequence::Positions;

use crate::best_fit::{Bins, best_fit};
use crate::order::Order;
use crate::origin::extracts;
use crate::reader::Reader;
use crate::windows::Window;
use crate::{Cache, DataError, IGNORED, Origin, Place, Source, Tokens};

/// What to do with a document that is longer than a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Longer {
    /// Refuse it with an error.
    Refuse,
    /// Cut off what does not fit.
    Cut,
    /// Leave out the whole document.
    Drop,
    /// Cut it into pieces as long as a sequence, and a last one. The last target of a piece is the first input of the next.
    Split,
}

/// Counts of packing: sequences made, documents cut and left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackingStats {
    /// The number of sequences.
    pub sequences: u64,
    /// The number of documents in them.
    pub documents: u64,
    /// The number of inputs in them that are not padding.
    pub tokens: u64,
    /// Documents whose end was left out.
    pub cut: u64,
    /// Documents cut into pieces, of which none was left out but for having no token to learn.
    pub split: u64,
    /// Documents left out: too long, or without a token to learn.
    pub dropped: u64,
}

/// A document that is kept, or what of it is.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// The place of its first token in the cache.
    start: u64,
    /// How many tokens are inputs; the targets are those behind them.
    inputs: u64,
}

/// Documents packed into sequences: the plan alone, shared by what is trained on and what is held out. In memory are at most 24 bytes a
/// piece: a document, or a part of one with [`Longer::Split`].
#[derive(Debug)]
pub struct Packing {
    cache: Arc<Cache>,
    tokens: u64,
    longer: Longer,
    /// What is kept of the documents, sequence after sequence.
    kept: Vec<Piece>,
    /// Where in `kept` each sequence begins.
    begins: Vec<usize>,
    /// How many of `kept` were packed by best fit.
    fitted: Option<usize>,
    stats: PackingStats,
}

impl Packing {
    /// Packs the documents of `cache` into sequences of `tokens` inputs.
    ///
    /// # Errors
    /// Documents that are too long, where that is refused, or too few for a batch.
    pub fn new(cache: Arc<Cache>, tokens: usize, longer: Longer) -> Result<Packing, DataError> {
        Packing::since(cache, 0, tokens, longer)
    }

    /// Packs the documents of `cache` from token `first` on, which begins a sequence: so what [`Packing::first_of_last`] says is held out is
    /// packed alone as it is behind the rest.
    ///
    /// # Errors
    /// Those of [`Packing::new`].
    pub fn since(
        cache: Arc<Cache>,
        first: u64,
        tokens: usize,
        longer: Longer,
    ) -> Result<Packing, DataError> {
        if tokens == 0 {
            return Err(DataError::TooFew { what: "data.tokens", found: 0, wanted: 1 });
        }
        let (kept, begins, stats) = (Vec::new(), Vec::new(), PackingStats::default());
        let tokens = tokens as u64;
        let mut packing = Packing { cache, tokens, longer, kept, begins, fitted: None, stats };
        let mut free = 0;
        // Of a document that is split, some pieces may lie before.
        let begun = packing.cache.documents().partition_point(|start| *start <= first);
        for document in begun.saturating_sub(1)..packing.cache.documents().len() {
            packing.add(document, first, &mut free)?;
        }
        packing.stats.sequences = packing.begins.len() as u64;
        Ok(packing)
    }

    /// Packs again what is in all but the last `held_out` sequences, the longest documents first, each where the least room is left for it.
    /// The last sequences stay as they are, so that the same is held out however the rest is packed. The sequences depend on the documents'
    /// lengths alone; within one, documents are in their order.
    ///
    /// [`Packing::first_of_last`] and [`Packing::sequences_from`] are to be asked before: they are about sequences in the documents' order.
    #[must_use]
    pub fn best_fit(mut self, held_out: u64) -> Packing {
        let last = self.begins.len().saturating_sub(held_out as usize);
        let fitted = self.begins.get(last).copied().unwrap_or(self.kept.len());
        let sizes: Vec<u64> = self.kept[..fitted].iter().map(|piece| piece.inputs).collect();
        let Bins { items, begins } = best_fit(&sizes, self.tokens);
        let packed: Vec<Piece> = items.into_iter().map(|item| self.kept[item]).collect();
        self.kept[..fitted].copy_from_slice(&packed);
        self.begins.splice(..last, begins);
        self.stats.sequences = self.begins.len() as u64;
        self.fitted = Some(fitted);
        self
    }

    /// Counts of packing: sequences made, documents cut and left out.
    pub fn stats(&self) -> PackingStats {
        self.stats
    }

    /// The place in the cache of the first token of the last `sequences`; behind all tokens where there are none.
    pub fn first_of_last(&self, sequences: u64) -> u64 {
        let first = self.begins.len().saturating_sub(sequences as usize);
        let piece = self.begins.get(first).and_then(|&begin| self.kept.get(begin));
        piece.map_or(u64::MAX, |piece| piece.start)
    }

    /// How many sequences, the last ones, have a target behind `place` in the cache.
    pub fn sequences_from(&self, place: u64) -> u64 {
        let first = self.kept.partition_point(|piece| piece.start + piece.inputs <= place);
        if first == self.kept.len() {
            return 0;
        }
        let before = self.begins.partition_point(|&begin| begin <= first) - 1;
        (self.begins.len() - before) as u64
    }

    /// Adds a document from token `first` on, whole or in pieces, to the last sequence, which has room for `free` inputs, and to new ones;
    /// what has nothing to learn is left out.
    fn add(&mut self, document: usize, first: u64, free: &mut u64) -> Result<(), DataError> {
        let (start, length) = self.place(document);
        let wanted = self.tokens + 1;
        let is_longer = length > wanted;
        let inputs = match self.longer {
            Longer::Refuse if is_longer => {
                let (document, found, key) = (document + 1, length, "data.tokens");
                return Err(DataError::TooLong { document, place: None, found, wanted, key });
            }
            Longer::Drop if is_longer => 0,
            Longer::Split => length.saturating_sub(1),
            _ => length.min(wanted).saturating_sub(1),
        };
        let (mut at, end, before) = (start.max(first), start + inputs, self.kept.len());
        while at < end {
            let inputs = self.tokens.min(end - at);
            if (at + 1..=at + inputs).any(|place| self.cache.learns(place)) {
                self.push(Piece { start: at, inputs }, free);
            }
            at += inputs;
        }
        let is_kept = self.kept.len() > before;
        let PackingStats { documents, cut, split, dropped, .. } = &mut self.stats;
        *if is_kept { documents } else { dropped } += 1;
        if is_kept && is_longer {
            *if self.longer == Longer::Split { split } else { cut } += 1;
        }
        Ok(())
    }

    fn push(&mut self, piece: Piece, free: &mut u64) {
        if piece.inputs > *free {
            self.begins.push(self.kept.len());
            *free = self.tokens;
        }
        *free -= piece.inputs;
        self.kept.push(piece);
        self.stats.tokens += piece.inputs;
    }

    /// Where a document begins, and how many tokens it has.
    fn place(&self, document: usize) -> (u64, u64) {
        let starts = &self.cache.documents()[document..];
        let end = starts.get(1).copied().unwrap_or(self.cache.tokens());
        (starts[0], end - starts[0])
    }

    /// What is in the `index`-th sequence.
    fn pieces(&self, index: u64) -> &[Piece] {
        let end = self.begins.get(index as usize + 1).copied().unwrap_or(self.kept.len());
        &self.kept[self.begins[index as usize]..end]
    }

    /// Appends the `index`-th sequence at `positions` to `into`.
    fn sequence(
        &self,
        index: u64,
        positions: &Positions,
        into: &mut Tokens,
    ) -> Result<(), DataError> {
        let kept = self.pieces(index);
        // They rise.
        let end = kept.last().map_or(0, |last| last.start + last.inputs + 1);
        let mut reader = Reader::new(&self.cache, self.tokens, end);
        let mut positions = positions.iter().peekable();
        let (mut documents, mut first) = (Vec::with_capacity(kept.len() + 1), 0);
        for &Piece { start, inputs } in kept {
            let inputs = inputs as usize;
            while let Some(position) = positions.next_if(|position| *position < first + inputs) {
                let place = start + (position - first) as u64;
                let [id, next] = reader.pair(place)?;
                let learned = self.cache.learns(place + 1);
                into.inputs.push(id);
                into.targets.push(if learned { i64::from(next) } else { IGNORED });
            }
            documents.push(inputs);
            first += inputs;
        }
        let padding = self.tokens as usize - first;
        documents.extend((padding > 0).then_some(padding));
        let padding = positions.count();
        into.inputs.resize(into.inputs.len() + padding, 0);
        into.targets.resize(into.targets.len() + padding, IGNORED);
        into.documents.push(documents);
        Ok(())
    }
}

/// Packed sequences: those that are trained on, or the last ones, which are not.
#[derive(Debug)]
pub struct Packed {
    packing: Arc<Packing>,
    /// The first sequence of the part.
    start: u64,
    order: Order,
}

impl Packed {
    /// The part `window` of `packing`, of which the last `held_out` sequences are held out. Training
    /// goes on for ever, in an order shuffled anew each epoch; what is held out comes in order.
    ///
    /// # Errors
    /// Documents that are too long, where that is refused, or too few for a batch.
    pub fn new(
        packing: Arc<Packing>,
        window: Window,
        held_out: u64,
        batch: usize,
        seed: u64,
    ) -> Result<Packed, DataError> {
        if batch == 0 {
            return Err(DataError::TooFew { what: "data.batch", found: 0, wanted: 1 });
        }
        let all = packing.stats.sequences;
        let (start, count, wanted) = match window {
            Window::Train => (0, all.saturating_sub(held_out), held_out + 1),
            Window::HeldOut => (all.saturating_sub(held_out), held_out.min(all), held_out),
        };
        if all < wanted {
            let dropped = packing.stats.dropped;
            return Err(DataError::FewSequences { found: all, wanted, dropped });
        }
        let (purpose, batch) = ("annulus packed sequences of an epoch", batch as u64);
        Ok(Packed { packing, start, order: Order { window, purpose, count, batch, seed } })
    }
}

/// What a document that is too long is called.
pub(crate) fn too_long(document: usize, place: Option<&Place>) -> String {
    match place {
        None => format!("document {document}"),
        Some(Place { file, line: None }) => format!("`{}`: the document", file.display()),
        Some(Place { file, line: Some(line) }) => {
            format!("`{}`, line {line}: the document", file.display())
        }
    }
}

/// What is said of documents that fill no sequence.
pub(crate) fn left_out(dropped: u64) -> String {
    match dropped {
        0 => String::new(),
        1 => "; 1 document is left out: too long, or nothing to learn in what fits".to_owned(),
        _ => format!(
            "; {dropped} documents are left out: too long, or nothing to learn in what fits"
        ),
    }
}

impl Source for Packed {
    fn rows(&self) -> usize {
        self.order.batch as usize
    }

    fn tokens(&self) -> usize {
        self.packing.tokens as usize
    }

    fn read(
        &self,
        step: u64,
        rows: Range<usize>,
        positions: &Positions,
        into: &mut Tokens,
    ) -> Result<(), DataError> {
        for (index, _) in self.order.items(step, rows)? {
            self.packing.sequence(self.start + index, positions, into)?;
        }
        Ok(())
    }

    fn origin(&self, step: u64, row: usize) -> Result<Option<Origin>, DataError> {
        let Some((index, _)) = self.order.items(step, row..row + 1)?.next() else {
            return Ok(None);
        };
        let starts = self.packing.cache.documents();
        let pieces = self.packing.pieces(self.start + index).iter();
        let of = |piece: &Piece| extracts(starts, piece.start..piece.start + piece.inputs);
        Ok(Some(Origin { source: 0, extracts: pieces.flat_map(of).collect() }))
    }

    fn batches(&self) -> Option<u64> {
        self.order.batches()
    }

    fn epoch(&self) -> Option<u64> {
        self.order.epoch()
    }

    fn fingerprint(&self) -> String {
        let Packing { cache, tokens, longer, fitted, .. } = &*self.packing;
        let Order { window, count, batch, seed, .. } = self.order;
        let fitted = fitted.map_or_else(String::new, |most| format!(" with best fit of {most}"));
        let what = format!("packed {window:?} {longer:?}{fitted} of {}", cache.fingerprint());
        Order::fingerprint(&what, [self.start, count, *tokens, batch, seed])
    }

    fn vocabulary(&self) -> usize {
        self.packing.cache.vocabulary()
    }
}
