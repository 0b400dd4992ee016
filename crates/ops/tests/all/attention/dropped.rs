//! Dropout by position: kernels compared with dense attention in f64 that drops the same weights.

use annulus_ops::attention::{
    AttentionKernel, BackwardTile, Dense, Dropout, Dropped, Fused, KeyValueGradients, Reference,
    Tile, dense,
};
use annulus_ops::testing::to_f64;
use annulus_sequence::{Layout, Mask, Positions, Rule, Visibility};
use candle_core::{DType, Tensor};

use super::support::{Case, Heads, Results, TOLERANCE, bits, machines, rows};

const DROPOUT: Dropout =
    Dropout { seed: 9, probability: 0.25, step: 4, layer: 1, sequence: 6, head: 0 };

impl Case {
    fn dropped(&self, mask: &Mask, queries: &Positions, keys: &Positions) -> Dense {
        let Case { q, k, v, gradient, scale } = self;
        dense([q, k, v, gradient], mask, [queries, keys], *scale, Some(DROPOUT)).unwrap()
    }

    /// One tile of queries and keys at these positions.
    fn drop(
        &self,
        kernel: &dyn AttentionKernel,
        mask: &Mask,
        queries: &Positions,
        keys: &Positions,
        dropout: Dropout,
    ) -> Results {
        let visibility = [Visibility::new(mask, queries, keys)];
        let dropped = Some(Dropped { dropout, head: 0, queries, keys });
        let tile = Tile { dropped, ..Tile::new(&self.k, &self.v, &visibility) };
        let progress = || Ok(());
        let mut state = kernel.begin(&self.q, self.scale).unwrap();
        kernel.forward(std::slice::from_ref(&tile), &mut *state, &progress).unwrap();
        let attended = kernel.finish(state).unwrap();
        let mut state =
            kernel.begin_backward(&self.q, &attended, &self.gradient, self.scale).unwrap();
        let tiles = vec![BackwardTile { tile, carried: None }];
        let gradients = kernel.backward(tiles, &mut *state, &progress).unwrap();
        Results { attended, dq: kernel.finish_backward(state).unwrap(), gradients }
    }
}

fn masks() -> [Mask; 3] {
    [Mask::full(), Mask::causal(), Mask::causal().and(Rule::Window(90))]
}

fn kernels() -> Vec<Box<dyn AttentionKernel>> {
    let fused = machines(2).into_iter().map(|kernel| Box::new(kernel) as Box<dyn AttentionKernel>);
    fused.chain([Box::new(Reference) as Box<dyn AttentionKernel>]).collect()
}

#[test]
fn kernels_leave_out_what_dense_attention_does() {
    for (heads, tokens) in [(Heads(2, 4, 2, 32), 61), (Heads(1, 3, 1, 20), 230)] {
        let case = Case::random(heads, tokens, tokens);
        let all = Positions::all(tokens);
        for mask in masks() {
            let expected = case.dropped(&mask, &all, &all);
            for kernel in kernels() {
                let results = case.drop(&*kernel, &mask, &all, &all, DROPOUT);
                results.check(&expected, TOLERANCE, &format!("{kernel:?} {mask:?}"));
            }
        }
    }
}

/// Queries and keys of ranks: stripes of any width, and both ends of a sequence.
#[test]
fn positions_decide_not_rows() {
    let mask = Mask::causal();
    for layout in [
        Layout::Striped { width: 1 },
        Layout::Striped { width: 3 },
        Layout::Striped { width: 6 },
        Layout::Zigzag,
        Layout::Contiguous,
    ] {
        let shards = layout.shard(217, 3).unwrap();
        let whole = Case::random(Heads(1, 2, 1, 16), 217, 217);
        for (q, k) in [(0, 0), (1, 0), (2, 1)] {
            let (queries, keys) = (&shards[q], &shards[k]);
            let case =
                Case { k: rows(&whole.k, keys), v: rows(&whole.v, keys), ..whole.of_rank(queries) };
            let expected = case.dropped(&mask, queries, keys);
            for kernel in kernels() {
                let results = case.drop(&*kernel, &mask, queries, keys, DROPOUT);
                results.check(&expected, TOLERANCE, &format!("{kernel:?} {layout:?}"));
            }
        }
    }
}

/// q = k = 0 and v = one-hot of the position: the output is every weight, which is 0 or the same for all.
#[test]
fn the_same_weights_are_left_out_to_the_bit() {
    let tokens = 96;
    let zeros = Case::random(Heads(1, 2, 2, tokens), tokens, tokens);
    let one_hot = Tensor::eye(tokens, DType::F32, zeros.q.device()).unwrap();
    let v = one_hot.broadcast_as((1, 2, tokens, tokens)).unwrap().contiguous().unwrap();
    let [q, k] = [&zeros.q, &zeros.k].map(|tensor| tensor.zeros_like().unwrap());
    let case = Case { q, k, v, ..zeros };
    let all = Positions::all(tokens);
    let expected = to_f64(&case.dropped(&Mask::full(), &all, &all).out).unwrap();
    for kernel in kernels() {
        let results = case.drop(&*kernel, &Mask::full(), &all, &all, DROPOUT);
        let found = to_f64(&results.attended.out).unwrap();
        let same = found.iter().zip(&expected).all(|(a, b)| (*a == 0.0) == (*b == 0.0));
        assert!(same, "{kernel:?}");
    }
    let gone = expected.iter().filter(|weight| **weight == 0.0).count() as f64;
    let share = gone / expected.len() as f64;
    assert!((share - 0.25).abs() < 5.0 * (0.25 * 0.75 / expected.len() as f64).sqrt(), "{share}");
}

#[test]
fn gradients_are_those_of_finite_differences() {
    let case = Case::random(Heads(1, 2, 1, 8), 9, 9);
    let (mask, all) = (Mask::causal(), Positions::all(9));
    let wide = |tensor: &Tensor| tensor.to_dtype(DType::F64).unwrap();
    let inputs = [&case.q, &case.k, &case.v].map(wide);
    let gradient = wide(&case.gradient);
    let run = |[q, k, v]: [&Tensor; 3]| {
        dense([q, k, v, &gradient], &mask, [&all, &all], case.scale, Some(DROPOUT)).unwrap()
    };
    let loss = |inputs: [&Tensor; 3]| -> f64 {
        let out = run(inputs).out;
        (out * &gradient).unwrap().sum_all().unwrap().to_scalar().unwrap()
    };
    let Dense { dq, dk, dv, .. } = run([&inputs[0], &inputs[1], &inputs[2]]);
    for (which, exact) in [dq, dk, dv].iter().enumerate() {
        let exact = to_f64(exact).unwrap();
        let values = to_f64(&inputs[which]).unwrap();
        for index in (0..values.len()).step_by(5) {
            let moved = |step: f64| {
                let mut values = values.clone();
                values[index] += step;
                let shape = inputs[which].shape();
                let moved = Tensor::from_vec(values, shape, case.q.device()).unwrap();
                let mut all = [&inputs[0], &inputs[1], &inputs[2]];
                all[which] = &moved;
                loss(all)
            };
            let slope = (moved(1e-5) - moved(-1e-5)) / 2e-5;
            let off = (slope - exact[index]).abs();
            assert!(
                off < 1e-6 * (1.0 + slope.abs()),
                "{which}, {index}: {slope}, {}",
                exact[index]
            );
        }
    }
}

#[test]
fn what_is_left_out_of_nothing_is_nothing() {
    let case = Case::random(Heads(1, 2, 1, 32), 150, 150);
    let (mask, all) = (Mask::causal(), Positions::all(150));
    let none = Dropout { probability: 0.0, ..DROPOUT };
    let shard = case.shard(&mask, &all, &all);
    for kernel in machines(1) {
        let plain = case.run(&kernel, std::slice::from_ref(&shard));
        assert_eq!(bits(&case.drop(&kernel, &mask, &all, &all, none)), bits(&plain));
        let dropped = case.drop(&kernel, &mask, &all, &all, DROPOUT);
        assert_ne!(bits(&dropped), bits(&plain));
        let Fused { instructions, .. } = kernel;
        let many = Fused { instructions, ..machines(3)[0].clone() };
        assert_eq!(bits(&case.drop(&many, &mask, &all, &all, DROPOUT)), bits(&dropped));
        let KeyValueGradients { dv, .. } = &dropped.gradients[0];
        assert_eq!(dv.dims(), case.v.dims());
    }
    let exact =
        dense([&case.q, &case.k, &case.v, &case.gradient], &mask, [&all, &all], case.scale, None);
    assert_eq!(
        to_f64(&exact.unwrap().lse).unwrap(),
        to_f64(&case.dropped(&mask, &all, &all).lse).unwrap()
    );
}
