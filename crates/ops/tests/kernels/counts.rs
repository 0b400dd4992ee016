//! Costs of a layer besides its kernels: uploads, for which a driver may wait for the GPU.

use std::sync::Arc;

use annulus_ops::attention::{AttentionKernel, BackwardTile, Tile};
use annulus_ops::gpu::attention::Kernels;
use annulus_ops::gpu::{Generation, Processor};
use annulus_ops::testing::{Counted, random};
use annulus_ops::{Affine, Backend, input_gradient, parameter_gradients, projections, readable};
use annulus_sequence::Layout;
use candle_core::{DType, Result, Tensor};

use crate::scene::{Heads, Rule, Scene};
use crate::support::processor;

/// A driver stages so many bytes without waiting for the GPU (CUDA driver API, "API synchronization behavior").
const STAGED: usize = 64 << 10;

/// Runs a layer forward and backward.
fn layer(kernels: &Kernels, scene: &Scene) {
    let tiles: Vec<Tile<'_>> = scene.shards.iter().map(|shard| scene.tile(shard)).collect();
    let calm = || Ok(());
    let mut state = kernels.begin(&scene.q, scene.scale).unwrap();
    state.end_with_next();
    kernels.forward(&tiles, &mut *state, &calm).unwrap();
    let attended = kernels.finish(state).unwrap();
    let mut state =
        kernels.begin_backward(&scene.q, &attended, &scene.gradient, scene.scale).unwrap();
    let tiles = tiles.into_iter().map(|tile| BackwardTile { tile, carried: None }).collect();
    kernels.backward(tiles, &mut *state, &calm).unwrap();
    kernels.finish_backward(state).unwrap();
}

/// Who sees whom is on the device after the first layer; where a few tiles are comes with the arguments of launches, where many are
/// is uploaded. Blocks of keys that take turns are launched tile by tile.
#[test]
fn a_layer_after_the_first_uploads_no_mask() {
    let Some(inner) = processor(Generation::Sm90, 3) else { return };
    let counted = Arc::new(Counted::new(inner));
    let rule = (Rule::Causal, Layout::Zigzag, 1);
    let scene = Scene::new(rule, Heads(1, 2, 1), 64, 140, DType::BF16).on(counted.device());
    let shards = scene.shards.iter().cycle().take(5).cloned().collect();
    let many = Scene { shards, ..scene.clone() };
    for (deterministic, launches) in [(false, 2), (true, 1)] {
        for (scene, uploads) in [(&scene, 0), (&many, launches)] {
            let kernels = Kernels::new(counted.clone(), deterministic);
            layer(&kernels, scene);
            // On a GPU that other tests have used, all may be there already.
            let sent = || counted.calls().get("upload").copied().unwrap_or(0);
            let before = sent();
            layer(&kernels, scene);
            assert_eq!(sent() - before, uploads);
        }
    }
    assert!(counted.largest() <= STAGED);
}

/// Blocks of keys take turns where those that visit a block of queries are two intervals; else another kernel has the queries.
#[test]
fn two_intervals_of_blocks_take_turns() {
    // Whose kernel has them then: sm100 has none of its own.
    for (generation, own, other) in
        [(Generation::Sm90, "sm90", "sm90"), (Generation::Sm100, "sm100", "sm80")]
    {
        for (rule, tokens, in_turn) in [(Rule::Sink, 264, true), (Rule::Scattered, 640, false)] {
            let Some(inner) = processor(generation, 3) else { continue };
            let counted = Arc::new(Counted::new(inner));
            let layout = (rule, Layout::Contiguous, 0);
            let scene = Scene::new(layout, Heads(1, 2, 1), 64, tokens, DType::BF16);
            let generation = Some(generation);
            let kernels = Kernels { generation, ..Kernels::new(counted.clone(), true) };
            layer(&kernels, &scene.on(counted.device()));
            let launches = |of: &str| {
                let calls = counted.calls().into_iter();
                let of = calls.filter(|(name, _)| name.starts_with(&format!("attention_{of}")));
                of.map(|(_, count)| count).sum::<usize>()
            };
            let turns = launches(&format!("backward_in_turn_{own}"));
            let apart = launches(&format!("backward_queries_{other}"));
            let wanted = if in_turn { (scene.shards.len(), 0) } else { (turns, apart.max(1)) };
            assert_eq!((turns, apart), wanted, "{own}");
        }
    }
}

/// Queries, keys and values of grouped heads, with biases: weights that lie one after another take a product each pass, others three.
#[test]
fn projections_side_by_side_are_one_product() -> Result<()> {
    let Some(inner) = processor(Generation::Sm90, 3) else { return Ok(()) };
    let counted = Arc::new(Counted::new(inner));
    let there = |name, shape: &[usize]| random(name, shape)?.to_device(counted.device());
    let (x, widths, begins) = (there("x", &[1, 6, 8])?, [16, 4, 4], [0, 16, 20]);
    let wholes = [there("w", &[24, 8])?, there("b", &[24])?, there("dy", &[1, 6, 24])?];
    for (apart, products) in [(false, 4), (true, 12)] {
        let part = |whole: usize, dim: usize, one: usize| {
            let part = wholes[whole].narrow(dim, begins[one], widths[one])?;
            if apart { part.force_contiguous() } else { Ok(part) }
        };
        let parts = |whole, dim| -> Result<Vec<Tensor>> {
            (0..3).map(|one| part(whole, dim, one)).collect()
        };
        let (weights, biases, dy) = (parts(0, 0)?, parts(1, 0)?, parts(2, 2)?);
        let affine = [0, 1, 2].map(|i| Affine { weight: &weights[i], bias: Some(&biases[i]) });
        let dy = [&dy[0], &dy[1], &dy[2]];
        let backend = Backend::Gpu(counted.clone());
        let before = counted.calls().get("product").copied().unwrap_or(0);
        projections(&backend, &x, affine)?;
        input_gradient(&backend, affine, dy)?;
        let found = parameter_gradients(&backend, &x, affine, dy, [None; 3])?;
        let sums = found.each_ref().map(|one| Some(&one.weight));
        parameter_gradients(&backend, &x, affine, dy, sums)?;
        assert_eq!(counted.calls()["product"] - before, products);
    }
    Ok(())
}

/// Attention reads heads that lie by token.
#[test]
fn rows_with_gaps_between_them_are_not_copied() -> Result<()> {
    let Some(inner) = processor(Generation::Sm90, 3) else { return Ok(()) };
    let counted = Arc::new(Counted::new(inner));
    let by_token = random("x", &[2, 6, 3, 8])?.to_device(counted.device())?;
    let read = readable(&Backend::Gpu(counted.clone()), &by_token.transpose(1, 2)?)?;
    assert!(!read.is_contiguous() && counted.calls().is_empty());
    Ok(())
}
