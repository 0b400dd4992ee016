//! Weights in bf16 and their f32 masters: from the weights that a run starts from, through steps too small for bf16, to checkpoints,
//! resumed and forked runs, and exports.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::common::{Place, losses, state};
use annulus_train::Checkpoint;
use candle_core::{DType, Device, Tensor};

/// Steps with a constant learning rate, so small that rounding to bf16 undoes them.
const SHORT: [(&str, &str); 4] = [
    ("model.dtype", "bf16"),
    ("schedule.warmup", "0"),
    ("schedule.decay", "constant"),
    ("optimizer.learning_rate", "1e-5"),
];
/// From this magnitude on neighbours in bf16 are 2⁻¹⁴ = 6.1e-5 apart.
const COARSE: f32 = 1.0 / 128.0;

type Tensors = BTreeMap<String, Tensor>;

fn tensors(folder: &Path, file: &str) -> Tensors {
    candle_core::safetensors::load(folder.join(file), &Device::Cpu).unwrap().into_iter().collect()
}

/// The elements of a tensor as f32, which represents every bf16.
fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn rounded(tensor: &Tensor) -> Vec<f32> {
    values(&tensor.to_dtype(DType::BF16).unwrap())
}

/// The masters of a checkpoint, after checking that each is f32 with two f32 moments, and that the weights are their rounding.
fn masters(folder: &Path) -> Tensors {
    let (weights, optimizer) =
        (tensors(folder, "model.safetensors"), tensors(folder, "optimizer.safetensors"));
    assert_eq!(optimizer.len(), 3 * weights.len());
    assert!(optimizer.values().all(|tensor| tensor.dtype() == DType::F32));
    let mut masters = Tensors::new();
    for (name, weight) in weights {
        let master = &optimizer[&format!("master.{name}")];
        assert_eq!(weight.dtype(), DType::BF16, "{name}");
        assert!(values(&weight) == rounded(master), "{name}");
        masters.insert(name, master.clone());
    }
    masters
}

/// The fraction of elements that `differs` counts, over all tensors of `a` and `b`.
fn share(a: &Tensors, b: &Tensors, differs: impl Fn(&Tensor, &Tensor) -> [usize; 2]) -> f64 {
    let counted = a.iter().map(|(name, a)| differs(a, &b[name]));
    let [some, all] = counted.fold([0, 0], |[x, y], [some, all]| [x + some, y + all]);
    some as f64 / all as f64
}

#[test]
fn steps_that_bf16_cannot_see_add_up() {
    let place = Place::new();
    let step = |steps| {
        let changes = [&SHORT[..], &[("schedule.stop", steps)]].concat();
        masters(&place.run_in("run", &changes).checkpoint.unwrap())
    };
    let (first, second, last) = (step("1"), step("2"), step("20"));
    // A step on a rounded weight would be rounded away, where neighbours in bf16 are far apart.
    let kept = |a: &Tensor, b: &Tensor| {
        let steps = values(a).into_iter().zip(values(b)).zip(rounded(a));
        let coarse: Vec<_> = steps.filter(|(_, narrow)| narrow.abs() >= COARSE).collect();
        let moved = |narrow: f32, by: f32| half::bf16::from_f32(narrow + by).to_f32() != narrow;
        let seen = coarse.iter().filter(|((a, b), narrow)| moved(*narrow, b - a));
        [seen.count(), coarse.len()]
    };
    assert_eq!(share(&first, &second, kept), 0.0);
    let changed = |a: &Tensor, b: &Tensor| {
        let all = values(a).into_iter().zip(values(b));
        [all.filter(|(a, b)| a != b).count(), a.elem_count()]
    };
    let moved = share(&first, &second, changed);
    assert!(moved > 0.5, "{moved} of the masters move in a step");
    let coarse = |a: &Tensor, b: &Tensor| {
        let all = rounded(a).into_iter().zip(rounded(b)).filter(|(a, _)| a.abs() >= COARSE);
        let all: Vec<_> = all.collect();
        [all.iter().filter(|(a, b)| a != b).count(), all.len()]
    };
    let moved = share(&first, &last, coarse);
    assert!(moved > 0.2, "{moved} of the weights have moved in the end");
}

#[test]
fn going_on_is_from_masters_to_the_bit() {
    let place = Place::new();
    let whole = place.run_in("whole", &SHORT);
    let first = place.run_in("halves", &[&SHORT[..], &[("schedule.stop", "10")]].concat());
    let saved = masters(first.checkpoint.as_ref().unwrap());
    // If they were rounded on the way, most would differ.
    let others = share(&saved, &saved, |a, _| {
        let all = values(a).into_iter().zip(rounded(a));
        [all.filter(|(wide, narrow)| wide != narrow).count(), a.elem_count()]
    });
    assert!(others > 0.9, "{others} of the masters are no bf16 numbers");
    let second = place.run_in("halves", &SHORT);
    assert_eq!(second.resumed_from, Some(10));
    assert_eq!([losses(&first), losses(&second)].concat(), losses(&whole));
    assert_eq!(state(&second.checkpoint.unwrap()), state(&whole.checkpoint.unwrap()));
}

#[test]
fn masters_are_what_a_folder_has_and_exports_are_narrow() {
    let place = Place::new();
    let base = place.run_in("base", &[("schedule.stop", "3")]).checkpoint.unwrap();
    let known = tensors(&base, "model.safetensors");
    assert!(known.values().all(|tensor| tensor.dtype() == DType::F32));
    let model = format!("{{ path: {}, dtype: bf16 }}", base.display());
    // A step that is too small to change an f32.
    let still = [("optimizer.learning_rate", "1e-30"), ("schedule.stop", "1")];
    let run = place.run_in("run", &[&[("model", model.as_str())], &still[..]].concat());
    let masters = masters(run.checkpoint.as_ref().unwrap());
    assert_eq!(masters.len(), known.len());
    for (name, master) in &masters {
        assert!(values(master) == values(&known[name]), "{name}");
    }
    let checkpoint = Checkpoint::open(&run.folder).unwrap();
    let out = place.path("exported");
    checkpoint.export(&checkpoint.weights().unwrap(), &out, 1 << 30).unwrap();
    for (name, weight) in tensors(&out, "model.safetensors") {
        assert_eq!(weight.dtype(), DType::BF16, "{name}");
        assert!(values(&weight) == rounded(&masters[&name]), "{name}");
    }
    let config = fs::read_to_string(out.join("config.json")).unwrap();
    assert!(config.contains("\"dtype\": \"bfloat16\""), "{config}");
}
