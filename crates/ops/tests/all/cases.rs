//! Gradients by hand, and forward passes, of every operator: as cases of inputs by shape, for whoever holds one form to another.

#![allow(dead_code, reason = "both test programs use some of it")]

use std::sync::Arc;

use annulus_ops::testing::{error, random};
use annulus_ops::{
    Affine, Backend, Rotary, SwiGluGradients, embedding, embedding_backward, input_gradient,
    linear, linear_cross_entropy, linear_cross_entropy_gradients, parameter_gradients,
    projected_onto, projections, rms_norm, rms_norm_backward, rope, rope_qkv, rope_qkv_backward,
    swiglu, swiglu_backward, vjp,
};
use annulus_sequence::{Positions, Run};
use candle_core::{Device, Result, Tensor, Var};

pub(crate) type Function = Box<dyn Fn(&Backend, &[Tensor]) -> Result<Vec<Tensor>>>;

/// Inputs by shape, the last ones being gradients of outputs; what is found by hand, and the same
/// by the tape.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) shapes: Vec<Vec<usize>>,
    pub(crate) by_hand: Function,
    pub(crate) by_tape: Function,
}

fn case(
    name: &'static str,
    shapes: &[&[usize]],
    by_hand: impl Fn(&Backend, &[Tensor]) -> Result<Vec<Tensor>> + 'static,
    by_tape: impl Fn(&Backend, &[Tensor]) -> Result<Vec<Tensor>> + 'static,
) -> Case {
    let shapes = shapes.iter().map(|shape| shape.to_vec()).collect();
    Case { name, shapes, by_hand: Box::new(by_hand), by_tape: Box::new(by_tape) }
}

/// Gradients of `inputs` where the output's is `dy`.
fn tape(
    inputs: &[Tensor],
    dy: &Tensor,
    operator: impl Fn(&[Tensor]) -> Result<Tensor>,
) -> Result<Vec<Tensor>> {
    let vars = inputs.iter().map(Var::from_tensor).collect::<Result<Vec<_>>>()?;
    let tracked: Vec<_> = vars.iter().map(|var| var.as_tensor().clone()).collect();
    let y = operator(&tracked)?;
    let mut found = vjp(&y, &dy.reshape(y.shape())?)?;
    let of = |var: &Var| found.remove(var).expect("every input has a gradient").detach();
    Ok(vars.iter().map(of).collect())
}

/// The first with a bias, the second without.
fn affine(v: &[Tensor]) -> [Affine<'_>; 2] {
    [Affine { weight: &v[1], bias: Some(&v[2]) }, Affine { weight: &v[3], bias: None }]
}

/// Two projections of one x: outputs, the gradient of x, those of weights and biases.
fn projections_case(x: &[usize], outputs: [usize; 2]) -> Case {
    let (inputs, leading) = (x[x.len() - 1], &x[..x.len() - 1]);
    let y = outputs.map(|outputs| [leading, &[outputs]].concat());
    case(
        "projections",
        &[x, &[outputs[0], inputs], &outputs[..1], &[outputs[1], inputs], &y[0], &y[1]],
        |pool, v| {
            let (affine, dy) = (affine(v), [&v[4], &v[5]]);
            let [first, second] = projections(pool, &v[0], affine)?;
            let dx = input_gradient(pool, affine, dy)?;
            let [one, two] = parameter_gradients(pool, &v[0], affine, dy, [None; 2])?;
            let bias = one.bias.expect("the first has a bias");
            assert!(two.bias.is_none());
            let sum = one.weight.copy()?;
            let [twice, again] = parameter_gradients(pool, &v[0], affine, dy, [Some(&sum), None])?;
            assert_eq!(error(&twice.weight, &sum)?, 0.0);
            Ok(vec![first, second, dx, one.weight, bias, two.weight, sum, again.weight])
        },
        |pool, v| {
            let one = |v: &[Tensor]| linear(pool, &v[0], &v[1], v.get(2));
            let first = tape(&v[..3], &v[4], one)?;
            let second = tape(&[v[0].clone(), v[3].clone()], &v[5], one)?;
            let (y, z) = (one(&v[..3])?, one(&[v[0].clone(), v[3].clone()])?);
            let dx = (&first[0] + &second[0])?;
            let (twice, again) = ((&first[1] * 2.0)?, second[1].clone());
            Ok(vec![y, z, dx, first[1].clone(), first[2].clone(), second[1].clone(), twice, again])
        },
    )
}

/// Two projections whose weights, biases, and gradients of outputs lie side by side, and the same apart.
fn side_by_side_case(x: &[usize], outputs: [usize; 2]) -> Case {
    let (inputs, leading) = (x[x.len() - 1], &x[..x.len() - 1]);
    let (all, last) = (outputs[0] + outputs[1], x.len() - 1);
    let halves = move |whole: &Tensor, dim: usize| {
        let second = whole.narrow(dim, outputs[0], outputs[1])?;
        Ok::<_, candle_core::Error>([whole.narrow(dim, 0, outputs[0])?, second])
    };
    let found = move |pool: &Backend, v: &[Tensor], apart: bool| {
        let place = |x: &Tensor| if apart { x.force_contiguous() } else { Ok(x.clone()) };
        let placed = |whole: &Tensor, dim: usize| {
            let [first, second] = halves(whole, dim)?;
            Ok::<_, candle_core::Error>([place(&first)?, place(&second)?])
        };
        let (weights, biases, dy) = (placed(&v[1], 0)?, placed(&v[2], 0)?, placed(&v[3], last)?);
        let affine = [0, 1].map(|i| Affine { weight: &weights[i], bias: Some(&biases[i]) });
        let bare = affine.map(|one| Affine { bias: None, ..one });
        let mut all = projections(pool, &v[0], affine)?.to_vec();
        all.extend(projections(pool, &v[0], bare)?);
        all.push(input_gradient(pool, affine, dy.each_ref())?);
        let found = parameter_gradients(pool, &v[0], affine, dy.each_ref(), [None; 2])?;
        for found in &found {
            all.extend([Some(found.weight.copy()?), found.bias.clone()].into_iter().flatten());
        }
        // Sums that lie side by side, as they came.
        let sums = found.each_ref().map(|one| Some(&one.weight));
        parameter_gradients(pool, &v[0], affine, dy.each_ref(), sums)?;
        all.extend(found.map(|one| one.weight));
        Ok(all)
    };
    case(
        "side-by-side",
        &[x, &[all, inputs], &[all], &[leading, &[all]].concat()],
        move |pool, v| found(pool, v, false),
        move |pool, v| found(pool, v, true),
    )
}

fn onto_case(x: &[usize], outputs: usize) -> Case {
    let y = [&x[..x.len() - 1], &[outputs]].concat();
    case(
        "projected-onto",
        &[&y, x, &[outputs, x[x.len() - 1]], &[outputs]],
        |pool, v| {
            let projection = Affine { weight: &v[2], bias: Some(&v[3]) };
            Ok(vec![projected_onto(pool, &v[0], &v[1], projection)?])
        },
        |pool, v| Ok(vec![(&v[0] + linear(pool, &v[1], &v[2], Some(&v[3]))?)?]),
    )
}

fn linear_case(x: &[usize], outputs: usize) -> Case {
    let (inputs, y) = (x[x.len() - 1], [&x[..x.len() - 1], &[outputs]].concat());
    case(
        "linear",
        &[x, &[outputs, inputs], &[outputs], &y],
        |pool, v| {
            let plain = Affine { weight: &v[1], bias: None };
            let dx = input_gradient(pool, [plain], [&v[3]])?;
            let y = linear(pool, &v[0], &v[1], Some(&v[2]))?;
            Ok(vec![linear(pool, &v[0], &v[1], None)?, y, dx])
        },
        |pool, v| {
            let one = |v: &[Tensor]| linear(pool, &v[0], &v[1], v.get(2));
            let dx = tape(&v[..2], &v[3], one)?.swap_remove(0);
            Ok(vec![one(&v[..2])?, one(&v[..3])?, dx])
        },
    )
}

fn rms_norm_case(x: &[usize]) -> Case {
    let operator = |pool: &Backend, v: &[Tensor]| rms_norm(pool, &v[0], &v[1], 1e-3);
    case(
        "rms-norm",
        &[x, &x[x.len() - 1..], x, x],
        move |pool, v| {
            let (dx, dw) = rms_norm_backward(pool, &v[0], &v[1], 1e-3, &v[2], Some(&v[3]))?;
            let (alone, _) = rms_norm_backward(pool, &v[0], &v[1], 1e-3, &v[2], None)?;
            Ok(vec![operator(pool, v)?, dx, dw, alone])
        },
        move |pool, v| {
            let found = tape(&v[..2], &v[2], |v| operator(pool, v))?;
            let onto = (&found[0] + &v[3])?;
            Ok(vec![operator(pool, v)?, onto, found[1].clone(), found[0].clone()])
        },
    )
}

fn swiglu_case(x: &[usize]) -> Case {
    let operator = |pool: &Backend, v: &[Tensor]| swiglu(pool, &v[0], &v[1]);
    case(
        "swiglu",
        &[x, x, x],
        move |pool, v| {
            let SwiGluGradients { gate, up, y } = swiglu_backward(pool, &v[0], &v[1], &v[2])?;
            Ok(vec![gate, up, y, operator(pool, v)?])
        },
        move |pool, v| {
            let mut found = tape(&v[..2], &v[2], |v| operator(pool, v))?;
            found.extend([operator(pool, v)?, operator(pool, v)?]);
            Ok(found)
        },
    )
}

/// Heads last as projections make them, and back. Positions are of two runs, where there are more than one.
fn rope_case([b, s, heads, dim]: [usize; 4]) -> Case {
    let far = Run { start: 1_000_000, step: 7, len: (s - s % 2) / 2, width: 2 };
    let mut runs = vec![Run { start: 3, step: 5, len: 1 + (s - 1) % 2, width: 1 }];
    runs.extend((s > 2).then(|| Run { len: (s - 1) / 2, ..far }));
    let frequencies = Rotary::frequencies(dim, 1e4);
    let rotary = Arc::new(Rotary::new(&Positions::new(runs), &frequencies, 1.2));
    let same = rotary.clone();
    // Queries, and the one head of keys that they share.
    let (queries, keys) = ([b, heads, s, dim], [b, 1, s, dim]);
    case(
        "rope",
        &[&queries, &keys, &[b, s, heads, dim], &[b, s, 1, dim]],
        move |pool, v| {
            let [q, k] = [v[2].transpose(1, 2)?, v[3].transpose(1, 2)?];
            let gradients = [v[0].clone(), v[1].clone(), v[1].clone()];
            let apart = rope_qkv_backward(pool, gradients.clone(), &rotary, false)?;
            let found = rope_qkv_backward(pool, gradients, &rotary, true)?;
            let by_token = [v[2].flatten_from(2)?, v[3].flatten_from(2)?];
            let [q_bsd, k_bsd] = by_token;
            let made = rope_qkv(pool, [q_bsd, k_bsd.clone(), k_bsd], &rotary)?;
            let alone = rope(pool, [q, k], &rotary)?;
            Ok(found.into_iter().chain(apart).chain(made).chain(alone).collect())
        },
        move |pool, v| {
            let operator = |v: &[Tensor]| {
                let [y] = rope(pool, [v[0].transpose(1, 2)?], &same)?;
                Ok(y)
            };
            let gradient = |x: usize, dy: usize| {
                tape(&v[x..=x], &v[dy], operator)?.swap_remove(0).flatten_from(2)
            };
            // Values are those of keys, as they are.
            let moved = |x: &Tensor| x.transpose(1, 2)?.contiguous();
            let turned = [operator(&v[2..])?, operator(&v[3..])?];
            let gradients = [gradient(2, 0)?, gradient(3, 1)?, moved(&v[1])?.flatten_from(2)?];
            let made = turned.clone().into_iter().chain([moved(&v[3])?]);
            Ok(gradients.clone().into_iter().chain(gradients).chain(made).chain(turned).collect())
        },
    )
}

/// Gate and up as columns of one matrix.
fn columns_case(x: &[usize]) -> Case {
    let (width, last) = (x[x.len() - 1], x.len() - 1);
    let both = [&x[..last], &[2 * width]].concat();
    let parts = move |v: &[Tensor]| {
        let up = v[0].narrow(last, width, width)?;
        Ok::<_, candle_core::Error>([v[0].narrow(last, 0, width)?, up])
    };
    views_case(&[&both, x], parts)
}

/// Gate and up as the first columns of a matrix each: aligned whatever the width is.
fn first_columns_case(x: &[usize], gap: usize) -> Case {
    let (width, last) = (x[x.len() - 1], x.len() - 1);
    let wide = [&x[..last], &[width + gap]].concat();
    let parts = move |v: &[Tensor]| {
        let up = v[1].narrow(last, 0, width)?;
        Ok::<_, candle_core::Error>([v[0].narrow(last, 0, width)?, up])
    };
    views_case(&[&wide, &wide, x], parts)
}

/// The gate and up that `parts` cuts from inputs, of which the last is the gradient; beside copies of them.
fn views_case(
    shapes: &[&[usize]],
    parts: impl Fn(&[Tensor]) -> Result<[Tensor; 2]> + Copy + 'static,
) -> Case {
    case(
        "swiglu",
        shapes,
        move |pool, v| {
            let [gate, up] = parts(v)?;
            let found = swiglu_backward(pool, &gate, &up, &v[v.len() - 1])?;
            Ok(vec![swiglu(pool, &gate, &up)?, found.gate, found.up, found.y])
        },
        move |pool, v| {
            let operator = |v: &[Tensor]| swiglu(pool, &v[0], &v[1]);
            let [gate, up] = parts(v)?;
            let inputs = [gate.force_contiguous()?, up.force_contiguous()?];
            let y = operator(&inputs)?;
            let found = tape(&inputs, &v[v.len() - 1], operator)?;
            Ok([vec![y.clone()], found, vec![y]].concat())
        },
    )
}

fn embedding_case(tokens: usize, rows: usize, width: usize) -> Result<Case> {
    let ids: Vec<u32> = (0..tokens).map(|i| (i * i % rows) as u32).collect();
    let ids = Tensor::from_vec(ids, (1, tokens), &Device::Cpu)?;
    let same = ids.clone();
    Ok(case(
        "embedding",
        &[&[rows, width], &[1, tokens, width]],
        move |pool, v| {
            let ids = ids.to_device(v[0].device())?;
            let dw = embedding_backward(pool, &ids, rows, &v[1])?;
            Ok(vec![embedding(pool, &ids, &v[0])?, dw])
        },
        move |pool, v| {
            let same = same.to_device(v[0].device())?;
            let operator = |v: &[Tensor]| embedding(pool, &same, &v[0]);
            Ok([vec![operator(v)?], tape(&v[..1], &v[1], operator)?].concat())
        },
    ))
}

fn cross_entropy_case(tokens: usize, width: usize, rows: usize, chunk: usize) -> Result<Case> {
    let target = |i: usize| if i % 5 == 3 { -100 } else { (i * 7 % rows) as i64 };
    let targets = Tensor::from_vec((0..tokens).map(target).collect(), tokens, &Device::Cpu)?;
    let same = targets.clone();
    Ok(case(
        "linear-cross-entropy",
        &[&[tokens, width], &[rows, width]],
        move |pool, v| {
            let targets = targets.to_device(v[0].device())?;
            let loss = linear_cross_entropy(pool, &v[0], &v[1], &targets, chunk)?;
            let found = linear_cross_entropy_gradients(pool, &v[0], &v[1], &targets, chunk)?;
            let same = Tensor::new(found.loss as f32, &Device::Cpu)?;
            Ok(vec![loss, same, found.x, found.weight])
        },
        move |pool, v| {
            let same = same.to_device(v[0].device())?;
            let operator = |v: &[Tensor]| linear_cross_entropy(pool, &v[0], &v[1], &same, chunk);
            let one = Tensor::new(1.0_f32, v[0].device())?;
            Ok([vec![operator(v)?, operator(v)?], tape(v, &one, operator)?].concat())
        },
    ))
}

pub(crate) fn cases() -> Result<Vec<Case>> {
    Ok(vec![
        projections_case(&[3, 91, 65], [523, 7]),
        projections_case(&[1, 33], [1, 2]),
        projections_case(&[2, 1201, 5], [3, 300]),
        projections_case(&[0, 4], [2, 3]),
        side_by_side_case(&[3, 91, 65], [523, 7]),
        side_by_side_case(&[1, 1, 33], [2, 1]),
        side_by_side_case(&[2, 301, 64], [96, 32]),
        onto_case(&[2, 77, 35], 129),
        linear_case(&[3, 5, 33], 40),
        linear_case(&[1, 33], 7),
        rms_norm_case(&[2, 139, 257]),
        rms_norm_case(&[5, 1100]),
        rms_norm_case(&[0, 4]),
        swiglu_case(&[5, 67, 101]),
        swiglu_case(&[1]),
        columns_case(&[5, 67, 101]),
        columns_case(&[3, 67, 64]),
        columns_case(&[1, 3]),
        first_columns_case(&[3, 67, 21], 11),
        first_columns_case(&[3, 67, 24], 3),
        rope_case([2, 137, 3, 64]),
        rope_case([1, 1, 1, 2]),
        rope_case([2, 6, 1, 12]),
        embedding_case(1001, 307, 130)?,
        cross_entropy_case(150, 33, 700, 64)?,
        cross_entropy_case(1, 3, 2, 1)?,
        cross_entropy_case(9, 16, 64, 100)?,
    ])
}

impl Case {
    pub(crate) fn inputs(&self) -> Result<Vec<Tensor>> {
        let input = |(index, shape): (usize, &Vec<usize>)| random(&format!("input {index}"), shape);
        self.shapes.iter().enumerate().map(input).collect()
    }
}
