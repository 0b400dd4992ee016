//! Memory that a layer takes: what it keeps for backward, and the most that is held beside it at a moment of its backward.

use annulus_experiment::Recompute;
use annulus_machine::blocks::SUMMED_ROWS;
use annulus_sequence::Part;

use super::{F32, Share, Widths, product, sum};

/// Bytes at the peaks of a layer's backward, with the activations that the layer kept.
#[derive(Clone, Copy)]
pub(super) struct Backward {
    /// In the feed-forward half before its weights' gradients.
    turning: u64,
    /// In the feed-forward half while there are gradients of its weights.
    reaping: u64,
    /// In the attention half.
    attention: u64,
}

impl Backward {
    /// The most of all.
    pub(super) fn most(self) -> u64 {
        self.turning.max(self.reaping).max(self.attention)
    }
    /// The most together with gradients: those before the layer, with the feed-forward half's, and with both halves'.
    pub(super) fn with(self, [before, feed_forward, both]: [u64; 3]) -> u64 {
        let Backward { turning, reaping, attention } = self;
        let moments = [(turning, before), (reaping, feed_forward), (attention, both)];
        moments.map(|(own, gradients)| sum([own, gradients])).into_iter().max().unwrap_or_default()
    }
}

impl Share<'_> {
    /// Peaks of one layer's backward.
    pub(super) fn in_layer(&self) -> Backward {
        let (attention, layer) = self.kept();
        let input = self.element * self.widths().r;
        let beside = |kept: u64, moment: u64| {
            sum([product(&[self.rows, kept]), moment, self.between_parts()])
        };
        let [turning, reaping] = self.in_feed_forward().map(|at| beside(layer + self.lent(), at));
        let down = beside(attention + self.lent(), self.in_attention());
        let attention = down.max(beside(input, self.after_attention()));
        Backward { turning, reaping, attention }
    }

    /// Bytes of own rows that a tensor-parallel rank holds while it gathers all rows from them, or scatters a sum into them.
    fn between_parts(&self) -> u64 {
        if self.plan.experiment.mesh.tensor == 1 {
            return 0;
        }
        product(&[self.rows, 2 * self.element * self.widths().r])
    }

    /// Bytes per row that a layer keeps for backward: its attention half, and the whole layer.
    pub(super) fn kept(&self) -> (u64, u64) {
        let Widths { r, a, k, f, .. } = self.widths();
        let e = self.element;
        let statistics = F32 * self.plan.own.num_attention_heads as u64;
        let everything = self.memory.recompute == Recompute::None;
        let (qkv, pieces) =
            if everything { (a + 2 * k + self.before_norms(), 2 * f) } else { (0, 0) };
        let attention = e * (r + a + qkv) + statistics;
        (attention, attention + e * (r + pieces))
    }

    /// Elements per row of projected queries and keys that are kept before their norms, for the backward of these norms.
    pub(super) fn before_norms(&self) -> u64 {
        let Widths { a, k, .. } = self.widths();
        if self.plan.own.has_query_key_norm() { a + k } else { 0 }
    }

    /// Bytes per row of own keys and values that others may still read, where a layer would not keep them.
    pub(super) fn lent(&self) -> u64 {
        let apart = self.plan.experiment.mesh.sequence > 1;
        let kept = self.memory.recompute == Recompute::None || self.copied(Part::KeyValue) > 0;
        let lent = apart && !kept;
        if lent { 2 * self.element * self.widths().k } else { 0 }
    }

    /// Bytes of the f32 copy of a weight of so many elements, which a product on this machine's CPU reads.
    fn copied_weight(&self, elements: u64) -> u64 {
        let is_copied = !self.plan.experiment.host.computes_on_gpus();
        if is_copied { product(&[elements, self.widened]) } else { 0 }
    }

    /// Peaks of the feed-forward half, bytes beside what is kept and the gradient of its output: before the gradients of its weights, and
    /// while there are some. For all rows, or for a piece while gradients of the others wait. First the most of these: the norm; gate and
    /// up, unless they were kept; the gradient of their product; and three inputs and outputs in f32. Or operands and results while a
    /// product with a weight is packed, backward or forward. Then operands and results while products for the gradients of weights are
    /// packed, or a product with a weight; or at last the norm's three inputs in f32 and its result.
    fn in_feed_forward(&self) -> [u64; 2] {
        let Widths { h, r, f, .. } = self.widths();
        let (e, wide) = (self.element, self.widened);
        let again = if self.memory.recompute == Recompute::None { 0 } else { 2 };
        let computed = 3 * (wide + F32) + self.narrowed;
        let turning = e * h + e * f * (again + 1) + f * computed;
        let projecting = e * h + e * f * again + wide * h + (F32 + self.narrowed) * f;
        let forward = e * f * (again + 1) + wide * (f + h) + F32 * h;
        // What was kept of gate and up is freed before.
        let gradients = e * (h + again * f);
        let reaping = gradients + (e * f + wide * (h + f)).max(wide * (h + 2 * f));
        let back = gradients + 2 * wide * f + (F32 + self.narrowed) * h;
        let normed = gradients + e * r + r * (3 * wide + F32 + self.narrowed);
        let rows = self.rows.min(self.memory.mlp_chunk as u64);
        let weight = self.copied_weight(h * f);
        let projected = [self.projecting(rows, f, h), self.projecting(rows, h, f)];
        let packed = self.packing(&[[rows, f, h], [rows, h, f]]);
        let packed = projected.into_iter().fold(packed, u64::max);
        let of = |row: u64| product(&[rows, row]);
        let turning = of(turning).max(sum([of(projecting).max(of(forward)), packed, weight]));
        let reaping = sum([of(reaping), self.packing(&[[f, h, rows], [h, f, rows]])]);
        let back = sum([of(back), self.packing(&[[rows, h, f]]), weight]);
        let reaping = reaping.max(back).max(of(normed));
        let waiting = if rows < self.rows { product(&[self.rows, e * h]) } else { 0 };
        [turning, reaping].map(|piece| {
            let working = sum([waiting, piece]).max(2 * waiting);
            sum([product(&[self.rows, e * h]), working])
        })
    }

    /// Peak of the attention half's backward down to attention, and of its projection forward, bytes beside what is kept: the gradient of
    /// the half's output with attention's by token and by head, or with attention's output by token while the projection's gradient is
    /// packed; or attention's gradient by head alone while queries, keys and values are recomputed: from the norm, by token, and queries
    /// also by head.
    fn in_attention(&self) -> u64 {
        let Widths { h, a, k, .. } = self.widths();
        let (e, wide, rows) = (self.element, self.widened, self.rows);
        let of = |row: u64| product(&[rows, row]);
        let gradients = e * (h + 2 * a) + wide * a;
        let projected = e * (h + a + 2 * k) + (wide - self.narrowed) * (h + a + 2 * k);
        let projected = projected + self.narrowed * (h + a);
        let turned = e * (2 * a + 2 * k + self.before_norms()) + wide * a;
        let reaped = sum([of((e + wide) * (h + a)), self.packing(&[[rows, a, h], [h, a, rows]])]);
        let back = (e + wide) * h + (F32 + self.narrowed) * a;
        let made = if self.memory.recompute == Recompute::None { 0 } else { a + 2 * k };
        let forward = e * (a + made) + wide * (a + h) + F32 * h;
        let output = self.packing(&[[rows, a, h]]).max(self.projecting(rows, h, a));
        let output = sum([of(back.max(forward)), output, self.copied_weight(a * h)]);
        let gradients = of(gradients).max(reaped).max(output);
        match self.memory.recompute {
            Recompute::None => gradients,
            Recompute::Layer | Recompute::Auto => {
                let packed = self.projecting(rows, a, h).max(self.projecting(rows, k, h));
                let [projected, turned] = [projected, turned].map(|bytes| of(e * (h + a) + bytes));
                let projected = sum([projected, packed, self.copied_weight(a.max(k) * h)]);
                gradients.max(projected).max(turned)
            }
        }
    }

    /// Peak of the attention half's backward after attention, bytes beside the half's input: the gradient of its output; those of queries,
    /// keys and values by head and by token, or by token with the norm and its gradient while those are packed; and the norm's three inputs
    /// in f32 and its result.
    fn after_attention(&self) -> u64 {
        let Widths { h, a, k, .. } = self.widths();
        let (e, wide) = (self.element, self.widened);
        let turned = e * (h + 2 * (a + 2 * k));
        let summed = e * (2 * h + a + 2 * k) + wide * (h + a + 2 * k);
        let normed = e * (3 * h + a + 2 * k) + h * (3 * wide + F32 + self.narrowed);
        let back = self.packing(&[[self.rows, h, a], [self.rows, h, k]]);
        let back = sum([back, self.copied_weight(a.max(k) * h)]);
        let packed = self.packing(&[[a, h, self.rows], [k, h, self.rows]]).max(back);
        let always = e * self.before_norms() + F32 * h / SUMMED_ROWS as u64;
        let [turned, summed, normed] =
            [turned, summed, normed].map(|bytes| product(&[self.rows, bytes + always]));
        turned.max(sum([summed, packed])).max(normed)
    }
}
