//! Whole documents packed into sequences: none is cut, but where that is asked for.
//!
//! Documents are taken in order, and as many as fit make a sequence (`next fit`), so that what a sequence
//! holds is known without a search; what is left is padding. No token is asked to foretell the next
//! document's first, and none the padding. Which sequences a step reads is a function of (seed, step).

use std::ops::Range;
use std::sync::Arc;

use annulus_sequence::Positions;

use crate::order::Order;
use crate::reader::Reader;
use crate::windows::Window;
use crate::{Cache, DataError, IGNORED, Source, Tokens};

/// What becomes of a document that is longer than a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Longer {
    /// It is an error.
    Refuse,
    /// What is beyond is left out.
    Cut,
    /// All of it is left out.
    Drop,
}

/// How documents fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fit {
    /// Sequences made.
    pub sequences: u64,
    /// Documents in them.
    pub documents: u64,
    /// Inputs in them that are no padding.
    pub tokens: u64,
    /// Documents whose end was left out.
    pub cut: u64,
    /// Documents left out: too long, or without a token to learn.
    pub dropped: u64,
}

/// Documents packed into sequences: the plan alone, shared by what is trained on and what is held out.
#[derive(Debug)]
pub struct Packing {
    cache: Arc<Cache>,
    tokens: u64,
    longer: Longer,
    /// The documents that are kept.
    kept: Vec<u64>,
    /// Where in `kept` each sequence begins.
    begins: Vec<usize>,
    fit: Fit,
}

impl Packing {
    /// Packs the documents of `cache` into sequences of `tokens` inputs.
    ///
    /// # Errors
    /// Documents that are too long, where that is refused, or too few for a batch.
    pub fn new(cache: Arc<Cache>, tokens: usize, longer: Longer) -> Result<Packing, DataError> {
        if tokens == 0 {
            return Err(DataError::TooFew { what: "data.tokens", found: 0, wanted: 1 });
        }
        let (kept, begins, fit) = (Vec::new(), Vec::new(), Fit::default());
        let mut packing = Packing { cache, tokens: tokens as u64, longer, kept, begins, fit };
        let mut free = 0;
        for document in 0..packing.cache.documents().len() as u64 {
            let Some(inputs) = packing.admit(document)? else {
                packing.fit.dropped += 1;
                continue;
            };
            if inputs > free {
                packing.begins.push(packing.kept.len());
                free = packing.tokens;
            }
            free -= inputs;
            packing.kept.push(document);
            packing.fit.tokens += inputs;
        }
        packing.fit.documents = packing.kept.len() as u64;
        packing.fit.sequences = packing.begins.len() as u64;
        Ok(packing)
    }

    /// How documents fit.
    pub fn fit(&self) -> Fit {
        self.fit
    }

    /// The first document of the last `sequences`; behind all documents where there are none.
    pub fn first_of_last(&self, sequences: u64) -> u64 {
        let first = self.begins.len().saturating_sub(sequences as usize);
        let document = self.begins.get(first).and_then(|&begin| self.kept.get(begin));
        document.copied().unwrap_or(u64::MAX)
    }

    /// How many sequences, the last ones, hold `document` or one behind it.
    pub fn sequences_from(&self, document: u64) -> u64 {
        let first = self.kept.partition_point(|&kept| kept < document);
        if first == self.kept.len() {
            return 0;
        }
        let before = self.begins.partition_point(|&begin| begin <= first) - 1;
        (self.begins.len() - before) as u64
    }

    /// The inputs of a document that is kept.
    fn admit(&mut self, document: u64) -> Result<Option<u64>, DataError> {
        let (start, length) = self.place(document);
        let wanted = self.tokens + 1;
        if length > wanted {
            match self.longer {
                Longer::Refuse => {
                    let document = document as usize + 1;
                    return Err(DataError::TooLong { document, found: length, wanted });
                }
                Longer::Drop => return Ok(None),
                Longer::Cut => {}
            }
        }
        let inputs = length.min(wanted).saturating_sub(1);
        let taught = (start + 1..=start + inputs).any(|place| self.cache.learns(place));
        if taught && length > wanted {
            self.fit.cut += 1;
        }
        Ok(taught.then_some(inputs))
    }

    /// Where a document begins, and how many tokens it has.
    fn place(&self, document: u64) -> (u64, u64) {
        let starts = &self.cache.documents()[document as usize..];
        let end = starts.get(1).copied().unwrap_or(self.cache.tokens());
        (starts[0], end - starts[0])
    }

    /// Appends the `index`-th sequence at `positions` to `into`.
    fn sequence(
        &self,
        index: u64,
        positions: &Positions,
        into: &mut Tokens,
    ) -> Result<(), DataError> {
        let end = self.begins.get(index as usize + 1).copied().unwrap_or(self.kept.len());
        let kept = &self.kept[self.begins[index as usize]..end];
        let (last, length) = self.place(kept[kept.len() - 1]);
        let mut reader = Reader::new(&self.cache, self.tokens, last + length);
        let mut positions = positions.iter().peekable();
        let (mut documents, mut first) = (Vec::with_capacity(kept.len() + 1), 0);
        for &document in kept {
            let (start, length) = self.place(document);
            let inputs = length.min(self.tokens + 1) as usize - 1;
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
        let all = packing.fit.sequences;
        let (start, count, wanted) = match window {
            Window::Train => (0, all.saturating_sub(held_out), held_out + 1),
            Window::HeldOut => (all.saturating_sub(held_out), held_out.min(all), held_out),
        };
        if all < wanted {
            let dropped = packing.fit.dropped;
            return Err(DataError::FewSequences { found: all, wanted, dropped });
        }
        let (purpose, batch) = ("annulus packed sequences of an epoch", batch as u64);
        Ok(Packed { packing, start, order: Order { window, purpose, count, batch, seed } })
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

    fn batches(&self) -> Option<u64> {
        self.order.batches()
    }

    fn fingerprint(&self) -> String {
        let Packing { cache, tokens, longer, .. } = &*self.packing;
        let Order { window, count, batch, seed, .. } = self.order;
        let what = format!("packed {window:?} {longer:?} of {}", cache.fingerprint());
        Order::fingerprint(&what, [self.start, count, *tokens, batch, seed])
    }

    fn vocabulary(&self) -> usize {
        self.packing.cache.vocabulary()
    }
}
