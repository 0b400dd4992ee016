//! Order-free attention: the same bits however blocks of positions are divided and in whatever order they meet, and dense attention's
//! results.

use annulus_ops::Pool;
use annulus_ops::attention::{Attended, AttentionKernel, Dropout, Fused, Instructions, dense};
use annulus_sequence::{Layout, Mask, Positions, Rule};
use candle_core::DType;

use super::split::{BLOCK, Split, TOKENS, assert_same, masks, shards, uneven};
use super::support::{Case, Heads, TOLERANCE};
use annulus_ops::testing::error_l2;

fn kernel(workers: usize, instructions: Instructions) -> Fused {
    Fused { pool: Pool::new(workers).in_blocks(Some(BLOCK)), instructions }
}

#[test]
fn the_same_bits_however_blocks_are_shared_out() {
    for heads in [Heads(1, 2, 1, 64), Heads(2, 3, 3, 20)] {
        let case = Case::random(heads, TOKENS, TOKENS);
        for (name, mask) in masks() {
            for case in [case.clone(), case.rounded(DType::BF16)] {
                let of = |workers, shards, first| {
                    let kernel = kernel(workers, Instructions::detect());
                    let dropout = None;
                    let at_once = first == 2;
                    Split { kernel: &kernel, mask: &mask, shards, dropout, first, at_once }
                        .run(&case)
                };
                let one = of(1, vec![Positions::all(TOKENS)], 1);
                let splits = [
                    (2, shards(Layout::Contiguous, 4), 3),
                    (1, shards(Layout::Striped { width: BLOCK }, 3), 1),
                    (3, shards(Layout::Zigzag, 4), 2),
                    (2, uneven(), 1),
                ];
                for (workers, shards, first) in splits {
                    let what = format!("{heads:?}, {name}, {} shards", shards.len());
                    assert_same(&of(workers, shards, first), &one, &what);
                }
            }
        }
    }
}

/// Products round the keys that a piece sees up to whole micro-tiles: what lies past them must add nothing to keys that it does not see.
#[test]
fn keys_that_nobody_sees_get_no_gradient_wherever_they_begin() {
    for instructions in Instructions::tested() {
        for (block, step) in [(32, 1), (128, 5)] {
            let pool = Pool::new(1).in_blocks(Some(block));
            let kernel = Fused { pool, instructions };
            for seen in (block + 1..2 * block).step_by(step) {
                let mask = Mask::causal().and(Rule::KeyPadding(vec![seen]));
                let case = Case::random(Heads(1, 1, 1, 16), 2 * block, 2 * block);
                let shards = vec![Positions::all(2 * block)];
                let split = Split {
                    kernel: &kernel,
                    mask: &mask,
                    shards,
                    dropout: None,
                    first: 1,
                    at_once: true,
                };
                let [.., dk, dv] = split.run(&case);
                for (name, gradient) in [("dk", dk), ("dv", dv)] {
                    let unseen = gradient.narrow(2, seen, 2 * block - seen).unwrap();
                    let most = unseen.abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
                    assert!(
                        most == 0.0,
                        "{instructions:?}, blocks of {block}, {seen} seen: {name} {most}"
                    );
                }
            }
        }
    }
}

#[test]
fn results_are_those_of_dense_attention_with_all_instructions() {
    let dropout = Dropout { seed: 3, probability: 0.2, step: 1, layer: 2, sequence: 0, head: 0 };
    for instructions in Instructions::tested() {
        let kernel = kernel(2, instructions);
        for (name, mask) in masks() {
            for dropout in [None, Some(dropout)] {
                let case = Case::random(Heads(1, 4, 2, 24), TOKENS, TOKENS);
                let split = Split {
                    kernel: &kernel,
                    mask: &mask,
                    shards: uneven(),
                    dropout,
                    first: 1,
                    at_once: false,
                };
                let [out, lse, dq, dk, dv] = split.run(&case);
                let all = Positions::all(TOKENS);
                let tensors = [&case.q, &case.k, &case.v, &case.gradient];
                let wanted = dense(tensors, &mask, [&all, &all], case.scale, dropout).unwrap();
                let results = super::support::Results {
                    attended: Attended { out, lse: lse.squeeze(3).unwrap() },
                    dq,
                    gradients: Vec::new(),
                };
                let what = format!("{instructions:?}, {name}");
                results.check_with(&wanted, &dk, &dv, TOLERANCE, &what);
            }
        }
    }
}

#[test]
fn sums_are_at_least_as_near_to_f64_as_those_in_one_order() {
    let tokens = 2048;
    let case = Case::random(Heads(1, 1, 1, 32), tokens, tokens);
    let (mask, all) = (Mask::causal(), Positions::all(tokens));
    let wanted = case.dense(&mask, &all, &all);
    let fast = case.run(&Fused::new(Pool::serial()), &[case.shard(&mask, &all, &all)]);
    let kernel = kernel(1, Instructions::detect());
    let split = Split {
        kernel: &kernel,
        mask: &mask,
        shards: vec![all],
        dropout: None,
        first: 1,
        at_once: false,
    };
    let [out, _, dq, dk, dv] = split.run(&case);
    let of_fast = &fast.gradients[0];
    for (name, strict, fast, wanted) in [
        ("out", &out, &fast.attended.out, &wanted.out),
        ("dq", &dq, &fast.dq, &wanted.dq),
        ("dk", &dk, &of_fast.dk, &wanted.dk),
        ("dv", &dv, &of_fast.dv, &wanted.dv),
    ] {
        let [strict, fast] = [strict, fast].map(|found| error_l2(found, wanted).unwrap());
        println!("{name}: off by {strict:.2e}, in one order by {fast:.2e}");
        assert!(strict <= fast, "{name}: off by {strict:e}, in one order by {fast:e}");
    }
}

#[test]
fn a_tile_that_does_not_say_where_it_is_is_refused() {
    let case = Case::random(Heads(1, 1, 1, 16), TOKENS, TOKENS);
    let kernel = kernel(1, Instructions::detect());
    let all = Positions::all(TOKENS);
    let shard = case.shard(&Mask::causal(), &all, &all);
    let mut state = kernel.begin(&case.q, case.scale).unwrap();
    let error = kernel.forward(&[shard.tile()], &mut *state, &|| Ok(())).unwrap_err();
    assert!(error.to_string().contains("does not say at which positions"), "{error}");
}
