//! Numbers of elements of a model's parameters.

use std::ops::Range;

use crate::Shape;

/// Slices of a parameter begin at multiples of this many elements, since kernels read several at a time.
const ALIGNED: usize = 16;

/// The elements of slice `slot` of `slots` of a flat parameter: what one rank sums, or updates. Slices differ by few elements. Where
/// `slots` is m · n, slice `slot` of n is the slices `slot` · m to `slot` · m + m - 1 of m · n.
pub fn slice_range(elements: usize, slot: usize, slots: usize) -> Range<usize> {
    let bound = |slot: usize| match elements * slot / slots {
        all if all == elements => elements,
        some => some / ALIGNED * ALIGNED,
    };
    bound(slot)..bound(slot + 1)
}

impl Shape {
    /// The shape of one of `ranks` tensor-parallel ranks: its part of heads, feed-forward and vocabulary, at most.
    #[must_use]
    pub fn part_of(&self, ranks: usize) -> Shape {
        Shape {
            num_attention_heads: self.num_attention_heads / ranks,
            num_key_value_heads: self.num_key_value_heads / ranks,
            intermediate_size: self.intermediate_size / ranks,
            vocab_size: self.vocab_size.map(|classes| classes.div_ceil(ranks)),
            ..self.clone()
        }
    }

    /// The number of elements of all parameters; tied weights count once.
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

    /// The number of elements of a layer's norms.
    pub fn norms(&self) -> u64 {
        let of_heads = if self.has_query_key_norm() { 2 * self.head_dim as u64 } else { 0 };
        2 * self.hidden_size as u64 + of_heads
    }

    /// The width of all query heads.
    pub fn query_width(&self) -> u64 {
        (self.num_attention_heads * self.head_dim) as u64
    }

    /// The width of all key heads, and of all value heads.
    pub fn key_value_width(&self) -> u64 {
        (self.num_key_value_heads * self.head_dim) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::slice_range;

    #[test]
    fn slices_cover_a_parameter_once_and_nest() {
        for elements in [0, 1, 15, 16, 17, 64, 100, 4096, 12_345] {
            for (parts, each) in [(1, 1), (1, 4), (2, 2), (3, 2), (4, 1), (5, 3)] {
                let slots = parts * each;
                let all: Vec<usize> =
                    (0..slots).flat_map(|slot| slice_range(elements, slot, slots)).collect();
                assert_eq!(all, (0..elements).collect::<Vec<_>>());
                for part in 0..parts {
                    let whole = slice_range(elements, part, parts);
                    let first = slice_range(elements, part * each, slots);
                    let last = slice_range(elements, part * each + each - 1, slots);
                    assert_eq!((whole.start, whole.end), (first.start, last.end));
                }
            }
        }
        assert!((0..4).all(|slot| slice_range(4096, slot, 4).len() == 1024));
    }
}
