//! Progress: a bar on a terminal, plain lines elsewhere.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use annulus_data::Progress;
use annulus_train::{Notice, Sink, Value};
use indicatif::{ProgressBar, ProgressStyle};

use crate::print;

/// A bar on a terminal, elsewhere none.
fn bar(template: &str, length: u64) -> Option<ProgressBar> {
    io::stderr().is_terminal().then(|| {
        let bar = ProgressBar::new(length);
        match ProgressStyle::with_template(template) {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        }
    })
}

/// Bytes read, on a terminal.
pub(crate) struct Bar(Option<ProgressBar>);

impl Bar {
    pub(crate) fn new(what: &'static str) -> Bar {
        let bar = bar("{msg} {bar:40} {bytes}/{total_bytes} {eta}", 0);
        Bar(bar.map(|bar| bar.with_message(what)))
    }

    pub(crate) fn show(&mut self, done: u64, total: u64) {
        if let Some(bar) = &self.0 {
            bar.set_length(total);
            bar.set_position(done);
        }
    }

    /// How far a token cache is.
    pub(crate) fn tell(&mut self, now: Progress) {
        match (&self.0, now) {
            (_, Progress::Reading { done, total }) => self.show(done, total),
            (_, waiting) => self.say(&waiting.to_string()),
        }
    }

    /// A line above it.
    pub(crate) fn say(&self, line: &str) {
        match &self.0 {
            Some(bar) => bar.suspend(|| print::say(line)),
            None => print::say(line),
        }
    }

    pub(crate) fn finish(&mut self) {
        if let Some(bar) = self.0.take() {
            bar.finish_and_clear();
        }
    }
}

/// How much is done of one thing after another: a bar on a terminal, elsewhere nothing.
pub(crate) struct Count(Option<ProgressBar>);

impl Count {
    pub(crate) fn new() -> Count {
        Count(bar("{msg:32} {bar:30} {pos}/{len} {eta}", 0))
    }

    pub(crate) fn show(&self, what: &str, done: usize, total: usize) {
        if let Some(bar) = &self.0 {
            bar.set_message(what.to_owned());
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        }
    }

    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// The messages of a training run.
#[derive(Default)]
pub(crate) struct Console {
    steps: Option<ProgressBar>,
    of: u64,
    said: Option<Instant>,
}

impl Console {
    /// How long plain lines keep silent.
    const PAUSE: Duration = Duration::from_secs(5);

    /// A line, above the bar where there is one.
    fn say(&self, line: &str) {
        match &self.steps {
            Some(bar) => bar.suspend(|| print::say(line)),
            None => print::say(line),
        }
    }

    fn start(&mut self, step: u64, of: u64) {
        self.of = of;
        let bar = bar("{bar:30} {pos}/{len} {msg} {eta}", of);
        self.steps = bar.map(|bar| bar.with_position(step));
    }
}

impl Sink for Console {
    fn record(&mut self, step: u64, values: &[(&str, Value<'_>)]) -> io::Result<()> {
        let number = |tag: &str| {
            values.iter().find_map(|(name, value)| match value {
                Value::Number(number) if *name == tag => Some(*number),
                _ => None,
            })
        };
        for (tag, value) in values {
            if let (Some(what), Value::Number(value)) = (tag.strip_prefix("evaluate/"), value) {
                self.say(&format!("step {step}  {} {value:.4}", what.replace('_', " ")));
            }
        }
        let Some(loss) = number("train/loss") else { return Ok(()) };
        let speed = number("speed/tokens_per_second").unwrap_or_default();
        let line = format!("loss {loss:.4}  {speed:.0} tokens/s");
        if let Some(bar) = &self.steps {
            bar.set_position(step);
            bar.set_message(line);
        } else if self.said.is_none_or(|said| said.elapsed() > Self::PAUSE) || step == self.of {
            self.said = Some(Instant::now());
            print::say(&format!("step {step}/{}  {line}", self.of));
        }
        Ok(())
    }

    fn notice(&mut self, notice: &Notice<'_>) {
        match notice {
            Notice::Reading { .. } | Notice::Evaluating { .. } => {}
            Notice::Start { step, stage, last, ranks, strategy, parameters } => {
                let from = if *step > 0 { format!(", from step {step}") } else { String::new() };
                let ranks = match ranks {
                    1 => "1 rank".to_owned(),
                    more => format!("{more} ranks"),
                };
                let stage = stage.map_or_else(String::new, |(name, tokens)| {
                    format!("stage `{name}`, {tokens} tokens: ")
                });
                self.say(&format!("{stage}{parameters} parameters, {ranks}, {strategy}{from}"));
                self.start(*step, *last);
            }
            Notice::Saved { step, folder } => {
                self.say(&format!("step {step}  saved {}", folder.display()));
            }
            Notice::Warning(text) => self.say(&format!("warning: {text}")),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Some(bar) = self.steps.take() {
            bar.finish_and_clear();
        }
        Ok(())
    }
}
