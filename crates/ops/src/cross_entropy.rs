//! The output projection and the cross entropy as one operator, a chunk of tokens at a time: logits never exist for all tokens.

mod blocks;
mod checks;
mod parts;
mod predictions;
mod turn;

use std::sync::OnceLock;

pub use annulus_machine::blocks::SOFTMAX_STATISTICS;
use blocks::{blocks, chunks, rows_at, total};
use candle_core::{CpuStorage, CustomOp2, DType, Layout, Result, Shape, Tensor, bail};
pub(crate) use checks::check_shapes;
pub use checks::check_targets;
pub use parts::{partial_softmax, partial_softmax_gradient};
pub use predictions::{Prediction, predictions};
use turn::TokenLoss;

use crate::gpu::operators;
use crate::matrix::{Matrix, Output, Product, multiply};
use crate::order_free::Sums;
use crate::rows::{CHUNK, Elements, Rows, elements, tensor, unwritten, with_rows};
use crate::{Backend, Pool};

/// The number of tokens whose logits a job turns into gradients.
const JOB: usize = 16;

/// The target of a token that does not count.
pub const IGNORED: i64 = -100;

/// The sum over tokens of `-log softmax(x wᵀ)[target]`, natural log: a scalar f32.
///
/// `x` [.., D], `weight` [V, D], `targets` i64 [..] with [`IGNORED`] left out, `chunk` tokens of logits held at once. Where `x` or `weight` is
/// on the tape, gradients are made chunk by chunk in the forward pass and kept, in f32, until the tape is dropped. Tokens that are left out
/// cost nothing, on the CPU.
///
/// On a processor whose tensors are not the host's, a target of no class makes the loss NaN: see [`check_targets`].
///
/// # Errors
/// When shapes do not fit, a target is neither [`IGNORED`] nor below V, or `chunk` is 0.
pub fn linear_cross_entropy(
    backend: &Backend,
    x: &Tensor,
    weight: &Tensor,
    targets: &Tensor,
    chunk: usize,
) -> Result<Tensor> {
    let pool = match backend {
        Backend::Gpu(processor) => {
            return operators::linear_cross_entropy(&**processor, x, weight, targets, chunk);
        }
        Backend::Cpu(pool) => pool,
    };
    pool.off_tape("linear-cross-entropy", [x, weight])?;
    let op = CrossEntropy {
        pool: pool.clone(),
        counted: counted_tokens(x, weight, targets, chunk)?,
        chunk,
        tracked: (x.track_op(), weight.track_op()),
        gradients: OnceLock::new(),
    };
    x.apply_op2(weight, op)
}

/// The loss of [`linear_cross_entropy`] off the tape, in f64.
///
/// # Errors
/// As there.
pub fn linear_cross_entropy_loss(
    backend: &Backend,
    x: &Tensor,
    weight: &Tensor,
    targets: &Tensor,
    chunk: usize,
) -> Result<f64> {
    let pool = match backend {
        Backend::Gpu(processor) => {
            return operators::linear_cross_entropy_loss(&**processor, x, weight, targets, chunk);
        }
        Backend::Cpu(pool) => pool,
    };
    let (counted, (rows, width)) = (counted_tokens(x, weight, targets, chunk)?, weight.dims2()?);
    let weights = Elements::of(pool, weight)?;
    let pass = Pass { pool, counted: &counted, chunk, wanted: (false, false) };
    let weights = Matrix::new(&weights, rows, width);
    with_rows(x, |rows| pass.run(rows, x.elem_count() / width.max(1), weights).0)
}

/// The loss of [`linear_cross_entropy`] and its gradients.
#[derive(Debug)]
pub struct CrossEntropyGradients {
    /// The sum of losses over tokens.
    pub loss: f64,
    /// The gradient of x, in its dtype.
    pub x: Tensor,
    /// The gradient of the weight, f32; where sums are order-free, a table of those.
    pub weight: Tensor,
}

/// The loss of [`linear_cross_entropy`] and its gradients in one pass, off the tape.
///
/// # Errors
/// As there.
pub fn linear_cross_entropy_gradients(
    backend: &Backend,
    x: &Tensor,
    weight: &Tensor,
    targets: &Tensor,
    chunk: usize,
) -> Result<CrossEntropyGradients> {
    let (loss, x, of_weight) = gradients(backend, x, weight, targets, chunk, true)?;
    let Some(weight) = of_weight else { bail!("internal: the weight's gradient was not made") };
    Ok(CrossEntropyGradients { loss, x, weight })
}

/// The loss of [`linear_cross_entropy`] and the gradient of x alone, off the tape: for a weight that is not trained.
///
/// # Errors
/// As there.
pub fn linear_cross_entropy_input_gradient(
    backend: &Backend,
    x: &Tensor,
    weight: &Tensor,
    targets: &Tensor,
    chunk: usize,
) -> Result<(f64, Tensor)> {
    let (loss, x, _) = gradients(backend, x, weight, targets, chunk, false)?;
    Ok((loss, x))
}

/// The loss, the gradient of x, and that of the weight where it is `trained`.
fn gradients(
    backend: &Backend,
    x: &Tensor,
    weight: &Tensor,
    targets: &Tensor,
    chunk: usize,
    trained: bool,
) -> Result<(f64, Tensor, Option<Tensor>)> {
    let pool = match backend {
        Backend::Cpu(pool) => pool,
        Backend::Gpu(processor) => {
            let processor = &**processor;
            return operators::linear_cross_entropy_gradients(
                processor, x, weight, targets, chunk, trained,
            );
        }
    };
    let counted = counted_tokens(x, weight, targets, chunk)?;
    let (rows, width) = weight.dims2()?;
    let weights = Elements::of(pool, weight)?;
    let weights = Matrix::new(&weights, rows, width);
    let pass = Pass { pool, counted: &counted, chunk, wanted: (true, trained) };
    let (loss, found) =
        with_rows(x, |rows| pass.run(rows, x.elem_count() / width.max(1), weights))?;
    let of_weight = match found.sums {
        Some(sums) => Some(sums.tensor()),
        None => trained.then(|| tensor(pool, found.weight, weight.shape(), DType::F32)),
    };
    Ok((loss, tensor(pool, found.x, x.shape(), x.dtype())?, of_weight.transpose()?))
}

/// The tokens that count, with their targets.
fn counted_tokens(
    x: &Tensor,
    weight: &Tensor,
    targets: &Tensor,
    chunk: usize,
) -> Result<Vec<(usize, usize)>> {
    check_shapes(x, weight, targets, chunk)?;
    let targets = targets.flatten_all()?.to_vec1::<i64>()?;
    check_targets(&targets, weight.dims2()?.0)?;
    let counted = targets.into_iter().enumerate().filter(|(_, target)| *target != IGNORED);
    Ok(counted.map(|(index, target)| (index, target as usize)).collect())
}

struct CrossEntropy {
    pool: Pool,
    /// Tokens that count, in order: index and target.
    counted: Vec<(usize, usize)>,
    chunk: usize,
    /// Whether gradients of x and of the weight are tracked.
    tracked: (bool, bool),
    gradients: OnceLock<Gradients>,
}

/// Gradients of the summed loss: of x [.., D] and of the weight [V, D]; empty where not wanted.
#[derive(Default)]
struct Gradients {
    x: Vec<f32>,
    weight: Vec<f32>,
    /// The weight's gradient where sums are order-free.
    sums: Option<Sums>,
}

/// Buffers for a chunk of tokens, reused by the next.
struct Scratch {
    /// The tokens' rows of x, [chunk, D].
    x: Vec<f32>,
    /// The tokens' logits, [chunk, V].
    logits: Vec<f32>,
}

/// One pass over the tokens, chunk by chunk.
struct Pass<'a> {
    pool: &'a Pool,
    counted: &'a [(usize, usize)],
    chunk: usize,
    /// Whether gradients of x and of the weight are wanted.
    wanted: (bool, bool),
}

impl Pass<'_> {
    /// The loss and the wanted gradients. `x` has `tokens` rows.
    fn run(&self, x: &Rows<'_>, tokens: usize, weight: Matrix<'_>) -> (f64, Gradients) {
        let (rows, width) = weight.shape();
        let dx = if self.wanted.0 { tokens * width } else { 0 };
        let block = self.pool.block();
        let dw = if self.wanted.1 && block.is_none() { rows * width } else { 0 };
        let sums = block.filter(|_| self.wanted.1).map(|_| Sums::of(rows * width));
        // Tokens that do not count have no gradient.
        let mut gradients = Gradients { x: vec![0.0; dx], weight: vec![0.0; dw], sums };
        let chunks = chunks(self.counted, self.chunk, block);
        let most = chunks.iter().map(|chunk| chunk.len()).max().unwrap_or(0);
        // SAFETY: `fold` writes what it reads.
        let (x_rows, logits) = unsafe { (unwritten(most * width), unwritten(most * rows)) };
        let mut scratch = Scratch { x: x_rows, logits };
        let mut loss = 0.0;
        for counted in chunks {
            let rows_of_x = scratch.x.chunks_mut(JOB * width.max(1)).zip(counted.chunks(JOB));
            self.pool.each(rows_of_x, |(to, counted)| {
                for (row, (index, _)) in to.chunks_exact_mut(width).zip(counted) {
                    x.copy(*index, row);
                }
            });
            loss += self.fold(counted, weight, &mut scratch, &mut gradients);
        }
        (loss, gradients)
    }
    /// The loss of the tokens in `counted`, whose rows are in `scratch.x`; adds to the gradients.
    fn fold(
        &self,
        counted: &[(usize, usize)],
        weight: Matrix<'_>,
        scratch: &mut Scratch,
        gradients: &mut Gradients,
    ) -> f64 {
        let (rows, width) = weight.shape();
        let x = &mut scratch.x[..counted.len() * width];
        let logits = &mut scratch.logits[..counted.len() * rows];
        let x_matrix = Matrix::new(x, counted.len(), width);
        multiply(self.pool, vec![Product::new(x_matrix, weight.transposed(), logits)]);
        let mut losses = vec![0.0; counted.len()];
        let tokens =
            logits.chunks_mut(JOB * rows).zip(counted.chunks(JOB)).zip(losses.chunks_mut(JOB));
        self.pool.each(tokens, |((logits, counted), losses)| {
            let tokens = logits.chunks_exact_mut(rows).zip(counted);
            for ((logits, &(_, target)), loss) in tokens.zip(losses) {
                *loss = self.pool.arch().dispatch(TokenLoss { logits, target });
            }
        });
        let dlogits = Matrix::new(logits, counted.len(), rows);
        if let (Some(sums), Some(block)) = (&mut gradients.sums, self.pool.block()) {
            sums.add_products(self.pool, (logits, rows), (x, width), &blocks(counted, block));
        } else if self.wanted.1 {
            let product = Product::new(dlogits.transposed(), x_matrix, &mut gradients.weight);
            multiply(self.pool, vec![Product { onto: Output::Accumulate, ..product }]);
        }
        if self.wanted.0 {
            // The tokens' rows are replaced by their gradients.
            multiply(self.pool, vec![Product::new(dlogits, weight, x)]);
            self.put(x, &mut rows_at(&mut gradients.x, width, counted), width);
        }
        total(counted, &losses, self.pool.block())
    }

    /// Copies rows to their places.
    fn put(&self, rows: &[f32], places: &mut [&mut [f32]], width: usize) {
        self.pool.each(places.chunks_mut(JOB).zip(rows.chunks(JOB * width)), |(to, from)| {
            for (to, from) in to.iter_mut().zip(from.chunks_exact(width)) {
                to.copy_from_slice(from);
            }
        });
    }
}

impl CrossEntropy {
    /// A gradient multiplied by that of the loss.
    fn times(&self, gradient: &[f32], by: f32, like: &Tensor) -> Result<Tensor> {
        let mut scaled = vec![0.0; gradient.len()];
        let pieces = scaled.chunks_mut(CHUNK).zip(gradient.chunks(CHUNK));
        self.pool.each(pieces, |(to, from)| {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = by * from);
        });
        tensor(&self.pool, scaled, like.shape(), like.dtype())
    }
}

impl CustomOp2 for CrossEntropy {
    fn name(&self) -> &'static str {
        "linear-cross-entropy"
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (rows, width) = weight_layout.shape().dims2()?;
        let weights = elements(&self.pool, weight, weight_layout)?;
        let pool = &self.pool;
        let pass = Pass { pool, counted: &self.counted, chunk: self.chunk, wanted: self.tracked };
        let tokens = x_layout.shape().elem_count() / width.max(1);
        let weights = Matrix::new(&weights, rows, width);
        let (loss, gradients) = pass.run(&Rows::new(x, x_layout)?, tokens, weights);
        self.gradients.get_or_init(|| gradients);
        Ok((CpuStorage::F32(vec![loss as f32]), Shape::from(())))
    }
    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _loss: &Tensor,
        upstream: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let Some(gradients) = self.gradients.get() else {
            bail!("linear-cross-entropy: backward came before forward");
        };
        let (by, (dx, dw)) = (upstream.to_scalar::<f32>()?, self.tracked);
        Ok((
            dx.then(|| self.times(&gradients.x, by, x)).transpose()?,
            dw.then(|| self.times(&gradients.weight, by, weight)).transpose()?,
        ))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;
    use crate::testing::{check, error, random, to_f64};

    fn reference(targets: &[i64], width: usize, v: &[Vec<f64>]) -> Vec<f64> {
        let loss = |x: &[f64], target: usize| {
            let dot = |w: &[f64]| x.iter().zip(w).map(|(x, w)| x * w).sum::<f64>();
            let logits: Vec<f64> = v[1].chunks(width).map(dot).collect();
            logits.iter().map(|logit| logit.exp()).sum::<f64>().ln() - logits[target]
        };
        let tokens = v[0].chunks(width).zip(targets).filter(|(_, target)| **target != IGNORED);
        vec![tokens.map(|(x, target)| loss(x, usize::try_from(*target).unwrap())).sum()]
    }

    #[test]
    fn agrees_with_plain_loops_and_finite_differences() -> Result<()> {
        let (tokens, width, rows) = (7, 5, 11);
        let inputs = [random("x", &[tokens, width])?, random("weight", &[rows, width])?];
        for targets in [[3, IGNORED, 0, 10, 3, IGNORED, 7], [1; 7], [IGNORED; 7]] {
            let tensor = Tensor::new(&targets, &Device::Cpu)?;
            for chunk in [1, 3, 100] {
                let fused = |v: &[Tensor]| {
                    linear_cross_entropy(&Backend::cpu(2), &v[0], &v[1], &tensor, chunk)
                };
                check(&inputs, fused, |v| reference(&targets, width, v), 1e-6)?;
            }
        }
        Ok(())
    }

    #[test]
    fn backward_may_run_twice_and_follows_the_upstream_gradient() -> Result<()> {
        let (x, weight) = (random("x", &[4, 3])?, random("weight", &[5, 3])?);
        let (x, weight) = (Var::from_tensor(&x)?, Var::from_tensor(&weight)?);
        let targets = Tensor::new(&[0_i64, 1, 2, 4], &Device::Cpu)?;
        let loss = linear_cross_entropy(&Backend::serial(), &x, &weight, &targets, 2)?;
        let (once, again) = (loss.backward()?, (&loss * 3.0)?.backward()?);
        for var in [&x, &weight] {
            let once = once.get(var).expect("a gradient of the loss");
            let thrice = again.get(var).expect("a gradient of three times the loss");
            assert!(error(thrice, &(once * 3.0)?)? < 1e-7);
        }
        Ok(())
    }

    #[test]
    fn logits_of_hundreds_stay_finite_and_only_tracked_gradients_are_made() -> Result<()> {
        let x = Var::from_tensor(&(random("x", &[3, 4])? * 300.0)?)?;
        let weight = random("weight", &[6, 4])?;
        let targets = Tensor::new(&[0_i64, 5, 2], &Device::Cpu)?;
        let loss = linear_cross_entropy(&Backend::serial(), &x, &weight, &targets, 8)?;
        let gradients = loss.backward()?;
        assert!(loss.to_scalar::<f32>()? > 100.0);
        let dx = to_f64(gradients.get(&x).expect("x is tracked"))?;
        assert!(dx.iter().all(|x| x.is_finite()));
        assert!(gradients.get(&weight).is_none());
        Ok(())
    }
}
