//! How fast the CPU attention kernel is: `attention [TOKENS [HEADS [DIM [WORKERS [full|causal]]]]]`.
//!
//! Operations as papers count them: `4 B H S^2 D` forward, 2.5 times that backward, half of it under a causal mask.
//! The product of two square matrices on one thread, measured in between, is what the machine has to give just then.

use std::time::Instant;

use annulus_ops::Pool;
use annulus_ops::attention::{AttentionKernel, BackwardTile, Fused, Tile};
use annulus_sequence::{Mask, Positions, Visibility};
use candle_core::{DType, Device, Result, Tensor};

/// The fastest of so many counts.
const REPETITIONS: usize = 9;
/// Rows and columns of the matrices whose product is measured.
const SIDE: usize = 1024;

#[expect(clippy::print_stdout, reason = "this is what the example is for")]
fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: usize| {
        arguments.get(index).and_then(|word| word.parse().ok()).unwrap_or(default)
    };
    let (tokens, heads, dim) = (number(0, 4096), number(1, 8), number(2, 64));
    let workers = number(3, 1);
    let causal = arguments.get(4).is_none_or(|word| word == "causal");
    let mask = if causal { Mask::causal() } else { Mask::full() };
    let visibility = [Visibility::new(&mask, &Positions::all(tokens), &Positions::all(tokens))];
    let dtype =
        if arguments.get(5).is_some_and(|word| word == "bf16") { DType::BF16 } else { DType::F32 };
    let random =
        || Tensor::randn(0f32, 1.0, (1, heads, tokens, dim), &Device::Cpu)?.to_dtype(dtype);
    let (q, k, v, gradient) = (random()?, random()?, random()?, random()?);
    let tile = Tile { k: &k, v: &v, visibility: &visibility };
    let kernel = Fused::new(Pool::new(workers));
    let work = 4.0 * (heads * tokens * tokens * dim) as f64 * if causal { 0.5 } else { 1.0 };

    let mut seconds = [f64::INFINITY; 3];
    for _ in 0..REPETITIONS {
        let once = [once(&kernel, &q, &gradient, &tile)?.as_slice(), &[product()?]].concat();
        seconds.iter_mut().zip(once).for_each(|(least, once)| *least = least.min(once));
    }
    let [forward, backward, product] = seconds;
    println!("tokens heads dim workers forward/s GFLOP/s backward/s GFLOP/s product:GFLOP/s");
    let (forward_rate, backward_rate) = (work / forward / 1e9, 2.5 * work / backward / 1e9);
    let product_rate = 2.0 * (SIDE as f64).powi(3) / product / 1e9;
    println!(
        "{tokens} {heads} {dim} {workers} {forward:.4} {forward_rate:.0} {backward:.4} {backward_rate:.0} {product_rate:.0}"
    );
    Ok(())
}

/// Seconds of a forward and of a backward pass.
fn once(kernel: &Fused, q: &Tensor, gradient: &Tensor, tile: &Tile<'_>) -> Result<[f64; 2]> {
    let scale = 1.0 / (q.dim(3)? as f64).sqrt();
    let start = Instant::now();
    let mut state = kernel.begin(q, scale)?;
    kernel.forward(std::slice::from_ref(tile), &mut *state, &|| Ok(()))?;
    let attended = kernel.finish(state)?;
    let forward = start.elapsed().as_secs_f64();

    let start = Instant::now();
    let mut state = kernel.begin_backward(q, &attended, gradient, scale)?;
    let tiles = vec![BackwardTile { tile: tile.clone(), carried: None }];
    kernel.backward(tiles, &mut *state, &|| Ok(()))?;
    kernel.finish_backward(state)?;
    Ok([forward, start.elapsed().as_secs_f64()])
}

/// Seconds of the product of two square matrices.
fn product() -> Result<f64> {
    let square = Tensor::ones((SIDE, SIDE), DType::F32, &Device::Cpu)?;
    let start = Instant::now();
    square.matmul(&square)?;
    Ok(start.elapsed().as_secs_f64())
}
