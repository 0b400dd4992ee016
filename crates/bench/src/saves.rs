//! What a checkpoint that is written beside training costs the steps meanwhile: `saves`.

use std::io;
use std::sync::Arc;

use annulus_experiment::tags::SPEED_TOKENS_PER_SECOND;
use annulus_experiment::{Override, parse};
use annulus_train::{RunOptions, Sink, Value, run as train};
use anyhow::{Context, Result};
use parking_lot::Mutex;
use serde_json::json;

use crate::arguments;
use crate::llama::Step;
use crate::record::Record;
use crate::session::Verdict;
use crate::statistics::Quartiles;
use crate::subject::fields;

/// Three million parameters; one step warms up.
const EXPERIMENT: &str = "\
name: saves
model:
  hidden_size: 256
  intermediate_size: 512
  num_hidden_layers: 5
  num_attention_heads: 4
  num_key_value_heads: 1
data: { format: recall, batch: 1, evaluate: 0 }
optimizer: { learning_rate: 1e-4 }
schedule: { steps: 5 }
keep: 1
";
const WARM: u64 = 1;

/// Trains without checkpoints and with one after every step, in turn: seconds of steps, and their ratio.
pub(crate) fn run(arguments: &arguments::Saves) -> Result<Verdict> {
    let mut record = Record::open(None)?;
    let [mut without, mut beside, mut waiting] = [const { Vec::new() }; 3];
    for _ in 0..arguments.rounds {
        let run = Run { tokens: arguments.tokens, threads: arguments.threads };
        let tensor = arguments.tensor.to_string();
        let tensor = [("mesh.tensor", &*tensor), ("model.num_key_value_heads", &*tensor)];
        let seconds = |more: &[(&str, &str)]| run.seconds(&[&tensor, more].concat());
        without.extend(seconds(&[("every.checkpoint", "0")])?);
        let every = ("every.checkpoint", "1");
        beside.extend(seconds(&[every, ("background_saves", "true")])?);
        waiting.extend(seconds(&[every])?);
    }
    let [without, beside, waiting] = [without, beside, waiting].map(|all| Quartiles::of(&all));
    let ratio = beside.median / without.median;
    record.conclude(&fields(json!({
        "bench": "saves", "tokens": arguments.tokens, "threads": arguments.threads,
        "tensor": arguments.tensor,
        "without_s": without.median, "beside_s": beside.median, "between_s": waiting.median,
        "ratio": ratio,
    })))?;
    Ok(Verdict::at_most(ratio, arguments.at_most))
}

/// A run of the small model.
pub(crate) struct Run {
    pub(crate) tokens: usize,
    pub(crate) threads: usize,
}

impl Run {
    /// The seconds of its steps with keys changed.
    pub(crate) fn seconds(&self, changes: &[(&str, &str)]) -> Result<Vec<f64>> {
        let folder = tempfile::tempdir()?;
        let tokens = self.tokens.to_string();
        let output = folder.path().join("run").display().to_string();
        let own = [("data.tokens", tokens.as_str()), ("output", &output)];
        let change =
            |(key, value): &(&str, &str)| Override { key: (*key).into(), value: (*value).into() };
        let changes: Vec<Override> = own.iter().chain(changes).map(change).collect();
        let experiment = parse("saves.yaml", EXPERIMENT, &changes)?;
        let step = Step::on_its_data(experiment, VOCABULARY)?;
        let speeds = Speeds::default();
        train(&step.plan, RunOptions::new(EXPERIMENT, self.threads), &mut speeds.clone())?;
        let speeds = speeds.0.lock();
        speeds.first().context("no step was logged")?;
        Ok(speeds.iter().map(|speed| self.tokens as f64 / speed).collect())
    }
}

/// The model's; the data has fewer words.
const VOCABULARY: usize = 256;

/// Tokens per second of every step but those that warm up.
#[derive(Clone, Default)]
struct Speeds(Arc<Mutex<Vec<f64>>>);

impl Sink for Speeds {
    fn record(&mut self, step: u64, values: &[(&str, Value<'_>)]) -> io::Result<()> {
        let speed = values.iter().find(|(tag, _)| *tag == SPEED_TOKENS_PER_SECOND);
        if let Some((_, speed)) = speed.filter(|_| step > WARM) {
            self.0.lock().push(speed.number());
        }
        Ok(())
    }
}
