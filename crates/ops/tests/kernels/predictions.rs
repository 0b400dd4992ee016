//! Predictions of rows of logits, and the losses there, are those of the CPU.

use annulus_ops::testing::random;
use annulus_ops::{Backend, IGNORED, predictions};
use candle_core::{DType, Device, Result, Tensor};

use crate::operators::{backends, device};
use crate::support::asked;

/// Rows of any length, aligned or not, with equal highest logits in any places, logits that are -inf, and one that is no number.
#[test]
fn predictions_are_those_of_the_cpu() -> Result<()> {
    if !asked("predictions") {
        return Ok(());
    }
    let cpu = Backend::serial();
    for backend in backends() {
        for classes in [1, 3, 64, 700, 5003] {
            let rows = 9;
            let random = random("logits", &[rows, classes])?.affine(8.0, 0.0)?;
            let mut logits = random.to_vec2::<f32>()?;
            for (row, highest) in [[0, classes - 1], [classes / 2, classes / 3]].iter().enumerate()
            {
                for class in highest {
                    logits[row][*class] = 40.0;
                }
            }
            logits[2].fill(f32::NEG_INFINITY);
            logits[2][classes / 2] = -3.0;
            logits[3].fill(-1e4);
            logits[4][classes / 2] = 1e4;
            let targets: Vec<i64> = (0..rows).map(|row| (7 * row % classes) as i64).collect();
            let logits = Tensor::new(logits, &Device::Cpu)?;
            let wanted = predictions(&cpu, &logits, &targets)?;
            let there = logits.to_device(device(&backend))?;
            let found = predictions(&backend, &there, &targets)?;
            for (row, (found, wanted)) in std::iter::zip(&found, &wanted).enumerate() {
                assert_eq!(found.class, wanted.class, "row {row} of {classes} classes");
                let off = (found.loss - wanted.loss).abs();
                let fits = off <= 1e-6 * wanted.loss.abs().max(1.0) || found.loss == wanted.loss;
                assert!(fits, "row {row} of {classes}: {} and {}", found.loss, wanted.loss);
            }
            let nothing = Tensor::full(f32::NAN, (1, classes), device(&backend))?;
            let of_nothing = predictions(&backend, &nothing, &[0])?[0];
            assert!(of_nothing.loss.is_nan() && of_nothing.class == 0);
            // A view that begins anywhere.
            let tail = predictions(&backend, &there.narrow(0, 4, 3)?, &targets[4..7])?;
            assert_eq!(tail, found[4..7]);
        }
        let one = Tensor::zeros((1, 4), DType::F32, device(&backend))?;
        for wrong in [4, -1, IGNORED] {
            assert!(predictions(&backend, &one, &[wrong]).is_err(), "target {wrong}");
        }
        assert!(predictions(&backend, &one, &[0, 1]).is_err());
    }
    Ok(())
}
