//! The optimizer AdamW with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101), in place, on f32 masters.

mod checks;

use candle_core::{CpuStorage, DType, InplaceOp2, InplaceOp3, Layout, Result, Tensor};

use crate::gpu::operators;
use crate::rows::{CHUNK, elements, in_place_mut};
use crate::{Backend, Pool};

/// The settings of AdamW for one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// The learning rate of this step, finite.
    pub learning_rate: f64,
    /// The decay rates of the first and second moment, from 0 to less than 1.
    pub betas: (f64, f64),
    /// The epsilon added to the root of the second moment, finite and not negative.
    pub epsilon: f64,
    /// Decoupled weight decay (0 for vectors, which should not decay), finite.
    pub weight_decay: f64,
    /// The number of steps taken, this one included: at least 1.
    pub step: u64,
}

/// AdamW's moments of one parameter, f32 in its shape, in memory of their own. Updated in place.
#[derive(Clone, Debug)]
pub struct Moments {
    /// The running mean of gradients.
    pub first: Tensor,
    /// The running mean of squared gradients.
    pub second: Tensor,
}

impl Moments {
    /// Moments of zero, in the shape of `parameter`.
    ///
    /// # Errors
    /// What Candle, or the kernel's device, says.
    pub fn zeros(parameter: &Tensor) -> Result<Moments> {
        let zeros = || Tensor::zeros(parameter.shape(), DType::F32, parameter.device());
        Ok(Moments { first: zeros()?, second: zeros()? })
    }
}

/// A parameter, and the tensors that change with it.
#[derive(Clone, Copy, Debug)]
pub struct Parameter<'a> {
    /// The master, f32; changes in place.
    pub master: &'a Tensor,
    /// The gradient, f32 or bf16, in the parameter's shape.
    pub gradient: &'a Tensor,
    /// The moments, which change in place.
    pub moments: &'a Moments,
    /// The weights that layers compute with, where these are not the master: set to it, rounded to their dtype.
    pub copy: Option<&'a Tensor>,
    /// Whether the parameter has weight decay.
    pub decays: bool,
}

impl AdamW {
    /// One step of all parameters, as [`AdamW::update`] of each, with weight decay only for those that have it. On a GPU it is one launch.
    /// No other rank may have the memory of what changes, as there.
    ///
    /// # Errors
    /// As there for any of them, then none has changed; or when there are copies of several types, on a GPU.
    pub fn update_all(
        &self,
        backend: &Backend,
        parameters: &[Parameter<'_>],
        clip: f64,
    ) -> Result<()> {
        // What fails later leaves some moments ahead of their parameters.
        self.check(clip)?;
        parameters.iter().try_for_each(Parameter::check)?;
        match backend {
            Backend::Gpu(processor) => operators::update_all(&**processor, self, parameters, clip),
            Backend::Cpu(pool) => {
                parameters.iter().try_for_each(Parameter::check_on_host)?;
                parameters.iter().try_for_each(|one| self.of(one).apply(pool, one, clip))
            }
        }
    }

    /// One step of one parameter that has been checked, on a CPU.
    fn apply(&self, pool: &Pool, parameter: &Parameter<'_>, clip: f64) -> Result<()> {
        let Parameter { master, gradient, moments, copy, .. } = *parameter;
        let mean = |decay: f64, power| Mean { pool, decay, power, clip: clip as f32 };
        moments.first.inplace_op2(gradient, &mean(self.betas.0, Power::One))?;
        moments.second.inplace_op2(gradient, &mean(self.betas.1, Power::Two))?;
        master.inplace_op3(&moments.first, &moments.second, &Move { pool, settings: self })?;
        let Some(copy) = copy else { return Ok(()) };
        // Flat, since a scalar has no dimension to be set along.
        let rounded = master.to_dtype(copy.dtype())?.flatten_all()?;
        copy.flatten_all()?.slice_set(&rounded, 0, 0)
    }

    /// The settings for one of several parameters.
    pub(crate) fn of(&self, parameter: &Parameter<'_>) -> AdamW {
        AdamW { weight_decay: if parameter.decays { self.weight_decay } else { 0.0 }, ..*self }
    }

    /// The factor by which weight decay shrinks a parameter.
    pub(crate) fn keep(&self) -> f32 {
        (1.0 - self.learning_rate * self.weight_decay) as f32
    }

    /// The bias correction of moments that began at zero: the rate that multiplies the first, and the divisor of the root of the second.
    pub(crate) fn unbiased(&self) -> (f32, f32) {
        let unbias = |beta: f64| 1.0 - beta.powf(self.step as f64);
        let rate = (self.learning_rate / unbias(self.betas.0)) as f32;
        (rate, unbias(self.betas.1).sqrt() as f32)
    }

    /// One step of one parameter: `parameter` f32 and `moments` change in place. The gradient, f32
    /// or bf16, is multiplied by `clip` on the way. What a communicator returned may be the memory of other ranks too, each of which would
    /// step it: take a [`Tensor::copy`] or a `Var` of it once, and step that.
    ///
    /// ```text
    /// m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g²
    /// p = p (1 - rate decay) - rate / (1 - b1^k) m / (sqrt(v) / sqrt(1 - b2^k) + epsilon)
    /// ```
    ///
    /// # Errors
    /// When a setting is none that [`AdamW`] and [`Moments`] describe, `clip` is not finite, shapes differ, or a tensor that changes is
    /// not f32 without gaps. Nothing has changed then.
    pub fn update(
        &self,
        backend: &Backend,
        parameter: &Tensor,
        gradient: &Tensor,
        clip: f64,
        moments: &Moments,
    ) -> Result<()> {
        let one = Parameter { master: parameter, gradient, moments, copy: None, decays: true };
        self.update_all(backend, &[one], clip)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Power {
    One,
    Two,
}

/// Updates a running mean of the gradient or of its square.
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

/// Applies weight decay, then the step along the moments.
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
        let (keep, epsilon) = (self.settings.keep(), self.settings.epsilon as f32);
        let (rate, root) = self.settings.unbiased();
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

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::testing::{error, random, to_f64};

    /// The formulas of `update`, in f64, on one element.
    fn reference(
        settings: AdamW,
        clip: f64,
        gradient: f64,
        p: f64,
        m: f64,
        v: f64,
    ) -> (f64, f64, f64) {
        let AdamW { learning_rate, betas, epsilon, weight_decay, step } = settings;
        let (g, k) = (gradient * clip, i32::try_from(step).unwrap());
        let m = betas.0 * m + (1.0 - betas.0) * g;
        let v = betas.1 * v + (1.0 - betas.1) * g * g;
        let decayed = p * (1.0 - learning_rate * weight_decay);
        let root = v.sqrt() / (1.0 - betas.1.powi(k)).sqrt() + epsilon;
        (decayed - learning_rate / (1.0 - betas.0.powi(k)) * m / root, m, v)
    }

    #[test]
    fn follows_the_formulas_for_five_steps_with_any_workers() -> Result<()> {
        let shape = [257, 131];
        let mut bits = Vec::new();
        for workers in [1, 3] {
            let pool = Backend::cpu(workers);
            let parameter = (random("parameter", &shape)? * 1.0)?;
            let moments = Moments::zeros(&parameter)?;
            let mut slow: Vec<_> = to_f64(&parameter)?.into_iter().map(|p| (p, 0.0, 0.0)).collect();
            for step in 1..=5 {
                let (betas, weight_decay) = ((0.9, 0.95), 0.1);
                let settings =
                    AdamW { learning_rate: 0.01, betas, epsilon: 1e-8, weight_decay, step };
                let gradient = random(&format!("gradient {step}"), &shape)?;
                settings.update(&pool, &parameter, &gradient, 0.7, &moments)?;
                for (state, g) in slow.iter_mut().zip(to_f64(&gradient)?) {
                    let (p, m, v) = *state;
                    *state = reference(settings, 0.7, g, p, m, v);
                }
            }
            let wanted = |of: fn(&(f64, f64, f64)) -> f64| {
                Tensor::from_vec(slow.iter().map(of).collect::<Vec<_>>(), &shape, &Device::Cpu)
            };
            assert!(error(&parameter, &wanted(|state| state.0)?)? < 2e-7);
            assert!(error(&moments.first, &wanted(|state| state.1)?)? < 2e-7);
            assert!(error(&moments.second, &wanted(|state| state.2)?)? < 2e-7);
            bits.push(parameter.flatten_all()?.to_vec1::<f32>()?);
        }
        assert_eq!(bits[0], bits[1]);
        Ok(())
    }

    /// Settings of a first step.
    fn first() -> AdamW {
        let (learning_rate, betas, epsilon) = (0.1, (0.9, 0.9), 1e-8);
        AdamW { learning_rate, betas, epsilon, weight_decay: 0.0, step: 1 }
    }

    #[test]
    fn what_cannot_change_in_place_is_refused_before_anything_changes() -> Result<()> {
        let (square, row) = (random("square", &[3, 3])?, random("row", &[3])?);
        let update = |parameter: &Tensor, gradient: &Tensor| {
            let moments = Moments::zeros(parameter)?;
            let error = first().update(&Backend::serial(), parameter, gradient, 1.0, &moments);
            assert!(to_f64(&moments.first)?.iter().all(|moment| *moment == 0.0));
            error
        };
        let message = update(&square, &row).unwrap_err().to_string();
        assert!(message.contains("found [3], expected the parameter's [3, 3]"), "{message}");
        for parameter in [square.to_dtype(DType::BF16)?, square.t()?] {
            let message = update(&parameter, &square).unwrap_err().to_string();
            assert!(message.contains("expected F32 without gaps"), "{message}");
        }
        let message = update(&square, &square.to_dtype(DType::F64)?).unwrap_err().to_string();
        assert!(message.contains("found a tensor of F64, expected F32 or BF16"), "{message}");
        let twice = Moments::zeros(&square)?;
        let twice = Moments { second: twice.first.flatten_all()?.reshape((3, 3))?, ..twice };
        let error = first().update(&Backend::serial(), &square, &square, 1.0, &twice).unwrap_err();
        assert!(error.to_string().contains("both moments are one tensor"), "{error}");

        let flat = Tensor::zeros((4, 3, 3), DType::F32, &Device::Cpu)?;
        let [one, two, three] = [flat.get(0)?, flat.get(1)?, flat.get(2)?];
        let of_flat = Moments { first: one, second: two };
        let own = Moments::zeros(&square)?;
        for (master, gradient, moments, whose) in [
            (&three, &square, &of_flat, "parameter"),
            (&square, &three, &Moments { first: own.first, second: flat.get(3)? }, "gradient"),
        ] {
            let refused = first().update(&Backend::serial(), master, gradient, 1.0, moments);
            let message = refused.unwrap_err().to_string();
            assert!(message.contains(&format!("in the storage of the {whose}")), "{message}");
            assert!(to_f64(&moments.first)?.iter().all(|moment| *moment == 0.0));
        }
        Ok(())
    }

    #[test]
    fn settings_that_make_no_numbers_are_refused() -> Result<()> {
        let parameter = (random("parameter", &[3])? * 1.0)?;
        let moments = Moments::zeros(&parameter)?;
        let before = to_f64(&parameter)?;
        for (settings, clip, wanted) in [
            (AdamW { step: 0, ..first() }, 1.0, "found step 0"),
            (AdamW { learning_rate: f64::NAN, ..first() }, 1.0, "a learning rate of NaN"),
            (AdamW { weight_decay: f64::INFINITY, ..first() }, 1.0, "a weight decay of inf"),
            (AdamW { betas: (0.9, 1.0), ..first() }, 1.0, "a beta of 1"),
            (AdamW { epsilon: -1e-8, ..first() }, 1.0, "an epsilon of -"),
            (first(), f64::NAN, "a clip of NaN"),
        ] {
            let step = settings.update(&Backend::serial(), &parameter, &parameter, clip, &moments);
            let message = step.unwrap_err().to_string();
            assert!(message.contains(wanted), "{message}");
        }
        assert_eq!(to_f64(&parameter)?, before);
        Ok(())
    }

    #[test]
    fn a_scalar_has_a_copy_and_none_changes_where_one_is_refused() -> Result<()> {
        let scalar = Tensor::new(0.5_f32, &Device::Cpu)?;
        let copy = Tensor::zeros((), DType::BF16, &Device::Cpu)?;
        let moments = Moments::zeros(&scalar)?;
        let one = Parameter {
            master: &scalar,
            gradient: &Tensor::new(1.0_f32, &Device::Cpu)?,
            moments: &moments,
            copy: Some(&copy),
            decays: false,
        };
        let wrong = Parameter { copy: Some(&scalar), ..one };
        let message = first().update_all(&Backend::serial(), &[one, wrong], 1.0);
        assert!(message.unwrap_err().to_string().contains("the copy is the master itself"));
        assert_eq!(scalar.to_scalar::<f32>()?, 0.5);
        first().update_all(&Backend::serial(), &[one], 1.0)?;
        assert!((scalar.to_scalar::<f32>()? - 0.4).abs() < 1e-6);
        assert_eq!(to_f64(&copy)?, to_f64(&scalar.to_dtype(DType::BF16)?)?);
        Ok(())
    }
}
