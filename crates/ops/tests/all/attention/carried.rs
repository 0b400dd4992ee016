//! State carried over the tiles of a ring, in every layout and in several orders.

use annulus_ops::attention::{AttentionKernel, BackwardTile, Dense, KeyValueGradients, Reference};
use annulus_sequence::{Layout, Mask, Positions, Rule};
use candle_core::{Device, Tensor};

use super::support::{Case, Heads, Results, TOLERANCE, fused, rows};

/// Every rank's queries against every rank's keys, in the order `order(rank, hop)`; gradients of keys travel from rank to rank.
fn ring(
    kernel: &dyn AttentionKernel,
    case: &Case,
    mask: &Mask,
    sharded: &[Positions],
    order: impl Fn(usize, usize) -> usize,
) -> (Vec<Results>, Vec<KeyValueGradients>) {
    let mut travelling: Vec<Option<KeyValueGradients>> = vec![None; sharded.len()];
    let mut results = Vec::new();
    for (rank, queries) in sharded.iter().enumerate() {
        let Case { q, gradient, scale, .. } = &case.of_rank(queries);
        let sources: Vec<usize> = (0..sharded.len()).map(|hop| order(rank, hop)).collect();
        let shards = sources.iter().map(|&source| case.shard_of(mask, queries, &sharded[source]));
        let shards: Vec<_> = shards.collect();
        let mut state = kernel.begin(q, *scale).unwrap();
        for shard in &shards {
            kernel.forward(&[shard.tile()], &mut *state, &|| Ok(())).unwrap();
        }
        let attended = kernel.finish(state).unwrap();
        let mut state = kernel.begin_backward(q, &attended, gradient, *scale).unwrap();
        for (shard, &source) in shards.iter().zip(&sources) {
            let tile = BackwardTile { tile: shard.tile(), carried: travelling[source].take() };
            let mut gradients = kernel.backward(vec![tile], &mut *state, &|| Ok(())).unwrap();
            travelling[source] = gradients.pop();
        }
        let dq = kernel.finish_backward(state).unwrap();
        results.push(Results { attended, dq, gradients: Vec::new() });
    }
    (results, travelling.into_iter().map(Option::unwrap).collect())
}

/// The part of the whole sequence's dense result that a rank should have.
fn of_rank(whole: &Dense, positions: &Positions) -> Dense {
    let indices: Vec<u32> = positions.iter().map(|position| position as u32).collect();
    let indices = Tensor::new(indices, &Device::Cpu).unwrap();
    Dense {
        out: rows(&whole.out, positions),
        lse: whole.lse.index_select(&indices, 2).unwrap(),
        dq: rows(&whole.dq, positions),
        dk: rows(&whole.dk, positions),
        dv: rows(&whole.dv, positions),
    }
}

fn every_layout(kernel: &dyn AttentionKernel, heads: Heads, tokens: usize, world: usize) {
    let case = Case::random(heads, tokens, tokens);
    let all = Positions::all(tokens);
    let orders: [fn(usize, usize, usize) -> usize; 3] = [
        |rank, hop, world| (rank + world - hop) % world,
        |_, hop, _| hop,
        |_, hop, world| world - 1 - hop,
    ];
    let masks = [Mask::full(), Mask::causal(), Mask::causal().and(Rule::Window(41))];
    for mask in masks.into_iter().chain([Mask::full().and(Rule::Window(17))]) {
        let whole = case.dense(&mask, &all, &all);
        let layouts = [
            Layout::Contiguous,
            Layout::Striped { width: 1 },
            Layout::Striped { width: 3 },
            Layout::Zigzag,
        ];
        for (layout, order) in layouts.into_iter().zip(orders.into_iter().cycle()) {
            let sharded = layout.shard(tokens, world).unwrap();
            let (results, gradients) =
                ring(kernel, &case, &mask, &sharded, |rank, hop| order(rank, hop, world));
            for (rank, (results, gradients)) in results.iter().zip(&gradients).enumerate() {
                let what = format!("{kernel:?} {layout:?} {mask:?} rank {rank}");
                let expected = of_rank(&whole, &sharded[rank]);
                let KeyValueGradients { dk, dv } = gradients;
                results.check_with(&expected, dk, dv, TOLERANCE, &what);
            }
        }
    }
}

#[test]
fn two_three_and_four_ranks() {
    every_layout(&fused(1), Heads(1, 2, 1, 32), 132, 2);
    every_layout(&fused(2), Heads(2, 2, 2, 14), 126, 3);
    every_layout(&fused(1), Heads(1, 4, 2, 16), 264, 4);
}

#[test]
fn tiles_of_several_blocks() {
    every_layout(&fused(2), Heads(1, 1, 1, 8), 744, 2);
}

#[test]
fn plain_loops() {
    every_layout(&Reference, Heads(1, 2, 1, 8), 72, 3);
}
