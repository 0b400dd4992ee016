//! AdamW for all parameters in one launch: `kernels/adamw/adamw.h`.

use bytemuck::NoUninit;
use candle_core::{DType, Result, Tensor, bail};

use super::super::{Processor, addresses};
use super::chunks::{self, Tables};
use super::{Extent, here, launch, of_type, plain};
use crate::adamw::{AdamW, Parameter};

/// Mirrors the C struct `AdamwTensor`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
struct Row {
    master: u64,
    first: u64,
    second: u64,
    gradient: u64,
    copy: u64,
    count: i64,
    keep: f32,
    _gap: u32,
}

/// Mirrors the C struct `AdamwArguments`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
struct Arguments {
    tensors: u64,
    chunks: u64,
    clip: u64,
    keep_first: f32,
    take_first: f32,
    keep_second: f32,
    take_second: f32,
    rate: f32,
    root: f32,
    epsilon: f32,
    _gap: u32,
}

/// One step of all `parameters`; shapes and dtypes have been checked.
pub(crate) fn update_all(
    processor: &dyn Processor,
    settings: &AdamW,
    parameters: &[Parameter<'_>],
    clip: f64,
) -> Result<()> {
    let gradients = parameters.iter().map(|one| plain(processor, one.gradient, DType::F32));
    let gradients = gradients.collect::<Result<Vec<_>>>()?;
    let reads: Vec<&Tensor> = gradients.iter().collect();
    let mut writes: Vec<&Tensor> = Vec::with_capacity(4 * parameters.len());
    for Parameter { master, moments, .. } in parameters {
        writes.extend([*master, &moments.first, &moments.second]);
    }
    let copies = parameters.iter().filter_map(|one| one.copy);
    writes.extend(copies);
    writes.iter().try_for_each(|tensor| here(processor, tensor))?;
    let kernel = of_type("adamw", copied_type(parameters)?)?;
    let sizes = || parameters.iter().map(|one| one.master.elem_count());
    let extent = Extent::blocks(chunks::count(sizes()));
    let clip = processor.upload(bytemuck::bytes_of(&(clip as f32)))?;
    addresses(&reads, &writes, &mut |at| {
        let rows = rows(settings, parameters, &at.reads, &at.writes);
        let tables = Tables::new(processor, &rows, sizes())?;
        let arguments = arguments(settings, &tables, clip.address);
        // SAFETY: every row holds addresses of as many elements as it says, which hold until the launch is in the stream.
        unsafe { launch(processor, &kernel, extent, &arguments) }
    })
}

/// The dtype that all copies share.
fn copied_type(parameters: &[Parameter<'_>]) -> Result<DType> {
    let mut types = parameters.iter().filter_map(|one| one.copy).map(Tensor::dtype);
    let first = types.next().unwrap_or(DType::F32);
    match types.find(|other| *other != first) {
        Some(other) => {
            bail!("adamw: found copies of {first:?} and of {other:?}, expected one type")
        }
        None => Ok(first),
    }
}

/// The rows of the table; `writes` has three tensors of each parameter, then the copies.
fn rows(settings: &AdamW, parameters: &[Parameter<'_>], reads: &[u64], writes: &[u64]) -> Vec<Row> {
    let (states, copies) = writes.split_at(3 * parameters.len());
    let mut copies = copies.iter().copied();
    let states = states.chunks_exact(3).zip(reads);
    let row = |(one, (state, gradient)): (&Parameter<'_>, (&[u64], &u64))| Row {
        master: state[0],
        first: state[1],
        second: state[2],
        gradient: *gradient,
        copy: one.copy.and_then(|_| copies.next()).unwrap_or(0),
        count: one.master.elem_count() as i64,
        keep: settings.of(one).keep(),
        _gap: 0,
    };
    parameters.iter().zip(states).map(row).collect()
}

fn arguments(settings: &AdamW, tables: &Tables, clip: u64) -> Arguments {
    let (first, second) = settings.betas;
    let (rate, root) = settings.unbiased();
    Arguments {
        tensors: tables.tensors.address,
        chunks: tables.chunks.address,
        clip,
        keep_first: first as f32,
        take_first: (1.0 - first) as f32,
        keep_second: second as f32,
        take_second: (1.0 - second) as f32,
        rate,
        root,
        epsilon: settings.epsilon as f32,
        _gap: 0,
    }
}
