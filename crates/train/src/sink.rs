//! Where measurements go: a file with a line per step, TensorBoard, a console.

use std::io;
use std::path::Path;

/// A measured value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// One number for the whole run.
    Number(f64),
    /// One count for every rank, by rank.
    PerRank(&'a [u64]),
    /// Seconds of every rank, by rank.
    SecondsPerRank(&'a [f64]),
}

impl Value<'_> {
    /// The value as one number to draw or compare; of values by rank, the largest.
    pub fn number(self) -> f64 {
        match self {
            Value::Number(number) => number,
            ranks => largest(ranks.ranks()),
        }
    }

    /// The values by rank; empty for one number for the whole run.
    pub fn ranks(self) -> Vec<f64> {
        match self {
            Value::Number(_) => Vec::new(),
            Value::PerRank(counts) => counts.iter().map(|&count| count as f64).collect(),
            Value::SecondsPerRank(seconds) => seconds.to_vec(),
        }
    }
}

/// The largest of the values by rank, as which they are drawn and compared; NaN where no rank's value is known.
pub(crate) fn largest(ranks: impl IntoIterator<Item = f64>) -> f64 {
    ranks.into_iter().reduce(f64::max).unwrap_or(f64::NAN)
}

/// Takes measurements; it never changes what is computed.
///
/// Rank 0 calls a run's sink between steps. A call may take longer than `mesh.deadline`: rank 0 counts as alive meanwhile, but the run
/// waits.
pub trait Sink {
    /// Records the values of a logged step (from 1), by tag.
    ///
    /// # Errors
    /// Failures of the writer. Those of a caller's own sink end no run: after the first the sink is called no more, and
    /// [`Outcome::warnings`](crate::Outcome::warnings) says so.
    fn record(&mut self, step: u64, values: &[(&str, Value<'_>)]) -> io::Result<()>;
    /// Passes on an event worth telling a person.
    fn notice(&mut self, notice: &Notice<'_>) {
        let _ = notice;
    }
    /// Flushes to disk what was recorded: called before a checkpoint is written, and at the end.
    ///
    /// # Errors
    /// Failures of the writer, as those of [`Sink::record`].
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An event of a run, as it happens.
#[derive(Clone, Copy, Debug)]
pub enum Notice<'a> {
    /// Text is being tokenised.
    Reading {
        /// Bytes that have been tokenised.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// The first step is about to begin.
    Start {
        /// The step after which training begins.
        step: u64,
        /// The name of the phase, and tokens of its sequences; `None`: the run has no phases.
        stage: Option<(&'a str, usize)>,
        /// The last step of the run, or of the phase.
        last: u64,
        /// The number of ranks.
        ranks: usize,
        /// The name of the strategy, or of those of the layer groups.
        strategy: &'a str,
        /// The number of elements of all parameters.
        parameters: u64,
    },
    /// Held-out sequences are being evaluated.
    Evaluating {
        /// Sequences that have been evaluated.
        done: usize,
        /// Sequences in all.
        total: usize,
    },
    /// A checkpoint is on disk.
    Saved {
        /// The step of the checkpoint.
        step: u64,
        /// The folder of the checkpoint.
        folder: &'a Path,
    },
    /// The library that carries tensors between processes.
    Joined(&'a str),
    /// The GPUs that compute, each with its ranks.
    OnGpus(&'a [String]),
    /// How many sequences a source of the data has, and how many epochs the steps are.
    Data(&'a str),
    /// Something is wrong but does not end the run.
    Warning(&'a str),
}

/// A console that says nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Sink for Silent {
    fn record(&mut self, _step: u64, _values: &[(&str, Value<'_>)]) -> io::Result<()> {
        Ok(())
    }
}
