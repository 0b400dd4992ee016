//! Rules between keys. Each names the key that its problem is shown at.

use annulus_sequence::{Route, Strategy};

use annulus_yaml::{Places, Problem, Problems};

use crate::{
    Attention, Data, Device, Every, Experiment, Format, Pack, Sliding, TextSource, ending,
    evaluation, expect, extend, lora, mask, reproducible, route_word, schedule, sliding, stages,
    unused, wire,
};

/// The most ranks of one run.
pub const MOST_RANKS: usize = 1 << 14;
/// The most tokens of an optimizer step: keeps counts within 64 bits.
const MOST_TOKENS: usize = 1 << 36;
/// The least weight of a source in a mixture: weights are exact over a thousand sequences.
const LEAST_SHARE: f64 = 1e-3;
/// Why [`Strategy::stores_scores`] and GPUs do not go together.
pub const STORES_SCORES: &str =
    "`li-ring` stores all attention scores, which no GPU kernel supports";

impl Experiment {
    /// Checks every rule between the experiment's keys.
    ///
    /// # Errors
    /// All broken rules.
    pub fn check(&self) -> Result<(), Problems> {
        let broken = broken(self);
        if broken.is_empty() { Ok(()) } else { Err(Problems(broken)) }
    }
}

/// The broken rules of an experiment, of all its phases together.
pub(crate) fn broken(experiment: &Experiment) -> Vec<Problem> {
    if experiment.stages.is_empty() {
        return alone(experiment);
    }
    let mut problems = stages::rules(experiment);
    let of_each: Vec<Vec<Problem>> = experiment.phases().iter().map(alone).collect();
    for (stage, own) in experiment.stages.iter().zip(&of_each) {
        for problem in own {
            // A problem that all phases share is reported once.
            let shared = of_each.iter().all(|other| other.contains(problem));
            let mut problem = problem.clone();
            if !shared {
                problem.message = format!("{}, in phase `{}`", problem.message, stage.name);
            }
            if !problems.contains(&problem) {
                problems.push(problem);
            }
        }
    }
    problems
}

/// The broken rules of a single phase.
fn alone(experiment: &Experiment) -> Vec<Problem> {
    let rules = [
        ranks,
        devices,
        mask::weights,
        backward,
        sliding::layers,
        sliding::striped,
        mask::alone,
        mask::numbers,
        mask::by_data,
        wire::gains,
        scores,
        batches,
        schedule::rules,
        epsilon,
        trace,
        data,
        unused::rules,
        expect::rules,
        extend::rules,
        evaluation::rules,
        lora::rules,
        reproducible::rules,
    ];
    rules.iter().flat_map(|rule| rule(experiment)).collect()
}

/// What is added in f32 must be more than 0 there.
fn epsilon(experiment: &Experiment) -> Vec<Problem> {
    let least = f64::from(f32::MIN_POSITIVE);
    let epsilon = experiment.optimizer.epsilon;
    let problem = || {
        let message = format!("{epsilon:e} is 0 in f32, in which AdamW computes");
        let problem = experiment.places.problem("optimizer.epsilon", message);
        problem.hint(format!("{least:e} or more"))
    };
    (epsilon < least).then(problem).into_iter().collect()
}

fn ranks(experiment: &Experiment) -> Vec<Problem> {
    let (mesh, places) = (&experiment.mesh, &experiment.places);
    let mut problems = Vec::new();
    let world = mesh.ranks();
    if world > MOST_RANKS {
        let message = format!(
            "`mesh` has {} x {} x {} = {world} ranks, expected at most {MOST_RANKS}",
            mesh.data, mesh.sequence, mesh.tensor
        );
        problems.push(places.problem("mesh", message));
    }
    for (section, Ways { strategy, automatic, .. }) in sections(experiment) {
        let key = format!("{section}.strategy");
        let (all, written) = (section == ALL, places.contains(&key));
        // A strategy that is not written for some layers is reported for all layers.
        if strategy != Strategy::Local || mesh.sequence == 1 || automatic || !(all || written) {
            continue;
        }
        let names: Vec<&str> = Strategy::ALL.iter().skip(1).map(|s| s.name()).collect();
        let hint = format!("use `auto`, or one of `{}`", names.join("`, `"));
        let problem = if written {
            let message = format!("`local` runs on 1 rank, found {}", mesh.sequence);
            places.problem(&key, message)
        } else {
            let message = format!(
                "`attention.strategy` is missing: it splits a sequence over {} ranks",
                mesh.sequence
            );
            places.problem("mesh.sequence", message)
        };
        problems.push(problem.hint(hint));
    }
    problems
}

/// The section that holds for all layers without a section of their own.
const ALL: &str = "attention";

/// How a section splits attention, and its backward route.
struct Ways {
    strategy: Strategy,
    automatic: bool,
    backward: Option<Route>,
}

/// The sections that say how layers are split.
fn sections(experiment: &Experiment) -> impl Iterator<Item = (&'static str, Ways)> {
    let Attention { strategy, automatic, backward, ref sliding, .. } = experiment.attention;
    let sliding = sliding.as_ref().map(|sliding| {
        let Sliding { strategy, automatic, backward, .. } = *sliding;
        (sliding::SECTION, Ways { strategy, automatic, backward })
    });
    [(ALL, Ways { strategy, automatic, backward })].into_iter().chain(sliding)
}

/// Refuses a backward route that the strategy does not have. The plan settles `auto`.
fn backward(experiment: &Experiment) -> Vec<Problem> {
    let wrong = |(section, ways): (&str, Ways)| {
        let Ways { strategy, automatic, backward } = ways;
        let how = backward?;
        let key = format!("{section}.backward");
        let problem = |message: String, hint: String| {
            // A route inherited from all layers is reported where it is written.
            let of_all = section != ALL && !experiment.places.contains(&key);
            (!of_all).then(|| experiment.places.problem(&key, message).hint(hint))
        };
        let ways = strategy.routes();
        if automatic {
            let message = format!("`strategy: auto` also chooses `{key}`");
            return problem(message, String::from("leave it out, or name the strategy"));
        }
        if ways.contains(&how) {
            return None;
        }
        let words: Vec<&str> = ways.iter().map(|way| route_word(*way)).collect();
        let (strategy, how) = (strategy.name(), route_word(how));
        let message = format!("strategy `{strategy}` does not support `backward: {how}`");
        problem(message, format!("leave it out, or use `{}`", words.join("` or `")))
    };
    sections(experiment).filter_map(wrong).collect()
}

fn scores(experiment: &Experiment) -> Vec<Problem> {
    let is_cuda = matches!(experiment.device, Device::Cuda(_));
    let keeping = sections(experiment)
        .find(|(_, ways)| ways.strategy.stores_scores() && !ways.automatic && is_cuda);
    let problem = |(section, _): (&str, Ways)| {
        let problem = experiment.places.problem(&format!("{section}.strategy"), STORES_SCORES);
        problem.hint("set `device: cpu`, or use `ring`")
    };
    keeping.map(problem).into_iter().collect()
}

/// Refuses GPUs that no rank would be left for.
fn devices(experiment: &Experiment) -> Vec<Problem> {
    let ranks = experiment.mesh.ranks();
    let Device::Cuda(numbers) = &experiment.device else { return Vec::new() };
    if numbers.len() <= ranks {
        return Vec::new();
    }
    let (word, gpus) = (experiment.device.word(), numbers.len());
    let message = format!("`{word}` names {gpus} GPUs, but `mesh` has {ranks} ranks");
    let hint =
        format!("name at most {ranks}, or set `device: cuda`, which takes as many as it needs");
    vec![experiment.places.problem("device", message).hint(hint)]
}

fn batches(experiment: &Experiment) -> Vec<Problem> {
    let (batch, replicas) = (experiment.data.batch, experiment.mesh.data);
    let places = &experiment.places;
    if batch.saturating_mul(experiment.data.tokens) > MOST_TOKENS {
        let message = format!(
            "{batch} sequences of {} tokens are more than {MOST_TOKENS} tokens per step",
            experiment.data.tokens
        );
        return vec![places.problem("data.batch", message)];
    }
    if !batch.is_multiple_of(replicas) {
        let message = format!("a batch of {batch} cannot be split over {replicas} replicas");
        let hint = format!(
            "set `batch` to a multiple of {replicas}, such as {}",
            batch.div_ceil(replicas) * replicas
        );
        let key = places.to_blame(&["data.batch", "mesh.data"]);
        return vec![places.problem(key, message).hint(hint)];
    }
    let per_replica = batch / replicas;
    match experiment.memory.micro_batch {
        Some(micro) if !per_replica.is_multiple_of(micro) => {
            let message =
                format!("{per_replica} sequences per replica cannot be taken {micro} at a time");
            let hint = format!("set `memory.micro_batch` to a divisor of {per_replica}");
            let key = places.to_blame(&["memory.micro_batch", "data.batch", "mesh.data"]);
            vec![places.problem(key, message).hint(hint)]
        }
        _ => Vec::new(),
    }
}

fn trace(experiment: &Experiment) -> Vec<Problem> {
    let steps = experiment.all_steps();
    let first = experiment.trace.steps.iter().flatten().map(|range| range.start).min();
    let last = experiment.trace.steps.iter().flatten().map(|range| range.end - 1).max();
    let problem = |message: String| {
        let hint = format!("steps are counted from 1 to {steps}");
        vec![experiment.places.problem("trace.steps", message).hint(hint)]
    };
    match (first, last) {
        (Some(0), _) => problem(String::from("`trace.steps` has step 0")),
        (_, Some(last)) if last as u64 > steps => {
            problem(format!("`trace.steps` has step {last}, beyond the last, {steps}"))
        }
        _ => Vec::new(),
    }
}

fn data(experiment: &Experiment) -> Vec<Problem> {
    let (data, places) = (&experiment.data, &experiment.places);
    let mut problems = path_and_format(data, places);
    problems.extend(unpackable(data, places));
    if data.format == Format::Batches && data.evaluate > 0 {
        let message = format!(
            "`format: batches` holds nothing out, but `data.evaluate` is {}",
            data.evaluate
        );
        problems.push(places.problem("data.evaluate", message).hint("remove `data.evaluate`"));
    }
    let has_text = data.evaluate > 0 && !data.format.is_made_up();
    if experiment.sample.as_ref().is_some_and(|sample| sample.prompt.is_none()) && !has_text {
        let message = String::from("no text is held out that the model could continue");
        problems.push(places.problem("sample", message).hint("give a `prompt` under `sample:`"));
    }
    if experiment.keep_best && (experiment.every.evaluate == 0 || data.evaluate == 0) {
        let message =
            "`keep_best` compares validation losses, but none is measured during training";
        let hint = "set `every.evaluate` and `data.evaluate`, or remove `keep_best`";
        problems.push(places.problem("keep_best", message).hint(hint));
    }
    problems.extend(idle_evaluations(experiment));
    problems
}

/// Problems of evaluations of nothing.
fn idle_evaluations(experiment: &Experiment) -> impl Iterator<Item = Problem> {
    let Every { evaluate, evaluate_on_start, .. } = experiment.every;
    let asked = [
        ("every.evaluate", evaluate.to_string(), evaluate > 0),
        ("every.evaluate_on_start", evaluate_on_start.to_string(), evaluate_on_start),
    ];
    let asked = asked.into_iter().filter(|(_, _, is_asked)| *is_asked);
    asked.filter(|_| experiment.data.evaluate == 0).map(|(key, value, _)| {
        let message = format!("`{key}` is {value}, but `data.evaluate` holds out no sequences");
        let hint = format!("set `data.evaluate`, or remove `{key}`");
        experiment.places.problem(key, message).hint(hint)
    })
}

/// The first format that cannot be packed as it is asked for.
fn unpackable(data: &Data, places: &Places) -> Option<Problem> {
    let own = (data.format, data.pack, "data.pack".to_owned());
    let of_source = |(index, source): (usize, &TextSource)| {
        let key = source.pack.map(|_| format!("data.path.{index}.pack"));
        let key = key.unwrap_or_else(|| "data.pack".to_owned());
        (source.format.unwrap_or(data.format), source.pack(data), key)
    };
    let sources = data.path.iter().enumerate().map(of_source);
    let mut all = sources.chain(data.path.is_empty().then_some(own));
    let (format, pack, key) = all.find(|(format, pack, _)| match pack {
        Pack::Stream => *format == Format::Chat,
        Pack::Documents | Pack::BestFit => !format.is_text(),
    })?;
    let message = format!("`format: {}` cannot be packed as `{}`", format.word(), pack.word());
    Some(places.problem(&key, message).hint(format!("remove `{key}`")))
}

/// Checks that `data.path` and `format` go together.
fn path_and_format(data: &Data, places: &Places) -> Vec<Problem> {
    let (word, mut problems) = (data.format.word(), Vec::new());
    match (&data.path[..], data.format) {
        ([], Format::Jsonl | Format::Parquet | Format::Chat | Format::Batches) => {
            let message = format!("`format: {word}` needs `data.path`");
            problems.push(places.problem("data.format", message).hint("add `path:` under `data:`"));
        }
        ([_, ..], format) if format.is_made_up() => {
            let message = format!("`format: {word}` makes its own data, but `data.path` is given");
            problems.push(places.problem("data.path", message).hint("drop one of them"));
        }
        _ => {}
    }
    if data.path.len() > 1 && data.format == Format::Batches {
        let message = String::from("`format: batches` takes one file");
        problems.push(places.problem("data.path", message).hint("name one"));
    }
    problems.extend(mixture(data, places));
    problems
}

/// Problems of one source of a mixture, beside the others.
fn mixture(data: &Data, places: &Places) -> Vec<Problem> {
    let mut problems = Vec::new();
    let all: f64 = data.path.iter().map(TextSource::share).sum();
    for (number, source) in data.path.iter().enumerate() {
        let key = |name: &str| format!("data.path.{number}.{name}");
        let path = source.path.display();
        if source.share() / all < LEAST_SHARE {
            let message = format!("`{path}` is read less than once in a thousand sequences");
            let hint = "raise its `weight`, or leave it out";
            problems.push(places.problem(&key("weight"), message).hint(hint));
        }
        if let Some((message, hint)) = misread(data, source) {
            problems.push(places.problem(&key("path"), message).hint(hint));
        }
    }
    problems
}

/// A source whose file names contradict its format.
fn misread(data: &Data, source: &TextSource) -> Option<(String, &'static str)> {
    let ending = ending(&source.path)?;
    let text = source.format.unwrap_or(data.format) == Format::Text;
    let hint = match &*ending {
        "jsonl" => "set `format: jsonl` (a text in each line) or `chat` (a conversation in each)",
        "parquet" => {
            "set `format: parquet` (a text in each row) or `chat` (a conversation in each)"
        }
        _ => return None,
    };
    text.then(|| (format!("the name ends in `.{ending}`, but its `format` is `text`"), hint))
}
