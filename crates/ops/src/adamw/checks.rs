//! What AdamW refuses before it changes anything: a step that ends in the middle leaves moments ahead of their parameters.

use std::ops::Range;
use std::ptr;

use candle_core::{DType, Result, Storage, Tensor, bail};

use super::{AdamW, Moments, Parameter};
use crate::rows::check_place;

impl AdamW {
    /// Refuses settings, or a factor of gradients, that would make parameters no numbers.
    pub(super) fn check(&self, clip: f64) -> Result<()> {
        let AdamW { learning_rate, betas, epsilon, weight_decay, step } = *self;
        if step == 0 {
            bail!("adamw: found step 0, expected the number of this step, from 1");
        }
        for (name, found) in
            [("learning rate", learning_rate), ("weight decay", weight_decay), ("clip", clip)]
        {
            if !found.is_finite() {
                bail!("adamw: found a {name} of {found}, expected a finite number");
            }
        }
        for beta in [betas.0, betas.1] {
            if !(0.0..1.0).contains(&beta) {
                bail!("adamw: found a beta of {beta}, expected one from 0 to less than 1");
            }
        }
        if !epsilon.is_finite() || epsilon < 0.0 {
            bail!("adamw: found an epsilon of {epsilon}, expected a finite number from 0 on");
        }
        Ok(())
    }
}

impl Parameter<'_> {
    fn check_shapes(&self) -> Result<()> {
        let wanted = self.master.shape();
        let moments = [&self.moments.first, &self.moments.second];
        let others = [self.gradient].into_iter().chain(moments);
        let others = others.chain(self.copy);
        match others.map(Tensor::shape).find(|shape| *shape != wanted) {
            Some(found) => bail!("adamw: found {found:?}, expected the parameter's {wanted:?}"),
            None => Ok(()),
        }
    }

    /// Checks shapes, whether everything that changes can change in place, and whether it is not one and the same.
    pub(super) fn check(&self) -> Result<()> {
        self.check_shapes()?;
        let Moments { first, second } = self.moments;
        [self.master, first, second].into_iter().try_for_each(check_place)?;
        if overlap(first, second) {
            bail!("adamw: both moments are one tensor, expected memory of their own for each");
        }
        let Some(copy) = self.copy else { return Ok(()) };
        if !copy.is_contiguous() {
            bail!("adamw: found a copy of strides {:?}, expected one without gaps", copy.stride());
        }
        // Of another type it cannot be the master.
        if copy.dtype() == self.master.dtype() && overlap(copy, self.master) {
            bail!("adamw: the copy is the master itself, expected none");
        }
        Ok(())
    }

    /// Checks whether everything is on the CPU, and the gradient of a type that it is read from.
    pub(super) fn check_on_host(&self) -> Result<()> {
        let Moments { first, second } = self.moments;
        let all = [self.master, self.gradient, first, second].into_iter().chain(self.copy);
        if let Some(device) = all.map(Tensor::device).find(|device| !device.is_cpu()) {
            bail!("adamw: found a tensor on {:?}, expected one on the CPU", device.location());
        }
        // Candle changes no tensor in place while it reads another part of the same storage.
        for (name, other) in [("parameter", self.master), ("gradient", self.gradient)] {
            if [first, second].into_iter().any(|moment| place(moment).0 == place(other).0) {
                bail!(
                    "adamw: found a moment in the storage of the {name}, expected its own: `force_contiguous` copies it"
                );
            }
        }
        match self.gradient.dtype() {
            DType::F32 | DType::BF16 => Ok(()),
            other => bail!("adamw: found a tensor of {other:?}, expected F32 or BF16"),
        }
    }
}

/// Whether two tensors without gaps share elements.
fn overlap(one: &Tensor, other: &Tensor) -> bool {
    // One lock at a time: somebody may wait to write between two of the same.
    let ((storage, a), (of_other, b)) = (place(one), place(other));
    storage == of_other && a.start.max(b.start) < a.end.min(b.end)
}

/// The storage of a tensor without gaps, and the range of its elements there.
fn place(tensor: &Tensor) -> (*const Storage, Range<usize>) {
    let (storage, layout) = tensor.storage_and_layout();
    let start = layout.start_offset();
    (ptr::from_ref(&*storage), start..start + tensor.elem_count())
}
