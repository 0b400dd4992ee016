//! Samples two subjects alternately, A B B A, so that drift and other programs' load affect both equally.
//!
//! A pair is two neighbouring samples. A pair during which other programs kept more than a limit of cores busy is dropped, unless too few
//! are left: then all are used, and this is noted.

use std::time::Instant;

use anyhow::Result;
use serde_json::json;

use crate::machine;
use crate::statistics::Quartiles;
use crate::subject::{Fields, Sample, Side, fields};

/// The number of pairs that are tried for each wanted one before disturbed ones are used.
const PATIENCE: usize = 2;
/// The least number of quiet pairs that are meaningful, if more were wanted.
const FEW: usize = 5;
/// Seconds below which the system's counters are too coarse to tell whose time it was.
const COARSE: f64 = 0.2;

/// Pairs of samples, ours first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pairs {
    /// The pairs that count.
    pub(crate) kept: Vec<(Sample, Sample)>,
    /// The number of those thrown away.
    pub(crate) dropped: usize,
    /// Whether disturbed pairs are among those kept, for want of quiet ones.
    pub(crate) disturbed: bool,
    /// All samples in the order in which they were taken: ours and theirs.
    pub(crate) history: [Vec<Sample>; 2],
}

/// Cores that others may keep busy beside `threads` of our own: a tenth where all are ours, and
/// about half of those that are not.
pub(crate) fn limit(threads: usize, cores: usize) -> f64 {
    0.15 + 0.45 * cores.saturating_sub(threads) as f64
}

/// Takes `wanted` pairs, without ones that others disturbed by more than `limit` cores if possible.
pub(crate) fn take(
    ours: &mut dyn Side,
    theirs: &mut dyn Side,
    wanted: usize,
    limit: f64,
) -> Result<Pairs> {
    let mut pairs = Pairs::default();
    let mut loud = Vec::new();
    while pairs.kept.len() < wanted && pairs.kept.len() + loud.len() < PATIENCE * wanted {
        let ours_first = (pairs.kept.len() + loud.len()).is_multiple_of(2);
        let (pair, foreign) = watched(ours, theirs, ours_first)?;
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

/// A pair, and the number of cores that others kept busy meanwhile, where that is known.
fn watched(
    ours: &mut dyn Side,
    theirs: &mut dyn Side,
    ours_first: bool,
) -> Result<((Sample, Sample), Option<f64>)> {
    let own = |theirs: &dyn Side| {
        machine::processor_seconds(std::process::id()) + theirs.processor_seconds()
    };
    let start = Instant::now();
    let (busy, before) = (machine::busy_seconds(), own(theirs));
    let mut sample = || {
        let sample = ours.sample();
        ours.beside();
        sample
    };
    let pair = if ours_first {
        (sample()?, theirs.sample()?)
    } else {
        let theirs = theirs.sample()?;
        (sample()?, theirs)
    };
    let seconds = start.elapsed().as_secs_f64();
    let busy = busy.zip(machine::busy_seconds()).map(|(before, after)| after - before);
    let foreign = busy.map(|busy| (busy - (own(theirs) - before)) / seconds);
    Ok((pair, foreign.filter(|_| seconds >= COARSE)))
}

impl Pairs {
    /// The speed-up of ours: their time over ours, by pair.
    pub(crate) fn ratio(&self) -> Quartiles {
        let ratio = |(ours, theirs): &(Sample, Sample)| theirs.seconds / ours.seconds;
        Quartiles::of(&self.kept.iter().map(ratio).collect::<Vec<f64>>())
    }

    /// Seconds of our samples and of theirs.
    pub(crate) fn seconds(&self) -> [Quartiles; 2] {
        let (ours, theirs): (Vec<_>, Vec<_>) = self.kept.iter().cloned().unzip();
        [ours, theirs].map(|samples| Quartiles::of_seconds(&samples))
    }

    /// The number of disturbed pairs, and a note on them.
    pub(crate) fn describe(&self) -> Fields {
        let note = match (self.disturbed, self.dropped) {
            (true, _) => "DISTURBED: other programs were busy; too few quiet pairs, all are used",
            (false, 0) => "no pair was disturbed by other programs",
            (false, _) => "pairs during which other programs were busy are left out",
        };
        fields(json!({ "dropped": self.dropped, "note": note }))
    }

    /// The last line: the ratio's median and quartiles.
    pub(crate) fn line(&self) -> Fields {
        let Quartiles { low, median, high } = self.ratio();
        let pairs = self.kept.len();
        fields(json!({ "ratio": median, "low": low, "high": high, "pairs": pairs }))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::Duration;

    use serde_json::Value;

    use super::*;

    /// A side whose runs take 1, 2, 3 … times `seconds`, after a pause that the system's counters notice or not.
    struct Script<'a> {
        seconds: f64,
        runs: f64,
        pause: Duration,
        name: char,
        order: &'a RefCell<String>,
    }

    impl Side for Script<'_> {
        fn sample(&mut self) -> Result<Sample> {
            std::thread::sleep(self.pause);
            self.order.borrow_mut().push(self.name);
            self.runs += 1.0;
            Ok(Sample { seconds: self.runs * self.seconds, ..Sample::default() })
        }
    }

    fn script(pause: u64, wanted: usize, limit: f64) -> Result<(Pairs, String)> {
        let order = RefCell::default();
        let pause = Duration::from_millis(pause);
        let side = |name, seconds| Script { seconds, runs: 0.0, pause, name, order: &order };
        let pairs = take(&mut side('A', 1.0), &mut side('B', 2.0), wanted, limit)?;
        Ok((pairs, order.take()))
    }

    #[test]
    fn sides_alternate_and_the_ratio_is_theirs_over_ours() -> Result<()> {
        let (pairs, order) = script(0, 4, f64::INFINITY)?;
        assert_eq!(order, "ABBAABBA");
        let line = Value::Object(pairs.line());
        assert_eq!(line, json!({ "ratio": 2.0, "low": 2.0, "high": 2.0, "pairs": 4 }));
        assert_eq!(pairs.history.map(|samples| samples.len()), [4, 4]);
        Ok(())
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn disturbed_pairs_are_used_only_for_want_of_quiet_ones_and_that_is_said() -> Result<()> {
        let (pairs, _) = script(110, 1, f64::NEG_INFINITY)?;
        assert_eq!((pairs.kept.len(), pairs.dropped, pairs.disturbed), (PATIENCE, 0, true));
        assert!(pairs.describe()["note"].to_string().contains("DISTURBED"));
        let (pairs, _) = script(110, 1, f64::INFINITY)?;
        assert_eq!((pairs.kept.len(), pairs.dropped, pairs.disturbed), (1, 0, false));
        Ok(())
    }

    #[test]
    fn more_is_tolerated_where_cores_are_left() {
        assert_eq!(limit(4, 4), 0.15);
        assert!(limit(1, 4) > 1.0 && limit(8, 4) == 0.15);
    }
}
