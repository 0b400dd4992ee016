//! From typed values to the experiment: one line per key.

mod attention;
mod evaluation;

use std::collections::BTreeMap;
use std::path::PathBuf;

use annulus_machine::Core;
use attention::attention;
use evaluation::evaluation;

use crate::values::Values;
use crate::{
    Bound, Data, Decay, Device, Dtype, Every, Experiment, Format, Longer, Memory, Mesh, Model,
    ModelSource, Optimizer, Pack, Places, Problem, Recompute, Schedule, Stage, Traced, WeightsFrom,
    extend, lora, shape, stages,
};

/// The experiment that `values` describe, unless something that it needs was refused.
pub(crate) fn experiment(values: &Values, places: Places) -> Option<Experiment> {
    let name = values.text("name")?.to_owned();
    let output = values.optional("output", Values::text)?.map(PathBuf::from);
    let stages = stages::read(values, &places)?;
    Some(Experiment {
        seed: values.count("seed")?,
        device: values.word("device", Device::from_word)?,
        model: model(values, &places)?,
        extend: extend::read(values, &places, "extend")?,
        lora: lora::read(values, &places)?,
        data: data(values, &stages)?,
        mesh: mesh(values)?,
        attention: attention(values)?,
        memory: memory(values)?,
        optimizer: optimizer(values)?,
        schedule: schedule(values, &stages)?,
        stages,
        staged: None,
        every: Every {
            log: values.count("every.log")?,
            evaluate: values.count("every.evaluate")?,
            checkpoint: values.count("every.checkpoint")?,
        },
        evaluation: evaluation(values)?,
        trace: Traced {
            steps: values.optional("trace.steps", Values::ranges)?.unwrap_or_default(),
        },
        keep: values.size("keep")?,
        output: output.unwrap_or_else(|| PathBuf::from("runs").join(&name)),
        expect: expect(values),
        name,
        places,
    })
}

fn model(values: &Values, places: &Places) -> Option<Model> {
    let dtype = values.word("model.dtype", Dtype::from_word)?;
    let rope_theta = values.optional("model.rope_theta", Values::real)?;
    let weights = values.optional("model.weights", Values::text)?;
    let Some(path) = values.optional("model.path", Values::text)? else {
        let shape = shape::shape(values, "model.", places)?;
        return Some(Model {
            source: ModelSource::Inline(Box::new(shape)),
            dtype,
            rope_theta: None,
        });
    };
    let weights = weights.map_or(Some(WeightsFrom::Pretrained), WeightsFrom::from_word)?;
    let source = ModelSource::Folder { path: PathBuf::from(path), hub: of_hub(path), weights };
    Some(Model { source, dtype, rope_theta })
}

fn of_hub(path: &str) -> Option<String> {
    ModelSource::is_of_hub(path).then(|| path.to_owned())
}

fn data(values: &Values, stages: &[Stage]) -> Option<Data> {
    const HELD_OUT: usize = 8;
    let format = values.word("data.format", Format::from_word)?;
    let held_out = if format == Format::Batches { 0 } else { HELD_OUT };
    let pack = if format == Format::Chat { Pack::Documents } else { Pack::Stream };
    Some(Data {
        path: values.optional("data.path", Values::text)?.map(PathBuf::from),
        format,
        // A model's own takes its place once the folder is there.
        tokenizer: values.optional("data.tokenizer", Values::text)?.unwrap_or("bytes").to_owned(),
        tokenizer_hub: values.text("data.tokenizer").and_then(of_hub),
        tokens: match stages.iter().map(|stage| stage.tokens).max() {
            Some(longest) => longest,
            None => values.size("data.tokens")?,
        },
        batch: values.size("data.batch")?,
        evaluate: values.optional("data.evaluate", Values::size)?.unwrap_or(held_out),
        pack: values
            .optional("data.pack", |values, key| values.word(key, Pack::from_word))?
            .unwrap_or(pack),
        longer: values.word("data.longer", Longer::from_word)?,
    })
}

fn mesh(values: &Values) -> Option<Mesh> {
    Some(Mesh {
        data: values.size("mesh.data")?,
        sequence: values.size("mesh.sequence")?,
        weights: values.optional("mesh.weights", Values::sizes)?,
        deadline: values.seconds("mesh.deadline")?,
        cluster: values.optional("mesh.cluster", Values::text)?.map(PathBuf::from),
    })
}

/// Words that do not go together.
pub(crate) fn contradictions(values: &Values, places: &Places) -> Vec<Problem> {
    let inline = values.text("model.path").is_none();
    let model = inline.then(|| shape::contradictions(values, "model.", places));
    model.into_iter().flatten().chain(attention::contradictions(values, places)).collect()
}

fn memory(values: &Values) -> Option<Memory> {
    Some(Memory {
        recompute: values.word("memory.recompute", Recompute::from_word)?,
        micro_batch: values.optional("memory.micro_batch", Values::size)?,
        budget: values.optional("memory.budget", Values::count)?,
        device: None,
        core: Core::here(),
        workers: 1,
        loss_chunk: values.optional("memory.loss_chunk", Values::size)?,
        mlp_chunk: values.optional("memory.mlp_chunk", Values::size)?,
    })
}

fn optimizer(values: &Values) -> Option<Optimizer> {
    Some(Optimizer {
        learning_rate: values.real("optimizer.learning_rate")?,
        betas: values.pair("optimizer.betas")?,
        epsilon: values.real("optimizer.epsilon")?,
        weight_decay: values.real("optimizer.weight_decay")?,
        clip: values.real("optimizer.clip")?,
    })
}

fn schedule(values: &Values, stages: &[Stage]) -> Option<Schedule> {
    Some(Schedule {
        steps: match stages {
            [] => values.count("schedule.steps")?,
            stages => stages::total(stages),
        },
        stop: values.optional("schedule.stop", Values::count)?,
        warmup: values.count("schedule.warmup")?,
        decay: values.word("schedule.decay", Decay::from_word)?,
        floor: values.real("schedule.floor")?,
    })
}

fn expect(values: &Values) -> BTreeMap<String, Bound> {
    let tags = values.free.get("expect").map_or(&[][..], Vec::as_slice);
    let bound = |tag: &String| {
        let read = |name: &str| values.real(&format!("expect.{tag}.{name}"));
        let bound = Bound { min: read("min"), max: read("max"), of_first: read("of_first") };
        (tag.clone(), bound)
    };
    tags.iter().map(bound).collect()
}
