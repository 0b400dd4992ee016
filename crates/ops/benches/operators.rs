//! Speed of the operators: one CSV line per point. `cargo bench -p annulus-ops -- [WORKERS …]`.

use std::io::{Result as Written, Write, stdout};
use std::sync::Arc;
use std::time::Instant;

use annulus_ops::testing::random;
use annulus_ops::{Pool, Rotary, linear, linear_cross_entropy, rms_norm, rope, swiglu, vjp};
use annulus_sequence::Positions;
use candle_core::{Device, Result, Tensor, Var};

/// The program's allocator: fresh pages for every output would cost more than the arithmetic.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Repetitions; the fastest counts, since others share the machine.
const REPETITIONS: usize = 7;

type Operator = Box<dyn Fn(&Pool, &[Var]) -> Result<Tensor>>;

/// Operators at one size of a small Llama, and what a pass of them is counted as.
struct Point {
    name: &'static str,
    size: String,
    /// Multiplications and additions of a forward pass, or bytes read and written.
    work: f64,
    unit: &'static str,
    inputs: Vec<Tensor>,
    operator: Operator,
}

fn linear_point(tokens: usize, inputs: usize, outputs: usize) -> Result<Point> {
    Ok(Point {
        name: "linear",
        size: format!("{tokens}x{inputs}x{outputs}"),
        work: 2.0 * (tokens * inputs * outputs) as f64,
        unit: "GFLOP/s",
        inputs: vec![random("x", &[tokens, inputs])?, random("weight", &[outputs, inputs])?],
        operator: Box::new(|pool, v| linear(pool, &v[0], &v[1], None)),
    })
}

fn cross_entropy_point(tokens: usize, width: usize, rows: usize) -> Result<Point> {
    let targets: Vec<i64> = (0..tokens).map(|i| (i * 7 % rows) as i64).collect();
    let targets = Tensor::from_vec(targets, tokens, &Device::Cpu)?;
    Ok(Point {
        name: "linear-cross-entropy",
        size: format!("{tokens}x{width}x{rows}"),
        work: 6.0 * (tokens * width * rows) as f64,
        unit: "GFLOP/s",
        inputs: vec![random("x", &[tokens, width])?, random("weight", &[rows, width])?],
        operator: Box::new(move |pool, v| linear_cross_entropy(pool, &v[0], &v[1], &targets, 1024)),
    })
}

fn elementwise_points(tokens: usize, width: usize) -> Result<Vec<Point>> {
    let point = |name, inputs: Vec<Tensor>, operator| Point {
        name,
        size: format!("{tokens}x{width}"),
        work: 4.0 * (tokens * width * (inputs.len() + 1)) as f64,
        unit: "GB/s",
        inputs,
        operator,
    };
    let frequencies = Rotary::frequencies(64, 1e4);
    let rotary = Arc::new(Rotary::new(&Positions::all(tokens), &frequencies, 1.0));
    let (x, y) = (random("x", &[tokens, width])?, random("y", &[tokens, width])?);
    let heads = random("x", &[1, width / 64, tokens, 64])?;
    Ok(vec![
        point("swiglu", vec![x.clone(), y], Box::new(|pool, v| swiglu(pool, &v[0], &v[1]))),
        point(
            "rms-norm",
            vec![x, random("weight", &[width])?],
            Box::new(|pool, v| rms_norm(pool, &v[0], &v[1], 1e-5)),
        ),
        point("rope", vec![heads], Box::new(move |pool, v| rope(pool, &v[0], &rotary))),
    ])
}

/// Seconds of the fastest forward pass, and of the fastest backward pass.
fn time(point: &Point, pool: &Pool) -> Result<(f64, f64)> {
    let vars = point.inputs.iter().map(Var::from_tensor).collect::<Result<Vec<_>>>()?;
    let mut best = (f64::INFINITY, f64::INFINITY);
    for _ in 0..REPETITIONS {
        let start = Instant::now();
        let y = (point.operator)(pool, &vars)?;
        best.0 = best.0.min(start.elapsed().as_secs_f64());
        let seed = y.ones_like()?;
        let start = Instant::now();
        vjp(&y, &seed)?;
        best.1 = best.1.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}

fn report(points: &[Point], workers: &[usize]) -> Written<()> {
    let mut out = stdout().lock();
    writeln!(out, "operator,size,workers,forward_ms,forward_rate,unit,backward_ms")?;
    for point in points {
        for &workers in workers {
            let (forward, backward) =
                time(point, &Pool::new(workers)).map_err(std::io::Error::other)?;
            let rate = point.work / forward / 1e9;
            let (forward, backward) = (forward * 1e3, backward * 1e3);
            let Point { name, size, unit, .. } = point;
            writeln!(out, "{name},{size},{workers},{forward:.3},{rate:.1},{unit},{backward:.3}")?;
        }
    }
    Ok(())
}

fn main() -> Written<()> {
    let workers: Vec<usize> =
        std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let workers = if workers.is_empty() { vec![1, 4] } else { workers };
    let points = || -> Result<Vec<Point>> {
        let mut points = elementwise_points(4096, 1024)?;
        for (tokens, inputs, outputs) in [
            (4096, 256, 688),
            (4096, 688, 256),
            (512, 256, 256),
            (2048, 1024, 2816),
            (4096, 256, 64),
        ] {
            points.push(linear_point(tokens, inputs, outputs)?);
        }
        points.push(cross_entropy_point(4096, 256, 8192)?);
        Ok(points)
    };
    report(&points().map_err(std::io::Error::other)?, &workers)
}
