//! What a trace comes to: by rank, layer and pass, how long it computed, how long it waited and for
//! whom.
//!
//! A block is *under way* to a rank from that rank's post to the end of its wait, and *exposed* while
//! the rank waits. So overlap = 1 - exposed / under way, where times in which several blocks are under
//! way count once: 1 where all that travels is hidden, 0 where nothing is computed meanwhile. A wait
//! is for a *late* rank until that has sent the block, and for the link from then on.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{Doing, Flow, Link, Moved, Pass, Place, Span, Trace, links};

/// What one rank did in the attention of one layer, in all micro-batches. Nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Tiles, results and sums.
    pub computing: u64,
    /// Waiting for blocks.
    pub waiting: u64,
    /// Of that, for ranks that had not sent them yet.
    pub late: u64,
    /// Blocks were under way.
    pub flight: u64,
    /// Sent.
    pub bytes: u64,
}

/// A block that a rank waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposed {
    /// Where it was posted.
    pub place: Place,
    /// What and from whom.
    pub moved: Moved,
    /// Nanoseconds.
    pub waiting: u64,
    /// Of that, until its sender had sent it.
    pub late: u64,
}

/// What a trace comes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// By layer, pass and rank.
    pub shares: BTreeMap<(usize, Pass, usize), Share>,
    /// Every wait, the longest first.
    pub exposed: Vec<Exposed>,
    /// By rank, from its first span to its last. Nanoseconds.
    pub lengths: Vec<u64>,
    /// By link; nothing of threads of one process.
    pub flows: Vec<Flow>,
}

impl Sums {
    /// Of a trace.
    pub fn of(trace: &Trace) -> Sums {
        let mut sums = Sums::default();
        let mut flights: BTreeMap<(usize, Pass, usize), Vec<[u64; 2]>> = BTreeMap::new();
        for (rank, spans) in trace.ranks.iter().enumerate() {
            for span in spans {
                let Some(place) = span.doing.place() else { continue };
                let key = (place.layer, place.pass, rank);
                sums.shares.entry(key).or_default().add(span);
                if let Doing::Wait { flight, .. } = span.doing {
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

    /// The shares that `of` says yes to, added up.
    pub fn total(&self, of: impl Fn(usize, Pass, usize) -> bool) -> Share {
        let mut total = Share::default();
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

    /// For programs: seconds.
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

impl Share {
    /// The share of the time under way that was hidden; `None` where nothing was.
    pub fn overlap(&self) -> Option<f64> {
        (self.flight > 0).then(|| 1.0 - self.waiting as f64 / self.flight as f64)
    }

    fn add(&mut self, span: &Span) {
        self.bytes = self.bytes.saturating_add(span.doing.bytes());
        match span.doing {
            Doing::Compute { .. } | Doing::Finish { .. } | Doing::Fold { .. } => {
                self.computing = self.computing.saturating_add(span.length());
            }
            Doing::Wait { .. } => self.waiting = self.waiting.saturating_add(span.length()),
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

/// How much is covered by intervals that may meet.
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
