//! Every operator against Candle's slow forms in f64 at sizes of several chunks; its bits for any
//! number of workers, for strided inputs and for bf16.

use std::sync::Arc;

use annulus_machine::{Core, Instructions};
use annulus_ops::testing::{error, output_and_gradients, random};
use annulus_ops::{
    Backend, Pool, Rotary, embedding, linear, linear_cross_entropy, rms_norm, rope, swiglu,
};
use annulus_sequence::{Positions, Run};
use candle_core::{D, DType, Device, Result, Tensor};

use crate::rope::cos_and_sin;

type Operator = Box<dyn Fn(&Backend, &[Tensor]) -> Result<Tensor>>;
type Slow = Box<dyn Fn(&[Tensor]) -> Result<Tensor>>;

/// An operator, the shapes of its inputs, and what Candle makes of them.
struct Case {
    name: &'static str,
    shapes: Vec<Vec<usize>>,
    operator: Operator,
    slow: Slow,
}

fn case(
    name: &'static str,
    shapes: &[&[usize]],
    operator: impl Fn(&Backend, &[Tensor]) -> Result<Tensor> + 'static,
    slow: impl Fn(&[Tensor]) -> Result<Tensor> + 'static,
) -> Case {
    let shapes = shapes.iter().map(|shape| shape.to_vec()).collect();
    Case { name, shapes, operator: Box::new(operator), slow: Box::new(slow) }
}

fn linear_case(tokens: &[usize], inputs: usize, outputs: usize) -> Case {
    let x = [tokens, &[inputs]].concat();
    case(
        "linear",
        &[&x, &[outputs, inputs], &[outputs]],
        |pool, v| linear(pool, &v[0], &v[1], Some(&v[2])),
        |v| v[0].broadcast_matmul(&v[1].t()?)?.broadcast_add(&v[2]),
    )
}

fn rms_norm_case(x: &[usize]) -> Case {
    case(
        "rms-norm",
        &[x, &x[x.len() - 1..]],
        |pool, v| rms_norm(pool, &v[0], &v[1], 1e-3),
        |v| candle_nn::ops::rms_norm_slow(&v[0], &v[1], 1e-3),
    )
}

fn rope_case(x: [usize; 4]) -> Result<Case> {
    let runs = vec![Run { start: 3, step: 5, len: x[2], width: 1 }];
    let frequencies = Rotary::frequencies(x[3], 1e4);
    let rotary = Arc::new(Rotary::new(&Positions::new(runs), &frequencies, 1.2));
    let [cos, sin] = cos_and_sin(&rotary, x[2], x[3] / 2)?;
    Ok(case(
        "rope",
        &[&x],
        move |pool, v| {
            let [y] = rope(pool, [v[0].clone()], &rotary)?;
            Ok(y)
        },
        move |v| {
            let (cos, sin) = (cos.to_dtype(DType::F64)?, sin.to_dtype(DType::F64)?);
            candle_nn::rotary_emb::rope_slow(&v[0], &cos, &sin)
        },
    ))
}

fn swiglu_case(shape: &[usize]) -> Case {
    let operator = |pool: &Backend, v: &[Tensor]| swiglu(pool, &v[0], &v[1]);
    case("swiglu", &[shape, shape], operator, |v| v[0].silu()? * &v[1])
}

fn embedding_case(tokens: usize, rows: usize, width: usize) -> Result<Case> {
    let ids: Vec<u32> = (0..tokens).map(|i| (i * i % rows) as u32).collect();
    let ids = Tensor::from_vec(ids, (1, tokens), &Device::Cpu)?;
    let same = ids.clone();
    Ok(case(
        "embedding",
        &[&[rows, width]],
        move |pool, v| embedding(pool, &ids, &v[0]),
        move |v| v[0].index_select(&same.flatten_all()?, 0)?.unsqueeze(0),
    ))
}

fn cross_entropy_case(tokens: usize, width: usize, rows: usize, chunk: usize) -> Result<Case> {
    let targets: Vec<i64> = (0..tokens).map(|i| (i * 7 % rows) as i64).collect();
    let targets = Tensor::from_vec(targets, tokens, &Device::Cpu)?;
    let same = targets.clone();
    Ok(case(
        "linear-cross-entropy",
        &[&[tokens, width], &[rows, width]],
        move |pool, v| linear_cross_entropy(pool, &v[0], &v[1], &targets, chunk),
        move |v| {
            let logits = candle_nn::ops::log_softmax(&v[0].matmul(&v[1].t()?)?, D::Minus1)?;
            logits.gather(&same.unsqueeze(1)?, 1)?.sum_all()?.neg()
        },
    ))
}

/// Odd sizes of more than one chunk or tile, single rows, and none.
fn cases() -> Result<Vec<Case>> {
    Ok(vec![
        linear_case(&[3, 91], 65, 523),
        linear_case(&[2, 5, 3], 129, 7),
        linear_case(&[1], 33, 1),
        linear_case(&[0], 3, 2),
        rms_norm_case(&[2, 139, 257]),
        rms_norm_case(&[1, 40]),
        rms_norm_case(&[0, 4]),
        rope_case([2, 3, 137, 64])?,
        rope_case([1, 1, 1, 2])?,
        swiglu_case(&[5, 67, 101]),
        swiglu_case(&[1, 3]),
        swiglu_case(&[3, 1, 1, 5]),
        embedding_case(1001, 307, 130)?,
        embedding_case(1, 2, 3)?,
        cross_entropy_case(150, 33, 700, 64)?,
        cross_entropy_case(1, 3, 2, 1)?,
    ])
}

impl Case {
    fn inputs(&self) -> Result<Vec<Tensor>> {
        let input = |(index, shape): (usize, &Vec<usize>)| random(&format!("input {index}"), shape);
        self.shapes.iter().enumerate().map(input).collect()
    }
    fn run(&self, workers: usize, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.run_on(&Backend::cpu(workers), inputs)
    }
    fn run_on(&self, pool: &Backend, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        output_and_gradients(inputs, |v| (self.operator)(pool, v))
    }
}

/// Workers who compute with every set of vector instructions that this processor has.
pub(crate) fn pools(workers: usize) -> Result<Vec<Backend>> {
    let with = |instructions| {
        let pool = Pool::new(workers).with(Core { instructions, ..Core::here() })?;
        Ok(Backend::Cpu(pool))
    };
    Instructions::tested().map(with).collect()
}

fn bits(tensors: &[Tensor]) -> Result<Vec<Vec<u32>>> {
    let of = |tensor: &Tensor| {
        let values = tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        Ok(values.into_iter().map(f32::to_bits).collect())
    };
    tensors.iter().map(of).collect()
}

#[test]
fn agrees_with_candles_slow_forms_in_f64() -> Result<()> {
    let pools = pools(2)?;
    // Candle has no gradient for a product of no rows.
    for case in cases()?.into_iter().filter(|case| case.shapes[0][0] > 0) {
        let inputs = case.inputs()?;
        let wide = inputs.iter().map(|x| x.to_dtype(DType::F64)).collect::<Result<Vec<_>>>()?;
        let wanted = output_and_gradients(&wide, |v| (case.slow)(v))?;
        for pool in &pools {
            let found = case.run_on(pool, &inputs)?;
            let what =
                format!("{} {:?}, {:?}", case.name, case.shapes, pool.pool().core().instructions);
            for (index, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
                let off = error(found, wanted)?;
                assert!(off < 2e-6, "{what}: {index} is off by {off:e}");
            }
        }
    }
    Ok(())
}

#[test]
fn bits_do_not_depend_on_the_number_of_workers() -> Result<()> {
    for case in cases()? {
        let inputs = case.inputs()?;
        let alone = bits(&case.run(1, &inputs)?)?;
        for workers in 2..=4 {
            let many = bits(&case.run(workers, &inputs)?)?;
            assert!(alone == many, "{} {:?} on {workers} workers", case.name, case.shapes);
        }
    }
    Ok(())
}

#[test]
fn strided_inputs_give_the_bits_of_contiguous_ones() -> Result<()> {
    let flip = |x: &Tensor| x.transpose(0, x.dims().len() - 1);
    for case in cases()? {
        let inputs = case.inputs()?;
        let flipped = inputs.iter().map(|x| flip(x)?.contiguous()).collect::<Result<Vec<_>>>()?;
        let strided = output_and_gradients(&flipped, |v| {
            let views = v.iter().map(flip).collect::<Result<Vec<_>>>()?;
            (case.operator)(&Backend::cpu(2), &views)
        })?;
        let gradients = strided[1..].iter().map(flip).collect::<Result<Vec<_>>>()?;
        let back = [vec![strided[0].clone()], gradients].concat();
        let same = bits(&back)? == bits(&case.run(1, &inputs)?)?;
        assert!(same, "{} {:?}", case.name, case.shapes);
    }
    Ok(())
}

#[test]
fn views_of_rows_inside_larger_tensors_are_read_where_they_are() -> Result<()> {
    let large = random("large", &[2, 7, 3, 8])?;
    let view = large.narrow(1, 2, 4)?.transpose(1, 2)?;
    let rotary = Rotary::new(&Positions::all(4), &Rotary::frequencies(8, 1e4), 1.0);
    let rotary = Arc::new(rotary);
    let whole = view.contiguous()?;
    let [found, wanted] = rope(&Backend::serial(), [view, whole], &rotary)?;
    assert_eq!(bits(&[found])?, bits(&[wanted])?);
    Ok(())
}

#[test]
fn bf16_is_computed_in_f32_and_rounded_once() -> Result<()> {
    for case in cases()? {
        let narrow = |x: &Tensor| x.to_dtype(DType::BF16);
        let inputs = case.inputs()?.iter().map(narrow).collect::<Result<Vec<_>>>()?;
        let found = case.run(3, &inputs)?;
        let wanted = wide_with_narrow_seed(&case, &inputs)?;
        for (index, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            let wanted = wanted.to_dtype(found.dtype())?;
            let both = bits(&[found.clone(), wanted])?;
            assert!(both[0] == both[1], "{} {:?}: {index}", case.name, case.shapes);
        }
        let gradients = found[1..].iter().all(|gradient| gradient.dtype() == DType::BF16);
        assert!(gradients, "{}: a gradient has its input's type", case.name);
    }
    Ok(())
}

/// The case's output and gradients computed in f32, with the gradient of the output rounded to the output's type.
fn wide_with_narrow_seed(case: &Case, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let pool = Backend::serial();
    let dtype = (case.operator)(&pool, inputs)?.dtype();
    let wide = inputs.iter().map(|x| x.to_dtype(DType::F32)).collect::<Result<Vec<_>>>()?;
    let vars = wide.iter().map(candle_core::Var::from_tensor).collect::<Result<Vec<_>>>()?;
    let tracked: Vec<_> = vars.iter().map(|var| var.as_tensor().clone()).collect();
    let y = (case.operator)(&pool, &tracked)?;
    let seed = random("seed", y.dims())?.to_dtype(dtype)?.to_dtype(DType::F32)?;
    let mut gradients = annulus_ops::vjp(&y, &seed)?;
    let mut of = |var| gradients.remove(var).expect("every input has a gradient").detach();
    Ok([vec![y.detach()], vars.iter().map(|var| of(var.as_tensor())).collect()].concat())
}
