//! Blockwise attention on the CPU: matrix tiles by `gemm`, online softmax in f32 (FlashAttention, arXiv 2205.14135).
//!
//! A tile is cut into pieces of fixed size ([`pieces`]); a piece is two matrix products forward, five or seven backward, with
//! row loops between them ([`scores`]). Blocks of rows are jobs for the pool. No sum crosses two jobs, so that results have the
//! same bits with any number of workers.

mod backward;
mod forward;
mod inputs;
mod matrix;
mod pieces;
mod scores;

use std::cmp::Reverse;
use std::sync::{Mutex, MutexGuard, PoisonError};

use candle_core::{DType, Result, Tensor};

use super::{
    Attended, AttentionKernel, BackwardTile, KeyValueGradients, Progress, State, Tile, own, taken,
};
use crate::Pool;
use crate::rows::{Elements, tensor};
use backward::Backward;
use forward::Forward;

/// The fast CPU kernel, for f32 and 16-bit inputs, which it widens to f32 once per call.
#[derive(Clone, Debug)]
pub struct Fused {
    /// Its workers.
    pub pool: Pool,
}

impl AttentionKernel for Fused {
    fn begin(&self, q: &Tensor, scale: f64) -> Result<Box<dyn State>> {
        Ok(Box::new(Forward::new(&self.pool, q, scale)?))
    }

    fn forward(
        &self,
        tiles: &[Tile<'_>],
        state: &mut dyn State,
        progress: Progress<'_>,
    ) -> Result<()> {
        let state: &mut Forward = own(state)?;
        tiles.iter().try_for_each(|tile| state.fold(&self.pool, tile, progress))
    }

    fn finish(&self, state: Box<dyn State>) -> Result<Attended> {
        taken::<Forward>(state)?.finish(&self.pool)
    }

    fn begin_backward(
        &self,
        q: &Tensor,
        attended: &Attended,
        gradient: &Tensor,
        scale: f64,
    ) -> Result<Box<dyn State>> {
        Ok(Box::new(Backward::new(&self.pool, q, attended, gradient, scale)?))
    }

    fn backward(
        &self,
        tiles: Vec<BackwardTile<'_>>,
        state: &mut dyn State,
        progress: Progress<'_>,
    ) -> Result<Vec<KeyValueGradients>> {
        let state: &mut Backward = own(state)?;
        tiles.into_iter().map(|tile| state.tile(&self.pool, tile, progress)).collect()
    }

    fn finish_backward(&self, state: Box<dyn State>) -> Result<Tensor> {
        taken::<Backward>(state)?.finish(&self.pool)
    }
}

/// Jobs per worker between two calls of `progress`: some tenths of a second at most.
const JOBS_PER_WAVE: usize = 16;

/// Runs all jobs, with `progress` between waves of them.
fn in_waves(
    pool: &Pool,
    jobs: usize,
    progress: Progress<'_>,
    job: impl Fn(usize) + Send + Sync,
) -> Result<()> {
    let wave = pool.workers() * JOBS_PER_WAVE;
    for start in (0..jobs).step_by(wave) {
        progress()?;
        pool.run(wave.min(jobs - start), |index| job(start + index));
    }
    Ok(())
}

/// Buffers that jobs borrow and hand back, so that there are as many as workers, not as many as jobs.
#[derive(Debug, Default)]
struct Shelf<T>(Mutex<Vec<T>>);

impl<T: Default> Shelf<T> {
    fn with<R>(&self, job: impl FnOnce(&mut T) -> R) -> R {
        let taken = lock(&self.0).pop();
        let mut item = taken.unwrap_or_default();
        let result = job(&mut item);
        lock(&self.0).push(item);
        result
    }
}

/// Cuts rows of every head into blocks that jobs may write: `head` elements per head, `block` per block.
fn blocks(values: &mut [f32], head: usize, block: usize) -> impl Iterator<Item = &mut [f32]> {
    values.chunks_mut(head).flat_map(move |rows| rows.chunks_mut(block))
}

/// The same, each behind a lock of its own.
fn locked(values: &mut [f32], head: usize, block: usize) -> Vec<Mutex<&mut [f32]>> {
    blocks(values, head, block).map(Mutex::new).collect()
}

/// Pairs of head and block that have pieces, those with the most first: no worker is left with a long job at the end.
fn heaviest_first(
    heads: usize,
    blocks: usize,
    pieces: impl Fn(usize, usize) -> usize,
) -> Vec<(usize, usize)> {
    let mut jobs: Vec<(usize, usize)> = (0..heads)
        .flat_map(|head| (0..blocks).map(move |block| (head, block)))
        .filter(|&(head, block)| pieces(head, block) > 0)
        .collect();
    jobs.sort_by_key(|&(head, block)| Reverse(pieces(head, block)));
    jobs
}

/// Locks what only one job at a time touches; a job that panicked has ended the call already.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The tensor as contiguous f32 off the tape; the same storage where it is that already.
fn widened(pool: &Pool, input: &Tensor) -> Result<Tensor> {
    if input.dtype() == DType::F32 && input.is_contiguous() {
        return Ok(input.detach());
    }
    tensor(pool, Elements::of(pool, input)?.to_vec(), input.shape(), DType::F32)
}
