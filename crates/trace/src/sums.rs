//! Sums over a trace: by rank, layer and pass, how long it computed, how long it waited and for whom.
//!
//! A block is *under way* to a rank from that rank's post to the end of its wait, and *exposed* while
//! the rank waits. So overlap = 1 - exposed / under way, where times in which several blocks are under
//! way count once: 1 where all that travels is hidden, 0 where nothing is computed meanwhile. A wait
//! is for a *late* rank until that has sent the block, and for the link from then on.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{Activity, Flow, Link, Moved, Pass, Place, Span, Trace, links};

/// What one rank did in one layer's attention, over all micro-batches, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttentionTimes {
    /// Time spent on tiles, results and sums.
    pub computing: u64,
    /// Time spent waiting for blocks.
    pub waiting: u64,
    /// Waiting time for ranks that had not sent yet.
    pub late: u64,
    /// Time in which blocks were under way.
    pub flight: u64,
    /// Bytes sent.
    pub bytes: u64,
}

/// A wait for a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposed {
    /// The place of the hop that posted the block.
    pub place: Place,
    /// The block, its sender and its receiver.
    pub moved: Moved,
    /// Nanoseconds of waiting.
    pub waiting: u64,
    /// Nanoseconds of that until the sender had sent it.
    pub late: u64,
}

/// The sums over a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Sums by layer, pass and rank.
    pub shares: BTreeMap<(usize, Pass, usize), AttentionTimes>,
    /// Every wait, the longest first.
    pub exposed: Vec<Exposed>,
    /// The time of each rank from its first span to its last, in nanoseconds.
    pub lengths: Vec<u64>,
    /// Traffic by link; empty for the threads of one process.
    pub flows: Vec<Flow>,
}

impl Sums {
    /// Sums up a trace.
    pub fn of(trace: &Trace) -> Sums {
        let mut sums = Sums::default();
        let mut flights: BTreeMap<(usize, Pass, usize), Vec<[u64; 2]>> = BTreeMap::new();
        for (rank, spans) in trace.ranks.iter().enumerate() {
            for span in spans {
                let Some(place) = span.activity.place() else { continue };
                let key = (place.layer, place.pass, rank);
                sums.shares.entry(key).or_default().add(span);
                if let Activity::Wait { flight, .. } = span.activity {
                    let under_way = [span.end.saturating_sub(flight), span.end];
                    flights.entry(key).or_default().push(under_way);
                }
            }
            let begin = spans.iter().map(|span| span.begin).min().unwrap_or_default();
            let end = spans.iter().map(|span| span.end).max().unwrap_or_default();
            sums.lengths.push(end - begin);
        }
        for (key, flights) in flights {
            sums.shares.entry(key).or_default().flight = covered(flights);
        }
        for link in links(trace) {
            let exposed = Exposed::of(&link);
            let key = (exposed.place.layer, exposed.place.pass, exposed.moved.to);
            let late = &mut sums.shares.entry(key).or_default().late;
            *late = late.saturating_add(exposed.late);
            sums.exposed.push(exposed);
        }
        sums.exposed.sort_by_key(|exposed| std::cmp::Reverse(exposed.waiting));
        sums.flows = Flow::all(trace, &sums.exposed);
        sums
    }

    /// The total of the sums for which `of` holds.
    pub fn total(&self, of: impl Fn(usize, Pass, usize) -> bool) -> AttentionTimes {
        let mut total = AttentionTimes::default();
        for (&(layer, pass, rank), share) in &self.shares {
            if of(layer, pass, rank) {
                total.computing = total.computing.saturating_add(share.computing);
                total.waiting = total.waiting.saturating_add(share.waiting);
                total.late = total.late.saturating_add(share.late);
                total.flight = total.flight.saturating_add(share.flight);
                total.bytes = total.bytes.saturating_add(share.bytes);
            }
        }
        total
    }

    /// The sums as JSON, for programs: times in seconds.
    pub fn to_json(&self) -> Value {
        let shares = self.shares.iter().map(|((layer, pass, rank), share)| {
            let mut shown = share.to_json();
            shown["layer"] = json!(layer);
            shown["pass"] = json!(pass);
            shown["rank"] = json!(rank);
            shown
        });
        let exposed = self.exposed.iter().filter(|exposed| exposed.waiting > 0).map(|exposed| {
            json!({
                "place": exposed.place, "moved": exposed.moved,
                "waiting": seconds(exposed.waiting), "late": seconds(exposed.late),
            })
        });
        json!({
            "seconds": self.lengths.iter().copied().map(seconds).collect::<Vec<_>>(),
            "shares": shares.collect::<Vec<_>>(),
            "exposed": exposed.collect::<Vec<_>>(),
            "links": self.flows.iter().copied().map(Flow::to_json).collect::<Vec<_>>(),
        })
    }
}

impl AttentionTimes {
    /// The fraction of the time under way that was hidden; `None` where nothing was under way.
    pub fn overlap(&self) -> Option<f64> {
        (self.flight > 0).then(|| 1.0 - self.waiting as f64 / self.flight as f64)
    }

    fn add(&mut self, span: &Span) {
        self.bytes = self.bytes.saturating_add(span.activity.bytes());
        match span.activity {
            Activity::Compute { .. } | Activity::Finish { .. } | Activity::Fold { .. } => {
                self.computing = self.computing.saturating_add(span.length());
            }
            Activity::Wait { .. } => self.waiting = self.waiting.saturating_add(span.length()),
            _ => {}
        }
    }

    fn to_json(self) -> Value {
        json!({
            "computing": seconds(self.computing), "waiting": seconds(self.waiting),
            "late": seconds(self.late), "under_way": seconds(self.flight),
            "overlap": self.overlap(), "bytes": self.bytes,
        })
    }
}

impl Exposed {
    fn of(link: &Link<'_>) -> Exposed {
        let Link { moved, place, sent, came } = *link;
        let late = sent.end.clamp(came.begin, came.end) - came.begin;
        Exposed { place, moved: moved.clone(), waiting: came.length(), late }
    }
}

/// The length of the union of intervals.
fn covered(mut intervals: Vec<[u64; 2]>) -> u64 {
    intervals.sort_unstable();
    let (mut total, mut reached) = (0, 0);
    for [begin, end] in intervals {
        total = u64::saturating_add(total, end.saturating_sub(begin.max(reached)));
        reached = reached.max(end);
    }
    total
}

pub(crate) fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}
