//! Attention with order-free sums.

use std::sync::Arc;

use annulus_ops::attention::{Attended, AttentionKernel, Dropout, dense};
use annulus_ops::gpu::attention::Kernels;
use annulus_ops::gpu::{Generation, in_blocks};
use annulus_ops::testing::{error, error_l2};
use annulus_sequence::{Layout, Mask, Positions};
use candle_core::{DType, Device, Tensor};

use super::split::{BLOCK, Found, Split, TOKENS, assert_same, masks, shards, uneven};
use super::support::{Case, Heads, Results, Shard, TOLERANCE};
use crate::support::{asked, processor, say};

/// A kernel whose threads take turns as `seed` draws, or none where such kernels are not asked for.
fn kernels(seed: u64, block: Option<usize>) -> Option<Kernels> {
    let processor = processor(Generation::Sm80, seed).filter(|_| asked("strict"))?;
    Some(Kernels::new(in_blocks(processor, block), true))
}

/// Whether a block of threads has the shared memory for heads of `dim`; says so where it has not.
fn takes(dim: usize, dtype: DType) -> bool {
    let longest = kernels(1, Some(BLOCK))
        .map_or(usize::MAX, |kernel| Kernels::longest_in_blocks(&*kernel.processor, dtype));
    if dim > longest {
        say(&format!("heads of {dim} in {dtype:?}: NOT RUN, this GPU takes {longest} at most"));
    }
    dim <= longest
}

fn there(case: &Case, device: &Device) -> Case {
    let [q, k, v, gradient] =
        [&case.q, &case.k, &case.v, &case.gradient].map(|tensor| tensor.to_device(device).unwrap());
    Case { q, k, v, gradient, scale: case.scale }
}

struct Way {
    seed: u64,
    shards: Vec<Positions>,
    first: usize,
    at_once: bool,
}

fn found(way: Way, case: &Case, mask: &Mask, dropout: Option<Dropout>) -> Option<Found> {
    let kernel = kernels(way.seed, Some(BLOCK))?;
    let case = there(case, kernel.processor.device());
    let Way { shards, first, at_once, .. } = way;
    Some(Split { kernel: &kernel, mask, shards, dropout, first, at_once }.run(&case))
}

fn whole() -> Way {
    Way { seed: 1, shards: vec![Positions::all(TOKENS)], first: 1, at_once: false }
}

/// Every mask with one split, and one mask with all: of heads that fill a kernel and of those that do not.
#[test]
fn the_same_bits_however_blocks_are_shared_out() {
    let splits = || {
        [
            Way { seed: 2, shards: shards(Layout::Contiguous, 4), first: 3, at_once: false },
            Way {
                seed: 3,
                shards: shards(Layout::Striped { width: BLOCK }, 3),
                first: 1,
                at_once: true,
            },
            Way { seed: 4, shards: uneven(), first: 2, at_once: true },
        ]
    };
    for (index, (name, mask)) in masks().into_iter().enumerate() {
        let heads = [Heads(1, 2, 1, 64), Heads(2, 3, 3, 20)][index % 2];
        let dtype = [DType::F32, DType::BF16, DType::F16][index % 3];
        let case = Case::random(heads, TOKENS, TOKENS).rounded(dtype);
        let Some(one) = found(whole(), &case, &mask, None) else { return };
        for (number, way) in splits().into_iter().enumerate() {
            if name == "sinks" || number == index % 3 {
                let what = format!("{heads:?} {dtype:?}, {name}, {} shards", way.shards.len());
                assert_same(&found(way, &case, &mask, None).unwrap(), &one, &what);
            }
        }
    }
}

#[test]
fn results_are_those_of_dense_attention() {
    let dropout = Dropout { seed: 3, probability: 0.2, step: 1, layer: 2, sequence: 0, head: 0 };
    for (index, (name, mask)) in masks().into_iter().enumerate() {
        let dropout = index.is_multiple_of(2).then_some(dropout);
        let dim = [24, 100, 136][index % 3];
        if !takes(dim, DType::F32) {
            continue;
        }
        let case = Case::random(Heads(1, 2, 1, dim), TOKENS, TOKENS);
        let way = Way { shards: uneven(), ..whole() };
        let Some([out, lse, dq, dk, dv]) = found(way, &case, &mask, dropout) else { return };
        let all = Positions::all(TOKENS);
        let tensors = [&case.q, &case.k, &case.v, &case.gradient];
        let wanted = dense(tensors, &mask, [&all, &all], case.scale, dropout).unwrap();
        let attended = Attended { out, lse: lse.squeeze(3).unwrap() };
        let results = Results { attended, dq, gradients: Vec::new() };
        results.check_with(&wanted, &dk, &dv, TOLERANCE, &format!("{name} {dim}"));
    }
}

/// Of the usual kernels, and of those with order-free sums, by tensor: how far they are off.
fn off(dtype: DType) -> Option<[[f64; 2]; 4]> {
    let tokens = 512;
    let case = Case::random(Heads(1, 1, 1, 64), tokens, tokens).rounded(dtype);
    let (mask, all) = (Mask::causal(), Positions::all(tokens));
    let wide = case.rounded(DType::F64);
    let wanted = wide.dense(&mask, &all, &all);
    let usual = kernels(1, None)?;
    let there = there(&case, usual.processor.device());
    let fast = there.run(&usual, &[there.shard(&mask, &all, &all)] as &[Shard]);
    let strict = kernels(1, Some(BLOCK))?;
    let split = Split {
        kernel: &strict,
        mask: &mask,
        shards: vec![all],
        dropout: None,
        first: 1,
        at_once: true,
    };
    let [out, _, dq, dk, dv] = split.run(&there);
    let of_fast = &fast.gradients[0];
    let off = |strict: &Tensor, fast: &Tensor, wanted: &Tensor| {
        [strict, fast]
            .map(|found| error_l2(&found.to_device(&Device::Cpu).unwrap(), wanted).unwrap())
    };
    Some([
        off(&out, &fast.attended.out, &wanted.out),
        off(&dq, &fast.dq, &wanted.dq),
        off(&dk, &of_fast.dk, &wanted.dk),
        off(&dv, &of_fast.dv, &wanted.dv),
    ])
}

#[test]
fn sums_are_as_near_to_f64_as_those_of_the_usual_kernels() {
    for (dtype, times) in [(DType::F32, 1.0), (DType::BF16, 1.05)] {
        let Some(all) = off(dtype) else { return };
        for (name, [strict, fast]) in ["out", "dq", "dk", "dv"].into_iter().zip(all) {
            println!("{dtype:?} {name}: off by {strict:.2e}, in one order by {fast:.2e}");
            assert!(
                strict <= fast * times,
                "{dtype:?} {name}: off by {strict:e}, the usual one by {fast:e}"
            );
        }
    }
}

#[test]
fn a_tile_that_does_not_say_where_it_is_is_refused() {
    let Some(kernel) = kernels(1, Some(BLOCK)) else { return };
    let case = there(&Case::random(Heads(1, 1, 1, 16), TOKENS, TOKENS), kernel.processor.device());
    let all = Positions::all(TOKENS);
    let shard = case.shard(&Mask::causal(), &all, &all);
    let kernel: Arc<dyn AttentionKernel> = Arc::new(kernel);
    let mut state = kernel.begin(&case.q, case.scale).unwrap();
    let said = kernel.forward(&[shard.tile()], &mut *state, &|| Ok(())).unwrap_err().to_string();
    assert!(said.contains("does not say at which positions"), "{said}");
}

/// Without blocks of their own sums depend on who holds which positions: what the tests above could not see otherwise.
#[test]
fn without_blocks_bits_depend_on_the_split() {
    let Some(kernel) = kernels(1, None) else { return };
    let case = there(&Case::random(Heads(1, 1, 1, 64), TOKENS, TOKENS), kernel.processor.device());
    let (mask, all) = (Mask::causal(), Positions::all(TOKENS));
    let of = |shards: &[Positions]| {
        let shards: Vec<Shard> =
            shards.iter().map(|keys| case.shard_of(&mask, &all, keys)).collect();
        case.run(&kernel, &shards).attended.out.to_device(&Device::Cpu).unwrap()
    };
    let [whole, split] = [of(&[Positions::all(TOKENS)]), of(&uneven())];
    let off = error(&split, &whole).unwrap();
    assert!(off > 0.0 && off < TOLERANCE, "{off:e}");
}
