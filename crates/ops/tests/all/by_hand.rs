//! Gradients by hand against those of the tape: at odd sizes, for any number of workers, strided,
//! in bf16, with denormals and with logits of ten thousand.

use crate::cases::cases;
use crate::operators::pools;
use annulus_ops::testing::{error, random};
use annulus_ops::{
    Affine, Backend, contiguous, embedding_backward, linear_cross_entropy,
    linear_cross_entropy_gradients, parameter_gradients, projected_onto, rms_norm_backward,
    swiglu_backward,
};
use candle_core::{DType, Device, Result, Tensor};

fn bits(tensors: &[Tensor]) -> Result<Vec<Vec<u32>>> {
    let of = |tensor: &Tensor| {
        let values = tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        Ok(values.into_iter().map(f32::to_bits).collect())
    };
    tensors.iter().map(of).collect()
}

#[test]
fn agrees_with_the_tape() -> Result<()> {
    let pools = pools(2)?;
    for case in cases()? {
        let inputs = case.inputs()?;
        let wanted = (case.by_tape)(&Backend::serial(), &inputs)?;
        for pool in &pools {
            let found = (case.by_hand)(pool, &inputs)?;
            assert_eq!(found.len(), wanted.len());
            let what =
                format!("{} {:?}, {:?}", case.name, case.shapes, pool.pool().core().instructions);
            for (index, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
                let off = error(found, wanted)?;
                assert!(off < 1e-6, "{what}: {index} is off by {off:e}");
            }
        }
    }
    Ok(())
}

/// Their gradients are tables of bins there, which the tape cannot add.
#[test]
fn order_free_sums_refuse_inputs_on_the_tape() -> Result<()> {
    let in_blocks = Backend::cpu(2).in_blocks(Some(16));
    let summing = ["linear", "rms-norm", "embedding", "linear-cross-entropy"];
    for case in cases()?.iter().filter(|case| summing.contains(&case.name)) {
        let refused = (case.by_tape)(&in_blocks, &case.inputs()?).unwrap_err().to_string();
        assert!(refused.contains("found an input on the tape"), "{}: {refused}", case.name);
    }
    Ok(())
}

#[test]
fn bits_do_not_depend_on_workers_or_strides() -> Result<()> {
    let flip = |x: &Tensor| x.transpose(0, x.dims().len() - 1);
    for case in cases()? {
        let inputs = case.inputs()?;
        let alone = bits(&(case.by_hand)(&Backend::serial(), &inputs)?)?;
        for workers in 2..=4 {
            let many = bits(&(case.by_hand)(&Backend::cpu(workers), &inputs)?)?;
            assert!(alone == many, "{} {:?} on {workers} workers", case.name, case.shapes);
        }
        let views = inputs.iter().map(|x| flip(&flip(x)?.contiguous()?));
        let views = views.collect::<Result<Vec<_>>>()?;
        let strided = bits(&(case.by_hand)(&Backend::cpu(2), &views)?)?;
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
        let found = (case.by_hand)(&Backend::cpu(3), &inputs)?;
        let wanted = (case.by_hand)(&Backend::cpu(3), &wide)?;
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
        let found = (case.by_hand)(&Backend::cpu(2), &inputs)?;
        let wanted = (case.by_tape)(&Backend::serial(), &inputs)?;
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
    let found = linear_cross_entropy_gradients(&Backend::serial(), &x, &weight, &targets, 1)?;
    assert_eq!(found.loss, 2e4);
    assert_eq!(found.x.to_vec2::<f32>()?, [[0.0, 0.0], [-1.0, 1.0]]);
    Ok(())
}

#[test]
fn what_has_no_gaps_is_not_copied() -> Result<()> {
    let x = random("x", &[3, 4, 5])?;
    let same = contiguous(&Backend::serial(), &x)?;
    assert_eq!(bits(&[same])?, bits(std::slice::from_ref(&x))?);
    let turned = x.transpose(0, 2)?;
    let copy = contiguous(&Backend::cpu(2), &turned)?;
    assert!(copy.is_contiguous());
    assert_eq!(bits(&[copy])?, bits(&[turned.contiguous()?])?);
    Ok(())
}

#[test]
fn gradients_of_other_shapes_are_refused() -> Result<()> {
    let pool = Backend::serial();
    let (x, weight, dy) = (random("x", &[3, 4])?, random("w", &[5, 4])?, random("dy", &[2, 5])?);
    let projection = [Affine { weight: &weight, bias: None }];
    let message = |result: Result<()>| result.unwrap_err().to_string();
    let wrong = parameter_gradients(&pool, &x, projection, [&dy], [None]).map(drop);
    assert!(message(wrong).contains("found a gradient [2, 5], expected [3, 5]"));
    let right = random("dy", &[3, 5])?;
    for (sum, found) in
        [(x.copy()?, "(F32, [3, 4])"), (weight.to_dtype(DType::BF16)?, "(BF16, [5, 4])")]
    {
        let wrong = parameter_gradients(&pool, &x, projection, [&right], [Some(&sum)]).map(drop);
        let said = message(wrong);
        assert!(said.contains(&format!("sum of gradients {found}, expected F32 [5, 4]")), "{said}");
    }
    let wrong = projected_onto(&pool, &x, &x, projection[0]).map(drop);
    assert!(message(wrong).contains("found [3, 4] to add to, expected 15 elements"));
    let wrong = rms_norm_backward(&pool, &x, &random("n", &[4])?, 1e-5, &dy, None).map(drop);
    assert!(message(wrong).contains("found a gradient [2, 5], expected [3, 4]"));
    let wrong = swiglu_backward(&pool, &x, &x, &dy).map(drop);
    assert!(message(wrong).contains("found a gradient [2, 5], expected [3, 4]"));
    // As many elements as wanted are not enough.
    let turned = x.t()?;
    for (dy, onto) in [(&turned, None), (&x, Some(&turned))] {
        let wrong = rms_norm_backward(&pool, &x, &random("n", &[4])?, 1e-5, dy, onto).map(drop);
        assert!(message(wrong).contains("found a gradient [4, 3], expected [3, 4]"));
    }
    let wrong = swiglu_backward(&pool, &x, &x, &turned).map(drop);
    assert!(message(wrong).contains("found a gradient [4, 3], expected [3, 4]"));
    for width in [0, 3, 5, 8] {
        let weight = random("n", &[width])?;
        let wrong = rms_norm_backward(&pool, &x, &weight, 1e-5, &x, None).map(drop);
        assert!(message(wrong).contains(&format!("found x [3, 4], expected [.., {width}]")));
    }
    let ids = Tensor::new(&[[0_u32, 1, 2]], &Device::Cpu)?;
    let wrong = embedding_backward(&pool, &ids, 4, &dy).map(drop);
    assert!(message(wrong).contains("found 10 gradients, expected 3 times 5"));
    Ok(())
}

#[test]
fn wrong_targets_are_named() -> Result<()> {
    let (x, weight) = (random("x", &[2, 3])?, random("weight", &[5, 3])?);
    for (targets, found) in [([1_i64, 5], "target 5 at index 1"), ([-1, 0], "target -1 at")] {
        let targets = Tensor::new(&targets, &Device::Cpu)?;
        let result = linear_cross_entropy(&Backend::serial(), &x, &weight, &targets, 2);
        let message = result.unwrap_err().to_string();
        assert!(message.contains(found) && message.contains("-100 or one from 0 to 4"));
    }
    Ok(())
}

#[test]
fn order_free_gradients_of_weights_are_added_in_place() -> Result<()> {
    let backend = Backend::cpu(3).in_blocks(Some(16));
    let (x, dy, weight) =
        (random("x", &[80, 33])?, random("dy", &[80, 7])?, random("w", &[7, 33])?);
    let projection = [Affine { weight: &weight, bias: None }];
    let some = |first: usize, rows: usize, sum: Option<&Tensor>| {
        let [x, dy] = [x.narrow(0, first, rows)?, dy.narrow(0, first, rows)?];
        let [found] = parameter_gradients(&backend, &x, projection, [&dy], [sum])?;
        Ok::<_, candle_core::Error>(found.weight)
    };
    let (whole, sum) = (some(0, 80, None)?, some(48, 32, None)?);
    some(0, 48, Some(&sum))?;
    let integers = |table: &Tensor| table.flatten_all()?.to_vec1::<u32>();
    assert_eq!(integers(&sum)?, integers(&whole)?);
    let refused = some(0, 80, Some(&weight)).unwrap_err().to_string();
    assert!(refused.contains("sum of gradients (F32, [7, 33]), expected U32"), "{refused}");
    Ok(())
}
