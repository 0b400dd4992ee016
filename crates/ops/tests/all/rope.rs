//! Angles of far positions: cosines and sines are those of products in double precision, of which a
//! float's angle is off by more than a thousandth.

use std::path::Path;

use annulus_ops::Rotary;
use annulus_sequence::Positions;
use candle_core::{DType, Device};

/// The absolute tolerance.
const CLOSE: f64 = 1e-6;

#[test]
fn cosines_and_sines_are_those_of_exact_angles() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden/A/rope");
    if !folder.is_dir() {
        println!("SKIPPED: {} is not there", folder.display());
        return;
    }
    let mut cases = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "safetensors") {
            continue;
        }
        let case = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
        let values = |name: &str| -> Vec<f64> {
            let all = case[name].flatten_all().unwrap();
            all.to_dtype(DType::F64).unwrap().to_vec1().unwrap()
        };
        let frequencies: Vec<f32> = values("inv_freq").into_iter().map(|f| f as f32).collect();
        let positions: Vec<usize> = values("positions").into_iter().map(|p| p as usize).collect();
        let positions = Positions::from_list(&positions).unwrap();
        let rotary = Rotary::new(&positions, &frequencies, values("attention_factor")[0]);
        let half = frequencies.len();
        for (found, name) in rotary.cos_and_sin().into_iter().zip(["cos_f64", "sin_f64"]) {
            // Theirs have every value twice in a row.
            let wanted = values(name);
            let wanted = wanted.chunks(2 * half).flat_map(|row| &row[..half]);
            assert_eq!(found.len(), positions.tokens() * half);
            for (found, wanted) in found.iter().zip(wanted) {
                let off = (f64::from(*found) - wanted).abs();
                assert!(off < CLOSE, "{}: {name} {found} is {off:.1e} off", path.display());
            }
        }
        cases += 1;
    }
    assert_eq!(cases, 12);
}
