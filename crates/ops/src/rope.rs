//! The rotary position embedding at the positions of runs (Su et al., arXiv 2104.09864), rotate-half layout.

use std::sync::{Arc, OnceLock};

use annulus_sequence::Positions;
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, Device, Layout, Result, Shape, Tensor, bail};
use pulp::{Simd, WithSimd};

use crate::gpu::operators::{self, Placed};
use crate::projections::array;
use crate::rows::{Rows, contiguous, narrow, rows_per_chunk, unwritten};
use crate::{Backend, Pool};

/// The angles at the positions of one shard: made in f64 from the runs, so that no rank needs a table
/// of the whole. [`Rotary::identity`] rotates nothing.
#[derive(Debug)]
pub struct Rotary {
    positions: Positions,
    frequencies: Vec<f32>,
    factor: f64,
    /// The tables that the CPU reads, computed on first use.
    tables: OnceLock<Tables>,
    /// The runs and frequencies that kernels read, uploaded on first use.
    placed: OnceLock<(Device, Placed)>,
}

/// Tables of cosines and sines, [S, D / 2] each, row-major.
#[derive(Debug)]
struct Tables {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Rotary {
    /// `frequencies` [D / 2] in radians per position; cos and sin are multiplied by `factor` (1 but
    /// for YaRN and LongRoPE).
    ///
    /// A position below 2^29 times an f32 frequency is exact in f64.
    pub fn new(positions: &Positions, frequencies: &[f32], factor: f64) -> Rotary {
        Rotary {
            positions: positions.clone(),
            frequencies: frequencies.to_vec(),
            factor,
            tables: OnceLock::new(),
            placed: OnceLock::new(),
        }
    }
    /// No rotation (NoPE), of heads of `head_dim` elements: tensors only change their form.
    pub fn identity(positions: &Positions, head_dim: usize) -> Rotary {
        Rotary::new(positions, &vec![0.0; head_dim / 2], 1.0)
    }
    fn is_identity(&self) -> bool {
        self.factor == 1.0 && self.frequencies.iter().all(|frequency| *frequency == 0.0)
    }
    /// The frequencies `theta ^ (-2 i / D)` for `i` below D / 2, as f32.
    pub fn frequencies(head_dim: usize, theta: f64) -> Vec<f32> {
        let exponents = (0..head_dim / 2).map(|i| -2.0 * i as f64 / head_dim as f64);
        exponents.map(|exponent| theta.powf(exponent) as f32).collect()
    }
    /// The factor of cosines and sines.
    pub(crate) fn factor(&self) -> f64 {
        self.factor
    }
    /// The number of elements of a head, D.
    pub(crate) fn head_dim(&self) -> usize {
        2 * self.frequencies.len()
    }
    /// Refuses `x` unless its dimension `tokens` is S, and its last D.
    pub(crate) fn check(&self, x: &Shape, tokens: usize) -> Result<()> {
        x.dims4()?;
        let (positions, head_dim) = (self.positions.tokens(), self.head_dim());
        if x.dims()[tokens] != positions || x.dims()[3] != head_dim {
            bail!("rope: found x {x:?}, expected [.., {positions}, {head_dim}]");
        }
        Ok(())
    }
    /// The tables; `None` where nothing is rotated.
    fn tables(&self) -> Option<&Tables> {
        if self.is_identity() {
            return None;
        }
        Some(self.tables.get_or_init(|| {
            let angles = self.positions.iter().flat_map(|position| {
                let frequencies = self.frequencies.iter();
                frequencies.map(move |&frequency| position as f64 * f64::from(frequency))
            });
            let (sin, cos) = angles
                .map(f64::sin_cos)
                .map(|(sin, cos)| ((sin * self.factor) as f32, (cos * self.factor) as f32))
                .unzip();
            Tables { cos, sin }
        }))
    }
    /// Runs and frequencies on `device`, which the first caller determines.
    pub(crate) fn placed(&self, device: &Device) -> Result<&Placed> {
        let (owner, placed) = if let Some(found) = self.placed.get() {
            found
        } else {
            let placed = Placed::new(&self.positions, &self.frequencies, device)?;
            self.placed.get_or_init(|| (device.clone(), placed))
        };
        if !owner.same_device(device) {
            let (found, wanted) = (owner.location(), device.location());
            bail!("rope: found positions on {found:?}, expected {wanted:?}");
        }
        Ok(placed)
    }
}

/// Rotates one or two tensors [B, H, S, D] of one dtype, queries and keys, row `s` by the `s`-th position of `rotary`; with gradient. They
/// may be views of [B, S, H, D]: outputs have no gaps. A GPU computes the angles once for both.
///
/// # Errors
/// When S or D is not that of `rotary`, or a tensor is neither f32 nor bf16.
pub fn rope<const N: usize>(
    backend: &Backend,
    all: [Tensor; N],
    rotary: &Arc<Rotary>,
) -> Result<[Tensor; N]> {
    let pool = match backend {
        Backend::Gpu(processor) => return operators::rope(&**processor, &all, rotary),
        Backend::Cpu(pool) => pool,
    };
    let turned = |x: Tensor| x.apply_op1(Rope { direction: 1.0, ..Rope::back(pool, rotary) });
    array(all.into_iter().map(turned))
}

/// Brings queries, keys and values, [B, S, H * D] of one dtype as projections make them, into attention's form, [B, H, S, D] without gaps:
/// queries and keys rotated as by [`rope`], values as they are. A GPU does all three in one launch. Off the tape.
///
/// # Errors
/// As [`rope`].
pub fn rope_qkv(backend: &Backend, qkv: [Tensor; 3], rotary: &Arc<Rotary>) -> Result<[Tensor; 3]> {
    if let Backend::Gpu(processor) = backend {
        return operators::rope_qkv(&**processor, &qkv, rotary);
    }
    let heads_first = |x: &Tensor| {
        let (batch, rows, width) = x.dims3()?;
        let dim = rotary.head_dim();
        x.reshape((batch, rows, width / dim.max(1), dim))?.transpose(1, 2)
    };
    let [q, k, v] = qkv;
    let by_head = [heads_first(&q)?, heads_first(&k)?];
    // Each is freed as soon as it is rotated.
    drop((q, k));
    let [q, k] = rope(backend, by_head, rotary)?;
    Ok([q, k, contiguous(backend, &heads_first(&v)?)?])
}

/// The gradients of the inputs of [`rope_qkv`], [B, S, H * D], given those of its outputs; contiguous, or on a GPU with
/// `packed_qkv` dQ, dK, dV as column blocks of one matrix, so that one GEMM reads them. Off the tape.
///
/// # Errors
/// As [`rope`].
pub fn rope_qkv_backward(
    backend: &Backend,
    gradients: [Tensor; 3],
    rotary: &Arc<Rotary>,
    packed_qkv: bool,
) -> Result<[Tensor; 3]> {
    let pool = match backend {
        Backend::Gpu(processor) => {
            return operators::rope_qkv_backward(&**processor, &gradients, rotary, packed_qkv);
        }
        Backend::Cpu(pool) => pool,
    };
    let turned = |dy: Tensor| {
        let by_token = dy.detach().transpose(1, 2)?;
        let back = Rope { token_axis: 1, ..Rope::back(pool, rotary) };
        by_token.apply_op1_no_bwd(&back)?.flatten_from(2)
    };
    let [dq, dk, dv] = gradients;
    let (dq, dk) = (turned(dq)?, turned(dk)?);
    Ok([dq, dk, contiguous(backend, &dv.transpose(1, 2)?)?.flatten_from(2)?])
}

struct Rope {
    pool: Pool,
    rotary: Arc<Rotary>,
    /// The angle's sign: 1, or -1 for the gradient.
    direction: f32,
    /// The dimension that counts tokens, 1 or 2.
    token_axis: usize,
}

impl Rope {
    fn back(pool: &Pool, rotary: &Arc<Rotary>) -> Rope {
        Rope { pool: pool.clone(), rotary: Arc::clone(rotary), direction: -1.0, token_axis: 2 }
    }
}

/// Rotates rows in place: those of a tensor from row `first` on.
struct Rotate<'a> {
    rows: &'a mut [f32],
    first: usize,
    /// The number of neighbouring rows of one token.
    heads: usize,
    tables: &'a Tables,
    /// Half of the elements of a row.
    half: usize,
    direction: f32,
}

impl WithSimd for Rotate<'_> {
    type Output = ();
    /// Maps the halves a, b of a row to (a cos - b sin, b cos + a sin).
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Rotate { tables, half, .. } = self;
        let tokens = tables.cos.len() / half;
        for (index, row) in self.rows.chunks_exact_mut(2 * half).enumerate() {
            let token = (self.first + index) / self.heads % tokens;
            let table = token * half..(token + 1) * half;
            let angles = tables.cos[table.clone()].iter().zip(&tables.sin[table]);
            let (a, b) = row.split_at_mut(half);
            for ((a, b), (cos, sin)) in a.iter_mut().zip(b).zip(angles) {
                let sin = self.direction * sin;
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
    }
}

impl CustomOp1 for Rope {
    fn name(&self) -> &'static str {
        "rope"
    }
    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (_, _, heads, width) = layout.shape().dims4()?;
        self.rotary.check(layout.shape(), self.token_axis)?;
        let heads = if self.token_axis == 1 { heads } else { 1 };
        let (tables, half, direction) = (self.rotary.tables(), width / 2, self.direction);
        let rows = Rows::new(x, layout)?;
        // SAFETY: the pieces are whole rows and cover the output; `copy` writes all of each.
        let mut y = unsafe { unwritten(layout.shape().elem_count()) };
        let chunk = rows_per_chunk(width);
        self.pool.for_chunks(&mut y, chunk * width.max(1), |index, piece| {
            rows.copy(index * chunk, piece);
            let Some(tables) = tables else { return };
            let first = index * chunk;
            self.pool.arch().dispatch(Rotate {
                rows: piece,
                first,
                heads,
                tables,
                half,
                direction,
            });
        });
        Ok((narrow(&self.pool, y, x.dtype())?, layout.shape().clone()))
    }
    fn bwd(&self, _x: &Tensor, _y: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        dy.apply_op1_no_bwd(&Rope::back(&self.pool, &self.rotary)).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use annulus_sequence::Run;

    use super::*;
    use crate::testing::{check, random};

    /// Rotates a pair (a, b) as a complex number, by e^(i angle).
    fn reference(positions: &[usize], frequencies: &[f32], factor: f64, x: &[f64]) -> Vec<f64> {
        let half = frequencies.len();
        let turn = |row: usize, i: usize| {
            let angle = positions[row % positions.len()] as f64 * f64::from(frequencies[i % half]);
            (angle.cos() * factor, angle.sin() * factor)
        };
        let element = |row: usize, x: &[f64], i: usize| {
            let (cos, sin) = turn(row, i);
            if i < half { x[i] * cos - x[i + half] * sin } else { x[i] * cos + x[i - half] * sin }
        };
        let rows = x.chunks(2 * half).enumerate();
        rows.flat_map(|(row, x)| (0..2 * half).map(move |i| element(row, x, i))).collect()
    }

    #[test]
    fn agrees_with_plain_loops_and_finite_differences() -> Result<()> {
        let far = Run { start: 100_001, step: 4, len: 3, width: 1 };
        for (runs, factor) in [(vec![Run::contiguous(0, 5)], 1.0), (vec![far], 1.3)] {
            let positions = Positions::new(runs);
            let frequencies = Rotary::frequencies(6, 10_000.0);
            let rotary = Arc::new(Rotary::new(&positions, &frequencies, factor));
            let list: Vec<_> = positions.iter().collect();
            let x = random("x", &[2, 3, list.len(), 6])?;
            let slow = |v: &[Vec<f64>]| reference(&list, &frequencies, factor, &v[0]);
            let own = |v: &[Tensor]| {
                let [y] = rope(&Backend::cpu(2), [v[0].clone()], &rotary)?;
                Ok(y)
            };
            check(&[x], own, slow, 1e-6)?;
        }
        Ok(())
    }

    #[test]
    fn other_lengths_and_widths_are_refused() -> Result<()> {
        let rotary = Rotary::new(&Positions::all(3), &Rotary::frequencies(4, 1e4), 1.0);
        let rotary = Arc::new(rotary);
        for shape in [[1, 1, 4, 4], [1, 1, 3, 6], [1, 1, 6, 2]] {
            let message = rope(&Backend::serial(), [random("x", &shape)?], &rotary).unwrap_err();
            assert!(message.to_string().contains("expected [.., 3, 4]"), "{message}");
        }
        Ok(())
    }
}
