//! Angles of far positions: cosines and sines are those of products in double precision, of which a
//! float's angle is off by more than a thousandth.

use std::path::Path;
use std::sync::Arc;

use annulus_ops::{Backend, Rotary, rope};
use annulus_sequence::Positions;
use candle_core::{DType, Device, Result, Tensor};

/// The absolute tolerance.
const CLOSE: f64 = 1e-6;

/// Cosines and sines of `rotary`, [S, D / 2] each: what it makes of the rows (1, .., 1, 0, .., 0).
pub(crate) fn cos_and_sin(rotary: &Arc<Rotary>, tokens: usize, half: usize) -> Result<[Tensor; 2]> {
    let row = |value: f32| Tensor::full(value, (1, 1, tokens, half), &Device::Cpu);
    let units = Tensor::cat(&[row(1.0)?, row(0.0)?], 3)?;
    let [turned] = rope(&Backend::serial(), [units], rotary)?;
    let table = |first| turned.narrow(3, first, half)?.reshape((tokens, half));
    Ok([table(0)?, table(half)?])
}

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
        let rotary = Arc::new(Rotary::new(&positions, &frequencies, values("attention_factor")[0]));
        let half = frequencies.len();
        let tables = cos_and_sin(&rotary, positions.tokens(), half).unwrap();
        for (found, name) in tables.iter().zip(["cos_f64", "sin_f64"]) {
            let found: Vec<f32> = found.flatten_all().unwrap().to_vec1().unwrap();
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
