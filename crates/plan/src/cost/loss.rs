//! Memory that the two stages take that know the vocabulary: the loss, with logits of a few rows at a time, and the embedding.

use annulus_experiment::Experiment;

use super::{F32, Share, Widths, product, sum};

impl Share<'_> {
    /// Bytes in the embedding's backward: of the gradient of its rows, and of that of its table, if that is trained.
    pub(super) fn in_embedding(&self) -> [u64; 2] {
        let rows = product(&[self.rows, self.element + self.widened, self.widths().h]);
        let table = self.plan.trained_by_stage()[0].iter().sum();
        [rows, self.plan.gradient(table)]
    }

    /// Bytes at the peak of the loss: the last norm's input, output and gradient; a chunk of logits with its input; the gradient of the
    /// output projection, and its weights in the dtype that they are computed in; which tokens count.
    pub(super) fn in_loss(&self) -> u64 {
        let Widths { h, .. } = self.widths();
        let vocabulary = self.plan.own_vocabulary();
        let chunk = self.rows.min(self.memory.loss_chunk as u64);
        let rows = product(&[self.rows, 2 * self.element * h + F32 * h + 16]);
        let Experiment { host, mesh, .. } = &self.plan.experiment;
        let on_gpu = host.computes_on_gpus();
        // A GPU has gradients of 16 bits beside logits; with a sharded vocabulary powers, probabilities and gradients, each of f32.
        let (narrow, copies) = match (on_gpu, mesh.tensor) {
            (false, _) => (0, 1),
            (true, 1) => (if self.element < F32 { self.element } else { 0 }, 1),
            (true, _) => (0, 3),
        };
        let logits = product(&[chunk, vocabulary * (copies * F32 + narrow) + h * F32]);
        let of_head = self.plan.gradient(product(&[vocabulary, h]));
        let learned = if self.plan.counts().head { of_head } else { 0 };
        // Its products take weights of 16 bits.
        let widened = if on_gpu { 0 } else { product(&[vocabulary, h, self.widened]) };
        let packed = self.packing(&[[chunk, h, vocabulary], [vocabulary, h, chunk]]);
        let packed = packed.max(self.projecting(chunk, vocabulary, h));
        sum([rows, logits, learned, widened, packed])
    }
}
