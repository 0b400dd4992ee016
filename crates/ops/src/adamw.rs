//! AdamW with decoupled decay (Loshchilov and Hutter, arXiv 1711.05101), in place, on f32 masters.

use candle_core::{CpuStorage, DType, InplaceOp2, InplaceOp3, Layout, Result, Tensor, bail};

use crate::Pool;
use crate::rows::{CHUNK, elements, in_place_mut};

/// The settings of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// Decay of the first and second moment.
    pub betas: (f64, f64),
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Decoupled weight decay of this parameter (0 for vectors).
    pub weight_decay: f64,
    /// Steps taken, this one included.
    pub step: u64,
}

/// The state of one parameter, f32 in its shape. Updated in place.
#[derive(Clone, Debug)]
pub struct Moments {
    /// Running mean of gradients.
    pub first: Tensor,
    /// Running mean of their squares.
    pub second: Tensor,
}

impl Moments {
    /// Zeros in the shape of `parameter`.
    pub fn zeros(parameter: &Tensor) -> Result<Moments> {
        let zeros = || Tensor::zeros(parameter.shape(), DType::F32, parameter.device());
        Ok(Moments { first: zeros()?, second: zeros()? })
    }
}

impl AdamW {
    /// One step of one parameter: `parameter` f32 and `moments` change in place. The gradient, f32
    /// or bf16, is multiplied by `clip` on the way.
    ///
    /// ```text
    /// m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g²
    /// p = p (1 - rate decay) - rate / (1 - b1^k) m / (sqrt(v) / sqrt(1 - b2^k) + epsilon)
    /// ```
    ///
    /// # Errors
    /// When shapes differ, or a tensor that changes is not f32 without gaps.
    pub fn update(
        &self,
        pool: &Pool,
        parameter: &Tensor,
        gradient: &Tensor,
        clip: f64,
        moments: &Moments,
    ) -> Result<()> {
        let shapes = [gradient.shape(), moments.first.shape(), moments.second.shape()];
        if let Some(found) = shapes.into_iter().find(|shape| *shape != parameter.shape()) {
            bail!("adamw: found {found:?}, wanted the parameter's {:?}", parameter.shape());
        }
        let mean = |decay: f64, power| Mean { pool, decay, power, clip: clip as f32 };
        moments.first.inplace_op2(gradient, &mean(self.betas.0, Power::One))?;
        moments.second.inplace_op2(gradient, &mean(self.betas.1, Power::Two))?;
        parameter.inplace_op3(&moments.first, &moments.second, &Move { pool, settings: self })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Power {
    One,
    Two,
}

/// A running mean of the gradient or of its square.
struct Mean<'a> {
    pool: &'a Pool,
    decay: f64,
    power: Power,
    clip: f32,
}

impl InplaceOp2 for Mean<'_> {
    fn name(&self) -> &'static str {
        "adamw-moment"
    }
    fn cpu_fwd(
        &self,
        mean: &mut CpuStorage,
        mean_layout: &Layout,
        gradient: &CpuStorage,
        gradient_layout: &Layout,
    ) -> Result<()> {
        let gradient = elements(self.pool, gradient, gradient_layout)?;
        let mean = in_place_mut(mean, mean_layout)?;
        let (keep, take) = (self.decay as f32, (1.0 - self.decay) as f32);
        let of = |g: f32| if self.power == Power::One { g } else { g * g };
        self.pool.each(mean.chunks_mut(CHUNK).zip(gradient.chunks(CHUNK)), |(mean, gradient)| {
            for (mean, g) in mean.iter_mut().zip(gradient) {
                *mean = keep * *mean + take * of(self.clip * g);
            }
        });
        Ok(())
    }
}

/// Decay, then the step along the moments.
struct Move<'a> {
    pool: &'a Pool,
    settings: &'a AdamW,
}

impl InplaceOp3 for Move<'_> {
    fn name(&self) -> &'static str {
        "adamw"
    }
    fn cpu_fwd(
        &self,
        parameter: &mut CpuStorage,
        parameter_layout: &Layout,
        first: &CpuStorage,
        first_layout: &Layout,
        second: &CpuStorage,
        second_layout: &Layout,
    ) -> Result<()> {
        let AdamW { learning_rate, betas, epsilon, weight_decay, step } = *self.settings;
        let unbias = |beta: f64| 1.0 - beta.powf(step as f64);
        let keep = (1.0 - learning_rate * weight_decay) as f32;
        let rate = (learning_rate / unbias(betas.0)) as f32;
        let (root, epsilon) = (unbias(betas.1).sqrt() as f32, epsilon as f32);
        let first = elements(self.pool, first, first_layout)?;
        let second = elements(self.pool, second, second_layout)?;
        let moments = first.chunks(CHUNK).zip(second.chunks(CHUNK));
        let parameter = in_place_mut(parameter, parameter_layout)?;
        self.pool.each(parameter.chunks_mut(CHUNK).zip(moments), |(parameter, (m, v))| {
            for (p, (m, v)) in parameter.iter_mut().zip(m.iter().zip(v)) {
                *p = *p * keep - rate * m / (v.sqrt() / root + epsilon);
            }
        });
        Ok(())
    }
}
