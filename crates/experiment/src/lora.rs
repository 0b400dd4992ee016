//! The section `lora`: what is trained where not every parameter is.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path as Folder, PathBuf};

use annulus_architecture::{
    ADAPTER, FullyTrained, Lora, Rope, Shape, Target, has_saved_config, read_adapter,
    read_saved_config,
};
use annulus_yaml::Absent::{Is, Means, Required};
use annulus_yaml::Interval::{AboveZero, ZeroToBelowOne};
use annulus_yaml::Kind::{Count, Path, Real, Truth, Words};
use annulus_yaml::{Problem, Problems, section};

use crate::{Experiment, KeyDifference, ModelSource, Resolved, WeightsFrom};

/// The projections with adapters where `targets` is not written.
const ATTENTION: [Target; 4] = [Target::Query, Target::Key, Target::Value, Target::Output];

section! {
    /// The section `lora` as it is written.
    #[derive(Clone, Debug, PartialEq)]
    pub struct LoraKeys {
        rank: usize = Count(1, 1 << 12), Required, "rank of the adapters";
        alpha: Option<f64> = Real(AboveZero), Means("rank"),
            "adapters are scaled by alpha / rank, or alpha / √rank with rslora";
        rslora: bool = Truth, Is("false"), "scale by alpha / √rank (rank-stabilised LoRA)";
        dropout: f64 = Real(ZeroToBelowOne), Is("0"),
            "dropout on the inputs of adapters";
        targets: Option<Vec<Target>> = Words(Target::WORDS), Means("q_proj, k_proj, v_proj, o_proj"),
            "projections that get an adapter";
        train: Option<Vec<FullyTrained>> = Words(FullyTrained::WORDS), Means("nothing"),
            "weights that are trained themselves besides, as in LongLoRA";
        path: Option<PathBuf> = Path, Means("fresh adapters"),
            "a PEFT folder to continue from: adapter_config.json, adapter_model.safetensors";
    }
}

impl LoraKeys {
    pub(crate) fn meant(self) -> Lora {
        let LoraKeys { rank, alpha, rslora, dropout, targets, train, path } = self;
        let alpha = alpha.unwrap_or(rank as f64);
        // In the order of their words, each once.
        let targets = BTreeSet::from_iter(targets.unwrap_or(ATTENTION.to_vec()));
        let train = BTreeSet::from_iter(train.unwrap_or_default());
        Lora {
            rank,
            alpha,
            rslora,
            dropout,
            targets: targets.into_iter().collect(),
            train: train.into_iter().collect(),
            path,
        }
    }

    /// The keys that mean these adapters.
    pub(crate) fn of(lora: &Lora) -> LoraKeys {
        let Lora { rank, alpha, rslora, dropout, targets, train, path } = lora.clone();
        let (targets, train) = (Some(targets), Some(train));
        LoraKeys { rank, alpha: Some(alpha), rslora, dropout, targets, train, path }
    }
}

/// Broken rules between `lora` and the rest of the experiment.
pub(crate) fn rules(experiment: &Experiment) -> Vec<Problem> {
    let Some(lora) = &experiment.lora else { return Vec::new() };
    let places = &experiment.places;
    let mut problems = Vec::new();
    let pretrained = matches!(
        experiment.model.source,
        ModelSource::Folder { weights: WeightsFrom::Pretrained, .. }
    );
    if !pretrained {
        let message = "`lora` needs pretrained weights, but the model's are random";
        let hint = "give `model.path`, a Hugging Face folder, or remove `lora`";
        problems.push(places.problem("lora", message).hint(hint));
    }
    if lora.targets.is_empty() {
        let message = "`lora.targets` names no projection";
        let hint = format!("some of `{}`", Target::WORDS.join("`, `"));
        problems.push(places.problem("lora.targets", message).hint(hint));
    }
    problems
}

/// Checks the adapters against the model, and against the adapter that training continues from.
pub(crate) fn fits(experiment: &Experiment, shape: &Shape) -> Result<(), Problems> {
    let Some(lora) = &experiment.lora else { return Ok(()) };
    let places = &experiment.places;
    if let Err(Problem { message, .. }) = lora.suits(shape) {
        return Err(places.problem("lora.train", message).hint("write `embeddings`").into());
    }
    let Some(path) = &lora.path else { return Ok(()) };
    if let Some(checkpoint) = checkpoint_in(path) {
        let message = format!("`{}` is a run's folder, and not one of adapters", path.display());
        let hint = format!("name a checkpoint of it: `lora.path: {}`", checkpoint.display());
        return Err(places.problem("lora.path", message).hint(hint).into());
    }
    let theirs = read_adapter(path, shape)?;
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

/// The newest checkpoint of adapters in a run's folder; `None`: the folder has adapters itself, or no checkpoint.
fn checkpoint_in(folder: &Folder) -> Option<PathBuf> {
    let has_adapters = |folder: &Folder| folder.join(ADAPTER).is_file();
    let step = |path: PathBuf| {
        let step = path.file_name()?.to_str()?.strip_prefix("step-")?.parse::<u64>().ok()?;
        has_adapters(&path).then_some((step, path))
    };
    let entries = fs::read_dir(folder).ok().filter(|_| !has_adapters(folder))?;
    entries.flatten().filter_map(|entry| step(entry.path())).max().map(|(_, path)| path)
}

/// Refuses to go on with adapters of a model with another `rms_norm_eps`, or of an extended model unless this one is extended alike:
/// they mean nothing under other norms or frequencies. PEFT's own folders say nothing of them.
pub(crate) fn stretched_alike(resolved: &Resolved) -> Result<(), Problems> {
    let Resolved { experiment, model, .. } = resolved;
    let path = experiment.lora.as_ref().and_then(|lora| lora.path.as_ref());
    let Some(path) = path.filter(|path| has_saved_config(path)) else { return Ok(()) };
    let (theirs, ours) = (read_saved_config(path)?, resolved.shape()?);
    if theirs.rms_norm_eps != ours.rms_norm_eps {
        let [theirs, ours] = [theirs, ours].map(|shape| shape.rms_norm_eps);
        let path = path.display();
        let message = format!(
            "the adapters in `{path}` were trained with `rms_norm_eps: {theirs:e}`, and this model has {ours:e}"
        );
        let hint = "name the model that they were trained for as `model.path`, as it was then";
        return Err(experiment.places.problem("lora.path", message).hint(hint).into());
    }
    let (theirs, ours) = (theirs.rope, ours.rope);
    if theirs == model.rope || theirs == ours {
        return Ok(());
    }
    let message = format!(
        "the adapters in `{}` were trained under other rotary frequencies: {}",
        path.display(),
        differing_keys(&theirs, &ours)
    );
    let hint = "extend the model as in the run that trained them (`extend` in its `experiment.yaml`); or merge them into their model \
                (`annulus export RUN --merge --out FOLDER`), and name that folder as `model.path`, without `lora.path`";
    Err(experiment.places.problem("lora.path", message).hint(hint).into())
}

/// The keys in which two rotary embeddings differ, with both values; of different methods no parameters.
fn differing_keys(theirs: &Rope, ours: &Rope) -> String {
    /// The most characters of a value that are shown: LongRoPE has long lists.
    const MOST: usize = 40;
    let is_same_method = theirs.scaling.word() == ours.scaling.word();
    let [theirs, ours] = [theirs, ours].map(Rope::written);
    let mut differing = KeyDifference::between(
        theirs.iter().map(|(key, value)| (key, value)),
        ours.iter().map(|(key, value)| (key, value)),
    );
    differing
        .retain(|one| is_same_method || ["rope_type", "rope_theta"].contains(&one.key.as_str()));
    let shown = |one: &KeyDifference| match one.was().len().max(one.is().len()) {
        0..=MOST => one.to_string(),
        _ => format!("`{}` was another", one.key),
    };
    differing.iter().map(shown).collect::<Vec<_>>().join("; ")
}
