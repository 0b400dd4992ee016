//! Bytes of memory and of gradient sums, from shapes alone.
//!
//! With B sequences of t own tokens each in a micro-batch, n = B t rows; h = `hidden_size`, a and k
//! the widths of all query and all key/value heads, m = `intermediate_size`, V the vocabulary, L
//! layers, e bytes per element of the dtype:
//!
//! ```text
//! layer       = n e (6 h + 3 a + 3 k) + 4 n heads + c e 3 m     what a layer computes
//! kept        = L n (e (h + a) + 4 heads)                       recompute: layer
//!             = L layer                                         recompute: none
//! head        = 2 n e h + 8 V min(n, loss_chunk)                last norm, a chunk of logits
//! activations = kept + max(2 layer, head)
//! key_value   = n 2 k (e buffers + 4 gradient buffers)          the most in either pass, as proved
//! ```
//!
//! with c = min(n, `mlp_chunk`) rows of the feed-forward layer at once. Recomputing, a layer keeps
//! its input and attention's output and log-sum-exp; logits and their gradient are f32. The factor
//! 2 is for the gradients of what a layer computes; allocators round up, so this is an estimate.
//! Weights, gradients and moments are exact.

use annulus_sequence::Proof;

use crate::{Dtype, Peak, Plan, Recompute, Settled, Shape};

/// Bytes of an f32.
pub(crate) const F32: u64 = 4;
/// What is summed beside the gradients: the sum of losses and the count of targets, f64.
const LOSS_AND_TARGETS: u64 = 2 * 8;

impl Shape {
    /// Elements of all parameters; tied weights count once.
    pub fn elements(&self) -> u64 {
        let [h, m, layers] = [self.hidden_size, self.intermediate_size, self.num_hidden_layers];
        let (a, k) = (self.query_width(), self.key_value_width());
        let [h, m, layers] = [h, m, layers].map(|size| size as u64);
        let vocabulary = self.vocab_size.unwrap_or_default() as u64;
        let attention_bias = if self.attention_bias { a + 2 * k + h } else { 0 };
        let mlp_bias = if self.mlp_bias { 2 * m + h } else { 0 };
        let layer = 2 * h * (a + k) + attention_bias + 3 * h * m + mlp_bias + 2 * h;
        let embeddings = if self.tie_word_embeddings { 1 } else { 2 };
        layers * layer + embeddings * vocabulary * h + h
    }

    /// Width of all query heads.
    fn query_width(&self) -> u64 {
        (self.num_attention_heads * self.head_dim) as u64
    }

    /// Width of all key heads, and of all value heads.
    fn key_value_width(&self) -> u64 {
        (self.num_key_value_heads * self.head_dim) as u64
    }
}

/// One rank's share of the work; all ranks of an even deal have the same.
pub(crate) struct Share<'a> {
    plan: &'a Plan,
    memory: Settled,
    /// Rows of a micro-batch.
    rows: u64,
    /// Bytes of an element of weights and activations.
    element: u64,
}

impl Share<'_> {
    pub(crate) fn new(plan: &Plan, memory: Settled) -> Share<'_> {
        let rows = plan.rows() as u64;
        Share { plan, memory, rows, element: plan.experiment.model.dtype.bytes() as u64 }
    }

    /// What the sum of gradients hands over, where there is more than one rank.
    pub(crate) fn gradient_sum(&self) -> u64 {
        F32 * self.plan.shape.elements() + LOSS_AND_TARGETS
    }

    /// The peak of the rank that is `place` along a sequence.
    pub(crate) fn peak(&self, place: usize, forward: &Proof, backward: &Proof) -> Peak {
        let elements = self.plan.shape.elements();
        let masters = match self.plan.experiment.model.dtype {
            Dtype::F32 => 0,
            Dtype::Bf16 => F32,
        };
        let flight =
            |proof: &Proof| self.in_flight(proof.key_values[place], proof.gradients[place]);
        Peak {
            weights: elements * (self.element + masters),
            gradients: elements * F32,
            optimizer: elements * 2 * F32,
            activations: self.activations(),
            key_value: flight(forward).max(flight(backward)),
            workspace: 0,
            data: 0,
        }
    }

    fn in_flight(&self, key_values: usize, gradients: usize) -> u64 {
        let row = 2 * self.plan.shape.key_value_width();
        let buffers = key_values as u64 * self.element + gradients as u64 * F32;
        product(&[self.rows, row, buffers])
    }

    fn activations(&self) -> u64 {
        let (shape, memory) = (&self.plan.shape, self.memory);
        let (h, m) = (shape.hidden_size as u64, shape.intermediate_size as u64);
        let (a, k) = (shape.query_width(), shape.key_value_width());
        let statistics = F32 * shape.num_attention_heads as u64;
        let chunk = self.rows.min(memory.mlp_chunk as u64);
        let wide = self.element * (6 * h + 3 * a + 3 * k) + statistics;
        let layer =
            product(&[self.rows, wide]).saturating_add(product(&[chunk, self.element, 3 * m]));
        let kept = match memory.recompute {
            Recompute::Layer | Recompute::Auto => {
                product(&[self.rows, self.element * (h + a) + statistics])
            }
            Recompute::None => layer,
        };
        let chunk = self.rows.min(memory.loss_chunk as u64);
        let logits = product(&[2 * F32, self.plan.vocabulary() as u64, chunk]);
        let head = product(&[2, self.rows, self.element, h]).saturating_add(logits);
        let working = layer.saturating_mul(2).max(head);
        product(&[shape.num_hidden_layers as u64, kept]).saturating_add(working)
    }
}

/// A product that stops at the largest number instead of wrapping.
fn product(factors: &[u64]) -> u64 {
    factors.iter().fold(1, |product, factor| product.saturating_mul(*factor))
}
