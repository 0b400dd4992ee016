//! Launches over many tensors: each block works on a chunk of one of them.

use bytemuck::NoUninit;
use candle_core::Result;

use super::super::{Processor, Uploaded};

/// Elements of a chunk; `CHUNK_ELEMENTS` in C.
const ELEMENTS: usize = 65536;

/// Mirrors the C struct `Chunk` of `kernels/operators/chunks.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, NoUninit)]
#[repr(C, align(8))]
struct Chunk {
    tensor: i32,
    index: i32,
}

/// A table of tensors and one of their chunks, in memory that kernels read.
#[derive(Debug)]
pub(super) struct Tables {
    pub(super) tensors: Uploaded,
    pub(super) chunks: Uploaded,
}

/// The number of chunks of tensors of these sizes.
pub(super) fn count(sizes: impl IntoIterator<Item = usize>) -> usize {
    sizes.into_iter().map(|size| size.div_ceil(ELEMENTS)).sum()
}

impl Tables {
    /// The tables of tensors with their sizes.
    pub(super) fn new<T: NoUninit>(
        processor: &dyn Processor,
        tensors: &[T],
        sizes: impl IntoIterator<Item = usize>,
    ) -> Result<Tables> {
        let chunks: Vec<Chunk> = sizes
            .into_iter()
            .enumerate()
            .flat_map(|(tensor, size)| {
                let chunk = move |index| Chunk { tensor: tensor as i32, index: index as i32 };
                (0..size.div_ceil(ELEMENTS)).map(chunk)
            })
            .collect();
        Ok(Tables {
            tensors: processor.upload(bytemuck::cast_slice(tensors))?,
            chunks: processor.upload(bytemuck::cast_slice(&chunks))?,
        })
    }
}
