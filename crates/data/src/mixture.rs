//! Sequences of several sources in given shares.
//!
//! Which source a sequence is of is a pure function of (seed, number of the sequence): every thousand sequences
//! have their sources in exact shares, in an order drawn anew, and each source's sequences are read in its own order. Nothing is kept
//! along the way, so that a run that resumes, on any number of ranks, goes on with the same sequences.

use std::ops::Range;
use std::sync::Arc;

use annulus_sequence::Positions;
use parking_lot::Mutex;

use crate::random::Key;
use crate::{DataError, Origin, Source, Tokens};

/// Sequences of a round, in which every source has its exact share.
pub const ROUND: u64 = 1000;

/// One source of a mixture.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its sequences, one per batch.
    pub source: Arc<dyn Source>,
    /// Its share of all sequences, beside the others' weights: above 0.
    pub weight: f64,
}

/// Sequences of several sources, as often as their weights say.
#[derive(Debug)]
pub struct Mixture {
    sources: Vec<Arc<dyn Source>>,
    /// Sequences of each source in a round.
    counts: Vec<u64>,
    batch: u64,
    seed: u64,
    /// The round that was read last, by its number: for each of its sequences the source, and the number in the round among that source's.
    last: Mutex<Option<(u64, Arc<[(usize, u64)]>)>>,
}

impl Mixture {
    /// Batches of `batch` sequences of `parts`, whose sources have one sequence per batch.
    /// A source of less than a thousandth of all may come in no round.
    pub fn new(parts: Vec<Part>, batch: usize, seed: u64) -> Mixture {
        let weights: Vec<f64> = parts.iter().map(|part| part.weight).collect();
        let counts = apportion(ROUND, &weights);
        let sources = parts.into_iter().map(|part| part.source).collect();
        Mixture { sources, counts, batch: batch as u64, seed, last: Mutex::default() }
    }

    /// The source of the `index`-th sequence ever read, and its number among those of that source.
    fn place(&self, index: u128) -> (usize, u64) {
        let (round, within) =
            ((index / u128::from(ROUND)) as u64, (index % u128::from(ROUND)) as u64);
        let (part, earlier) = self.round(round)[within as usize];
        (part, round.wrapping_mul(self.counts[part]).wrapping_add(earlier))
    }

    /// The sequences of a round. Each source's come in its order: one whose epoch is shorter than its part of a round repeats none before it
    /// has read all.
    fn round(&self, round: u64) -> Arc<[(usize, u64)]> {
        let mut last = self.last.lock();
        if let Some((number, sequences)) = &*last
            && *number == round
        {
            return sequences.clone();
        }
        let key = Key::new("annulus sources of a round", &[self.seed, round]);
        let mut read = vec![0; self.counts.len()];
        let one = |within| {
            let part = self.source(key.permute(within, ROUND));
            read[part] += 1;
            (part, read[part] - 1)
        };
        let sequences: Arc<[_]> = (0..ROUND).map(one).collect();
        *last = Some((round, sequences.clone()));
        sequences
    }

    /// The source of slot `at` of a round, where slots are ordered by source.
    fn source(&self, mut at: u64) -> usize {
        let is_here = |count: &u64| {
            let here = at < *count;
            at = at.saturating_sub(*count);
            here
        };
        self.counts.iter().position(is_here).expect("the counts of a round add up to it")
    }
}

/// `whole` apportioned by `weights`: the largest remainders are rounded up, so that the parts add up to `whole`.
pub fn apportion(whole: u64, weights: &[f64]) -> Vec<u64> {
    let mut weights = weights.to_vec();
    if (whole as f64 * weights.iter().sum::<f64>()).is_infinite() {
        let largest = weights.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        for weight in &mut weights {
            *weight /= largest;
        }
    }
    let sum: f64 = weights.iter().sum();
    let exact: Vec<f64> = weights.iter().map(|weight| whole as f64 * weight / sum).collect();
    let mut counts: Vec<u64> = exact.iter().map(|share| share.floor() as u64).collect();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|&a, &b| exact[b].fract().total_cmp(&exact[a].fract()).then(a.cmp(&b)));
    let missing = whole.saturating_sub(counts.iter().sum());
    order.iter().cycle().take(missing as usize).for_each(|&part| counts[part] += 1);
    counts
}

impl Source for Mixture {
    fn rows(&self) -> usize {
        self.batch as usize
    }

    fn tokens(&self) -> usize {
        tokens(&self.sources)
    }

    fn read(
        &self,
        step: u64,
        rows: Range<usize>,
        positions: &Positions,
        into: &mut Tokens,
    ) -> Result<(), DataError> {
        let first = u128::from(step) * u128::from(self.batch);
        for row in rows {
            let (part, number) = self.place(first + row as u128);
            self.sources[part].read(number, 0..1, positions, into)?;
        }
        Ok(())
    }

    fn origin(&self, step: u64, row: usize) -> Result<Option<Origin>, DataError> {
        let (part, number) = self.place(u128::from(step) * u128::from(self.batch) + row as u128);
        let origin = self.sources[part].origin(number, 0)?;
        Ok(origin.map(|origin| Origin { source: part, ..origin }))
    }

    fn batches(&self) -> Option<u64> {
        None
    }

    fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"in each source's order");
        for number in [self.batch, self.seed] {
            hasher.update(&number.to_le_bytes());
        }
        for (source, count) in self.sources.iter().zip(&self.counts) {
            hasher.update(format!("{count} of {}", source.fingerprint()).as_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }

    fn vocabulary(&self) -> usize {
        self.sources.iter().map(|source| source.vocabulary()).max().unwrap_or_default()
    }
}

/// Of sources whose sequences are all as long.
fn tokens(sources: &[Arc<dyn Source>]) -> usize {
    sources.first().map_or(0, |source| source.tokens())
}

/// Sources one after the other, each to its end: what is held out of several.
#[derive(Debug)]
pub struct Chain(pub Vec<Arc<dyn Source>>);

impl Source for Chain {
    fn rows(&self) -> usize {
        self.0.first().map_or(0, |source| source.rows())
    }

    fn tokens(&self) -> usize {
        tokens(&self.0)
    }

    fn read(
        &self,
        step: u64,
        rows: Range<usize>,
        positions: &Positions,
        into: &mut Tokens,
    ) -> Result<(), DataError> {
        let mut before = 0;
        for source in &self.0 {
            let own = source.batches().unwrap_or(u64::MAX);
            if step - before < own {
                return source.read(step - before, rows, positions, into);
            }
            before += own;
        }
        Err(DataError::End { step, batches: before })
    }

    fn batches(&self) -> Option<u64> {
        self.0.iter().map(|source| source.batches()).sum()
    }

    fn fingerprint(&self) -> String {
        let prints: Vec<String> = self.0.iter().map(|source| source.fingerprint()).collect();
        blake3::hash(prints.join(" ").as_bytes()).to_hex().to_string()
    }

    fn vocabulary(&self) -> usize {
        self.0.iter().map(|source| source.vocabulary()).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sequence;

    /// Says of every sequence which it is.
    #[derive(Debug)]
    struct Numbered(i64);

    impl Source for Numbered {
        fn rows(&self) -> usize {
            1
        }
        fn tokens(&self) -> usize {
            1
        }
        fn read(
            &self,
            step: u64,
            _: Range<usize>,
            positions: &Positions,
            into: &mut Tokens,
        ) -> Result<(), DataError> {
            into.push(&Sequence::shifted(&[self.0 as u32, step as u32]), positions);
            Ok(())
        }
        fn batches(&self) -> Option<u64> {
            Some(3)
        }
        fn fingerprint(&self) -> String {
            self.0.to_string()
        }
        fn vocabulary(&self) -> usize {
            self.0 as usize + 1
        }
    }

    fn part(number: i64, weight: f64) -> Part {
        Part { source: Arc::new(Numbered(number)), weight }
    }

    fn read(mixture: &Mixture, steps: std::ops::Range<u64>) -> Vec<(u32, i64)> {
        let sequences = steps.flat_map(|step| mixture.batch(step).unwrap());
        sequences.map(|sequence| (sequence.inputs[0], sequence.targets[0])).collect()
    }

    #[test]
    fn ten_thousand_sequences_have_the_shares_of_their_weights_and_none_comes_twice() {
        let parts = vec![part(0, 5.0), part(1, 3.0), part(2, 2.0)];
        let all = read(&Mixture::new(parts, 4, 7), 0..2500);
        for (source, count) in [(0, 5000), (1, 3000), (2, 2000)] {
            let mut own: Vec<_> = all.iter().filter(|of| of.0 == source).map(|of| of.1).collect();
            assert_eq!(own.len(), count);
            own.sort_unstable();
            assert!(own.iter().copied().eq(0..count as i64), "each once, none left out");
        }
        // Short stretches are mixed, too.
        for stretch in all.chunks(100) {
            assert!(stretch.iter().filter(|of| of.0 == 2).count() > 5);
        }
    }

    /// An epoch of a source ends where each of its sequences has been read, however short it is beside a round.
    #[test]
    fn sequences_of_a_source_come_in_its_order() {
        let mixture = Mixture::new(vec![part(0, 1.0), part(1, 1.0), part(2, 1.5)], 2, 3);
        for source in 0..3 {
            let all = read(&mixture, 0..700);
            let own = all.iter().filter(|of| of.0 == source).map(|of| of.1);
            assert!(own.enumerate().all(|(index, number)| number == index as i64));
        }
    }

    #[test]
    fn the_order_is_a_function_of_seed_and_sequence() {
        let mixture =
            |batch, seed| Mixture::new(vec![part(0, 1.0), part(1, 1.0), part(2, 1.5)], batch, seed);
        let all = read(&mixture(6, 1), 0..500);
        assert_eq!(read(&mixture(6, 1), 123..500), all[123 * 6..], "as after a resume");
        assert_eq!(read(&mixture(1, 1), 0..3000), all);
        assert_ne!(read(&mixture(6, 2), 0..500), all);
        assert_ne!(mixture(6, 1).fingerprint(), mixture(6, 2).fingerprint());
    }

    #[test]
    fn shares_add_up() {
        assert_eq!(apportion(8, &[5.0, 3.0, 2.0]), [4, 2, 2]);
        assert_eq!(apportion(1000, &[1.0, 1.0, 1.0]), [334, 333, 333]);
        assert_eq!(apportion(1000, &[0.001, 0.999]), [1, 999]);
        assert_eq!(apportion(0, &[1.0, 2.0]), [0, 0]);
        assert_eq!(apportion(8, &[1e308, 1e308]), [4, 4]);
        assert_eq!(apportion(8, &[f64::MAX, 1.0, f64::MAX]), [4, 0, 4]);
    }

    #[test]
    fn a_chain_ends_where_its_last_source_ends() {
        let chain = Chain(vec![Arc::new(Numbered(0)), Arc::new(Numbered(1))]);
        assert_eq!(chain.batches(), Some(6));
        let last = chain.batch(5).unwrap();
        assert_eq!((last[0].inputs[0], last[0].targets[0]), (1, 2));
        assert!(matches!(chain.batch(6), Err(DataError::End { batches: 6, .. })));
    }
}
