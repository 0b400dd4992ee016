//! Memory that the loss takes: logits of a few rows at a time.

use super::{F32, Share, Widths, product};

impl Share<'_> {
    /// Bytes at the peak of the loss: the last norm's input, output and gradient; a chunk of logits with its input; the gradient of the
    /// output projection, and its weights in the dtype that they are computed in; which tokens count.
    pub(super) fn in_loss(&self) -> u64 {
        let Widths { h, .. } = self.widths();
        let vocabulary = self.plan.own_vocabulary();
        let chunk = self.rows.min(self.memory.loss_chunk as u64);
        let rows = product(&[self.rows, 2 * self.element * h + F32 * h + 16]);
        let host = &self.plan.experiment.host;
        let in_place = host.device.is_none() && host.apart.is_none();
        // With a sharded vocabulary a GPU makes powers, probabilities and gradients as separate tensors.
        let copies = if self.plan.experiment.mesh.tensor == 1 || in_place { 1 } else { 3 };
        let logits = product(&[chunk, copies * vocabulary + h, F32]);
        // With a sharded vocabulary a chunk's weight gradient is held beside the sum.
        let of_head = self.plan.gradient(product(&[vocabulary, h]));
        let gradients = if self.plan.experiment.mesh.tensor == 1 { 1 } else { 2 };
        let learned = if self.plan.counts().head { gradients * of_head } else { 0 };
        let learned = learned.saturating_add(product(&[vocabulary, h, self.widened]));
        let packed =
            self.packing(&[[chunk, vocabulary, h], [chunk, h, vocabulary], [vocabulary, h, chunk]]);
        [rows, logits, learned, packed].into_iter().fold(0, u64::saturating_add)
    }
}
