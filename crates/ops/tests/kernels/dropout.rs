//! Dropout of a projection's inputs: on a processor it has the bits of the CPU.

use annulus_ops::gpu::Generation;
use annulus_ops::testing::random;
use annulus_ops::{Backend, InputDropout, RowPlaces};
use annulus_sequence::{Positions, Run};
use candle_core::{DType, Device, Result, Tensor};

use crate::support::{asked, processor};

const DROPOUT: InputDropout =
    InputDropout { seed: 3 << 40 | 5, probability: 0.3, step: 1 << 33 | 7, module: 11, first: 0 };

fn bits(
    backend: &Backend,
    dropout: &InputDropout,
    x: &Tensor,
    places: &RowPlaces<'_>,
) -> Result<Vec<u32>> {
    let y = dropout.apply(backend, &x.to_device(&backend.device())?, places)?;
    assert_eq!((y.dtype(), y.dims()), (x.dtype(), x.dims()));
    let y: Vec<f32> = y.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
    Ok(y.into_iter().map(f32::to_bits).collect())
}

#[test]
fn dropped_inputs_have_the_bits_of_the_cpu() -> Result<()> {
    if !asked("input-dropout") {
        return Ok(());
    }
    let backend = Backend::Gpu(processor(Generation::Sm80, 1).unwrap());
    let positions =
        Positions::new(vec![Run { start: 2, step: 5, len: 4, width: 2 }, Run::contiguous(40, 3)]);
    // Two tensor-parallel ranks with 4 rows each, from token 3 of their own 11 on; and all rows of 2 sequences and a half.
    let all = [(8, 4, 11, 3), (27, 27, 0, 0)];
    // Whole groups, odd widths, columns of one rank of several.
    for (width, first) in [(64, 0), (24, 8), (40, 6), (13, 0), (5, 3)] {
        for (rows, piece, stride, first_row) in all {
            let places =
                RowPlaces { positions: &positions, sequence: 9, piece, stride, first: first_row };
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                let x = random("x", &[rows, width])?.to_dtype(dtype)?;
                let dropout = InputDropout { first, ..DROPOUT };
                let [found, wanted] = [&backend, &Backend::cpu(2)]
                    .map(|backend| bits(backend, &dropout, &x, &places));
                let (found, wanted) = (found?, wanted?);
                let dropped = wanted.iter().filter(|bits| **bits << 1 == 0).count();
                assert!(found == wanted && dropped > 0, "{rows} of {width} from {first} {dtype:?}");
            }
        }
    }
    Ok(())
}
