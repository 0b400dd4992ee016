//! Numbers of elements of a model's parameters.

use crate::Shape;

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
    pub fn largest_parameter(&self) -> u64 {
        let [h, m] = [self.hidden_size, self.intermediate_size].map(|size| size as u64);
        let vocabulary = self.vocab_size.unwrap_or_default() as u64;
        h * vocabulary.max(m).max(self.query_width())
    }

    /// Elements of the norms of a layer.
    pub fn norms(&self) -> u64 {
        let of_heads = if self.has_query_key_norm() { 2 * self.head_dim as u64 } else { 0 };
        2 * self.hidden_size as u64 + of_heads
    }

    /// Width of all query heads.
    pub fn query_width(&self) -> u64 {
        (self.num_attention_heads * self.head_dim) as u64
    }

    /// Width of all key heads, and of all value heads.
    pub fn key_value_width(&self) -> u64 {
        (self.num_key_value_heads * self.head_dim) as u64
    }
}
