//! The softmax of a vocabulary that is sharded over tensor-parallel ranks: each rank holds exp(logit − local maximum) until the global
//! maximum and sum are known.

use annulus_machine::blocks::SOFTMAX_STATISTICS;
use parking_lot::Mutex;

use candle_core::{CpuStorage, D, DType, Device, InplaceOp1, Layout, Result, Tensor, bail};

use super::JOB;
use super::turn::{Exponentials, Scaled};
use crate::rows::in_place_mut;
use crate::{Backend, Pool};

/// Turns `logits` f32 [C, V] of C tokens, whose memory must not be shared, into exp(logit − highest) [C, V], and returns each token's
/// [statistics](SOFTMAX_STATISTICS) on the host: f32 [C, 3]. `targets` are indices of local classes, `None` for those elsewhere.
///
/// # Errors
/// When shapes do not fit, and what Candle, or the device, says.
pub fn partial_softmax(
    backend: &Backend,
    logits: Tensor,
    targets: &[Option<usize>],
) -> Result<(Tensor, Tensor)> {
    check(&logits, targets)?;
    match backend {
        Backend::Cpu(pool) => {
            let statistics = Mutex::new(vec![0.0; targets.len() * SOFTMAX_STATISTICS]);
            logits.inplace_op1(&SoftmaxInPlace { pool, targets, statistics: &statistics })?;
            let statistics = statistics.into_inner();
            let statistics =
                Tensor::from_vec(statistics, (targets.len(), SOFTMAX_STATISTICS), &Device::Cpu)?;
            Ok((logits, statistics))
        }
        Backend::Gpu(_) => {
            let (places, is_here) = places(targets, logits.device())?;
            let highest = logits.max_keepdim(D::Minus1)?;
            let target_logit = (logits.gather(&places, 1)? * &is_here)?;
            let powers = logits.broadcast_sub(&highest)?.exp()?;
            let statistics =
                Tensor::cat(&[&highest, &powers.sum_keepdim(D::Minus1)?, &target_logit], 1)?;
            Ok((powers, statistics.to_device(&Device::Cpu)?))
        }
    }
}

/// Turns `powers` [C, V], whose memory must not be shared, into the gradient of logits: each times its token's factor, which makes it a
/// probability, less 1 at the target.
///
/// # Errors
/// As of [`partial_softmax`].
pub fn partial_softmax_gradient(
    backend: &Backend,
    powers: Tensor,
    targets: &[Option<usize>],
    factors: &[f32],
) -> Result<Tensor> {
    check(&powers, targets)?;
    if factors.len() != targets.len() {
        bail!("partial-softmax: found {} factors of {} tokens", factors.len(), targets.len());
    }
    match backend {
        Backend::Cpu(pool) => {
            powers.inplace_op1(&SoftmaxGradientInPlace { pool, targets, factors })?;
            Ok(powers)
        }
        Backend::Gpu(_) => {
            let (places, is_here) = places(targets, powers.device())?;
            let factors = Tensor::from_slice(factors, (targets.len(), 1), powers.device())?;
            powers.broadcast_mul(&factors)?.scatter_add(&places, &is_here.neg()?, 1)
        }
    }
}

fn check(logits: &Tensor, targets: &[Option<usize>]) -> Result<()> {
    let (tokens, classes) = logits.dims2()?;
    if tokens != targets.len() || logits.dtype() != DType::F32 {
        let dtype = logits.dtype();
        bail!(
            "partial-softmax: found {dtype:?} {tokens} of {} tokens, expected F32",
            targets.len()
        );
    }
    match targets.iter().flatten().find(|target| **target >= classes) {
        Some(target) => bail!("partial-softmax: found target {target} of {classes} classes"),
        None => Ok(()),
    }
}

/// The column of each token's target, 0 where that is elsewhere, and 1 where it is here, else 0: [C, 1].
fn places(targets: &[Option<usize>], device: &Device) -> Result<(Tensor, Tensor)> {
    let places: Vec<u32> = targets.iter().map(|target| target.unwrap_or_default() as u32).collect();
    let is_here: Vec<f32> = targets.iter().map(|target| target.map_or(0.0, |_| 1.0)).collect();
    let shape = (targets.len(), 1);
    Ok((Tensor::from_vec(places, shape, device)?, Tensor::from_vec(is_here, shape, device)?))
}

/// Turns logits into powers.
struct SoftmaxInPlace<'a> {
    pool: &'a Pool,
    targets: &'a [Option<usize>],
    statistics: &'a Mutex<Vec<f32>>,
}

impl InplaceOp1 for SoftmaxInPlace<'_> {
    fn name(&self) -> &'static str {
        "partial-softmax"
    }
    fn cpu_fwd(&self, logits: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let classes = layout.shape().dims2()?.1.max(1);
        let logits = in_place_mut(logits, layout)?;
        let mut statistics = self.statistics.lock();
        let jobs = logits.chunks_mut(JOB * classes).zip(self.targets.chunks(JOB));
        self.pool.each(
            jobs.zip(statistics.chunks_mut(JOB * SOFTMAX_STATISTICS)),
            |((logits, targets), statistics)| {
                let tokens = logits.chunks_exact_mut(classes).zip(targets);
                for ((logits, target), statistics) in
                    tokens.zip(statistics.chunks_exact_mut(SOFTMAX_STATISTICS))
                {
                    let target_logit = target.map_or(0.0, |target| logits[target]);
                    let [highest, sum] = self.pool.arch().dispatch(Exponentials(logits));
                    statistics.copy_from_slice(&[highest, sum, target_logit]);
                }
            },
        );
        Ok(())
    }
}

/// Turns powers into gradients.
struct SoftmaxGradientInPlace<'a> {
    pool: &'a Pool,
    targets: &'a [Option<usize>],
    factors: &'a [f32],
}

impl InplaceOp1 for SoftmaxGradientInPlace<'_> {
    fn name(&self) -> &'static str {
        "partial-softmax-gradient"
    }
    fn cpu_fwd(&self, powers: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let classes = layout.shape().dims2()?.1.max(1);
        let powers = in_place_mut(powers, layout)?;
        let tokens = self.targets.chunks(JOB).zip(self.factors.chunks(JOB));
        self.pool.each(
            powers.chunks_mut(JOB * classes).zip(tokens),
            |(powers, (targets, factors))| {
                let rows = powers.chunks_exact_mut(classes);
                for ((powers, target), factor) in rows.zip(targets).zip(factors) {
                    self.pool.arch().dispatch(Scaled { powers, factor: *factor });
                    if let Some(target) = target {
                        powers[*target] -= 1.0;
                    }
                }
            },
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, random};
    use crate::{Affine, linear_cross_entropy_gradients, parameter_gradients, wide_linear};

    /// Parts of the classes give what all classes together give.
    #[test]
    fn parts_come_to_the_loss_and_the_gradients_of_the_whole() -> Result<()> {
        let (tokens, width, classes, cut) = (37, 5, 23, 9);
        let (x, weight) = (random("x", &[tokens, width])?, random("weight", &[classes, width])?);
        let targets: Vec<i64> =
            (0..tokens as i64).map(|token| token * 7 % classes as i64).collect();
        let of_all = Tensor::new(targets.as_slice(), &Device::Cpu)?;
        let backend = Backend::cpu(2);
        let wanted = linear_cross_entropy_gradients(&backend, &x, &weight, &of_all, tokens)?;
        let parts = [0..cut, cut..classes].map(|range| {
            let here = |target: &i64| {
                range.contains(&(*target as usize)).then(|| *target as usize - range.start)
            };
            let weight = weight.narrow(0, range.start, range.len())?.contiguous()?;
            let targets: Vec<Option<usize>> = targets.iter().map(here).collect();
            let logits = wide_linear(&backend, &x, &weight)?;
            Ok::<_, candle_core::Error>((
                partial_softmax(&backend, logits, &targets)?,
                targets,
                weight,
            ))
        });
        let [((left, of_left), left_targets, head), ((_, of_right), ..)] =
            parts.map(Result::unwrap);
        let [of_left, of_right] =
            [of_left, of_right].map(|statistics| statistics.to_vec2::<f32>().unwrap());
        let (mut loss, mut factors) = (0.0, Vec::new());
        for (left, right) in of_left.iter().zip(&of_right) {
            let highest = left[0].max(right[0]);
            let scale = |statistics: &[f32]| f64::from(statistics[0] - highest).exp();
            let sum = f64::from(left[1]) * scale(left) + f64::from(right[1]) * scale(right);
            loss += sum.ln() + f64::from(highest) - f64::from(left[2] + right[2]);
            factors.push((scale(left) / sum) as f32);
        }
        assert!((loss / wanted.loss - 1.0).abs() < 1e-6, "{loss} {}", wanted.loss);
        let gradient = partial_softmax_gradient(&backend, left, &left_targets, &factors)?;
        let head = Affine { weight: &head, bias: None };
        let [found] = parameter_gradients(&backend, &x, [head], [&gradient], [None])?;
        assert!(error(&found.weight, &wanted.weight.narrow(0, 0, cut)?)? < 1e-6);
        Ok(())
    }

    #[test]
    fn a_target_of_no_class_here_is_refused() {
        let logits = Tensor::zeros((2, 3), DType::F32, &Device::Cpu).unwrap();
        let error = partial_softmax(&Backend::serial(), logits, &[Some(3), None]).unwrap_err();
        assert!(error.to_string().contains("target 3 of 3 classes"), "{error}");
    }
}
