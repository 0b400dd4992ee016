//! Attention: every kernel of the list, with every mask, geometry, and way to launch.

use std::sync::atomic::{AtomicUsize, Ordering};

use annulus_ops::attention::{AttentionKernel, Dropout, Reference, Tile};
use annulus_ops::gpu::Generation;
use annulus_ops::gpu::attention::{Kernels, Variant};
use annulus_ops::testing::{error, to_f64};
use annulus_sequence::Layout;
use candle_core::{DType, Device, Tensor};
use parking_lot::Mutex;

use crate::cover;
use crate::family::{Family, families};
use crate::passes::{Calls, PLAIN, Results, Wanted, back, run};
use crate::scene::{Heads, Rule, Scene};
use crate::support::{processor, runs, strength};

const LAYOUTS: [Layout; 4] = [
    Layout::Contiguous,
    Layout::Striped { width: 1 },
    Layout::Zigzag,
    Layout::Striped { width: 4 },
];
/// The dropout of a later layer and sequence, in a long run.
const DROPOUT: Dropout = Dropout {
    seed: 5 << 40 | 7,
    probability: 0.3,
    step: 1 << 33 | 9,
    layer: 2,
    sequence: 4,
    head: 0,
};
const HEADS: [Heads; 3] = [Heads(1, 2, 1), Heads(2, 2, 2), Heads(1, 3, 1)];
/// Positions per rank: several blocks with an odd rest (and divisible by what layouts ask for), shorter than any block.
fn positions(generation: Generation) -> [usize; 3] {
    match generation {
        // Plain loops are slow and have no blocks.
        Generation::Reference => [44, 12, 68],
        _ => [188, 12, 264],
    }
}

/// How many values each factor of a choice has: kernels, mask, layout, heads, positions, deterministic or not, tiles at once or not,
/// weights left out or not, whole or not, all columns or fewer.
fn factors() -> [usize; 10] {
    [families().len(), Rule::ALL.len(), LAYOUTS.len(), HEADS.len(), 3, 2, 2, 2, 2, 2]
}

/// Of a row what its scene is made of: all but how kernels are called.
fn scene_of(row: &[usize]) -> [usize; 7] {
    [0, 1, 2, 3, 4, 7, 9].map(|factor| row[factor])
}

/// Choices with all combinations of any `strength` factors.
fn choices(strength: usize) -> Vec<Vec<usize>> {
    let mut rows = cover::covering(&factors(), strength);
    for row in &mut rows {
        drop_what_is_no_choice(row);
    }
    rows.sort_by_key(|row| (scene_of(row), row.clone()));
    rows.dedup();
    rows
}

fn drop_what_is_no_choice(row: &mut [usize]) {
    let generation = families()[row[0]].variant.generation;
    // The fastest generations do not support dropout: `weights_that_no_kernel_leaves_out_are_refused`. The others are not told of the end.
    row[if generation >= Generation::Sm90 { 7 } else { 8 }] = 0;
    // Where there are kernels for any head dimension no columns are none.
    row[9] *= usize::from(generation >= Generation::Sm80);
}

/// Rows of one scene, what is wanted of which is made once: the largest share that an error has of its bound; none where the kernel
/// cannot run.
fn check(rows: &[Vec<usize>]) -> Option<f64> {
    let factors = scene_of(&rows[0]);
    let [variant, rule, layout, heads, tokens, dropped, narrow] = factors;
    let family = families()[variant];
    let Variant { generation, dtype, dim } = family.variant;
    if !runs(generation) {
        return None;
    }
    let (rule, layout, heads) = (Rule::ALL[rule], LAYOUTS[layout], HEADS[heads]);
    let (tokens, rank) = (positions(generation)[tokens], factors.iter().sum::<usize>() % 3);
    // Eight columns less than a kernel of tensor cores is made for: the rest is padding.
    let dim = if dim == 0 { 40 } else { dim - 8 * narrow };
    let scene = Scene::new((rule, layout, rank), heads, dim, tokens, dtype);
    let dropout = (dropped == 1).then_some(DROPOUT);
    let scene = Scene { dropout, ..scene };
    let mut wanted = Wanted::new(&scene);
    let check = |row: &Vec<usize>| {
        let seed = row.iter().fold(1, |seed, value| 31 * seed + *value as u64);
        let processor = processor(generation, seed)?;
        let [deterministic, at_once, whole] = [5, 6, 8].map(|factor| row[factor] == 1);
        let kernels = family.kernels(processor, deterministic);
        let found = run(&kernels, &scene, kernels.processor.device(), Calls { at_once, whole });
        let what = format!(
            "{} of {dim}, {rule:?} {layout:?} {heads:?}, {tokens} a rank, rank {rank}, deterministic {deterministic}, at once {at_once}, whole {whole}, dropout {dropout:?}",
            family.named()
        );
        Some(found.check(&scene, &mut wanted, &what))
    };
    rows.iter().map(check).fold(None, largest)
}

/// The larger of two numbers, of which one or both may be absent.
fn largest(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    a.into_iter().chain(b).reduce(f64::max)
}

#[test]
fn every_kernel_equals_plain_loops() {
    let rows = choices(strength());
    let scenes: Vec<&[Vec<usize>]> = rows.chunk_by(|a, b| scene_of(a) == scene_of(b)).collect();
    let worst = Mutex::new(vec![None; families().len()]);
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(scene) = scenes.get(next.fetch_add(1, Ordering::Relaxed)) {
            let share = check(scene);
            let worst = &mut worst.lock()[scene[0][0]];
            *worst = largest(*worst, share);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..annulus_machine::cores() {
            scope.spawn(work);
        }
    });
    let worst = worst.into_inner();
    for (index, (family, worst)) in families().into_iter().zip(worst).enumerate() {
        let choices = rows.iter().filter(|row| row[0] == index).count();
        let found = worst.map_or("NOT RUN, this GPU has other kernels".to_owned(), |worst| {
            format!("{choices} choices, errors up to {worst:.2} of their bound")
        });
        println!("{}: {found}", family.named());
    }
}

/// One tile shorter than a block, and one of two blocks: small enough for a sanitizer.
#[test]
fn small() {
    let mut run = 0;
    for variant in 0..families().len() {
        for mut row in [[variant, 0, 0, 0, 1, 0, 1, 0, 1, 0], [variant, 4, 2, 0, 0, 1, 0, 1, 0, 1]]
        {
            drop_what_is_no_choice(&mut row);
            run += usize::from(check(&[row.to_vec()]).is_some());
        }
    }
    match run {
        0 => println!("small: NOT RUN, this GPU has none of the kernels that were asked for"),
        _ => println!("small: {run} choices of kernels were run"),
    }
}

/// The gradient of queries by a second pass has the same bits whatever order threads run in; so have all others.
#[test]
fn deterministic_kernels_give_the_same_bits() {
    for family in families().into_iter().filter(|one| one.variant.dim == 64) {
        let Variant { generation, dtype, dim } = family.variant;
        let scene = Scene::new((Rule::Causal, Layout::Zigzag, 1), Heads(1, 2, 1), dim, 140, dtype);
        let bits = |seed| {
            let processor = processor(family.variant.generation, seed)?;
            let kernels = family.kernels(processor, true);
            let Results { attended, dq, gradients } =
                run(&kernels, &scene, kernels.processor.device(), PLAIN);
            let mut all = vec![attended.out, attended.lse, dq];
            all.extend(gradients.into_iter().flat_map(|made| [made.dk, made.dv]));
            Some(all.iter().flat_map(|tensor| to_f64(tensor).unwrap()).map(f64::to_bits).collect())
        };
        let bits: [Option<Vec<u64>>; 2] = [1, 2].map(bits);
        assert!(bits[0] == bits[1], "{generation:?} {dtype:?}");
    }
}

/// Their gradients of queries are added to what others have added in turn, by another generation in an order of its own.
#[test]
fn tiles_that_take_no_turns_are_added_apart() {
    let layout = (Rule::Scattered, Layout::Contiguous, 0);
    let scene = Scene::new(layout, Heads(1, 2, 1), 64, 640, DType::BF16);
    let mut wanted = Wanted::new(&scene);
    for family in families().into_iter().filter(|one| one.named().ends_with("bf16_d64")) {
        let found = processor(family.variant.generation, 3).map(|processor| {
            let kernels = family.kernels(processor, true);
            run(&kernels, &scene, kernels.processor.device(), PLAIN)
        });
        found.map(|found| found.check(&scene, &mut wanted, &family.named()));
    }
}

/// The smallest heads in f32 and bf16, by every generation that runs here.
fn of_two_types() -> impl Iterator<Item = Family> {
    let chosen = |one: &Family| one.variant.dim == 64 && one.variant.dtype != DType::F16;
    families().into_iter().filter(chosen).filter(|one| runs(one.variant.generation))
}

/// Two rows of a batch, each under a mask of its own: other blocks of keys visit a block of queries.
#[test]
fn rows_of_a_batch_have_masks_of_their_own() {
    for family in of_two_types() {
        let Variant { generation, dtype, dim } = family.variant;
        let layout = (Rule::Causal, Layout::Contiguous, 1);
        let scene = Scene::new(layout, Heads(2, 2, 1), dim, 264, dtype);
        for rules in [[Rule::Documents, Rule::Full], [Rule::Full, Rule::Window]] {
            let scene = scene.clone().under(&rules);
            let mut wanted = Wanted::new(&scene);
            for deterministic in [false, true] {
                let Some(processor) = processor(generation, 5) else { continue };
                let kernels = family.kernels(processor, deterministic);
                let found = run(&kernels, &scene, kernels.processor.device(), PLAIN);
                let what = format!("{} {rules:?} {deterministic}", family.named());
                found.check(&scene, &mut wanted, &what);
            }
        }
    }
}

/// More tiles than come with the arguments of a launch lie in device memory.
#[test]
fn any_number_of_tiles_is_taken_at_once() {
    for family in of_two_types() {
        let Variant { generation, dtype, dim } = family.variant;
        let rule = (Rule::Causal, Layout::Striped { width: 1 }, 1);
        let scene = Scene::new(rule, Heads(1, 2, 1), dim, 20, dtype);
        for many in [4, 5] {
            let shards = scene.shards.iter().cycle().take(many).cloned().collect();
            let scene = Scene { shards, ..scene.clone() };
            let mut wanted = Wanted::new(&scene);
            for deterministic in [false, true] {
                let Some(processor) = processor(generation, 1) else { continue };
                let kernels = family.kernels(processor, deterministic);
                let found = run(&kernels, &scene, kernels.processor.device(), PLAIN);
                let what = format!("{generation:?} {dtype:?} {many} tiles");
                found.check(&scene, &mut wanted, &what);
            }
        }
    }
}

/// A factor that is not quite 1 while the maximum stays would show after hundreds of blocks of keys.
#[test]
fn long_sums_do_not_drift() {
    for family in families().into_iter().filter(|one| one.variant.dim == 64) {
        let Variant { generation, dtype, dim } = family.variant;
        let Some(processor) = processor(family.variant.generation, 1) else { continue };
        let scene = Scene::new((Rule::Full, Layout::Contiguous, 0), Heads(1, 1, 1), dim, 40, dtype);
        let lse = |kernel: &dyn AttentionKernel, device| {
            let scene = scene.on(device);
            let tiles: Vec<Tile<'_>> =
                scene.shards.iter().map(|shard| scene.tile(shard)).cycle().take(600).collect();
            let mut state = kernel.begin(&scene.q, scene.scale).unwrap();
            kernel.forward(&tiles, &mut *state, &|| Ok(())).unwrap();
            back(&kernel.finish(state).unwrap().lse)
        };
        let kernels = family.kernels(processor, true);
        let found = lse(&kernels, kernels.processor.device());
        let off = error(&found, &lse(&Reference, &Device::Cpu)).unwrap();
        assert!(off <= 3e-6, "{generation:?} {dtype:?}: lse is off by {off:e}");
    }
}

#[test]
fn weights_that_no_kernel_leaves_out_are_refused() {
    let Some(processor) = processor(Generation::Sm90, 1) else { return };
    let rule = (Rule::Causal, Layout::Contiguous, 0);
    let scene = Scene::new(rule, Heads(1, 1, 1), 64, 12, DType::BF16);
    let scene = Scene { dropout: Some(DROPOUT), ..scene }.on(processor.device());
    let kernels = Kernels::new(processor, true);
    let mut state = kernels.begin(&scene.q, scene.scale).unwrap();
    let tiles = [scene.tile(&scene.shards[0])];
    let refused = kernels.forward(&tiles, &mut *state, &|| Ok(())).unwrap_err().to_string();
    assert!(
        refused.contains("the sm_90a and sm_100 attention kernels do not support dropout"),
        "{refused}"
    );
}

#[test]
fn what_has_no_kernel_is_refused() {
    let kernels = Kernels::new(processor(Generation::Sm80, 1).unwrap(), false);
    let q = Tensor::zeros((1, 1, 4, 64), DType::U8, &Device::Cpu).unwrap();
    let message = kernels.begin(&q, 1.0).unwrap_err().to_string();
    assert!(message.contains("no CUDA kernel for heads of 64 in U8 on sm_"), "{message}");
}
