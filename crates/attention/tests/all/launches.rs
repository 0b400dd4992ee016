//! Launches under masks that cut a tile into several views, by the kernels of a GPU, on the emulator: what takes one for each view, or for
//! each head, is slow there.

use std::iter::zip;
use std::sync::Arc;

use annulus_attention::{Attention, CallSite, Qkv};
use annulus_comm::threads;
use annulus_ops::attention::Dense;
use annulus_ops::gpu::attention::Kernels;
use annulus_ops::gpu::in_blocks;
use annulus_ops::testing::Counted;
use annulus_sequence::{Heads, Layout, Positions, Route, Rule, Strategy};
use candle_core::{DType, Result, Tensor};

use crate::case::{Case, LIMIT, Processors, error, rows};
use crate::emulated::emulator;

/// As [`LIMIT`], where inputs and results are rounded to bf16.
const ROUNDED: f64 = 3e-2;

/// A head dimension that the kernels of tensor cores have, and more heads and batch rows than views.
fn case(rules: Vec<Rule>, world: usize, block: Option<usize>) -> Case {
    let strategy = if world == 1 { Strategy::Local } else { Strategy::Ring };
    Case {
        strategy,
        back: Route::default(),
        layout: Layout::Contiguous,
        weights: vec![1; world],
        tokens: 48,
        rules,
        documents: Vec::new(),
        packed: false,
        heads: Heads { query: 6, key_value: 3 },
        batch: 3,
        dim: 64,
        plain: false,
        block,
        processor: Processors::Emulator,
    }
}

/// Runs a case forward and backward, checks every tensor against dense attention, and counts the launches of all ranks: of attention
/// forward, of what finishes its states, of the gradients of keys, and of additions.
fn launches(case: &Case, dtype: DType) -> [usize; 4] {
    // The kernels of sm_80 do not end a state.
    let architecture = if dtype == DType::F32 { 80 } else { 90 };
    let counted = Arc::new(Counted::new(Arc::new(emulator(architecture))));
    let (inputs, schedules) = (case.random(), case.schedules().ok().unwrap());
    let dense = case.dense(&inputs);
    let scale = 1.0 / (case.dim as f64).sqrt();
    let off = threads::run(&case.options(), |comm| -> Result<f64> {
        let kernels = Arc::new(Kernels::new(in_blocks(counted.clone(), case.block), false));
        let attention = Attention::new(schedules.clone(), scale, comm, kernels);
        let positions = attention.positions().clone();
        let own = |tensor| rows(tensor, &positions).to_dtype(dtype);
        let Qkv { q, k, v } = &inputs.qkv;
        let qkv = Qkv { q: own(q)?, k: own(k)?, v: own(v)? };
        let attended = attention.forward(CallSite::default(), &qkv)?;
        let out = attended.out.clone();
        let made =
            attention.backward(CallSite::default(), qkv, attended, own(&inputs.gradient)?)?;
        Ok(worst([&out, &made.q, &made.k, &made.v], &dense, &positions))
    });
    let off = off.ok().unwrap().into_iter().fold(0.0, f64::max);
    let most = if dtype == DType::F32 { LIMIT } else { ROUNDED };
    assert!(off <= most, "{:?} in {dtype:?}: {off:e} off", case.rules);
    [&["forward"][..], &["attention_finish_rows"], &["_keys_"], &["accumulate", "order_free_add"]]
        .map(|names| {
            counted.calls().iter().filter(|one| is_any(one.0, names)).map(|one| one.1).sum()
        })
}

fn is_any(name: &str, of: &[&str]) -> bool {
    of.iter().any(|part| name.contains(part))
}

fn worst(found: [&Tensor; 4], dense: &Dense, positions: &Positions) -> f64 {
    let wanted = [&dense.out, &dense.dq, &dense.dk, &dense.dv];
    let off = |(found, wanted): (&Tensor, &Tensor)| error(found, wanted, positions);
    zip(found, wanted).map(off).fold(0.0, f64::max)
}

/// All views of a side are one launch, unless they are of all keys in backward, where one continues from the sums of another; gradients of
/// some keys are added in one launch for each of a strict block's sides, however many heads and sequences there are.
#[test]
fn a_side_is_one_launch_however_many_views_it_has() {
    let global = || vec![Rule::Window(6), Rule::Global(vec![3..5, 20..21])];
    let strided = || vec![Rule::Strided { stride: 4 }];
    let fixed = || vec![Rule::Fixed { block: 8, columns: 2 }];
    // With a launch for each view, an addition for each head, and strict additions for each part these were [74, 0, 74, 396],
    // [3, 1, 3, 0], [40, 0, 40, 536], [2, 1, 2, 0] and [16, 0, 16, 360].
    for (rules, block, wanted) in [
        (strided(), Some(12), [20, 0, 20, 57]),
        (fixed(), None, [1, 1, 1, 2]),
        (fixed(), Some(12), [4, 0, 4, 60]),
        (global(), None, [1, 1, 2, 0]),
        (global(), Some(12), [8, 0, 8, 36]),
    ] {
        let case = case(rules, 1, block);
        assert_eq!(launches(&case, DType::F32), wanted, "{:?} {block:?}", case.rules);
    }
}

/// The fastest kernels leave the output of the last views themselves, for all rows and for each residue class.
#[test]
fn a_state_ends_with_the_last_views_of_its_side() {
    let rules = [vec![Rule::Strided { stride: 4 }], vec![Rule::Fixed { block: 8, columns: 2 }]];
    for (rules, sides) in zip(rules, [5, 1]) {
        let [forward, finishes, ..] = launches(&case(rules, 1, None), DType::BF16);
        assert_eq!([forward, finishes], [sides, 0]);
    }
}

#[test]
fn ranks_add_what_others_made_in_few_launches() {
    let rules = vec![Rule::Window(6), Rule::Global(vec![3..5, 20..21])];
    // Two each for what two ranks send; before, strict ones were 192.
    for (block, wanted) in [(None, 12), (Some(12), 30)] {
        let [.., additions] = launches(&case(rules.clone(), 3, block), DType::F32);
        assert!(additions <= wanted, "{additions} with blocks of {block:?}");
    }
}
