//! Outputs and gradients of one tile, compared with dense attention.

use annulus_ops::attention::{Attended, AttentionKernel, Instructions, Reference, dense};
use annulus_ops::testing::{error, finite_differences, random, to_f64};
use annulus_sequence::{Mask, Positions, Rule, Run, Span, Visibility};
use candle_core::{DType, Device, Tensor};

use super::support::{Case, Heads, Shard, TOLERANCE, fused, machines};

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
    let sizes =
        [(1, 8), (37, 14), (61, 32), (129, 64), (300, 96), (61, 128), (129, 80), (300, 33), (2, 1)];
    for kernel in machines(1) {
        for (tokens, dim) in sizes {
            one_tile(&kernel, Heads(1, 2, 2, dim), tokens);
        }
        one_tile(&kernel, Heads(1, 1, 1, 64), 600);
    }
    one_tile(&Reference, Heads(1, 2, 2, 33), 61);
}

/// Rows are padded to whole vectors, so that heads of any length are computed alike.
#[test]
fn any_length_of_a_head() {
    for kernel in machines(2) {
        for dim in (2..=256).step_by(18).chain([256]) {
            one_tile(&kernel, Heads(1, 2, 1, dim), 50);
        }
    }
}

/// Values and output gradients between the smallest normal numbers and 0, among others that are not.
#[test]
fn denormals() {
    let positions = Positions::all(70);
    let case = Case::random(Heads(1, 2, 1, 32), 70, 70);
    let tiny = |tensor: &Tensor| {
        let mut values: Vec<f32> = tensor.flatten_all().unwrap().to_vec1().unwrap();
        values.iter_mut().step_by(3).for_each(|value| *value *= 1e-39);
        Tensor::from_vec(values, tensor.shape(), &Device::Cpu).unwrap()
    };
    let case = Case {
        q: tiny(&case.q),
        k: tiny(&case.k),
        v: tiny(&case.v),
        gradient: tiny(&case.gradient),
        ..case
    };
    for mask in masks() {
        let expected = case.dense(&mask, &positions, &positions);
        for kernel in machines(1) {
            let results = case.run(&kernel, &[case.shard(&mask, &positions, &positions)]);
            results.check(&expected, TOLERANCE, &format!("{kernel:?} {mask:?}"));
        }
    }
    let zeros = case.q.zeros_like().unwrap();
    let all = Case { v: (&case.v * 1e-39).unwrap(), q: zeros, ..case };
    let results = all.run(&fused(1), &[all.shard(&Mask::full(), &positions, &positions)]);
    let out = largest(&results.attended.out);
    assert!(out > 0.0 && out < 1e-38, "{out:e}: a mean of denormals is one");
}

#[test]
fn grouped_heads_and_batches() {
    for heads in [Heads(2, 6, 2, 16), Heads(1, 4, 1, 64), Heads(3, 3, 3, 8)] {
        one_tile(&fused(2), heads, 130);
        one_tile(&Reference, heads, 37);
    }
}

#[test]
fn more_keys_than_queries_and_rows_that_see_nothing() {
    let cases = [
        (Run::contiguous(100, 37), Run::contiguous(0, 300)),
        (Run::contiguous(0, 300), Run::contiguous(170, 61)),
        (
            Run { start: 0, step: 3, len: 129, width: 1 },
            Run { start: 2, step: 3, len: 61, width: 1 },
        ),
        (Run::contiguous(0, 16), Run::contiguous(16, 16)),
    ];
    for (queries, keys) in cases.map(|(q, k)| (Positions::new(vec![q]), Positions::new(vec![k]))) {
        let case = Case::random(Heads(1, 4, 2, 32), queries.tokens(), keys.tokens());
        for mask in masks() {
            let expected = case.dense(&mask, &queries, &keys);
            let check = |kernel: &dyn AttentionKernel| {
                let results = case.run(kernel, &[case.shard(&mask, &queries, &keys)]);
                let what = format!("{kernel:?} {queries:?} {keys:?} {mask:?}");
                results.check(&expected, TOLERANCE, &what);
            };
            for kernel in &machines(2) {
                check(kernel);
            }
            check(&Reference);
        }
    }
}

#[test]
fn an_empty_tile_gives_zeros() {
    let (queries, keys) = (Positions::all(40), Positions::new(vec![Run::contiguous(40, 50)]));
    let case = Case::random(Heads(1, 2, 1, 16), 40, 50);
    let results = case.run(&fused(1), &[case.shard(&Mask::causal(), &queries, &keys)]);
    let gradients = &results.gradients[0];
    for tensor in [&results.attended.out, &results.dq, &gradients.dk, &gradients.dv] {
        assert!(to_f64(tensor).unwrap().iter().all(|value| *value == 0.0));
    }
    let lse = to_f64(&results.attended.lse).unwrap();
    assert!(lse.iter().all(|value| *value == f64::NEG_INFINITY));
}

#[test]
fn batch_rows_have_masks_of_their_own() {
    let positions = Positions::all(140);
    let case = Case::random(Heads(3, 2, 1, 24), 140, 140);
    let masks = [Mask::full(), Mask::causal(), Mask::causal().and(Rule::Window(5))];
    let visibility = masks.iter().map(|mask| Visibility::new(mask, &positions, &positions));
    let (k, v) = (case.k.clone(), case.v.clone());
    let all = case.run(&fused(2), &[Shard { k, v, visibility: visibility.collect() }]);
    for (row, mask) in masks.iter().enumerate() {
        let of_row = |tensor: &Tensor| tensor.narrow(0, row, 1).unwrap().contiguous().unwrap();
        let [q, k, v, gradient] = [&case.q, &case.k, &case.v, &case.gradient].map(of_row);
        let expected = Case { q, k, v, gradient, scale: case.scale };
        let expected = expected.dense(mask, &positions, &positions);
        let mut results = all.clone();
        let Attended { out, lse } = all.attended.clone();
        results.attended = Attended { out: of_row(&out), lse: of_row(&lse) };
        results.dq = of_row(&all.dq);
        let [dk, dv] = [&all.gradients[0].dk, &all.gradients[0].dv].map(of_row);
        results.check_with(&expected, &dk, &dv, TOLERANCE, &format!("{mask:?}"));
    }
}

/// The first keys and a window before the query: two spans in every row, one of them empty or touching in some.
#[test]
fn rows_may_see_two_spans() {
    let (rows, sink, window) = (700_u32, 20, 130);
    let positions = Positions::all(rows as usize);
    let mut visibility = Visibility::new(&Mask::causal(), &positions, &positions);
    for (row, spans) in (0..).zip(&mut visibility.queries) {
        let start = sink.max((row + 1_u32).saturating_sub(window)).min(row + 1);
        *spans = [Span { start: 0, end: sink.min(row + 1) }, Span { start, end: row + 1 }];
    }
    let case = Case::random(Heads(1, 2, 1, 16), 700, 700);
    let shard = Shard { k: case.k.clone(), v: case.v.clone(), visibility: vec![visibility] };
    let [found, wanted] = [&fused(2) as &dyn AttentionKernel, &Reference]
        .map(|kernel| case.run(kernel, std::slice::from_ref(&shard)));
    let [(found_gradients, wanted_gradients)] = [(&found.gradients[0], &wanted.gradients[0])];
    for (found, wanted) in [
        (&found.attended.out, &wanted.attended.out),
        (&found.attended.lse, &wanted.attended.lse),
        (&found.dq, &wanted.dq),
        (&found_gradients.dk, &wanted_gradients.dk),
        (&found_gradients.dv, &wanted_gradients.dv),
    ] {
        assert!(error(found, wanted).unwrap() <= TOLERANCE);
    }
}

/// Inputs are rounded to bf16 before both, so that what differs is the rounding of the output, 2^-9 of a value. Through
/// delta, the sum over output times its gradient, it reaches the gradients of queries and keys, never that of values, unless
/// weights are rounded too because the processor multiplies bf16.
#[test]
fn sixteen_bit_inputs() {
    let positions = Positions::all(300);
    let case = Case::random(Heads(2, 4, 2, 64), 300, 300).rounded(DType::BF16);
    for mask in masks() {
        let expected = case.dense(&mask, &positions, &positions);
        for kernel in machines(2) {
            let results = case.run(&kernel, &[case.shard(&mask, &positions, &positions)]);
            assert_eq!(results.attended.out.dtype(), DType::BF16);
            assert_eq!(results.dq.dtype(), DType::F32);
            let lse = error(&results.attended.lse, &expected.lse).unwrap();
            let dv = error(&results.gradients[0].dv, &expected.dv).unwrap();
            let rounded = kernel.instructions == Instructions::Avx512Bf16;
            let wanted = if rounded { 1.0 / 512.0 } else { TOLERANCE };
            let what = format!("{kernel:?} {mask:?}");
            assert!(lse <= TOLERANCE && dv <= wanted, "{what}: lse {lse:e}, dv {dv:e}");
            results.check(&expected, 1.0 / 128.0, &what);
        }
    }
}

/// Scores of up to 1e4 of either sign, all exact in f32: small integers times a power of two.
#[test]
fn extreme_scores() {
    let positions = Positions::all(130);
    let mut case = Case::random(Heads(1, 2, 2, 16), 130, 130);
    let round = |tensor: &Tensor| (tensor * 4.0).unwrap().round().unwrap();
    (case.q, case.k, case.scale) = (round(&case.q), round(&case.k), 8.0);
    let [k, v, gradient] = [&case.k, &case.v, &case.gradient].map(largest);
    for mask in masks() {
        let expected = case.dense(&mask, &positions, &positions);
        let results = case.run(&fused(1), &[case.shard(&mask, &positions, &positions)]);
        assert!(largest(&expected.lse) > 1e4);
        for (found, wanted) in
            [(&results.attended.out, &expected.out), (&results.attended.lse, &expected.lse)]
        {
            let error = error(found, wanted).unwrap();
            assert!(error <= TOLERANCE, "{mask:?}: {error:e}");
        }
        // Backward starts from a log-sum-exp of 24 bits. Besides, where one key takes all weight, dp - delta is 0 but for
        // rounding of its terms, and what they are multiplied by is large.
        let lse = largest(&expected.lse) * f64::from(f32::EPSILON);
        let terms = f64::from(f32::EPSILON) * 16.0 * gradient * v * case.scale * k;
        let gradients = &results.gradients[0];
        for (found, wanted, rounding) in [
            (&results.dq, &expected.dq, terms),
            (&gradients.dk, &expected.dk, terms),
            (&gradients.dv, &expected.dv, 0.0),
        ] {
            let wanted = wanted.to_dtype(DType::F64).unwrap();
            let off = largest(&(found.to_dtype(DType::F64).unwrap() - &wanted).unwrap());
            let allowed = lse * largest(&wanted) + rounding;
            assert!(off <= allowed, "{mask:?}: off by {off:e}, allowed {allowed:e}");
        }
    }
}

fn largest(tensor: &Tensor) -> f64 {
    to_f64(tensor).unwrap().iter().fold(0.0, |largest, value| value.abs().max(largest))
}

#[test]
fn what_is_no_number_is_not_hidden() {
    let positions = Positions::all(300);
    let case = Case::random(Heads(1, 1, 1, 8), 300, 300);
    let mut q: Vec<f32> = case.q.flatten_all().unwrap().to_vec1().unwrap();
    q[200 * 8] = f32::NAN;
    let case = Case { q: Tensor::from_vec(q, case.q.shape(), &Device::Cpu).unwrap(), ..case };
    for kernel in [&fused(1) as &dyn AttentionKernel, &Reference] {
        let results = case.run(kernel, &[case.shard(&Mask::causal(), &positions, &positions)]);
        let Attended { out, lse } = &results.attended;
        let (out, lse) = (to_f64(out).unwrap(), to_f64(lse).unwrap());
        for row in 0..300 {
            let bad = row == 200;
            assert_eq!(lse[row].is_nan(), bad, "row {row}");
            assert!(out[row * 8..][..8].iter().all(|value| value.is_nan() == bad), "row {row}");
        }
        assert!(to_f64(&results.gradients[0].dk).unwrap().iter().any(|value| value.is_nan()));
    }
}

#[test]
fn what_is_no_number_stays_with_its_head() {
    let positions = Positions::all(300);
    let clean = Case::random(Heads(1, 2, 2, 8), 300, 300);
    let mut values: Vec<f32> = clean.v.flatten_all().unwrap().to_vec1().unwrap();
    values[..300 * 8].fill(f32::NAN);
    let v = Tensor::from_vec(values, clean.v.shape(), &Device::Cpu).unwrap();
    let case = Case { v, ..clean.clone() };
    for mask in [Mask::causal(), Mask::causal().and(Rule::Window(70))] {
        for kernel in machines(1) {
            let [found, wanted] = [&case, &clean].map(|case| {
                let results = case.run(&kernel, &[case.shard(&mask, &positions, &positions)]);
                let gradients = &results.gradients[0];
                [results.attended.out, results.dq, gradients.dk.clone(), gradients.dv.clone()]
                    .map(|tensor| to_f64(&tensor.narrow(1, 1, 1).unwrap()).unwrap())
            });
            assert!(found == wanted, "{mask:?}: {:?}", kernel.instructions);
            assert!(wanted.iter().flatten().all(|value| value.is_finite()));
        }
    }
}

/// The dense gradients, to which all else is compared, against differences of the dense output.
#[test]
fn dense_gradients_are_slopes() {
    let shapes = [[2, 4, 5, 3], [2, 2, 6, 3], [2, 2, 6, 3], [2, 4, 5, 3]];
    let names = ["q", "k", "v", "gradient"];
    let inputs: Vec<Vec<f64>> = names
        .iter()
        .zip(shapes)
        .map(|(name, shape)| to_f64(&random(name, &shape).unwrap()).unwrap())
        .collect();
    let queries = Positions::new(vec![Run { start: 0, step: 2, len: 5, width: 1 }]);
    let keys = Positions::new(vec![Run::contiguous(1, 6)]);
    let mask = Mask::causal().and(Rule::Window(4));
    let at = |inputs: &[Vec<f64>]| {
        let tensors: Vec<Tensor> = inputs
            .iter()
            .zip(shapes)
            .map(|(values, shape)| Tensor::from_slice(values, &shape, &Device::Cpu).unwrap())
            .collect();
        let [q, k, v, gradient] = [0, 1, 2, 3].map(|index: usize| &tensors[index]);
        dense([q, k, v, gradient], &mask, [&queries, &keys], 0.7, None).unwrap()
    };
    let exact = at(&inputs);
    for (index, gradient) in [exact.dq, exact.dk, exact.dv].iter().enumerate() {
        let slopes = finite_differences(
            |point| {
                let mut moved = inputs.clone();
                moved[index] = point.to_vec();
                let out = to_f64(&at(&moved).out).unwrap();
                out.iter().zip(&inputs[3]).map(|(out, gradient)| out * gradient).sum()
            },
            &inputs[index],
        );
        let slopes = Tensor::from_vec(slopes, &shapes[index], &Device::Cpu).unwrap();
        let error = error(gradient, &slopes).unwrap();
        assert!(error < 1e-8, "the gradient of {} is off by {error:e}", names[index]);
    }
}
