//! A tiny model in a Hugging Face folder, and a text, for tests.

#![allow(unreachable_pub, reason = "helpers of tests")]

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use annulus_data::{Tokenizer, byte_tokenizer};
use annulus_evaluation::Subject;
use annulus_experiment::{Override, Resolved, parse, write_config};
use annulus_model::Llama;
use annulus_plan::Plan;
use annulus_train::{Result, Setup, model_config};

const EXPERIMENT: &str = "\
name: tiny
seed: 3
model:
  hidden_size: 32
  intermediate_size: 48
  num_hidden_layers: 2
  num_attention_heads: 4
  num_key_value_heads: 2
  vocab_size: 257
  initializer_range: 0.3
data:
  tokens: 48
optimizer:
  learning_rate: 1e-2
schedule:
  steps: 1
mesh:
  deadline: 20
";

/// A folder with `text.txt`, and a model in `model`.
pub struct Place(tempfile::TempDir);

impl Place {
    pub fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        let mut text = String::new();
        for number in 0..300_u32 {
            let word = ["alpha", "beta", "gamma", "delta", "epsilon"][number as usize % 5];
            writeln!(text, "{word} {} {word};", number * 7 % 13).unwrap();
        }
        std::fs::write(place.path("text.txt"), text).unwrap();
        let plan = plan(&[]);
        let dtype = plan.experiment.model.dtype;
        let config = model_config(&plan.shape, dtype).unwrap();
        let weights = Llama::random(&config, 5).unwrap();
        let folder = place.path("model");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("config.json"), write_config(&plan.shape, dtype)).unwrap();
        annulus_model::save(&folder, &weights, 1 << 30).unwrap();
        place
    }

    /// Has the model's layers slide over `window` keys.
    pub fn slides(&self, window: usize) {
        let path = self.path("model/config.json");
        let text = std::fs::read_to_string(&path).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
        config["model_type"] = "mistral".into();
        config["sliding_window"] = window.into();
        std::fs::write(path, config.to_string()).unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Gives the model a token that ends a text.
    pub fn ends_with(&self, id: u32) {
        let path = self.path("model/config.json");
        let text = std::fs::read_to_string(&path).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
        config["eos_token_id"] = id.into();
        std::fs::write(path, config.to_string()).unwrap();
    }

    /// The subject of the model, with the experiment changed.
    pub fn subject(&self, changes: &[(&str, &str)]) -> Subject {
        self.reading(changes, Tokenizer::Bytes)
    }

    /// The same with a tokenizer.json of bytes and a chat template beside it.
    pub fn chatting(&self, template: &str, changes: &[(&str, &str)]) -> Subject {
        let path = self.path("tokenizer.json");
        std::fs::write(&path, byte_tokenizer(257).unwrap().text).unwrap();
        std::fs::write(self.path("chat_template.jinja"), template).unwrap();
        self.reading(changes, Tokenizer::open(path.to_str().unwrap()).unwrap())
    }

    fn reading(&self, changes: &[(&str, &str)], tokenizer: Tokenizer) -> Subject {
        let (model, output) = (self.path("model"), self.path("run"));
        let mut given = vec![
            ("model", format!("{{path: {}}}", model.display())),
            ("output", output.display().to_string()),
        ];
        given.extend(changes.iter().map(|&(key, value)| (key, value.to_owned())));
        let given: Vec<_> = given.iter().map(|(key, value)| (*key, value.as_str())).collect();
        open(&plan(&given), tokenizer).unwrap_or_else(|error| panic!("{error}"))
    }
}

fn open(plan: &Plan, tokenizer: Tokenizer) -> Result<Subject> {
    let setup = Setup::on_its_device(plan, 4)?;
    Subject::open(plan, setup, None, Some(Arc::new(tokenizer)))
}

fn plan(changes: &[(&str, &str)]) -> Plan {
    let given = changes.iter();
    let overrides: Vec<Override> =
        given.map(|&(key, value)| Override { key: key.into(), value: value.into() }).collect();
    let experiment = parse("tiny.yaml", EXPERIMENT, &overrides).unwrap_or_else(|e| panic!("{e}"));
    Resolved::read(experiment, Some(257))
        .and_then(|resolved| Plan::new(&resolved))
        .unwrap_or_else(|e| panic!("{e}"))
}
