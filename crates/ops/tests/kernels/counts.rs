//! What a layer costs besides its kernels: uploads, which a driver may wait for the GPU with.

use std::sync::Arc;

use annulus_ops::attention::{AttentionKernel, BackwardTile, Tile};
use annulus_ops::gpu::Processor;
use annulus_ops::gpu::attention::Kernels;
use annulus_ops::testing::Counted;
use annulus_sequence::Layout;
use candle_core::DType;

use crate::scene::{Heads, Rule, Scene};
use crate::support::processor;

/// A driver stages so many bytes without waiting for the GPU (CUDA driver API, "API synchronization behavior").
const STAGED: usize = 64 << 10;

/// Forward and backward of a layer.
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

/// Who sees whom is on the device after the first layer; where the tiles are is told with every launch.
#[test]
fn a_layer_after_the_first_uploads_where_its_tiles_are_and_no_mask() {
    let Some(inner) = processor(90, 3) else { return };
    let counted = Arc::new(Counted::new(inner));
    let rule = (Rule::Causal, Layout::Zigzag, 1);
    let scene = Scene::new(rule, Heads(1, 2, 1), 64, 140, DType::BF16).on(counted.device());
    for (deterministic, launches) in [(false, 2), (true, 3)] {
        let kernels = Kernels::new(counted.clone(), deterministic);
        layer(&kernels, &scene);
        let before = counted.calls()["upload"];
        layer(&kernels, &scene);
        assert_eq!(counted.calls()["upload"] - before, launches);
        assert!(counted.largest() <= STAGED);
    }
}
