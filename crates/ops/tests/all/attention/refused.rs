//! What does not fit together is refused with its numbers.

use annulus_machine::Core;
use annulus_ops::Pool;
use annulus_ops::attention::{AttentionKernel, Fused, Instructions, Reference};
use annulus_sequence::{Mask, Positions, Span};
use candle_core::{DType, Device, Tensor};

use super::support::{Case, Heads, Shard, fused, peaked};

fn refusal(case: &Case, shard: &Shard) -> String {
    let [fused, reference] = [&fused(1) as &dyn AttentionKernel, &Reference].map(|kernel| {
        let mut state = kernel.begin(&case.q, case.scale).unwrap();
        kernel.forward(&[shard.tile()], &mut *state, &|| Ok(())).unwrap_err().to_string()
    });
    assert_eq!(fused, reference);
    fused
}

#[test]
fn tiles_that_do_not_fit() {
    let (queries, keys) = (Positions::all(8), Positions::all(9));
    let case = Case::random(Heads(2, 4, 2, 6), 8, 9);
    let good = case.shard(&Mask::full(), &queries, &keys);

    let values = Shard { v: peaked("v", [2, 2, 8, 6]), ..good.clone() };
    assert_eq!(
        refusal(&case, &values),
        "attention: keys of shape [2, 2, 9, 6] with values of shape [2, 2, 8, 6]"
    );
    let heads = peaked("k", [2, 3, 9, 6]);
    let heads = Shard { k: heads.clone(), v: heads, ..good.clone() };
    assert_eq!(refusal(&case, &heads), "attention: 4 query heads are not a multiple of 3 KV heads");
    let dim = peaked("k", [2, 2, 9, 5]);
    let dim = Shard { k: dim.clone(), v: dim, ..good.clone() };
    assert_eq!(
        refusal(&case, &dim),
        "attention: keys of shape [2, 2, 9, 5] for queries of shape (2, 4, 8, 6)"
    );
    let turned = case.shard(&Mask::full(), &keys, &queries);
    assert_eq!(
        refusal(&case, &turned),
        "attention: a visibility of (9, 8) rows and columns, expected (8, 9)"
    );
    let mut three = good.clone();
    three.visibility = vec![good.visibility[0].clone(); 3];
    assert_eq!(
        refusal(&case, &three),
        "attention: 3 visibilities for 2 batch rows, expected 1 or 2"
    );
    let mut outside = good;
    outside.visibility[0].queries[3][1] = Span { start: 4, end: 10 };
    assert_eq!(refusal(&case, &outside), "attention: a visible key 9 of 9 keys");
}

#[test]
fn inputs_that_make_no_sense() {
    let case = Case::random(Heads(1, 1, 1, 4), 8, 8);
    let empty = Tensor::zeros((1, 1, 0, 4), DType::F32, case.q.device()).unwrap();
    let kernel = fused(1);
    let message = |q: &Tensor, scale| kernel.begin(q, scale).unwrap_err().to_string();
    assert_eq!(message(&empty, 1.0), "attention: queries of shape [1, 1, 0, 4] have no elements");
    assert_eq!(
        message(&case.q, -1.0),
        "attention: the scale of scores is -1, expected a finite number above 0"
    );
    assert!(message(&case.rounded(DType::F64).q, 1.0).contains("F64"));

    let mut foreign = Reference.begin(&case.q, 1.0).unwrap();
    let positions = Positions::all(8);
    let shard = case.shard(&Mask::full(), &positions, &positions);
    let error = kernel.forward(&[shard.tile()], &mut *foreign, &|| Ok(())).unwrap_err();
    assert_eq!(error.to_string(), "attention: a state of another kernel or of the other pass");
}

#[test]
fn instructions_that_the_processor_lacks() {
    let lacking =
        if cfg!(target_arch = "x86_64") { Instructions::Neon } else { Instructions::Avx2 };
    let kernel = Fused { pool: Pool::serial(), instructions: lacking };
    let q = Tensor::zeros((1, 1, 4, 8), DType::F32, &Device::Cpu).unwrap();
    let error = kernel.begin(&q, 1.0).unwrap_err().to_string();
    assert_eq!(error, format!("this processor has no {}", lacking.word()));
    let core = Core { instructions: lacking, ..Core::here() };
    let error = Pool::serial().with(core).unwrap_err().to_string();
    assert_eq!(error, format!("this processor has no {}", lacking.word()));
}
