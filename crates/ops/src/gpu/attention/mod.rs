//! Attention by CUDA kernels, behind the same interface as the CPU's, with all tiles of a hop in one launch.
//!
//! This is the host's half: it allocates the running state, describes visibility to kernels as intervals by rows and by blocks (`tiles`),
//! and picks kernels from their list. It knows neither masks nor what a kernel does inside.

mod backward;
mod forward;
mod order;
mod prepare;
mod strict;
mod tiles;

use std::collections::BTreeSet;
use std::sync::Arc;

use candle_core::{DType, Result, Tensor};

use super::Processor;
use super::table::{self, Generation, GpuCapability, Kernel, Pass};
use crate::Backend;
use crate::attention::{
    Attended, AttentionKernel, BackwardTile, KeyValueGradients, Prepared, Progress, State, Tile,
    own, taken, wrong,
};
use backward::Backward;
use forward::Forward;

/// The CUDA kernels on one processor, for f32, bf16 and f16. Sums are f32; weights and gradients of scores are rounded to the inputs' dtype
/// before they are multiplied.
#[derive(Clone, Debug)]
pub struct Kernels {
    /// The processor that runs the kernels.
    pub processor: Arc<dyn Processor>,
    /// The highest generation to use, where it has a kernel; `None`: the fastest for the processor.
    pub generation: Option<Generation>,
    /// Whether backward is bitwise reproducible: blocks of keys add to the gradient of the queries in turn, or a second pass computes it,
    /// instead of atomic additions.
    pub deterministic: bool,
}

/// A family of kernels: all passes of a generation, for a dtype and a head dimension (0: any).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// The generation of the kernels.
    pub generation: Generation,
    /// The dtype of their inputs.
    pub dtype: DType,
    /// The head dimension; 0: any.
    pub dim: usize,
}

impl Kernels {
    /// All families of kernels.
    pub fn variants() -> Vec<Variant> {
        let of = |kernel: &Kernel| match kernel.task {
            Some((Pass::Forward, generation)) => {
                Some(Variant { generation, dtype: kernel.dtype, dim: kernel.dim })
            }
            _ => None,
        };
        let mut all: Vec<Variant> = table::kernels().iter().filter_map(of).collect();
        // Kernels that differ only in their blocks are neighbours.
        all.dedup();
        all
    }

    /// The fastest kernels of `processor`.
    pub fn new(processor: Arc<dyn Processor>, deterministic: bool) -> Kernels {
        Kernels { processor, generation: None, deterministic }
    }

    /// The longest heads in `dtype` whose sums can be order-free on `processor`: 0 where none can.
    pub fn longest_in_blocks(processor: &dyn Processor, dtype: DType) -> usize {
        let on = GpuCapability::of(processor);
        let takes = |dim: &usize| {
            let passes = [Pass::StrictForward, Pass::StrictKeys, Pass::StrictQueries];
            passes.into_iter().all(|pass| table::kernel(pass, dtype, *dim, on, None).is_some())
        };
        table::kernels().iter().map(|kernel| kernel.dim).filter(takes).max().unwrap_or(0)
    }

    /// The generations of the kernels for heads of `dim` in `dtype`, forward and backward: lower than [`Kernels::generation`] where that has
    /// no such kernel. Backward it is that of the kernel for gradients of keys and values; where blocks of keys take turns, of the kernel
    /// for that.
    ///
    /// # Errors
    /// When no kernel takes such heads.
    pub fn generations(&self, dtype: DType, dim: usize) -> Result<[Generation; 2]> {
        let backward = match self.in_turn(dtype, dim) {
            Some(kernel) => kernel,
            None => self.backward_kernels(dtype, dim)?.0,
        };
        let of = |kernel: &Kernel| kernel.task.map_or(Generation::Reference, |(_, own)| own);
        Ok([of(self.kernel(Pass::Forward, dtype, dim)?), of(backward)])
    }

    /// The kernel for the gradients of keys and values, and the one for that of queries where it is separate: where bits must be
    /// reproducible, and for generations without a kernel for all three.
    fn backward_kernels(
        &self,
        dtype: DType,
        dim: usize,
    ) -> Result<(&'static Kernel, Option<&'static Kernel>)> {
        let keys = self.kernel(Pass::Keys, dtype, dim)?;
        let on = GpuCapability::of(&*self.processor);
        let at_once = table::kernel(Pass::Backward, dtype, dim, on, self.generation);
        let generation = |kernel: &Kernel| kernel.task.map(|(_, generation)| generation);
        let no_slower = |all: &&Kernel| generation(all) >= generation(keys);
        match at_once.filter(no_slower).filter(|_| !self.deterministic) {
            Some(all) => Ok((all, None)),
            None => Ok((keys, Some(self.kernel(Pass::Queries, dtype, dim)?))),
        }
    }

    /// The kernel that adds all gradients in a fixed order, where bits must be reproducible and there is one.
    fn in_turn(&self, dtype: DType, dim: usize) -> Option<&'static Kernel> {
        let on = GpuCapability::of(&*self.processor);
        let kernel = table::kernel(Pass::InTurn, dtype, dim, on, self.generation);
        kernel.filter(|_| self.deterministic)
    }

    fn kernel(&self, pass: Pass, dtype: DType, dim: usize) -> Result<&'static Kernel> {
        let on = GpuCapability::of(&*self.processor);
        match table::kernel(pass, dtype, dim, on, self.generation) {
            Some(kernel) => Ok(kernel),
            None => wrong(&format!(
                "no CUDA kernel for heads of {dim} in {dtype:?} on sm_{} ({pass:?})",
                on.architecture
            )),
        }
    }
}

/// The passes that use plain loops for heads of `dim` in `dtype` with this shared memory, many times slower than other kernels.
pub fn plain_loops(on: GpuCapability, dtype: DType, dim: usize) -> Vec<&'static str> {
    let is_plain = |pass: &Pass| {
        let task = table::kernel(*pass, dtype, dim, on, None).and_then(|kernel| kernel.task);
        task.is_some_and(|(_, generation)| generation == Generation::Reference)
    };
    let backward = [Pass::Backward, Pass::Keys, Pass::Queries];
    let passes = [("forward", &[Pass::Forward][..]), ("backward", &backward)];
    let plain = passes.into_iter().filter(|(_, passes)| passes.iter().any(is_plain));
    plain.map(|(name, _)| name).collect()
}

/// The head dimensions in `dtype` that have better kernels than plain loops in all passes, with this shared memory.
pub fn fast_heads(on: GpuCapability, dtype: DType) -> Vec<usize> {
    let made_for = table::kernels().iter().map(|kernel| kernel.dim).filter(|dim| *dim > 0);
    let sorted: BTreeSet<usize> = made_for.collect();
    sorted.into_iter().filter(|dim| plain_loops(on, dtype, *dim).is_empty()).collect()
}

impl AttentionKernel for Kernels {
    fn is_plain_softmax(&self) -> bool {
        true
    }

    fn begin(&self, q: &Tensor, scale: f64) -> Result<Box<dyn State>> {
        Ok(match self.processor.block() {
            None => Box::new(Forward::new(self, q, scale)?),
            Some(block) => Box::new(strict::Forward::new(self, block, q, scale)?),
        })
    }

    fn forward(
        &self,
        tiles: &[Tile<'_>],
        state: &mut dyn State,
        progress: Progress<'_>,
    ) -> Result<()> {
        if self.block().is_some() {
            own::<strict::Forward>(state)?.fold(&*self.processor, tiles)?;
        } else {
            own::<Forward>(state)?.fold(&*self.processor, tiles)?;
        }
        progress()
    }

    fn finish(&self, state: Box<dyn State>) -> Result<Attended> {
        if self.block().is_some() {
            return taken::<strict::Forward>(state)?.finish(&*self.processor);
        }
        taken::<Forward>(state)?.finish(&*self.processor)
    }

    fn prepare(&self, attended: &Attended, gradient: &Tensor) -> Result<Prepared> {
        prepare::prepare(&*self.processor, attended, gradient)
    }

    fn begin_prepared(
        &self,
        q: &Tensor,
        prepared: &Prepared,
        scale: f64,
    ) -> Result<Box<dyn State>> {
        Ok(match self.processor.block() {
            None => Box::new(Backward::new(self, q, prepared, scale)?),
            Some(block) => Box::new(strict::Backward::new(self, block, q, prepared, scale)?),
        })
    }

    fn backward(
        &self,
        tiles: Vec<BackwardTile<'_>>,
        state: &mut dyn State,
        progress: Progress<'_>,
    ) -> Result<Vec<KeyValueGradients>> {
        let gradients = if self.block().is_some() {
            own::<strict::Backward>(state)?.add(&*self.processor, tiles)?
        } else {
            own::<Backward>(state)?.add(&*self.processor, tiles)?
        };
        progress()?;
        Ok(gradients)
    }

    fn finish_backward(&self, state: Box<dyn State>) -> Result<Tensor> {
        if self.block().is_some() {
            return Ok(taken::<strict::Backward>(state)?.finish());
        }
        taken::<Backward>(state)?.finish(&*self.processor)
    }

    fn backend(&self) -> Backend {
        Backend::Gpu(self.processor.clone())
    }
}

/// The tensor in rows that kernels can fetch 16 bytes at a time: itself, or a copy without gaps.
fn in_rows(tensor: &Tensor, dtype: DType) -> Result<Tensor> {
    let tensor = tensor.detach().to_dtype(dtype)?;
    let elements = 16 / dtype.size_in_bytes();
    let layout = tensor.layout();
    let aligned = |count: &usize| count.is_multiple_of(elements);
    let (last, others) = (layout.stride()[3], &layout.stride()[..3]);
    let moves =
        std::iter::zip(others, layout.dims()).all(|(stride, size)| *stride > 0 || *size == 1);
    let fits = last == 1 && moves && others.iter().all(aligned) && aligned(&layout.start_offset());
    if fits { Ok(tensor) } else { tensor.force_contiguous() }
}
