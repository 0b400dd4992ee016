//! Scores so large that f32 holds no fractions of them.

use annulus_ops::testing::{error, random, to_f64};
use annulus_sequence::{Mask, Positions};
use candle_core::{Device, Tensor};

use super::support::{Case, machines};

const TOKENS: usize = 150;
const DIM: usize = 8;
/// The smallest scores: powers of the next smaller ones are 0.
const SMALL: f32 = 1e4;

/// Scores that are small whole multiples of `size`, so that f32 has them exactly: several keys share the maximum of a row, every second row has
/// its maximum at what others have as minimum, and under a causal mask maxima move.
fn case(size: f32) -> Case {
    let first = |value: &dyn Fn(usize) -> f32| {
        let row = |token| [value(token)].into_iter().chain([0.0; DIM - 1]);
        let all: Vec<f32> = (0..TOKENS).flat_map(row).collect();
        Tensor::from_vec(all, (1, 1, TOKENS, DIM), &Device::Cpu).unwrap()
    };
    let random = |name| random(name, &[1, 1, TOKENS, DIM]).unwrap();
    Case {
        q: first(&|token| if token % 2 == 0 { size } else { -size }),
        k: first(&|token| ((token * 37) % 11) as f32 - 5.0),
        v: random("v"),
        gradient: random("gradient"),
        scale: 1.0,
    }
}

#[test]
fn softmax_is_exact_at_any_size_of_scores() {
    let all = Positions::all(TOKENS);
    for mask in [Mask::full(), Mask::causal()] {
        // Weights are the same at any size: all of a row is on the keys with its maximum. f64 has digits for the log-sum-exp that the reference
        // divides by where scores are small.
        let small = case(SMALL).dense(&mask, &all, &all);
        for size in [SMALL, 1e6, 1e8, 3e10, 1e12, 1e30] {
            let case = case(size);
            let lse = case.dense(&mask, &all, &all).lse;
            let shards = [case.shard(&mask, &all, &all)];
            for kernel in machines(2) {
                let found = case.run(&kernel, &shards);
                let what = format!("{:?}, {size:e}, {mask:?}", kernel.instructions);
                assert!(error(&found.attended.out, &small.out).unwrap() < 1e-6, "{what}");
                assert!(error(&found.attended.lse, &lse).unwrap() < 1e-6, "{what}");
                let [dk, dv] = [&found.gradients[0].dk, &found.gradients[0].dv];
                for gradient in [&found.dq, dk, dv] {
                    let finite = to_f64(gradient).unwrap().into_iter().all(f64::is_finite);
                    assert!(finite, "{what}");
                }
                // Probabilities are made again from a log-sum-exp of so many bits. The gradient of queries is 0, because the keys that share a
                // maximum are equal.
                let close = size > SMALL
                    || [(dk, &small.dk), (dv, &small.dv)]
                        .into_iter()
                        .all(|(gradient, dense)| error(gradient, dense).unwrap() < 1e-2);
                assert!(close, "{what}");
            }
        }
    }
}
