//! `annulus attend`: attention and its gradients on given tensors.

mod case;
mod mask;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use annulus_comm::World;
use annulus_sequence::{Heads, Mask, Positions};
use annulus_text::wrapped;
use annulus_train::verify::whole::{Answer, Split, attend, attend_tile};
use annulus_train::{DEADLINE, Exit, check_processes_agree, open_device, ranks_here};
use candle_core::{DType, Tensor};
use clap::Args;

use self::case::Case;
use crate::Done;
use crate::failure::Failure;
use crate::processes::{self, JobError};
use crate::split::SplitFlags;
use crate::tensors::save;
use crate::{output, print};

#[derive(Args, Debug)]
pub(crate) struct Attend {
    /// A safetensors file with `q k v dout scale q_pos k_pos` and the mask's name in its metadata
    #[arg(long, long_help = case_help())]
    case: PathBuf,
    /// The safetensors file to write: `out lse dq dk dv`
    #[arg(long, alias = "output")]
    out: PathBuf,
    #[command(flatten)]
    split: SplitFlags,
}

pub(crate) fn run(arguments: &Attend) -> Done {
    let world = processes::join()?;
    Ok(processes::finish(&world, answered(arguments, &world)))
}

fn answered(arguments: &Attend, world: &World) -> Result<u8, JobError> {
    let (case, split, read) = processes::shared(world, || asked(arguments, world))?;
    check_processes_agree(world, None, None, &[("the tensors", read)])?;
    let answer = if case.is_whole() {
        attend(&case.question, &split)?
    } else {
        attend_tile(&case.question, &case.queries, &case.keys, &split)?
    };
    // Every process has the same result; process 0 writes it.
    if world.process() == 0 {
        let tensors = named(answer);
        save(&tensors, &arguments.out)?;
        print::line(&said(&tensors, &arguments.out)?)?;
    }
    Ok(0)
}

/// Reads the case, and resolves how it is split. Of several processes, each returns also the hash of its file.
fn asked(arguments: &Attend, world: &World) -> Result<(Case, Split, Vec<u8>), Failure> {
    output::check(&arguments.out, &[&arguments.case])?;
    let case = Case::read(&arguments.case)?;
    let read = if world.processes() > 1 { content(&arguments.case)? } else { Vec::new() };
    let SplitFlags { strategy, ref flags, ranks, .. } = arguments.split;
    let resolved = flags.resolve(strategy, case.queries.tokens(), ranks)?;
    ranks_here(world, ranks)?;
    if world.process() == 0 {
        print::warn_of_device(&arguments.split.device);
    }
    let split = Split {
        strategy: resolved.strategy,
        layout: Some(resolved.layout),
        ranks,
        weights: None,
        route: resolved.backward,
        kernel: arguments.split.kernel.into(),
        deterministic: arguments.split.deterministic,
        deadline: DEADLINE,
        cores: processes::cores(world).into(),
        processes: world.clone(),
        processors: open_device(&arguments.split.device, world, ranks)?,
    };
    if case.is_whole() {
        let [query, key_value] = [&case.question.q, &case.question.k].map(|heads| heads.dims()[1]);
        let tokens = case.queries.tokens();
        crate::layout::check(&arguments.split, tokens, Heads { query, key_value })?;
    } else if split.ranks != 1 {
        let text = "queries and keys are not one whole sequence: they cannot be split over ranks";
        return Err(Failure::usage(text, "leave `--ranks` out: it runs as one tile"));
    }
    Ok((case, split, read))
}

/// The hash of a file.
fn content(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut hasher = blake3::Hasher::new();
    let read = annulus_files::open(path).and_then(|file| hasher.update_reader(file).map(drop));
    read.map_err(|error| {
        Failure::new(Exit::Data, format!("cannot read `{}`: {error}", path.display()), None)
    })?;
    Ok(hasher.finalize().as_bytes().to_vec())
}

impl Case {
    /// Whether queries and keys are each the whole of one sequence, every position once.
    fn is_whole(&self) -> bool {
        let whole = Positions::all(self.queries.tokens());
        self.queries == whole && self.keys == whole
    }
}

/// The result's tensors by their names in the file.
fn named(answer: Answer) -> BTreeMap<String, Tensor> {
    let Answer { out, lse, dq, dk, dv } = answer;
    let tensors = [("out", out), ("lse", lse), ("dq", dq), ("dk", dk), ("dv", dv)];
    tensors.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect()
}

/// A summary of the written file: the largest value and the shape of every tensor.
fn said(tensors: &BTreeMap<String, Tensor>, path: &Path) -> Result<String, Failure> {
    let mut largest = Vec::new();
    for (name, tensor) in tensors {
        let values: Vec<f32> = tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        let most = values.iter().map(|value| value.abs()).filter(|value| value.is_finite());
        largest.push(format!("{name} {:.4}", most.fold(0.0, f32::max)));
    }
    let shapes = tensors.iter().map(|(name, tensor)| format!("{name} {:?}", tensor.dims()));
    let shapes = shapes.collect::<Vec<_>>().join(", ");
    let (largest, path) = (largest.join(", "), path.display());
    Ok(wrapped(&format!("largest values: {largest}\n`{path}` has {shapes}"), 2))
}

/// The help of `--case`.
fn case_help() -> String {
    format!(
        "A safetensors file with `q k v dout scale q_pos k_pos` and the mask's name in its metadata\n\n\
         The name joins rules by `+`, all of which must show a key: {}, documents, padding. `prefix:N` is causal behind its \
         prefix, `documents` are of the tensor `doc_ids` [S] or [B, S], `padding` is of `padding` [B]. A tensor `allowed`, if there \
         is one, is compared with the mask.",
        Mask::WORDS
    )
}
