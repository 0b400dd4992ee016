//! TensorBoard: the same tags as `metrics.jsonl`; what every rank has one of is drawn as its
//! largest and, rank by rank, below it.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use annulus_tensorboard::Writer;

use crate::run::sink::{Sink, Value};

/// How long events may wait in memory.
const PATIENCE: Duration = Duration::from_secs(2);

/// Writes an event file.
#[derive(Debug)]
pub(crate) struct Curves {
    writer: Writer,
    flushed: Instant,
}

impl Curves {
    /// A new event file in `folder`. `resumed`: earlier attempts may have drawn steps after this
    /// one.
    pub(crate) fn create(folder: &Path, resumed: Option<u64>) -> io::Result<Curves> {
        Ok(Curves { writer: Writer::create(folder, resumed)?, flushed: Instant::now() })
    }

    /// A text, shown as it is.
    pub(crate) fn text(&mut self, step: u64, tag: &str, text: &str) -> io::Result<()> {
        self.writer.text(step, tag, &format!("```\n{text}\n```"))
    }
}

impl Sink for Curves {
    fn record(&mut self, step: u64, values: &[(&str, Value<'_>)]) -> io::Result<()> {
        for (tag, value) in values {
            self.writer.scalar(step, tag, value.number())?;
            if let Value::PerRank(counts @ [_, _, ..]) = value {
                for (rank, &count) in counts.iter().enumerate() {
                    self.writer.scalar(step, &format!("{tag}/rank {rank}"), count as f64)?;
                }
            }
        }
        if self.flushed.elapsed() > PATIENCE { self.flush() } else { Ok(()) }
    }
    fn flush(&mut self) -> io::Result<()> {
        self.flushed = Instant::now();
        self.writer.flush()
    }
}
