//! `annulus score`: loss, logits and gradients of a Hugging Face model on given tokens.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use annulus_comm::World;
use annulus_data::{IGNORED, Sequence, count_targets};
use annulus_experiment::{Dtype, Problem, has_saved_config, read_adapter, read_saved_config};
use annulus_model::{Config, Llama, Weights};
use annulus_plan::heads_of;
use annulus_sequence::Setting;
use annulus_tensors::{Dtype as Stored, Entry};
use annulus_train::{
    ScoreOutputs, Scored, Setup, check_beside, check_processes_agree, model_config, open_device,
    ranks_here, score,
};
use candle_core::{DType, Device, Tensor};
use clap::Args;

use crate::Done;
use crate::failure::Failure;
use crate::processes::{self, JobError};
use crate::split::{ResolvedStrategy, SplitFlags};
use crate::tensors::{TensorFile, save};
use crate::{hub, output, print};

/// The tensor that says which tokens are padding.
const MASK: &str = "attention_mask";
/// The most logits of a file's tokens, which are held at once: 32 GiB.
const MOST_LOGITS: u64 = 1 << 33;

#[derive(Args, Debug)]
pub(crate) struct Score {
    /// A Hugging Face folder
    #[arg(long)]
    model: PathBuf,
    /// PEFT folder with adapters of the model
    #[arg(long, value_name = "FOLDER")]
    adapter: Option<PathBuf>,
    /// A safetensors file with `input_ids` [B, S] and optional `labels`; other tensors of whole numbers are refused
    #[arg(long)]
    tokens: PathBuf,
    /// The safetensors file to write
    #[arg(long, alias = "output")]
    out: PathBuf,
    /// Also write the gradient of every parameter
    #[arg(long)]
    gradients: bool,
    #[command(flatten)]
    split: SplitFlags,
}

pub(crate) fn run(arguments: &Score) -> Done {
    let world = processes::join()?;
    Ok(processes::finish(&world, scored(arguments, &world)))
}

/// A model, and the sequences that it is scored on.
struct Asked {
    setup: Setup,
    weights: Weights,
    sequences: Vec<Sequence>,
}

fn scored(arguments: &Score, world: &World) -> Result<u8, JobError> {
    let asked = processes::in_turn(world, || asked(arguments, world))?;
    let Asked { setup, weights, sequences } = &asked;
    // Alone there is nothing to compare the text of all tokens with.
    if world.processes() > 1 {
        let config = format!("{:?}", setup.config).into_bytes();
        let tokens = format!("{sequences:?}").into_bytes();
        check_processes_agree(
            world,
            None,
            Some(weights),
            &[("the model", config), ("the tokens", tokens)],
        )?;
    }
    let want = ScoreOutputs { logits: true, gradients: arguments.gradients };
    let scored = score(setup, weights, sequences, want)?;
    Ok(if world.process() == 0 { written(arguments, sequences, scored)? } else { 0 })
}

/// Opens the model and the sequences.
fn asked(arguments: &Score, world: &World) -> Result<Asked, Failure> {
    output::check(&arguments.out, &[&arguments.tokens])?;
    let model = hub::folder(&arguments.model)?;
    // Ours say what the model is extended to.
    let own = arguments.adapter.as_deref().filter(|adapter| has_saved_config(adapter));
    let shape = read_saved_config(own.unwrap_or(&model));
    let shape = shape.map_err(Failure::data)?;
    // Weights of any dtype are widened to f32, so that no rounding of a narrower dtype is part of the score.
    let config = model_config(&shape, Dtype::F32)?;
    let sequences = read(&arguments.tokens, config.vocab_size)?;
    let heads = heads_of(&shape);
    let ResolvedStrategy { strategy, layout, backward } =
        crate::layout::check(&arguments.split, sequences[0].inputs.len(), heads)?;
    let (config, weights) = weights(arguments, &model, config)?;
    if world.process() == 0 {
        print::warn_of_device(&arguments.split.device);
    }
    let (tokens, ranks) = (sequences[0].inputs.len(), arguments.split.ranks);
    let setting =
        Setting { layout, route: backward, ..Setting::new(strategy, tokens, ranks, heads) };
    ranks_here(world, ranks)?;
    let setup = setup(&arguments.split, config, &setting, sequences.len(), world)?;
    Ok(Asked { setup, weights, sequences })
}

/// Writes and prints the results.
fn written(arguments: &Score, sequences: &[Sequence], scored: Scored) -> Done {
    let mut out = BTreeMap::new();
    out.insert("loss".to_owned(), Tensor::new(&[scored.loss as f32], &Device::Cpu)?);
    out.extend(scored.logits.map(|logits| ("logits".to_owned(), logits)));
    let gradients = scored.gradients.into_iter().flatten();
    out.extend(gradients.map(|(name, gradient)| (format!("grad.{name}"), gradient)));
    save(&out, &arguments.out)?;
    print::line(&said(scored.loss, sequences, &out, &arguments.out))?;
    Ok(0)
}

/// The loss, and the tensors in the written file, as text.
fn said(loss: f64, sequences: &[Sequence], out: &BTreeMap<String, Tensor>, path: &Path) -> String {
    let targets: usize = sequences.iter().map(count_targets).sum();
    let gradients = out.keys().filter(|name| name.starts_with("grad.")).count();
    let also = if gradients > 0 { format!(", {gradients} gradients") } else { String::new() };
    let logits =
        out.get("logits").map_or_else(String::new, |all| format!(", logits {:?}", all.dims()));
    let perplexity = loss.exp();
    format!(
        "loss {loss:.6} over {targets} targets, perplexity {perplexity:.3}\n\
         `{}` has the loss{logits}{also}",
        path.display()
    )
}

/// The setup of one step over `batch` sequences, split as in `setting`.
fn setup(
    split: &SplitFlags,
    config: Config,
    setting: &Setting,
    batch: usize,
    world: &World,
) -> Result<Setup, Failure> {
    Ok(Setup {
        processors: open_device(&split.device, world, split.ranks)?,
        kernel: split.kernel.into(),
        deterministic: split.deterministic,
        micro_batch: batch,
        processes: world.clone(),
        ..Setup::of_model(config, setting, processes::cores(world))?
    })
}

/// The model's weights; with the adapter's, if one is given, which the returned configuration then has too.
fn weights(arguments: &Score, model: &Path, config: Config) -> Result<(Config, Weights), Failure> {
    let mut weights = annulus_model::load(model, &Llama::specification(&config), DType::F32)?;
    let Some(adapter) = &arguments.adapter else { return Ok((config, weights)) };
    check_beside(adapter, model)?;
    let lora = read_adapter(adapter, &config.shape).map_err(Failure::data)?;
    lora.suits(&config.shape).map_err(|problem| Failure::data(problem.into()))?;
    let config = Config { lora: Some(lora), ..config };
    let specification = Llama::specification(&config);
    weights.extend(annulus_model::stored_adapter(adapter, &specification, DType::F32)?.all()?);
    Ok((config, weights))
}

/// Reads the sequences. `labels[b, t + 1]` is the target of position `t`; the last position has none.
fn read(path: &Path, vocabulary: usize) -> Result<Vec<Sequence>, Failure> {
    let file = TensorFile::open(path)?;
    let most = MOST_LOGITS / vocabulary as u64;
    let inputs = rows(&file, "input_ids", most, &|id| (0..vocabulary as i64).contains(&id))?;
    let label = |id| id == IGNORED || (0..vocabulary as i64).contains(&id);
    let labels =
        if file.has("labels") { rows(&file, "labels", most, &label)? } else { inputs.clone() };
    if inputs.is_empty() || inputs[0].len() < 2 {
        return Err(file.bad("`input_ids` needs at least one row of two ids"));
    }
    refuse_other_inputs(&file, most)?;
    if labels.len() != inputs.len() || labels[0].len() != inputs[0].len() {
        let shape = |rows: &[Vec<i64>]| [rows.len(), rows.first().map_or(0, Vec::len)];
        let (labels, inputs) = (shape(&labels), shape(&inputs));
        return Err(file.bad(format!("`labels` is {labels:?} and `input_ids` is {inputs:?}")));
    }
    let sequence = |(inputs, labels): (Vec<i64>, Vec<i64>)| Sequence {
        inputs: inputs.into_iter().map(|id| id as u32).collect(),
        targets: labels.into_iter().skip(1).chain([IGNORED]).collect(),
        documents: Vec::new(),
    };
    let sequences: Vec<Sequence> = std::iter::zip(inputs, labels).map(sequence).collect();
    if sequences.iter().map(count_targets).sum::<usize>() == 0 {
        return Err(
            file.bad(format!("`labels` has no target: all but each row's first id are {IGNORED}"))
        );
    }
    Ok(sequences)
}

/// Refuses what models elsewhere take beside ids, which would change the score: whole numbers, and the floats that are named. A mask that hides
/// nothing changes none, nor do results that others found for these ids.
fn refuse_other_inputs(file: &TensorFile, most: u64) -> Result<(), Failure> {
    let known = ["input_ids", "labels", MASK];
    let floats = [Stored::F64, Stored::F32, Stored::F16, Stored::BF16];
    let is_other = |(name, entry): &(&str, &Entry)| {
        !known.contains(name) && (!floats.contains(&entry.dtype) || *name == "inputs_embeds")
    };
    let others: Vec<_> =
        file.entries().filter(is_other).map(|(name, _)| format!("`{name}`")).collect();
    if !others.is_empty() {
        let message =
            format!("nothing reads {}, which it has beside `input_ids`", others.join(", "));
        let hint = "remove what is named: positions count from 0 in every row, and a token sees those before it";
        return Err(file.bad_with(Problem::new(message).hint(hint)));
    }
    let mask = if file.has(MASK) { rows(file, MASK, most, &|_| true)? } else { Vec::new() };
    let hidden = mask.iter().enumerate().find_map(|(row, seen)| {
        let column = seen.iter().position(|&seen| seen != 1)?;
        Some((row, column, seen[column]))
    });
    let Some((row, column, found)) = hidden else { return Ok(()) };
    let message = format!("`{MASK}`[{row}, {column}] is {found}, and `score` hides no token");
    let hint = format!(
        "pad rows at their end, with -100 for the padding in `labels`, and remove `{MASK}`"
    );
    Err(file.bad_with(Problem::new(message).hint(hint)))
}

/// Rows of at most so many token ids, all of which must satisfy `known`.
fn rows(
    file: &TensorFile,
    name: &str,
    most: u64,
    known: &dyn Fn(i64) -> bool,
) -> Result<Vec<Vec<i64>>, Failure> {
    let entry = file.entry(name)?;
    let whole = [Stored::I64, Stored::I32, Stored::U32, Stored::U8];
    if !whole.contains(&entry.dtype) || entry.shape.len() != 2 {
        let (dtype, shape) = (entry.dtype, &entry.shape);
        let text = format!("`{name}` is {dtype:?} {shape:?}, expected whole numbers [B, S]");
        return Err(file.bad(text));
    }
    let ids = entry.shape.iter().product::<usize>() as u64;
    if ids > most {
        return Err(file.bad(format!(
            "`{name}` has {ids} ids, expected at most {most}: their logits are held at once"
        )));
    }
    let rows: Vec<Vec<i64>> = file.tensor(name)?.to_dtype(DType::I64)?.to_vec2()?;
    for (row, ids) in rows.iter().enumerate() {
        if let Some(column) = ids.iter().position(|&id| !known(id)) {
            let id = ids[column];
            let text = format!("`{name}`[{row}, {column}] is {id}, which the model does not know");
            return Err(file.bad(text));
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_counted_to_the_last() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ids.safetensors");
        let ids = Tensor::zeros((1, 9), DType::I64, &Device::Cpu).unwrap();
        save(&BTreeMap::from([("input_ids".to_owned(), ids)]), &path).unwrap();
        let file = TensorFile::open(&path).unwrap();
        let rows = |most| rows(&file, "input_ids", most, &|_| true);
        assert_eq!(rows(9).unwrap(), [[0; 9]]);
        let error = rows(8).unwrap_err().problems.to_string();
        assert!(error.contains("`input_ids` has 9 ids, expected at most 8"), "{error}");
    }

    /// What is said of two rows of ids beside another tensor.
    fn said(name: &str, tensor: Tensor) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ids.safetensors");
        let ids = Tensor::zeros((2, 3), DType::I64, &Device::Cpu).unwrap();
        let tensors = [("input_ids".to_owned(), ids), (name.to_owned(), tensor)];
        save(&BTreeMap::from(tensors), &path).unwrap();
        read(&path, 8).err().map(|failure| failure.problems.to_string())
    }

    #[test]
    fn inputs_that_would_change_the_score_are_refused() {
        let ones = Tensor::ones((2, 3), DType::I64, &Device::Cpu).unwrap();
        assert_eq!(said(MASK, ones.clone()), None);
        let padded = Tensor::new(&[[1i64, 1, 1], [1, 1, 0]], &Device::Cpu).unwrap();
        let masked = said(MASK, padded).unwrap();
        assert!(masked.contains("`attention_mask`[1, 2] is 0"), "{masked}");
        for (name, tensor) in [
            ("position_ids", ones.clone()),
            ("inputs_embeds", Tensor::zeros((2, 3, 4), DType::F32, &Device::Cpu).unwrap()),
        ] {
            let said = said(name, tensor).unwrap();
            assert!(said.contains(&format!("nothing reads `{name}`")), "{said}");
        }
        // Results that are expected may lie beside the ids.
        for name in ["logits", "grad.lm_head.weight"] {
            assert_eq!(said(name, ones.to_dtype(DType::F32).unwrap()), None);
        }
    }
}
