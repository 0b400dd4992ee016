//! `lora:` what is trained where not everything is, and the adapter_config.json that says so to PEFT.

mod peft;

use std::path::PathBuf;

use crate::experiment::words;
use crate::source::Places;
use crate::values::Values;
use crate::{Experiment, ModelSource, Problem, Problems, Shape, WeightsFrom};

pub use peft::{read_adapter, write_adapter};

/// `lora:` (Hu et al., arXiv 2106.09685)
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// `rank:` the width of adapters. Required.
    pub rank: usize,
    /// `alpha:` adapters count `alpha / rank`; default `rank`.
    pub alpha: f64,
    /// `rslora:` or `alpha / √rank` (arXiv 2312.03732); default false.
    pub rslora: bool,
    /// `dropout:` the share of an adapter's inputs that it does not see in training; default 0.
    pub dropout: f64,
    /// `targets:` the projections that get one; default those of attention. In the order of [`Target::WORDS`].
    pub targets: Vec<Target>,
    /// `train:` what is trained itself besides; default nothing. In the order of [`Besides::WORDS`].
    pub train: Vec<Besides>,
    /// `path:` a folder of PEFT's to go on from; none: fresh adapters.
    pub path: Option<PathBuf>,
}

/// A projection of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// Of queries.
    Query,
    /// Of keys.
    Key,
    /// Of values.
    Value,
    /// Of attention's output.
    Output,
    /// Of the gate.
    Gate,
    /// Of what is gated.
    Up,
    /// Of the feed-forward's output.
    Down,
}

words!(Target {
    Query = "q_proj",
    Key = "k_proj",
    Value = "v_proj",
    Output = "o_proj",
    Gate = "gate_proj",
    Up = "up_proj",
    Down = "down_proj",
});

/// What is trained itself beside adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Besides {
    /// The embedding.
    Embeddings,
    /// All norms.
    Norms,
    /// The last projection.
    Head,
}

words!(Besides { Embeddings = "embeddings", Norms = "norms", Head = "head" });

/// Where targets are not written.
const ATTENTION: [Target; 4] = [Target::Query, Target::Key, Target::Value, Target::Output];

impl Lora {
    /// What an adapter's product is multiplied by.
    pub fn scale(&self) -> f64 {
        let rank = self.rank as f64;
        self.alpha / if self.rslora { rank.sqrt() } else { rank }
    }

    /// Refuses what a model of `shape` does not have.
    ///
    /// # Errors
    /// Where the last projection is to be trained, and is the embedding.
    pub fn suits(&self, shape: &Shape) -> Result<(), Problem> {
        if self.trains(Besides::Head) && shape.tie_word_embeddings {
            let message = "the last projection is to be trained, but the model's is its embedding";
            return Err(Problem::new(message).hint("name the embedding instead"));
        }
        Ok(())
    }

    /// Whether this is trained itself.
    pub fn trains(&self, what: Besides) -> bool {
        self.train.contains(&what)
    }
}

impl Target {
    /// Outputs and inputs of the projection.
    pub(crate) fn sizes(self, shape: &Shape) -> [u64; 2] {
        let [hidden, width] = [shape.hidden_size, shape.intermediate_size].map(|size| size as u64);
        let (queries, keys) = (shape.query_width(), shape.key_value_width());
        match self {
            Target::Query => [queries, hidden],
            Target::Key | Target::Value => [keys, hidden],
            Target::Output => [hidden, queries],
            Target::Gate | Target::Up => [width, hidden],
            Target::Down => [hidden, width],
        }
    }
}

/// What `values` say under `lora:`, if anything.
#[expect(clippy::option_option, reason = "refused and absent are two things")]
pub(crate) fn read(values: &Values, places: &Places) -> Option<Option<Lora>> {
    if !places.contains("lora") {
        return Some(None);
    }
    let rank = values.size("lora.rank")?;
    let targets = values.optional("lora.targets", |v, key| v.words(key, Target::from_word))?;
    let train = values.optional("lora.train", |v, key| v.words(key, Besides::from_word))?;
    Some(Some(Lora {
        rank,
        alpha: values.optional("lora.alpha", Values::real)?.unwrap_or(rank as f64),
        rslora: values.truth("lora.rslora")?,
        dropout: values.real("lora.dropout")?,
        targets: sorted(targets.unwrap_or(ATTENTION.to_vec())),
        train: sorted(train.unwrap_or_default()),
        path: values.optional("lora.path", Values::text)?.map(PathBuf::from),
    }))
}

/// In order, each once.
fn sorted<T: Ord>(mut list: Vec<T>) -> Vec<T> {
    list.sort();
    list.dedup();
    list
}

/// What an experiment with adapters must be.
pub(crate) fn rules(experiment: &Experiment) -> Vec<Problem> {
    let Some(lora) = &experiment.lora else { return Vec::new() };
    let places = &experiment.places;
    let mut problems = Vec::new();
    let pretrained = matches!(
        experiment.model.source,
        ModelSource::Folder { weights: WeightsFrom::Pretrained, .. }
    );
    if !pretrained {
        let message = "`lora` learns beside weights that there are, but the model's are random";
        let hint = "give `model.path`, a Hugging Face folder, or drop `lora`";
        problems.push(places.problem("lora", message).hint(hint));
    }
    if lora.targets.is_empty() {
        let message = "`lora.targets` names no projection";
        let hint = format!("some of `{}`", Target::WORDS.join("`, `"));
        problems.push(places.problem("lora.targets", message).hint(hint));
    }
    problems
}

/// What it must be to the model, and to the adapter it goes on from.
pub(crate) fn fits(experiment: &Experiment, shape: &Shape) -> Result<(), Problems> {
    let Some(lora) = &experiment.lora else { return Ok(()) };
    let places = &experiment.places;
    if let Err(Problem { message, .. }) = lora.suits(shape) {
        return Err(places.problem("lora.train", message).hint("write `embeddings`").into());
    }
    let Some(path) = &lora.path else { return Ok(()) };
    let theirs = read_adapter(path)?;
    let listed = |words: Vec<&str>| format!("[{}]", words.join(", "));
    let describe = |lora: &Lora| {
        [
            ("rank", lora.rank.to_string()),
            ("alpha", lora.alpha.to_string()),
            ("rslora", lora.rslora.to_string()),
            ("targets", listed(lora.targets.iter().map(|target| target.word()).collect())),
            ("train", listed(lora.train.iter().map(|what| what.word()).collect())),
        ]
    };
    let both = describe(lora).into_iter().zip(describe(&theirs));
    let differing = both.filter(|((_, ours), (_, theirs))| ours != theirs);
    let problem = |((key, ours), (_, theirs)): ((&str, String), (&str, String))| {
        let message =
            format!("`lora.{key}` is {ours}, but the adapter in `{}` has {theirs}", path.display());
        let at = [format!("lora.{key}"), String::from("lora.path")];
        let at = at.iter().find(|key| places.contains(key));
        let problem = places.problem(at.map_or("lora", String::as_str), message);
        problem.hint(format!("write `{key}: {theirs}`"))
    };
    let problems: Vec<Problem> = differing.map(problem).collect();
    if problems.is_empty() { Ok(()) } else { Err(Problems(problems)) }
}
