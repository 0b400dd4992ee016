//! The embedding: rows of a table by token.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor, bail};

use crate::gpu::operators;
use crate::order_free::Sums;
use crate::rows::{Elements, Rows, narrow, rows_per_chunk, tensor, unwritten, zeros};
use crate::{Backend, Pool};

/// The number of rows of the table whose gradients a job sums.
const ROWS: usize = 16;

/// The embedding of `tokens` u32 [B, S] in `weight` [V, D]: [B, S, D] in the dtype of `weight`, with its gradient.
///
/// On a processor whose tensors are not the host's, a token that is not below V has zeros: see [`check_tokens`].
///
/// # Errors
/// When a token is not below V, or a tensor has another type.
pub fn embedding(backend: &Backend, tokens: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let pool = match backend {
        Backend::Gpu(processor) => return operators::embedding(&**processor, tokens, weight),
        Backend::Cpu(pool) => pool,
    };
    pool.off_tape("embedding", [weight])?;
    let ids = ids(tokens, weight.dims2()?.0)?;
    weight.apply_op1(Embedding { pool: pool.clone(), ids, dims: tokens.dims().to_vec() })
}

/// The gradient of [`embedding`] by a weight of `rows` rows, given that of its output, [B, S, D]: f32 [rows, D], or where sums are
/// order-free a table of those. Off the tape.
///
/// # Errors
/// When a token is not below `rows`, the shapes differ, or a tensor has another type.
pub fn embedding_backward(
    backend: &Backend,
    tokens: &Tensor,
    rows: usize,
    dy: &Tensor,
) -> Result<Tensor> {
    let pool = match backend {
        Backend::Gpu(processor) => {
            return operators::embedding_backward(&**processor, tokens, rows, dy);
        }
        Backend::Cpu(pool) => pool,
    };
    let ids = ids(tokens, rows)?;
    let width = dy.dims().last().copied().unwrap_or(1);
    let dy = Elements::of(pool, dy)?;
    if dy.len() != ids.len() * width {
        bail!("embedding: found {} gradients, expected {} times {width}", dy.len(), ids.len());
    }
    if let Some(block) = pool.block() {
        let mut sums = Sums::of(rows * width);
        sums.add_rows(pool, &ids, &dy, width, block);
        return sums.tensor();
    }
    tensor(pool, summed(pool, &ids, rows, width, &dy), (rows, width), DType::F32)
}

/// The ids of the tokens, all below `rows`.
fn ids(tokens: &Tensor, rows: usize) -> Result<Vec<u32>> {
    if tokens.dtype() != DType::U32 {
        bail!("embedding: found tokens of {:?}, wanted U32", tokens.dtype());
    }
    let ids = tokens.flatten_all()?.to_vec1::<u32>()?;
    check_tokens(&ids, rows)?;
    Ok(ids)
}

/// Checks that tokens are below `rows`: for whoever moves them to a GPU, where operators do not wait to look at them.
///
/// # Errors
/// Names the first that is not below `rows`.
pub fn check_tokens(ids: &[u32], rows: usize) -> Result<()> {
    if let Some((index, id)) = ids.iter().enumerate().find(|(_, id)| **id as usize >= rows) {
        bail!("embedding: found token {id} at index {index}, expected one below {rows}");
    }
    Ok(())
}

struct Embedding {
    pool: Pool,
    ids: Vec<u32>,
    /// The shape of the tokens.
    dims: Vec<usize>,
}

/// Sums each row's gradient, in f64 and in order, over the occurrences of its token.
fn summed(pool: &Pool, ids: &[u32], rows: usize, width: usize, dy: &[f32]) -> Vec<f32> {
    // (token, index) in order, so that a row's gradients are neighbours.
    let mut occurrences: Vec<_> = ids.iter().copied().zip(0..).collect();
    occurrences.sort_unstable();
    let mut dw = zeros(pool, rows * width);
    pool.for_chunks(&mut dw, ROWS * width.max(1), |index, piece| {
        let mut sums = vec![0.0_f64; width];
        let first = occurrences.partition_point(|(id, _)| (*id as usize) < index * ROWS);
        let mine = occurrences[first..].chunk_by(|a, b| a.0 == b.0);
        for same in mine.take_while(|same| (same[0].0 as usize) < (index + 1) * ROWS) {
            sums.fill(0.0);
            for (_, at) in same {
                let row = &dy[at * width..(at + 1) * width];
                sums.iter_mut().zip(row).for_each(|(sum, dy)| *sum += f64::from(*dy));
            }
            let row = (same[0].0 as usize - index * ROWS) * width;
            let to = piece[row..row + width].iter_mut();
            to.zip(&sums).for_each(|(to, sum)| *to = *sum as f32);
        }
    });
    dw
}

impl CustomOp1 for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }
    fn cpu_fwd(&self, weight: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let rows = Rows::new(weight, layout)?;
        let width = rows.width;
        // SAFETY: every row is written: there are as many as tokens.
        let mut y = unsafe { unwritten(self.ids.len() * width) };
        let chunk = rows_per_chunk(width);
        let pieces = y.chunks_mut(chunk * width.max(1)).zip(self.ids.chunks(chunk));
        self.pool.each(pieces, |(piece, ids)| {
            for (row, id) in piece.chunks_exact_mut(width).zip(ids) {
                rows.copy(*id as usize, row);
            }
        });
        let dims = [self.dims.as_slice(), &[width]].concat();
        Ok((narrow(&self.pool, y, weight.dtype())?, dims.into()))
    }
    fn bwd(&self, weight: &Tensor, _y: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        let (rows, width) = weight.dims2()?;
        let dy = Elements::of(&self.pool, dy)?;
        let dw = summed(&self.pool, &self.ids, rows, width, &dy);
        tensor(&self.pool, dw, weight.shape(), weight.dtype()).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::testing::{check, random};

    #[test]
    fn agrees_with_plain_loops_and_finite_differences() -> Result<()> {
        let ids = [3_u32, 0, 3, 3, 1, 5];
        for shape in [[2, 3], [6, 1]] {
            let tokens = Tensor::from_vec(ids.to_vec(), &shape, &Device::Cpu)?;
            let slow = |v: &[Vec<f64>]| {
                ids.iter().flat_map(|id| v[0][*id as usize * 5..][..5].to_vec()).collect()
            };
            let weight = random("weight", &[6, 5])?;
            check(&[weight], |v| embedding(&Backend::cpu(2), &tokens, &v[0]), slow, 1e-6)?;
        }
        Ok(())
    }

    #[test]
    fn a_token_beyond_the_table_is_named() -> Result<()> {
        let tokens = Tensor::new(&[[1_u32, 7, 9]], &Device::Cpu)?;
        let message =
            embedding(&Backend::serial(), &tokens, &random("weight", &[7, 2])?).unwrap_err();
        let message = message.to_string();
        assert!(message.contains("found token 7 at index 1, expected one below 7"), "{message}");
        Ok(())
    }
}
