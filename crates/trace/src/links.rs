//! Which send is which arrival: a block's way from rank to rank.

use std::collections::BTreeMap;

use crate::{Doing, Moved, Piece, Place, Span, Trace};

/// The way of one block.
#[derive(Clone, Copy, Debug)]
pub struct Link<'a> {
    /// What moved.
    pub moved: &'a Moved,
    /// The hop that posted it.
    pub place: Place,
    /// [`Doing::Send`], on the rank that it came from.
    pub sent: &'a Span,
    /// [`Doing::Wait`], on the rank that it came to.
    pub came: &'a Span,
}

/// A layer meets the same hop once in every micro-batch: then the first send is the first arrival.
type Key<'a> = (usize, usize, Place, &'a Piece);

/// All blocks of which both ends were recorded, by sender and in the order in which they were sent.
pub fn links(trace: &Trace) -> Vec<Link<'_>> {
    let mut came: BTreeMap<Key<'_>, Vec<&Span>> = BTreeMap::new();
    for span in trace.ranks.iter().flatten() {
        if let Doing::Wait { place, moved, .. } = &span.doing {
            came.entry(key(*place, moved)).or_default().push(span);
        }
    }
    for spans in came.values_mut() {
        // The earliest is taken first, from the end.
        spans.sort_by_key(|span| std::cmp::Reverse(span.end));
    }
    let mut links = Vec::new();
    for spans in &trace.ranks {
        let mut sends: Vec<(&Span, Place, &Moved)> = spans.iter().filter_map(sending).collect();
        sends.sort_by_key(|(span, ..)| span.begin);
        for (sent, place, moved) in sends {
            let arrival = came.get_mut(&key(place, moved)).and_then(Vec::pop);
            links.extend(arrival.map(|came| Link { moved, place, sent, came }));
        }
    }
    links
}

fn sending(span: &Span) -> Option<(&Span, Place, &Moved)> {
    match &span.doing {
        Doing::Send { place, moved } => Some((span, *place, moved)),
        _ => None,
    }
}

fn key(place: Place, moved: &Moved) -> Key<'_> {
    (moved.from, moved.to, place, &moved.block)
}
