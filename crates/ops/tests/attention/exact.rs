//! Outputs and gradients, tile by tile and over carried state.

use annulus_ops::attention::{AttentionKernel, KeyValueGradients, Reference};
use annulus_sequence::{Layout, Mask, Positions, Rule};
use candle_core::{DType, Device, Tensor};

use crate::support::{Case, Heads, Shard, TOLERANCE, deal, error, fused, normal, numbers, rows};

fn masks() -> [Mask; 4] {
    let window = Rule::Window(29);
    let causal = Mask::causal();
    [Mask::full(), causal.clone(), causal.and(window.clone()), Mask::full().and(window)]
}

fn one_tile(kernel: &dyn AttentionKernel, heads: Heads, tokens: usize) {
    let case = Case::random(heads, tokens, tokens);
    let positions = Positions::all(tokens);
    for mask in masks() {
        let expected = case.dense(&mask, &positions, &positions);
        let shard = case.shard(&mask, &positions, &positions);
        let what = format!("{kernel:?} {heads:?} {tokens} {mask:?}");
        case.run(kernel, &[shard]).check(&expected, TOLERANCE, &what);
    }
}

#[test]
fn every_size_and_dimension() {
    for (tokens, dim) in
        [(1, 8), (37, 14), (61, 32), (129, 64), (300, 96), (61, 128), (129, 80), (300, 33), (2, 1)]
    {
        one_tile(&fused(1), Heads(1, 2, 2, dim), tokens);
    }
    one_tile(&fused(1), Heads(1, 1, 1, 64), 600);
}

#[test]
fn grouped_heads_and_batches() {
    for heads in [Heads(2, 6, 2, 16), Heads(1, 4, 1, 64), Heads(3, 3, 3, 8)] {
        one_tile(&fused(2), heads, 130);
        one_tile(&Reference, heads, 37);
    }
}
