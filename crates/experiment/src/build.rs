//! From typed values to the experiment: one line per key.

use std::collections::BTreeMap;
use std::path::PathBuf;

use annulus_sequence::{Exchange, Part, Strategy, Wire};

use crate::table::AUTO;
use crate::values::Values;
use crate::wire::wire_key;
use crate::{
    Attention, Bound, Contradiction, Data, Dealt, Decay, Device, Dtype, Element, Every, Experiment,
    Format, Kernel, Longer, MaskKind, Memory, Mesh, Model, ModelSource, Optimizer, Pack, Packed,
    Pattern, Places, Problem, Recompute, Schedule, Shape, Traced, WeightsFrom, Wording,
    return_from_word,
};

/// The experiment that `values` describe, unless something that it needs was refused.
pub(crate) fn experiment(values: &Values, places: Places) -> Option<Experiment> {
    let name = values.text("name")?.to_owned();
    let output = values.optional("output", Values::text)?.map(PathBuf::from);
    Some(Experiment {
        seed: values.count("seed")?,
        device: values.word("device", Device::from_word)?,
        model: model(values)?,
        data: data(values)?,
        mesh: mesh(values)?,
        attention: attention(values)?,
        memory: memory(values)?,
        optimizer: optimizer(values)?,
        schedule: schedule(values)?,
        every: Every {
            log: values.count("every.log")?,
            evaluate: values.count("every.evaluate")?,
            checkpoint: values.count("every.checkpoint")?,
        },
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

fn model(values: &Values) -> Option<Model> {
    let dtype = values.word("model.dtype", Dtype::from_word)?;
    let rope_theta = values.optional("model.rope_theta", Values::real)?;
    let weights = values.optional("model.weights", Values::text)?;
    let Some(path) = values.optional("model.path", Values::text)? else {
        let shape = shape(values, "model.", rope_theta)?;
        return Some(Model { source: ModelSource::Inline(shape), dtype, rope_theta: None });
    };
    let weights = weights.map_or(Some(WeightsFrom::Pretrained), WeightsFrom::from_word)?;
    let source = ModelSource::Folder { path: PathBuf::from(path), weights };
    Some(Model { source, dtype, rope_theta })
}

/// The shape whose keys stand under `prefix`.
pub(crate) fn shape(values: &Values, prefix: &str, rope_theta: Option<f64>) -> Option<Shape> {
    let key = |name: &str| format!("{prefix}{name}");
    let hidden_size = values.size(&key("hidden_size"))?;
    let num_attention_heads = values.size(&key("num_attention_heads"))?;
    Some(Shape {
        hidden_size,
        intermediate_size: values.size(&key("intermediate_size"))?,
        num_hidden_layers: values.size(&key("num_hidden_layers"))?,
        num_attention_heads,
        num_key_value_heads: values
            .optional(&key("num_key_value_heads"), Values::size)?
            .unwrap_or(num_attention_heads),
        head_dim: values
            .optional(&key("head_dim"), Values::size)?
            .unwrap_or(hidden_size / num_attention_heads),
        vocab_size: values.optional(&key("vocab_size"), Values::size)?,
        max_position_embeddings: values.optional(&key("max_position_embeddings"), Values::size)?,
        rms_norm_eps: values.real(&key("rms_norm_eps"))?,
        rope_theta: rope_theta.unwrap_or(Shape::ROPE_THETA),
        tie_word_embeddings: values.truth(&key("tie_word_embeddings"))?,
        attention_bias: values.truth(&key("attention_bias"))?,
        mlp_bias: values.truth(&key("mlp_bias"))?,
        initializer_range: values.real(&key("initializer_range"))?,
        special_tokens: BTreeMap::new(),
    })
}

fn data(values: &Values) -> Option<Data> {
    const HELD_OUT: usize = 8;
    let format = values.word("data.format", Format::from_word)?;
    let held_out = if format == Format::Batches { 0 } else { HELD_OUT };
    let pack = if format == Format::Chat { Pack::Documents } else { Pack::Stream };
    Some(Data {
        path: values.optional("data.path", Values::text)?.map(PathBuf::from),
        format,
        tokenizer: values.text("data.tokenizer")?.to_owned(),
        tokens: values.size("data.tokens")?,
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

/// The words that say how a sequence is split, and whether `auto` is one of them. Without a strategy it
/// is `local`, which a later check refuses on more than one rank.
fn wording<'a>(values: &Values, shape: Option<&'a [usize]>) -> Option<(Wording<'a>, bool)> {
    let strategy = values.optional("attention.strategy", Values::text)?;
    let automatic = strategy == Some(AUTO);
    let strategy = strategy.filter(|_| !automatic);
    let layout = values.optional("attention.layout", Values::text)?;
    // Borrowed from the table, which outlives the file.
    let layout = layout.and_then(|word| Dealt::WORDS.iter().copied().find(|known| *known == word));
    let exchange = values.optional("attention.exchange", Values::text)?;
    let words = Wording {
        strategy: strategy.map_or(Some(Strategy::Local), Strategy::from_name)?,
        exchange: exchange.and_then(Exchange::from_name),
        shape,
        groups: values.optional("attention.groups", Values::size)?,
        layout,
        stripe: values.optional("attention.stripe", Values::size)?,
    };
    Some((words, automatic))
}

/// Words that do not go together.
pub(crate) fn contradictions(values: &Values, places: &Places) -> Vec<Problem> {
    let shape = values.sizes("attention.shape");
    let Some((words, automatic)) = wording(values, shape.as_deref()) else { return Vec::new() };
    let problem = |key: &str, message: String, hint: &str| {
        places.problem(&format!("attention.{key}"), message).hint(hint)
    };
    if !automatic {
        let refused = words
            .settled()
            .err()
            .map(|Contradiction { key, message, hint }| problem(key, message, &hint));
        return refused.into_iter().collect();
    }
    let chosen = [
        ("exchange", words.exchange.is_some()),
        ("shape", words.shape.is_some()),
        ("groups", words.groups.is_some()),
        ("stripe", words.stripe.is_some() && words.layout.is_none()),
    ];
    let problem = |(key, written): (&str, bool)| {
        let message = format!("`strategy: auto` chooses the `{key}` too");
        written.then(|| problem(key, message, "drop it, or name the strategy"))
    };
    chosen.into_iter().filter_map(problem).collect()
}

fn attention(values: &Values) -> Option<Attention> {
    let shape = values.optional("attention.shape", Values::sizes)?;
    let (words, automatic) = wording(values, shape.as_deref())?;
    let (strategy, layout) = match words.settled() {
        Ok((strategy, layout)) if !automatic => (strategy, layout),
        // Open, or refused by [`contradictions`].
        _ => (words.strategy, words.layout.and_then(|word| Dealt::from_word(word, words.stripe))),
    };
    let backward = values.text("attention.backward")?;
    let pattern = values.optional("attention.pattern", Values::text)?;
    Some(Attention {
        strategy,
        automatic,
        layout,
        backward: return_from_word(backward),
        mask: values.word("attention.mask", MaskKind::from_word)?,
        prefix: values.optional("attention.prefix", Values::size)?,
        documents: values.optional("attention.documents", packed)?,
        padding: values.optional("attention.padding", Values::size)?,
        window: values.optional("attention.window", Values::size)?,
        pattern: pattern.and_then(Pattern::from_word),
        stride: values.optional("attention.stride", Values::size)?,
        columns: values.optional("attention.columns", Values::size)?,
        sinks: values.optional("attention.sinks", Values::size)?,
        global: values.optional("attention.global", Values::ranges)?,
        kernel: values.word("attention.kernel", Kernel::from_word)?,
        deterministic: values.truth("attention.deterministic")?,
        wire: wire(values)?,
        dropout: values.real("attention.dropout")?,
    })
}

fn wire(values: &Values) -> Option<Wire<Option<Element>>> {
    let of = |part| {
        let key = format!("attention.wire.{}", wire_key(part));
        let word = values.optional(&key, Values::text)?;
        Some(word.and_then(Element::from_word))
    };
    Some(Wire {
        query: of(Part::Query)?,
        key_value: of(Part::KeyValue)?,
        output: of(Part::Output)?,
        query_gradient: of(Part::QueryGradient)?,
        gradient: of(Part::Gradient)?,
    })
}

/// A word is the only one there is.
fn packed(values: &Values, key: &str) -> Option<Packed> {
    let by_data = values.text(key).map(|_| Packed::ByData);
    by_data.or_else(|| values.sizes(key).map(Packed::Lengths))
}

fn memory(values: &Values) -> Option<Memory> {
    Some(Memory {
        recompute: values.word("memory.recompute", Recompute::from_word)?,
        micro_batch: values.optional("memory.micro_batch", Values::size)?,
        budget: values.optional("memory.budget", Values::count)?,
        device: None,
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

fn schedule(values: &Values) -> Option<Schedule> {
    Some(Schedule {
        steps: values.count("schedule.steps")?,
        stop: values.optional("schedule.stop", Values::count)?,
        warmup: values.count("schedule.warmup")?,
        decay: values.word("schedule.decay", Decay::from_word)?,
        floor: values.real("schedule.floor")?,
    })
}

fn expect(values: &Values) -> BTreeMap<String, Bound> {
    let tags = values.words.get("expect").map_or(&[][..], Vec::as_slice);
    let bound = |tag: &String| {
        let read = |name: &str| values.real(&format!("expect.{tag}.{name}"));
        let bound = Bound { min: read("min"), max: read("max"), of_first: read("of_first") };
        (tag.clone(), bound)
    };
    tags.iter().map(bound).collect()
}
