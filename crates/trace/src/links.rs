//! Matches sends with arrivals: the way of each block from rank to rank.

use std::collections::BTreeMap;

use crate::{Activity, Moved, Place, Span, Trace, TracedBlock};

/// The send and the arrival of one block.
#[derive(Clone, Copy, Debug)]
pub struct Link<'a> {
    /// The block, its sender and its receiver.
    pub moved: &'a Moved,
    /// The hop that posted the block.
    pub place: Place,
    /// The [`Activity::Send`] on the sending rank.
    pub sent: &'a Span,
    /// The [`Activity::Wait`] on the receiving rank.
    pub came: &'a Span,
}

/// What identifies a block's way. Every micro-batch repeats it: the first send then matches the first arrival.
type Key<'a> = (usize, usize, Place, &'a TracedBlock);

/// All blocks whose send and arrival were both recorded, by sender, in the order of their sends.
pub fn links(trace: &Trace) -> Vec<Link<'_>> {
    let mut came: BTreeMap<Key<'_>, Vec<&Span>> = BTreeMap::new();
    for span in trace.ranks.iter().flatten() {
        if let Activity::Wait { place, moved, .. } = &span.activity {
            came.entry(key(*place, moved)).or_default().push(span);
        }
    }
    for spans in came.values_mut() {
        // Spans are taken from the end, the earliest first.
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
    match &span.activity {
        Activity::Send { place, moved } => Some((span, *place, moved)),
        _ => None,
    }
}

fn key(place: Place, moved: &Moved) -> Key<'_> {
    (moved.from, moved.to, place, &moved.block)
}
