//! What a mask shows in one batch row, as pieces.

use std::collections::BTreeSet;
use std::ops::Range;

use super::piece::both;
use super::{Class, Documents, FAR, Mask, Piece, Region, Rule, Shards, of};
use crate::band::Band;
use crate::positions::common_divisor;

/// The rules of a mask in one batch row, combined by kind. Lists are the mask's own: there may be many documents.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sight<'a> {
    /// The documents of each rule.
    documents: Vec<&'a Documents>,
    /// The first key that is padding.
    end: Option<usize>,
    /// The number of first keys of a document that are exempt from `Causal`.
    prefix: Option<usize>,
    window: Option<Band>,
    dilations: Vec<usize>,
    strides: Vec<usize>,
    fixed: Vec<Fixed>,
    /// The regions of each rule.
    regions: Vec<&'a [Region]>,
    sinks: usize,
    /// Global positions, sorted, disjoint and not empty.
    global: Vec<Range<usize>>,
}

/// The numbers of [`Rule::Fixed`].
#[derive(Clone, Copy, Debug)]
struct Fixed {
    block: usize,
    columns: usize,
}

impl<'a> Sight<'a> {
    /// The rules of batch row `row`.
    pub(crate) fn new(mask: &'a Mask, row: usize) -> Sight<'a> {
        let mut sight = Sight::default();
        for rule in mask.rules() {
            sight.add(rule, row);
        }
        sight.global = merged(std::mem::take(&mut sight.global));
        sight
    }

    fn add(&mut self, rule: &'a Rule, row: usize) {
        let least = |a: Option<usize>, b: usize| Some(a.map_or(b, |a| a.min(b)));
        match rule {
            Rule::Causal => self.prefix = Some(0),
            Rule::Prefix(prefix) => self.prefix = least(self.prefix, *prefix),
            Rule::Documents(rows) => self.documents.push(of(rows, row)),
            Rule::KeyPadding(rows) => self.end = least(self.end, *of(rows, row)),
            Rule::Window(width) => self.narrow(*width),
            Rule::Dilated { window, dilation } => {
                self.narrow(window.saturating_mul(*dilation));
                self.dilations.push(*dilation);
            }
            Rule::Strided { stride } => self.strides.push(*stride),
            Rule::Fixed { block, columns } => {
                self.fixed.push(Fixed { block: *block, columns: *columns });
            }
            Rule::Regions(regions) => self.regions.push(regions),
            Rule::Sinks(sinks) => self.sinks = self.sinks.max(*sinks),
            Rule::Global(ranges) => self.global.extend_from_slice(ranges),
        }
    }

    /// The band of the window, everything where there is none.
    pub(super) fn window(&self) -> Band {
        self.window.unwrap_or_default()
    }

    /// Narrows the window to keys nearer than `width`.
    fn narrow(&mut self, width: usize) {
        let reach = i64::try_from(width).unwrap_or(i64::MAX) - 1;
        let band = Band { behind: Some(reach), ahead: Some(reach) };
        self.window = Some(self.window.map_or(band, |window| window.and(band)));
    }

    /// The positions that are in the same documents as `position`.
    fn document_around(&self, position: usize) -> Range<usize> {
        let around = self.documents.iter().map(|documents| documents.around(position));
        around.fold(0..usize::MAX, |all, one| both(&all, &one))
    }

    /// The visible pairs between two shards, as disjoint pieces, document by document as they are asked for: often the first ones tell.
    pub(crate) fn pieces(&self, shards: Shards<'_>) -> impl Iterator<Item = Piece> {
        let all = Piece {
            queries: shards.q.extent(),
            keys: both(&shards.k.extent(), &(0..self.end.unwrap_or(usize::MAX))),
            band: Band::default(),
            alike: 1,
            class: Class::ALL,
        };
        let documents = shards.meeting(all.clone(), |at| self.document_around(at));
        documents.flat_map(move |document| self.pieces_of(&document, shards, &all))
    }

    /// The pieces of one document: a causal one may begin with a prefix.
    fn pieces_of(&self, document: &Range<usize>, shards: Shards<'_>, all: &Piece) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let prefix = self.prefix.map_or(usize::MAX, |prefix| document.start.saturating_add(prefix));
        let (before, after) = (document.start..prefix.min(document.end), prefix..document.end);
        let causal = Band { behind: None, ahead: Some(0) };
        for (keys, band) in [(before, Band::default()), (after, causal)] {
            if let Some(part) = all.inside(document, &keys, band) {
                self.cells(document, shards, part, &mut pieces);
            }
        }
        pieces
    }

    /// Cuts a piece where the window and the patterns start or stop to apply.
    fn cells(
        &self,
        document: &Range<usize>,
        shards: Shards<'_>,
        piece: Piece,
        pieces: &mut Vec<Piece>,
    ) {
        let sparse = !(self.strides.is_empty() && self.fixed.is_empty() && self.regions.is_empty());
        if self.window.is_none() && !sparse {
            pieces.push(piece);
            return;
        }
        let mut open = self.global.clone();
        open.push(document.start..document.start.saturating_add(self.sinks));
        let open = merged(open);
        for (queries, asks_all) in segments(&piece.queries, &self.global) {
            if asks_all {
                pieces.extend(piece.inside(&queries, &piece.keys, Band::default()));
                continue;
            }
            for (keys, seen_by_all) in segments(&piece.keys, &open) {
                let Some(cell) = piece.inside(&queries, &keys, Band::default()) else { continue };
                if seen_by_all {
                    pieces.push(cell);
                } else {
                    self.near(shards, &cell, pieces);
                }
            }
        }
    }

    /// Adds what the window and the patterns show of a piece.
    fn near(&self, shards: Shards<'_>, piece: &Piece, pieces: &mut Vec<Piece>) {
        let band = self.window.unwrap_or_default();
        let alike = self.dilations.iter().fold(piece.alike, |a, b| common_multiple(a, *b));
        let near = piece.inside(&piece.queries, &piece.keys, band);
        let mut left = Vec::from_iter(near.map(|near| Piece { alike, ..near }));
        for stride in &self.strides {
            left = left.iter().flat_map(|piece| strided(piece, *stride)).collect();
        }
        for fixed in &self.fixed {
            left = left.iter().flat_map(|piece| fixed.parts(shards, piece)).collect();
        }
        for regions in &self.regions {
            left =
                left.iter().flat_map(|piece| regions.iter().filter_map(|r| r.of(piece))).collect();
        }
        pieces.extend(left);
    }
}

impl Region {
    /// The part of a piece that this region shows.
    fn of(&self, piece: &Piece) -> Option<Piece> {
        let ahead = self.causal.then_some(0);
        piece.inside(&self.queries, &self.keys, Band { behind: None, ahead })
    }
}

/// The keys at distances below `stride`, and those at least as far, before and after the query, with its residue.
fn strided(piece: &Piece, stride: usize) -> impl Iterator<Item = Piece> {
    let far = i64::try_from(stride).unwrap_or(i64::MAX);
    let near = Band { behind: Some(far - 1), ahead: Some(far - 1) };
    let before = Band { behind: None, ahead: Some(-far) };
    let after = Band { behind: Some(-far), ahead: None };
    let inside = |band| piece.inside(&piece.queries, &piece.keys, band);
    let alike = common_multiple(piece.alike, stride);
    let thinned = [before, after].map(inside).into_iter().flatten();
    inside(near).into_iter().chain(thinned.map(move |piece| Piece { alike, ..piece }))
}

impl Fixed {
    /// The columns that every query sees, by residue, and the rest of what a block sees of itself.
    fn parts(self, shards: Shards<'_>, piece: &Piece) -> Vec<Piece> {
        let Fixed { block, columns } = self;
        let of_columns = block - columns..block;
        let residues: Vec<usize> = if piece.keys.len() < block {
            let of_keys: BTreeSet<usize> = piece.keys.clone().map(|key| key % block).collect();
            of_keys.range(of_columns).copied().collect()
        } else {
            of_columns.collect()
        };
        let seen_by_all = residues.into_iter().filter_map(|residue| {
            let class = piece.class.and(Class { modulus: block, residue })?;
            Some(Piece { class, ..piece.clone() })
        });
        let around = |at: usize| at / block * block..at / block * block + block;
        let own = shards.meeting(piece.clone(), around).filter_map(|block| {
            let keys = block.start..block.end - columns;
            piece.inside(&block, &keys, Band::default())
        });
        seen_by_all.chain(own).collect()
    }
}

/// The parts of `whole` inside and outside of `marked`, in order; `marked` is sorted and disjoint.
fn segments(whole: &Range<usize>, marked: &[Range<usize>]) -> Vec<(Range<usize>, bool)> {
    let mut at = whole.start;
    let mut parts = Vec::new();
    for marked in marked.iter().map(|marked| both(whole, marked)).filter(|m| !m.is_empty()) {
        parts.push((at..marked.start, false));
        at = marked.end;
        parts.push((marked, true));
    }
    parts.push((at..whole.end, false));
    parts.retain(|(part, _)| !part.is_empty());
    parts
}

/// The positions of `ranges` as sorted ranges with gaps between them.
pub(super) fn merged(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<usize>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// The least common multiple, or a distance beyond that of any two positions.
pub(super) fn common_multiple(a: usize, b: usize) -> usize {
    (a / common_divisor(a, b)).saturating_mul(b).min(FAR)
}
