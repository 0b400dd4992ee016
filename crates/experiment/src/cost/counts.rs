//! How many elements a model has, and how many of them are trained.

use super::F32;
use crate::{Besides, Plan, Shape};

/// What is summed beside the gradients: the sum of losses and the count of targets, f64.
const LOSS_AND_TARGETS: u64 = 2 * 8;

/// Elements of parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    /// Of all, adapters included.
    pub(crate) all: u64,
    /// Of those that are trained.
    pub(crate) trained: u64,
    /// Of the largest that is trained.
    pub(crate) largest: u64,
    /// Whether the last projection is trained.
    pub(crate) head: bool,
}

impl Plan {
    /// Elements of its parameters.
    pub(crate) fn counts(&self) -> Counts {
        let (shape, all) = (&self.shape, self.shape.elements());
        let Some(lora) = &self.experiment.lora else {
            return Counts { all, trained: all, largest: shape.largest_parameter(), head: true };
        };
        let [rank, layers, hidden, vocabulary] =
            [lora.rank, shape.num_hidden_layers, shape.hidden_size, self.vocabulary()]
                .map(|size| size as u64);
        let mut largest = 0;
        let mut adapters = 0;
        for target in &lora.targets {
            let [outputs, inputs] = target.sizes(shape);
            adapters += layers * rank * (outputs + inputs);
            largest = largest.max(rank * outputs.max(inputs));
        }
        let mut trained = adapters;
        for what in &lora.train {
            trained += match what {
                Besides::Norms => layers * shape.norms() + hidden,
                Besides::Embeddings | Besides::Head => vocabulary * hidden,
            };
            if *what != Besides::Norms {
                largest = largest.max(vocabulary * hidden);
            }
        }
        let last = if shape.tie_word_embeddings { Besides::Embeddings } else { Besides::Head };
        Counts { all: all + adapters, trained, largest, head: lora.trains(last) }
    }

    /// What the sum of gradients hands over, where there is more than one rank.
    pub(crate) fn gradient_sum(&self) -> u64 {
        F32 * self.counts().trained + LOSS_AND_TARGETS
    }
}

impl Shape {
    /// Elements of all parameters; tied weights count once.
    pub fn elements(&self) -> u64 {
        let [h, m, layers] = [self.hidden_size, self.intermediate_size, self.num_hidden_layers];
        let (a, k) = (self.query_width(), self.key_value_width());
        let [h, m, layers] = [h, m, layers].map(|size| size as u64);
        let vocabulary = self.vocab_size.unwrap_or_default() as u64;
        let biased = if self.has_query_key_value_bias() { a + 2 * k } else { 0 };
        let attention_bias = biased + if self.attention_bias { h } else { 0 };
        let norms = if self.has_query_key_norm() { 2 * self.head_dim as u64 } else { 0 };
        let mlp_bias = if self.mlp_bias { 2 * m + h } else { 0 };
        let layer = 2 * h * (a + k) + attention_bias + 3 * h * m + mlp_bias + 2 * h + norms;
        let embeddings = if self.tie_word_embeddings { 1 } else { 2 };
        layers * layer + embeddings * vocabulary * h + h
    }

    /// Elements of the largest parameter.
    fn largest_parameter(&self) -> u64 {
        let [h, m] = [self.hidden_size, self.intermediate_size].map(|size| size as u64);
        let vocabulary = self.vocab_size.unwrap_or_default() as u64;
        h * vocabulary.max(m).max(self.query_width())
    }

    /// Elements of the norms of a layer.
    fn norms(&self) -> u64 {
        let of_heads = if self.has_query_key_norm() { 2 * self.head_dim as u64 } else { 0 };
        2 * self.hidden_size as u64 + of_heads
    }

    /// Width of all query heads.
    pub(crate) fn query_width(&self) -> u64 {
        (self.num_attention_heads * self.head_dim) as u64
    }

    /// Width of all key heads, and of all value heads.
    pub(crate) fn key_value_width(&self) -> u64 {
        (self.num_key_value_heads * self.head_dim) as u64
    }
}
