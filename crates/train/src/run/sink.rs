//! Where measurements go: a file of lines, TensorBoard, a console.

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
    /// One number to draw or to compare: of ranks, the largest.
    pub fn number(self) -> f64 {
        match self {
            Value::Number(number) => number,
            ranks => ranks.ranks().into_iter().reduce(f64::max).unwrap_or_default(),
        }
    }

    /// By rank; nothing of what is one number for the whole run.
    pub fn ranks(self) -> Vec<f64> {
        match self {
            Value::Number(_) => Vec::new(),
            Value::PerRank(counts) => counts.iter().map(|&count| count as f64).collect(),
            Value::SecondsPerRank(seconds) => seconds.to_vec(),
        }
    }
}

/// Takes what is measured. It changes nothing of what is computed.
pub trait Sink {
    /// The values of a logged step (from 1), by tag.
    ///
    /// # Errors
    /// What the writer says.
    fn record(&mut self, step: u64, values: &[(&str, Value<'_>)]) -> io::Result<()>;
    /// Something worth telling a person.
    fn notice(&mut self, notice: &Notice<'_>) {
        let _ = notice;
    }
    /// What was recorded survives from here on.
    ///
    /// # Errors
    /// What the writer says.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What happens in a run, as it happens.
#[derive(Clone, Copy, Debug)]
pub enum Notice<'a> {
    /// Text is being tokenised.
    Reading {
        /// Bytes done.
        done: u64,
        /// Of so many.
        total: u64,
    },
    /// Steps begin.
    Start {
        /// Steps finished earlier.
        step: u64,
        /// The name of a stage, and tokens of its sequences; none: the run has no stages.
        stage: Option<(&'a str, usize)>,
        /// The last step.
        last: u64,
        /// How many ranks there are.
        ranks: usize,
        /// The name of the strategy, or of those that layers have.
        strategy: &'a str,
        /// Elements of all parameters.
        parameters: u64,
    },
    /// Held-out sequences are being evaluated.
    Evaluating {
        /// Sequences done.
        done: usize,
        /// Of so many.
        total: usize,
    },
    /// A checkpoint is on disk.
    Saved {
        /// Its step.
        step: u64,
        /// Its folder.
        folder: &'a Path,
    },
    /// What carries tensors between processes.
    Joined(&'a str),
    /// The GPUs that compute, each with its ranks.
    OnGpus(&'a [String]),
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
