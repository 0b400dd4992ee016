//! Progress: a bar on a terminal, plain lines elsewhere.

mod meter;

use std::io;

use annulus_experiment::tags;
use annulus_text::{TERMINAL_WIDTH, count, size};
use annulus_train::{Notice, Sink, Value};
use indicatif::ProgressBar;

pub(crate) use meter::{Meter, Unit};

use crate::print;
use meter::{Pace, spoken};

/// The messages of a training run.
pub(crate) struct Console {
    bar: Option<ProgressBar>,
    /// The last step.
    last: u64,
    pace: Pace,
    /// The progress of work besides steps: reading data, evaluating held-out sequences.
    reading: Meter,
    evaluating: Meter,
}

impl Default for Console {
    fn default() -> Console {
        let (reading, evaluating) = (Meter::new(Unit::Bytes), Meter::new(Unit::Number));
        Console { bar: None, last: 0, pace: Pace::new(0), reading, evaluating }
    }
}

/// The metrics in a step's line, the most important first: a tag, and how its value is formatted.
const SHOWN: [(&str, fn(f64) -> String); 6] = [
    (tags::TRAIN_LOSS, |loss| format!("loss {loss:.4}")),
    (tags::TRAIN_LR, |rate| format!("lr {rate:.1e}")),
    (tags::TRAIN_GRAD_NORM, |norm| format!("grad {norm:.2}")),
    (tags::SPEED_TOKENS_PER_SECOND, |speed| format!("{speed:.0} tok/s")),
    (tags::SPEED_MFU, |share| format!("mfu {:.0}%", 100.0 * share)),
    (tags::MEMORY_PEAK, |bytes| size(bytes as u64)),
];

impl Console {
    /// Prints a line, above the bar if there is one.
    fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| print::say(line)),
            None => print::say(line),
        }
    }

    fn start(&mut self, step: u64, last: u64) {
        (self.last, self.pace) = (last, Pace::new(step));
        let bar = meter::bar("{msg} {wide_bar}", last);
        self.bar = bar.map(|bar| bar.with_position(step));
    }

    /// The line of a step: as many metrics as fit a terminal's width.
    fn step(&self, step: u64, values: &[(&str, Value<'_>)]) -> String {
        let value =
            |tag: &str| values.iter().find(|(name, _)| *name == tag).map(|(_, v)| v.number());
        let shown = SHOWN.iter().filter_map(|(tag, write)| value(tag).map(write));
        let mut shown: Vec<String> = shown.collect();
        let left = self.pace.left(step, self.last).filter(|left| left.as_secs() > 0);
        let left = left.map(|left| format!("{} left", spoken(left)));
        loop {
            let parts: Vec<&str> = shown.iter().chain(&left).map(String::as_str).collect();
            let line = format!("step {step}/{}  {}", self.last, parts.join("  "));
            if line.chars().count() <= TERMINAL_WIDTH || shown.pop().is_none() {
                return line;
            }
        }
    }
}

impl Sink for Console {
    fn record(&mut self, step: u64, values: &[(&str, Value<'_>)]) -> io::Result<()> {
        self.evaluating.finish();
        for (tag, value) in values {
            if let (Some(what), Value::Number(value)) = (tag.strip_prefix(tags::EVALUATE), value) {
                self.say(&format!("step {step}  validation {} {value:.4}", what.replace('_', " ")));
            }
        }
        if !values.iter().any(|(tag, _)| *tag == tags::TRAIN_LOSS) {
            return Ok(());
        }
        let line = self.step(step, values);
        match &self.bar {
            Some(bar) => {
                bar.set_position(step);
                bar.set_message(line);
            }
            None => print::say(&line),
        }
        Ok(())
    }

    fn notice(&mut self, notice: &Notice<'_>) {
        match notice {
            Notice::Reading { done, total } => self.reading.show("tokenising", *done, *total),
            Notice::Evaluating { done, total } => {
                self.evaluating.show("evaluating", *done as u64, *total as u64);
            }
            Notice::Start { step, stage, last, ranks, strategy, parameters } => {
                self.reading.finish();
                let from = if *step > 0 { format!(", from step {step}") } else { String::new() };
                let ranks = count(*ranks, "rank");
                let stage = stage.map_or_else(String::new, |(name, tokens)| {
                    format!("phase `{name}`, {tokens} tokens: ")
                });
                self.say(&format!("{stage}{parameters} parameters, {ranks}, {strategy}{from}"));
                self.start(*step, *last);
            }
            Notice::Saved { step, folder } => {
                self.say(&format!("step {step}  saved {}", folder.display()));
            }
            Notice::Joined(text) => self.say(text),
            Notice::Data(text) => {
                self.reading.finish();
                self.say(text);
            }
            Notice::OnGpus(gpus) => self.say(&format!("computing on {}", gpus.join(", "))),
            Notice::Warning(text) => {
                self.reading.finish();
                self.say(&format!("warning: {text}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_fits_80_columns_and_drops_what_is_wanted_least() {
        let console = Console { last: 1_000_000, ..Console::default() };
        let values = SHOWN.map(|(tag, _)| (tag, Value::Number(98_765.432)));
        let line = console.step(999_999, &values);
        assert!(line.chars().count() <= TERMINAL_WIDTH, "{line}");
        assert!(line.contains("loss 98765.4320") && line.contains("lr "), "{line}");
        assert!(!line.contains("MiB") && !line.contains("KiB"), "{line}");
    }
}
