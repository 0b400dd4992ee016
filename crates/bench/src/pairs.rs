//! Two things in turn, A B B A, so that drift and other programs' load meet both alike.
//!
//! A pair is two neighbouring samples. A pair during which other programs kept more than a limit of
//! cores busy is thrown away, unless too few are left: then all are used, and that is said.

use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};

use crate::machine;
use crate::statistics::Quartiles;
use crate::subject::{Fields, Sample};

/// So many times as many pairs as wanted are tried before disturbed ones are taken.
const PATIENCE: usize = 2;
/// Fewer quiet pairs than this say nothing, if more were wanted.
const FEW: usize = 5;
/// Seconds below which the system's counters are too coarse to tell whose time it was.
const COARSE: f64 = 0.2;

/// The two sides: ours, and whom it is compared with.
pub(crate) trait Sides {
    /// One sample of ours.
    fn ours(&mut self) -> Result<Sample>;
    /// One of theirs.
    fn theirs(&mut self) -> Result<Sample>;
    /// Seconds of processor time that both have taken so far.
    fn processor_seconds(&self) -> f64;
}

/// What pairs came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pairs {
    /// Samples by pair; of those that count.
    pub(crate) kept: Vec<(Sample, Sample)>,
    /// How many were thrown away.
    pub(crate) dropped: usize,
    /// Whether disturbed pairs are among those kept, for want of quiet ones.
    pub(crate) disturbed: bool,
    /// All samples in the order they were taken, of ours and of theirs.
    pub(crate) history: [Vec<Sample>; 2],
}

/// How many cores others may keep busy beside `threads` of our own: a tenth where all are ours, and
/// about half of those that are not.
pub(crate) fn limit(threads: usize, cores: usize) -> f64 {
    0.15 + 0.45 * cores.saturating_sub(threads) as f64
}

/// `wanted` pairs, of which others disturbed none by more than `limit` cores if that can be had.
pub(crate) fn take(sides: &mut dyn Sides, wanted: usize, limit: f64) -> Result<Pairs> {
    let mut pairs = Pairs::default();
    let mut loud = Vec::new();
    while pairs.kept.len() < wanted && pairs.kept.len() + loud.len() < PATIENCE * wanted {
        let ours_first = (pairs.kept.len() + loud.len()).is_multiple_of(2);
        let (pair, foreign) = watched(sides, ours_first)?;
        pairs.history[0].push(pair.0.clone());
        pairs.history[1].push(pair.1.clone());
        let is_quiet = foreign.is_none_or(|foreign| foreign <= limit);
        if is_quiet { &mut pairs.kept } else { &mut loud }.push(pair);
    }
    if pairs.kept.len() < FEW.min(wanted) {
        pairs.disturbed = true;
        pairs.kept.append(&mut loud);
    }
    pairs.dropped = loud.len();
    Ok(pairs)
}

/// A pair, and how many cores others kept busy meanwhile, where that can be told.
fn watched(sides: &mut dyn Sides, ours_first: bool) -> Result<((Sample, Sample), Option<f64>)> {
    let start = Instant::now();
    let (busy, own) = (machine::busy_seconds(), sides.processor_seconds());
    let pair = if ours_first {
        let ours = sides.ours()?;
        (ours, sides.theirs()?)
    } else {
        let theirs = sides.theirs()?;
        (sides.ours()?, theirs)
    };
    let seconds = start.elapsed().as_secs_f64();
    let foreign = busy
        .zip(machine::busy_seconds())
        .map(|(before, after)| (after - before - (sides.processor_seconds() - own)) / seconds);
    Ok((pair, foreign.filter(|_| seconds >= COARSE)))
}

impl Pairs {
    /// How many times faster ours is: their time over ours, by pair.
    pub(crate) fn ratio(&self) -> Quartiles {
        let ratio = |(ours, theirs): &(Sample, Sample)| theirs.seconds / ours.seconds;
        Quartiles::of(&self.kept.iter().map(ratio).collect::<Vec<f64>>())
    }

    /// Seconds of ours and of theirs.
    pub(crate) fn seconds(&self) -> [Quartiles; 2] {
        let ours: Vec<f64> = self.kept.iter().map(|(ours, _)| ours.seconds).collect();
        let theirs: Vec<f64> = self.kept.iter().map(|(_, theirs)| theirs.seconds).collect();
        [Quartiles::of(&ours), Quartiles::of(&theirs)]
    }

    /// What a reader must know of how they came about.
    pub(crate) fn describe(&self) -> Fields {
        let note = match (self.disturbed, self.dropped) {
            (true, _) => "DISTURBED: other programs were busy; too few quiet pairs, all are used",
            (false, 0) => "no pair was disturbed by other programs",
            (false, _) => "pairs during which other programs were busy are left out",
        };
        let mut fields = Fields::new();
        fields.insert("dropped".into(), json!(self.dropped));
        fields.insert("note".into(), Value::from(note));
        fields
    }

    /// The last line: the ratio's median and quartiles.
    pub(crate) fn line(&self) -> Fields {
        let Quartiles { low, median, high } = self.ratio();
        let mut fields = Fields::new();
        for (key, value) in [("ratio", median), ("low", low), ("high", high)] {
            fields.insert(key.into(), json!(value));
        }
        fields.insert("pairs".into(), json!(self.kept.len()));
        fields
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ours takes 1, 2, 3 … seconds, theirs twice that; some samples are loud: processor time that
    /// is not theirs runs backwards.
    struct Script {
        order: String,
        count: [u32; 2],
    }

    impl Sides for Script {
        fn ours(&mut self) -> Result<Sample> {
            self.order.push('A');
            self.count[0] += 1;
            Ok(Sample { seconds: f64::from(self.count[0]), ..Sample::default() })
        }
        fn theirs(&mut self) -> Result<Sample> {
            self.order.push('B');
            self.count[1] += 1;
            Ok(Sample { seconds: 2.0 * f64::from(self.count[1]), ..Sample::default() })
        }
        fn processor_seconds(&self) -> f64 {
            0.0
        }
    }

    #[test]
    fn sides_alternate_and_the_ratio_is_theirs_over_ours() -> Result<()> {
        let mut sides = Script { order: String::new(), count: [0; 2] };
        // Too short to be disturbed.
        let pairs = take(&mut sides, 4, 0.1)?;
        assert_eq!(sides.order, "ABBAABBA");
        let line = Value::Object(pairs.line());
        assert_eq!(line, json!({ "ratio": 2.0, "low": 2.0, "high": 2.0, "pairs": 4 }));
        assert_eq!(pairs.history.map(|samples| samples.len()), [4, 4]);
        Ok(())
    }

    /// Every sample takes so long that the system's counters are believed, with others in it.
    struct Long;

    impl Sides for Long {
        fn ours(&mut self) -> Result<Sample> {
            std::thread::sleep(std::time::Duration::from_millis(110));
            Ok(Sample { seconds: 1.0, ..Sample::default() })
        }
        fn theirs(&mut self) -> Result<Sample> {
            self.ours()
        }
        fn processor_seconds(&self) -> f64 {
            0.0
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn disturbed_pairs_are_used_only_for_want_of_quiet_ones_and_that_is_said() -> Result<()> {
        let pairs = take(&mut Long, 1, -1.0)?;
        assert_eq!((pairs.kept.len(), pairs.dropped, pairs.disturbed), (PATIENCE, 0, true));
        assert!(pairs.describe()["note"].to_string().contains("DISTURBED"));
        let pairs = take(&mut Long, 1, f64::INFINITY)?;
        assert_eq!((pairs.kept.len(), pairs.dropped, pairs.disturbed), (1, 0, false));
        Ok(())
    }

    #[test]
    fn more_is_tolerated_where_cores_are_left() {
        assert_eq!(limit(4, 4), 0.15);
        assert!(limit(1, 4) > 1.0 && limit(8, 4) == 0.15);
    }
}
