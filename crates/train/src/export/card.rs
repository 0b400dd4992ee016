//! The model card: what the model is, how it was made, and how to make it again, all from the files of its run.

use std::fmt::Write as _;
use std::path::Path;

use annulus_experiment::tags::{EVALUATE_LOSS, RESULTS, TRAIN_LOSS};
use annulus_experiment::{ModelSource, Shape, WeightsFrom};
use annulus_model::Weights;
use candle_core::DType;
use serde_json::Value;

use super::Checkpoint;

pub(super) const NAME: &str = "README.md";

/// The text of the model card of the folder `out`.
pub(super) fn card(checkpoint: &Checkpoint, out: &Path, weights: &Weights) -> String {
    let mut text = front(checkpoint);
    let name = &checkpoint.experiment.name;
    let _ = write!(text, "# {name}\n\n{}\n\n", lead(checkpoint));
    if let Some(unsaid) = checkpoint.unsaid() {
        let _ = write!(text, "Note: {unsaid}. Losses below are of the experiment's mask.\n\n");
    }
    table(&mut text, &facts(checkpoint, weights));
    // A text of Python in JSON's quotes reads back as the same path.
    let folder = Value::from(out.display().to_string());
    let python = format!(
        "from transformers import AutoModelForCausalLM\nmodel = AutoModelForCausalLM.from_pretrained({folder})"
    );
    text.push('\n');
    fenced(&mut text, "python", &python);
    text.push_str(
        "\n## How it was made\n\n`annulus train` of this experiment, all defaults written out:\n\n",
    );
    fenced(&mut text, "yaml", &checkpoint.experiment.written().to_yaml());
    if let Some(manifest) = &checkpoint.manifest {
        text.push_str("\n## Manifest\n\nHashes are BLAKE3, times seconds since 1970.\n\n");
        fenced(&mut text, "json", &manifest.text());
    }
    text
}

/// The card's metadata for the hub.
fn front(checkpoint: &Checkpoint) -> String {
    let mut text = String::from("---\nlibrary_name: transformers\npipeline_tag: text-generation\n");
    if let Some((repository, revision)) = checkpoint.base() {
        let _ = writeln!(text, "base_model: {repository}\nbase_model_revision: {revision}");
    }
    text.push_str("tags:\n- annulus\n- long-context\n---\n\n");
    text
}

fn lead(checkpoint: &Checkpoint) -> String {
    let (experiment, shape) = (&checkpoint.experiment, &checkpoint.shape);
    let ranks = experiment.mesh.sequence * experiment.mesh.tensor;
    let lengths = experiment.phase_of.as_ref().map_or_else(
        || vec![experiment.data.tokens],
        |staged| staged.whole.stages[..=staged.number].iter().map(|stage| stage.tokens).collect(),
    );
    let lengths: Vec<String> = lengths.iter().map(usize::to_string).collect();
    let tokens = lengths.join(", then ");
    let family = shape.model_type.word();
    let split = match ranks {
        1 => "on one rank".to_owned(),
        _ => format!(
            "each split over {ranks} ranks ({}), attention exact",
            experiment.attention.strategy.name()
        ),
    };
    format!("A `{family}` trained on sequences of {tokens} tokens, {split}.")
}

fn facts(checkpoint: &Checkpoint, weights: &Weights) -> Vec<(String, String)> {
    let (experiment, shape) = (&checkpoint.experiment, &checkpoint.shape);
    let parameters: usize = weights.values().map(candle_core::Tensor::elem_count).sum();
    let dtype = if checkpoint.dtype() == DType::BF16 { "bfloat16" } else { "float32" };
    let mut facts = vec![
        ("parameters".to_owned(), format!("{parameters}, {dtype}")),
        ("layers".to_owned(), layers(shape)),
        (
            "heads".to_owned(),
            format!(
                "{} over {} of {}",
                shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
            ),
        ),
        ("rotary frequencies".to_owned(), shape.rope.scaling.word().to_owned()),
        ("started from".to_owned(), start(checkpoint)),
        ("trained".to_owned(), format!("{} steps, {} tokens", checkpoint.step, checkpoint.tokens)),
    ];
    if let Some(positions) = shape.max_position_embeddings {
        facts.insert(3, ("positions".to_owned(), positions.to_string()));
    }
    let paths = experiment.data.path.iter().map(|source| format!("`{}`", source.path.display()));
    let paths: Vec<String> = paths.collect();
    if !paths.is_empty() {
        facts.push(("data".to_owned(), paths.join(", ")));
    }
    let last = &checkpoint.record.last;
    facts.extend(RESULTS.into_iter().filter_map(|(tag, what)| {
        let is_loss = [TRAIN_LOSS, EVALUATE_LOSS].contains(&tag);
        let unit = if is_loss { " (nats per token)" } else { "" };
        Some((format!("{what}{unit}"), format!("{:.4}", last.get(tag)?)))
    }));
    facts
}

fn layers(shape: &Shape) -> String {
    let all = format!("{} of width {}", shape.num_hidden_layers, shape.hidden_size);
    match shape.nope_layers.len() {
        0 => all,
        count => format!("{all}, {count} without rotary embedding"),
    }
}

/// What the run's first weights were.
fn start(checkpoint: &Checkpoint) -> String {
    if let Some((from, step)) = checkpoint.forked() {
        return format!("`{}`, step {step}", from.display());
    }
    match &checkpoint.experiment.model.source {
        ModelSource::Folder { path, hub, weights: WeightsFrom::Pretrained } => {
            format!("`{}`", hub.clone().unwrap_or_else(|| path.display().to_string()))
        }
        _ => format!("random weights, seed {}", checkpoint.experiment.seed),
    }
}

fn table(text: &mut String, rows: &[(String, String)]) {
    text.push_str("| | |\n| --- | --- |\n");
    for (key, value) in rows {
        let _ = writeln!(text, "| {key} | {} |", value.replace('|', "\\|"));
    }
}

/// Adds a fenced code block, whose fence is longer than any in `code`.
fn fenced(text: &mut String, language: &str, code: &str) {
    let longest = code.split(|letter| letter != '`').map(str::len).max().unwrap_or_default();
    let fence = "`".repeat(longest.max(2) + 1);
    let _ = writeln!(text, "{fence}{language}\n{}\n{fence}", code.trim_end());
}
