//! Gradients by hand against those of the tape: at odd sizes, for any number of workers, strided,
//! in bf16, with denormals and with logits of ten thousand.

use std::sync::Arc;

use annulus_ops::testing::{error, random};
use annulus_ops::{
    Affine, Pool, Rotary, SwiGluGradients, contiguous, embedding, embedding_backward,
    input_gradient, linear, linear_cross_entropy, linear_cross_entropy_gradients,
    parameter_gradients, projected_onto, projections, rms_norm, rms_norm_backward, rope,
    rope_backward, swiglu, swiglu_backward, vjp,
};
use annulus_sequence::{Positions, Run};
use candle_core::{DType, Device, Result, Tensor, Var};

type Function = Box<dyn Fn(&Pool, &[Tensor]) -> Result<Vec<Tensor>>>;

/// Inputs by shape, the last ones being gradients of outputs; what is found by hand, and the same
/// by the tape.
struct Case {
    name: &'static str,
    shapes: Vec<Vec<usize>>,
    by_hand: Function,
    by_tape: Function,
}

fn case(
    name: &'static str,
    shapes: &[&[usize]],
    by_hand: impl Fn(&Pool, &[Tensor]) -> Result<Vec<Tensor>> + 'static,
    by_tape: impl Fn(&Pool, &[Tensor]) -> Result<Vec<Tensor>> + 'static,
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
            let [one, two] = parameter_gradients(pool, &v[0], affine, dy)?;
            let bias = one.bias.expect("the first has a bias");
            assert!(two.bias.is_none());
            Ok(vec![first, second, dx, one.weight, bias, two.weight])
        },
        |pool, v| {
            let one = |v: &[Tensor]| linear(pool, &v[0], &v[1], v.get(2));
            let first = tape(&v[..3], &v[4], one)?;
            let second = tape(&[v[0].clone(), v[3].clone()], &v[5], one)?;
            let (y, z) = (one(&v[..3])?, one(&[v[0].clone(), v[3].clone()])?);
            let dx = (&first[0] + &second[0])?;
            Ok(vec![y, z, dx, first[1].clone(), first[2].clone(), second[1].clone()])
        },
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

fn rms_norm_case(x: &[usize]) -> Case {
    case(
        "rms-norm",
        &[x, &x[x.len() - 1..], x, x],
        |pool, v| {
            let (dx, dw) = rms_norm_backward(pool, &v[0], &v[1], 1e-3, &v[2], Some(&v[3]))?;
            Ok(vec![dx, dw])
        },
        |pool, v| {
            let found = tape(&v[..2], &v[2], |v| rms_norm(pool, &v[0], &v[1], 1e-3))?;
            Ok(vec![(&found[0] + &v[3])?, found[1].clone()])
        },
    )
}

fn swiglu_case(x: &[usize]) -> Case {
    let operator = |pool: &Pool, v: &[Tensor]| swiglu(pool, &v[0], &v[1]);
    case(
        "swiglu",
        &[x, x, x],
        |pool, v| {
            let SwiGluGradients { gate, up, y } = swiglu_backward(pool, &v[0], &v[1], &v[2])?;
            Ok(vec![gate, up, y])
        },
        move |pool, v| {
            let mut found = tape(&v[..2], &v[2], |v| operator(pool, v))?;
            found.push(operator(pool, &v[..2])?);
            Ok(found)
        },
    )
}

/// Heads last as projections make them, and back.
fn rope_case([b, s, heads, dim]: [usize; 4]) -> Case {
    let runs = vec![Run { start: 3, step: 5, len: s, width: 1 }];
    let frequencies = Rotary::frequencies(dim, 1e4);
    let rotary = Arc::new(Rotary::new(&Positions::new(runs), &frequencies, 1.2));
    let same = rotary.clone();
    case(
        "rope",
        &[&[b, heads, s, dim]],
        move |pool, v| Ok(vec![rope_backward(pool, &v[0], &rotary)?]),
        move |pool, v| {
            let x = Tensor::zeros((b, s, heads * dim), v[0].dtype(), &Device::Cpu)?;
            let heads_first = |x: &Tensor| x.reshape((b, s, heads, dim))?.transpose(1, 2);
            tape(&[x], &v[0], |v| rope(pool, &heads_first(&v[0])?, &same))
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
        move |pool, v| Ok(vec![embedding_backward(pool, &ids, rows, &v[1])?]),
        move |pool, v| tape(&v[..1], &v[1], |v| embedding(pool, &same, &v[0])),
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
            let found = linear_cross_entropy_gradients(pool, &v[0], &v[1], &targets, chunk)?;
            Ok(vec![Tensor::new(found.loss as f32, &Device::Cpu)?, found.x, found.weight])
        },
        move |pool, v| {
            let operator = |v: &[Tensor]| linear_cross_entropy(pool, &v[0], &v[1], &same, chunk);
            let one = Tensor::new(1.0_f32, &Device::Cpu)?;
            Ok([vec![operator(v)?], tape(v, &one, operator)?].concat())
        },
    ))
}

fn cases() -> Result<Vec<Case>> {
    Ok(vec![
        projections_case(&[3, 91, 65], [523, 7]),
        projections_case(&[1, 33], [1, 2]),
        projections_case(&[2, 1201, 5], [3, 300]),
        projections_case(&[0, 4], [2, 3]),
        onto_case(&[2, 77, 35], 129),
        rms_norm_case(&[2, 139, 257]),
        rms_norm_case(&[0, 4]),
        swiglu_case(&[5, 67, 101]),
        swiglu_case(&[1]),
        rope_case([2, 137, 3, 64]),
        rope_case([1, 1, 1, 2]),
        embedding_case(1001, 307, 130)?,
        cross_entropy_case(150, 33, 700, 64)?,
        cross_entropy_case(1, 3, 2, 1)?,
    ])
}

impl Case {
    fn inputs(&self) -> Result<Vec<Tensor>> {
        let input = |(index, shape): (usize, &Vec<usize>)| random(&format!("input {index}"), shape);
        self.shapes.iter().enumerate().map(input).collect()
    }
}

fn bits(tensors: &[Tensor]) -> Result<Vec<Vec<u32>>> {
    let of = |tensor: &Tensor| {
        let values = tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        Ok(values.into_iter().map(f32::to_bits).collect())
    };
    tensors.iter().map(of).collect()
}

#[test]
fn agrees_with_the_tape() -> Result<()> {
    for case in cases()? {
        let inputs = case.inputs()?;
        let found = (case.by_hand)(&Pool::new(2), &inputs)?;
        let wanted = (case.by_tape)(&Pool::serial(), &inputs)?;
        assert_eq!(found.len(), wanted.len());
        for (index, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            let off = error(found, wanted)?;
            assert!(off < 1e-6, "{} {:?}: {index} is off by {off:e}", case.name, case.shapes);
        }
    }
    Ok(())
}

#[test]
fn bits_do_not_depend_on_workers_or_strides() -> Result<()> {
    let flip = |x: &Tensor| x.transpose(0, x.dims().len() - 1);
    for case in cases()? {
        let inputs = case.inputs()?;
        let alone = bits(&(case.by_hand)(&Pool::serial(), &inputs)?)?;
        for workers in 2..=4 {
            let many = bits(&(case.by_hand)(&Pool::new(workers), &inputs)?)?;
            assert!(alone == many, "{} {:?} on {workers} workers", case.name, case.shapes);
        }
        let views = inputs.iter().map(|x| flip(&flip(x)?.contiguous()?));
        let views = views.collect::<Result<Vec<_>>>()?;
        let strided = bits(&(case.by_hand)(&Pool::new(2), &views)?)?;
        assert!(alone == strided, "{} {:?} strided", case.name, case.shapes);
    }
    Ok(())
}

#[test]
fn bf16_is_near_f32_of_the_same_numbers() -> Result<()> {
    for case in cases()? {
        let narrow = |x: &Tensor| x.to_dtype(DType::BF16);
        let inputs = case.inputs()?.iter().map(narrow).collect::<Result<Vec<_>>>()?;
        let wide = inputs.iter().map(|x| x.to_dtype(DType::F32)).collect::<Result<Vec<_>>>()?;
        let found = (case.by_hand)(&Pool::new(3), &inputs)?;
        let wanted = (case.by_hand)(&Pool::new(3), &wide)?;
        for (index, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            let off = error(found, wanted)?;
            assert!(off <= 1.0 / 256.0, "{} {:?}: {index} {off:e}", case.name, case.shapes);
        }
    }
    Ok(())
}

/// Numbers near the smallest normal one: products underflow, results must not be made up.
#[test]
fn denormals_are_numbers() -> Result<()> {
    for case in cases()? {
        let mut inputs = case.inputs()?;
        inputs[0] = (&inputs[0] * 1e-39)?;
        let found = (case.by_hand)(&Pool::new(2), &inputs)?;
        let wanted = (case.by_tape)(&Pool::serial(), &inputs)?;
        for (index, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            let off = (found - wanted)?.abs()?.flatten_all()?.to_vec1::<f32>()?;
            let off = off.into_iter().fold(0.0, f32::max);
            let most = wanted.abs()?.flatten_all()?.to_vec1::<f32>()?;
            let most = most.into_iter().fold(0.0, f32::max);
            assert!(off <= 1e-6 * most + 1e-44, "{}: {index} {off:e} of {most:e}", case.name);
        }
    }
    Ok(())
}

#[test]
fn logits_of_ten_thousand_have_the_loss_of_f64() -> Result<()> {
    let x = Tensor::new(&[[1e4_f32, -1e4], [-1e4, 1e4]], &Device::Cpu)?;
    let weight = Tensor::new(&[[1.0_f32, 0.0], [0.0, 1.0]], &Device::Cpu)?;
    let targets = Tensor::new(&[0_i64, 0], &Device::Cpu)?;
    let found = linear_cross_entropy_gradients(&Pool::serial(), &x, &weight, &targets, 1)?;
    assert_eq!(found.loss, 2e4);
    assert_eq!(found.x.to_vec2::<f32>()?, [[0.0, 0.0], [-1.0, 1.0]]);
    Ok(())
}

#[test]
fn what_has_no_gaps_is_not_copied() -> Result<()> {
    let x = random("x", &[3, 4, 5])?;
    let same = contiguous(&Pool::serial(), &x)?;
    assert_eq!(bits(&[same])?, bits(std::slice::from_ref(&x))?);
    let turned = x.transpose(0, 2)?;
    let copy = contiguous(&Pool::new(2), &turned)?;
    assert!(copy.is_contiguous());
    assert_eq!(bits(&[copy])?, bits(&[turned.contiguous()?])?);
    Ok(())
}

#[test]
fn gradients_of_other_shapes_are_refused() -> Result<()> {
    let pool = Pool::serial();
    let (x, weight, dy) = (random("x", &[3, 4])?, random("w", &[5, 4])?, random("dy", &[2, 5])?);
    let projection = [Affine { weight: &weight, bias: None }];
    let message = |result: Result<()>| result.unwrap_err().to_string();
    let wrong = parameter_gradients(&pool, &x, projection, [&dy]).map(drop);
    assert!(message(wrong).contains("found a gradient [2, 5], wanted [3, 5]"));
    let wrong = projected_onto(&pool, &x, &x, projection[0]).map(drop);
    assert!(message(wrong).contains("found [3, 4] to add to, wanted 15 elements"));
    let wrong = rms_norm_backward(&pool, &x, &random("n", &[4])?, 1e-5, &dy, None).map(drop);
    assert!(message(wrong).contains("found a gradient [2, 5], wanted [3, 4]"));
    let wrong = swiglu_backward(&pool, &x, &x, &dy).map(drop);
    assert!(message(wrong).contains("found 10 gradients, wanted [3, 4]"));
    let ids = Tensor::new(&[[0_u32, 1, 2]], &Device::Cpu)?;
    let wrong = embedding_backward(&pool, &ids, 4, &dy).map(drop);
    assert!(message(wrong).contains("found 10 gradients, wanted 3 times 5"));
    Ok(())
}
