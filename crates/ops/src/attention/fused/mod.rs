//! Blockwise attention on the CPU, with online softmax in f32 (FlashAttention, arXiv 2205.14135; FlashAttention-2, 2307.08691).
//!
//! A tile is cut into pieces ([`pieces`]): two products forward ([`forward`]), five backward ([`backward`], [`column`]), with row loops
//! between them ([`scores`]). Products are our own micro-tiles ([`crate::vector::product`]) rather than a library's: they read packed keys
//! in place, take the rescaling of the output in, and multiply bf16 pairs where the processor can; everything is written once for all
//! vector instructions ([`crate::vector`]). Results have the same bits with any number of workers.

mod backward;
mod column;
mod drop;
mod folding;
mod forward;
mod inputs;
pub(crate) mod pack;
mod pieces;
mod scores;
pub(crate) mod strict;
mod turns;

use std::cmp::Reverse;

use candle_core::{Result, Tensor};
use parking_lot::Mutex;

use super::{
    Attended, AttentionKernel, BackwardTile, KeyValueGradients, Prepared, Progress, State, Tile,
    own, taken,
};
use crate::pool::Shelf;
use crate::{Backend, Pool};
pub use annulus_machine::Instructions;
use backward::Backward;
use forward::Forward;
use inputs::Source;

/// The fast CPU kernel: it takes f32 and bf16, and keys and values also in f16.
///
/// Sums are f32. Where all inputs are bf16 and the processor multiplies pairs of them, weights and gradients of scores are
/// rounded to bf16 before they are multiplied, as GPU kernels do; elsewhere bf16 is widened block by block.
#[derive(Clone, Debug)]
pub struct Fused {
    /// The workers of the kernel.
    pub pool: Pool,
    /// The vector instructions of the kernel.
    pub instructions: Instructions,
}

impl Fused {
    /// The kernel with the instructions that the pool's other operators use.
    pub fn new(pool: Pool) -> Fused {
        let instructions = pool.core().instructions;
        Fused { pool, instructions }
    }
}

impl AttentionKernel for Fused {
    fn is_plain_softmax(&self) -> bool {
        true
    }

    fn begin(&self, q: &Tensor, scale: f64) -> Result<Box<dyn State>> {
        let instructions = self.instructions;
        Ok(match self.pool.block() {
            None => Box::new(Forward::new(instructions, q, scale)?),
            Some(block) => Box::new(strict::Forward::new(instructions, block, q, scale)?),
        })
    }

    fn forward(
        &self,
        tiles: &[Tile<'_>],
        state: &mut dyn State,
        progress: Progress<'_>,
    ) -> Result<()> {
        let pool = &self.pool;
        if pool.block().is_some() {
            let state: &mut strict::Forward = own(state)?;
            return tiles.iter().try_for_each(|tile| state.fold(pool, tile, progress));
        }
        let state: &mut Forward = own(state)?;
        tiles.iter().try_for_each(|tile| state.fold(pool, tile, progress))
    }

    fn finish(&self, state: Box<dyn State>) -> Result<Attended> {
        match self.pool.block() {
            None => taken::<Forward>(state)?.finish(&self.pool),
            Some(_) => taken::<strict::Forward>(state)?.finish(&self.pool),
        }
    }

    fn prepare(&self, attended: &Attended, gradient: &Tensor) -> Result<Prepared> {
        backward::prepare(&self.pool, self.instructions, attended, gradient)
    }

    fn begin_prepared(
        &self,
        q: &Tensor,
        prepared: &Prepared,
        scale: f64,
    ) -> Result<Box<dyn State>> {
        let (pool, instructions) = (&self.pool, self.instructions);
        Ok(match pool.block() {
            None => Box::new(Backward::new(pool, instructions, q, prepared, scale)?),
            Some(block) => {
                Box::new(strict::Backward::new(pool, instructions, block, q, prepared, scale)?)
            }
        })
    }

    fn backward(
        &self,
        tiles: Vec<BackwardTile<'_>>,
        state: &mut dyn State,
        progress: Progress<'_>,
    ) -> Result<Vec<KeyValueGradients>> {
        let (pool, tiles) = (&self.pool, tiles.into_iter());
        if pool.block().is_some() {
            let state: &mut strict::Backward = own(state)?;
            return tiles.map(|tile| state.tile(pool, tile, progress)).collect();
        }
        let state: &mut Backward = own(state)?;
        tiles.map(|tile| state.tile(pool, tile, progress)).collect()
    }

    fn backend(&self) -> Backend {
        Backend::Cpu(self.pool.clone())
    }

    fn finish_backward(&self, state: Box<dyn State>) -> Result<Tensor> {
        match self.pool.block() {
            None => taken::<Backward>(state)?.finish(&self.pool),
            Some(_) => taken::<strict::Backward>(state)?.finish(),
        }
    }
}

/// Cuts rows of every head into blocks that jobs may write: `head` elements per head, `block` per block.
fn blocks(values: &mut [f32], head: usize, block: usize) -> impl Iterator<Item = &mut [f32]> {
    values.chunks_mut(head).flat_map(move |rows| rows.chunks_mut(block))
}

/// Rows of every head cut into blocks as by [`blocks`], each behind its own lock.
fn locked(values: &mut [f32], head: usize, block: usize) -> Vec<Mutex<&mut [f32]>> {
    blocks(values, head, block).map(Mutex::new).collect()
}

/// Pairs of head and block that have pieces: ordered by head, so that neighbours read the same keys, and within a head by size, so that no
/// worker is left with a long job at the end.
fn heaviest_first(
    heads: usize,
    blocks: usize,
    pieces: impl Fn(usize, usize) -> usize,
) -> Vec<(usize, usize)> {
    let mut jobs: Vec<(usize, usize)> = (0..heads)
        .flat_map(|head| (0..blocks).map(move |block| (head, block)))
        .filter(|&(head, block)| pieces(head, block) > 0)
        .collect();
    jobs.sort_by_key(|&(head, block)| (head, Reverse(pieces(head, block))));
    jobs
}

/// Whether all inputs have 16 bits.
fn narrow(sources: &[Source<'_>]) -> bool {
    sources.iter().all(|source| matches!(source, Source::Bf16(_)))
}
