//! Dense attention in f64 as PyTorch computed it, where the recorded cases are at hand.

use std::path::Path;

use annulus_ops::attention::{AttentionKernel, Dense, Reference};
use annulus_ops::testing::to_f64;
use annulus_sequence::{Mask, Positions, Rule, Run};
use candle_core::{Device, Tensor};
use safetensors::SafeTensors;

use super::support::{Case, TOLERANCE, fused};

/// The mask by its name in the file; `None` where it has a rule that depends on more than positions.
fn mask(name: &str) -> Option<Mask> {
    name.split('+').try_fold(Mask::full(), |mask, rule| match rule.split_once(':') {
        None if rule == "full" => Some(mask),
        None if rule == "causal" => Some(mask.and(Rule::Causal)),
        Some(("window", width)) => Some(mask.and(Rule::Window(width.parse().ok()?))),
        _ => None,
    })
}

fn positions(tensor: &Tensor) -> Positions {
    let positions: Vec<i64> = tensor.to_vec1().unwrap();
    Positions::new(positions.iter().map(|&at| Run::contiguous(at as usize, 1)).collect())
}

fn check(path: &Path) -> bool {
    let bytes = std::fs::read(path).unwrap();
    let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    let name = &metadata.metadata().as_ref().unwrap()["mask"];
    let Some(mask) = mask(name) else { return false };
    let tensors = candle_core::safetensors::load_buffer(&bytes, &Device::Cpu).unwrap();
    let of = |name: &str| tensors[name].clone();
    let case = Case {
        q: of("q"),
        k: of("k"),
        v: of("v"),
        gradient: of("dout"),
        scale: to_f64(&of("scale")).unwrap()[0],
    };
    let expected =
        Dense { out: of("out"), lse: of("lse"), dq: of("dq"), dk: of("dk"), dv: of("dv") };
    let (queries, keys) = (positions(&of("q_pos")), positions(&of("k_pos")));
    for kernel in [&fused(2) as &dyn AttentionKernel, &Reference] {
        let results = case.run(kernel, &[case.shard(&mask, &queries, &keys)]);
        results.check(&expected, TOLERANCE, &format!("{kernel:?} {}", path.display()));
    }
    true
}

#[test]
fn recorded_cases() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden/A/attention");
    let Ok(entries) = std::fs::read_dir(&folder) else {
        println!("skipped: there is no {}", folder.display());
        return;
    };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "safetensors"));
    let checked = paths.iter().filter(|path| check(path)).count();
    assert!(checked >= 10, "of {} recorded cases only {checked} were compared", paths.len());
}
