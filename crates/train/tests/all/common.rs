//! Tiny experiments on a generated text.

#![allow(dead_code, unreachable_pub, reason = "both test programs use some of it")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use annulus_data::{MadeUp, Source, Synthetic};
use annulus_experiment::{Experiment, Format, Override, Resolved, parse};
use annulus_plan::Plan;
use annulus_train::{Notice, Outcome, RunOptions, Silent, Sink, TrainError, Value, run};

/// A tiny Llama on a small text.
pub const BASE: &str = "\
name: tiny
seed: 3
model:
  hidden_size: 32
  intermediate_size: 48
  num_hidden_layers: 2
  num_attention_heads: 4
  num_key_value_heads: 2
data:
  tokens: 48
  batch: 4
  evaluate: 3
optimizer:
  learning_rate: 1e-2
schedule:
  steps: 20
  warmup: 2
  decay: cosine
mesh:
  deadline: 20
";

/// A console that keeps warnings.
#[derive(Default)]
pub struct Warnings(pub Vec<String>);

impl Sink for Warnings {
    fn record(&mut self, _step: u64, _values: &[(&str, Value<'_>)]) -> std::io::Result<()> {
        Ok(())
    }
    fn notice(&mut self, notice: &Notice<'_>) {
        if let Notice::Warning(text) = notice {
            self.0.push((*text).to_owned());
        }
    }
}

/// A folder with a text in it, for runs.
pub struct Place(pub tempfile::TempDir);

impl Place {
    pub fn new() -> Place {
        annulus_machine::peak::measure_once();
        let folder = tempfile::tempdir().unwrap();
        let mut text = String::new();
        for number in 0..900_u32 {
            // Some structure to learn: words follow from numbers.
            let word = ["alpha", "beta", "gamma", "delta", "epsilon"][number as usize % 5];
            writeln!(text, "{word} {} {word};", number * 7 % 13).unwrap();
        }
        std::fs::write(folder.path().join("text.txt"), text).unwrap();
        Place(folder)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The plan of the tiny experiment with `changes`.
    pub fn plan(&self, changes: &[(&str, &str)]) -> Plan {
        let text = self.path("text.txt");
        let output = self.path("run");
        let mut given =
            vec![("data.path", text.to_str().unwrap()), ("output", output.to_str().unwrap())];
        given.extend_from_slice(changes);
        plan(BASE, &given)
    }

    /// The plan of the tiny experiment with `changes` for `devices` devices.
    pub fn plan_on(&self, devices: usize, changes: &[(&str, &str)]) -> Plan {
        let mut experiment = self.plan(changes).experiment;
        experiment.host.devices = devices;
        planned(experiment)
    }

    /// Runs the tiny experiment with `changes` to its end.
    pub fn run(&self, changes: &[(&str, &str)]) -> Result<Outcome, TrainError> {
        run(&self.plan(changes), RunOptions::new(BASE, 4), &mut Silent)
    }

    /// Runs the tiny experiment with `changes` to its end in the folder `output`.
    pub fn run_in(&self, output: &str, changes: &[(&str, &str)]) -> Outcome {
        let output = self.path(output);
        let mut all = vec![("output", output.to_str().unwrap())];
        all.extend_from_slice(changes);
        self.run(&all).unwrap()
    }
}

pub fn plan(text: &str, changes: &[(&str, &str)]) -> Plan {
    let overrides: Vec<Override> = changes
        .iter()
        .map(|&(key, value)| Override { key: key.into(), value: value.into() })
        .collect();
    planned(parse("tiny.yaml", text, &overrides).unwrap_or_else(|e| panic!("{e}")))
}

fn planned(experiment: Experiment) -> Plan {
    // Bytes have 256 ids and one that begins a document; ready-made batches do not say how many they have.
    let vocabulary = match experiment.data.format {
        Format::Text | Format::Jsonl => Some(257),
        Format::Recall => Some(MadeUp::new(Synthetic::Recall, 96, 1, 0).unwrap().vocabulary()),
        _ => None,
    };
    Resolved::read(experiment, vocabulary)
        .and_then(|resolved| annulus_simulate::plan(&resolved))
        .unwrap_or_else(|e| panic!("{e}"))
}

/// The number that a line of `metrics.jsonl` has for `tag`, with all its bits.
pub fn number(line: &str, tag: &str) -> f64 {
    let (_, rest) = line.split_once(&format!("\"{tag}\": ")).unwrap();
    rest.split([',', '}']).next().unwrap().parse().unwrap()
}

/// The losses of an outcome, by step.
pub fn losses(outcome: &Outcome) -> Vec<f64> {
    outcome.losses.iter().map(|&(_, loss)| loss).collect()
}

/// The largest relative difference between two lists.
pub fn difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs() / b.abs()).fold(0.0, f64::max)
}

/// The bytes of a checkpoint's files with computed values.
pub fn state(checkpoint: &Path) -> Vec<Vec<u8>> {
    ["model.safetensors", "optimizer.safetensors"]
        .iter()
        .map(|name| std::fs::read(checkpoint.join(name)).unwrap())
        .collect()
}

/// A folder of reference outputs, if it exists.
pub fn golden(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden/A").join(name);
    path.exists().then_some(path)
}
