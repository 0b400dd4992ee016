//! The attention kernel on one worker, with every set of vector instructions the processor has: `cargo bench -p annulus-ops
//! --bench attention`. Elements per second are floating-point operations: `4 B H S^2 D` forward, 2.5 times that backward.

use annulus_ops::Pool;
use annulus_ops::attention::{Attended, AttentionKernel, BackwardTile, Fused, Instructions, Tile};
use annulus_ops::testing::random;
use annulus_sequence::{Mask, Positions, Visibility};
use candle_core::{DType, Result, Tensor};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const TOKENS: usize = 1536;
const HEADS: usize = 2;

/// The program's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Queries, keys, values and the gradient of the output.
struct Inputs {
    tensors: [Tensor; 4],
    visibility: [Visibility; 1],
}

impl Inputs {
    fn new(dim: usize, dtype: DType) -> Result<Inputs> {
        let tensor = |name| random(name, &[1, HEADS, TOKENS, dim])?.to_dtype(dtype);
        let all = Positions::all(TOKENS);
        Ok(Inputs {
            tensors: [tensor("q")?, tensor("k")?, tensor("v")?, tensor("gradient")?],
            visibility: [Visibility::new(&Mask::full(), &all, &all)],
        })
    }

    fn tile(&self) -> Tile<'_> {
        let [_, k, v, _] = &self.tensors;
        Tile::new(k, v, &self.visibility)
    }

    fn forward(&self, kernel: &Fused) -> Result<Attended> {
        let mut state = kernel.begin(&self.tensors[0], 0.125)?;
        kernel.forward(&[self.tile()], &mut *state, &|| Ok(()))?;
        kernel.finish(state)
    }

    fn backward(&self, kernel: &Fused, attended: &Attended) -> Result<Tensor> {
        let [q, _, _, gradient] = &self.tensors;
        let mut state = kernel.begin_backward(q, attended, gradient, 0.125)?;
        let tiles = vec![BackwardTile { tile: self.tile(), carried: None }];
        kernel.backward(tiles, &mut *state, &|| Ok(()))?;
        kernel.finish_backward(state)
    }
}

fn attention(criterion: &mut Criterion) {
    for (dim, dtype) in [(64, DType::F32), (128, DType::F32), (64, DType::BF16), (128, DType::BF16)]
    {
        let inputs = Inputs::new(dim, dtype).expect("shapes that fit");
        let mut group = criterion.benchmark_group(format!("attention/{dim}/{dtype:?}"));
        group.sample_size(10);
        for instructions in Instructions::available() {
            let kernel = Fused { pool: Pool::serial(), instructions };
            let work = (4 * HEADS * TOKENS * TOKENS * dim) as u64;
            group.throughput(Throughput::Elements(work));
            group.bench_function(
                BenchmarkId::new("forward", format!("{instructions:?}")),
                |bench| {
                    bench.iter(|| inputs.forward(&kernel));
                },
            );
            let attended = inputs.forward(&kernel).expect("a pass that ran before");
            group.throughput(Throughput::Elements(work / 2 * 5));
            group.bench_function(
                BenchmarkId::new("backward", format!("{instructions:?}")),
                |bench| {
                    bench.iter(|| inputs.backward(&kernel, &attended));
                },
            );
        }
    }
}

criterion_group!(benches, attention);
criterion_main!(benches);
