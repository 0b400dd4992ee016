//! The operators of a training step at the sizes of a small Llama, forward and backward by hand:
//! `cargo bench -p annulus-ops --bench operators`. Elements per second are floating-point operations
//! of products, and values read and written of the rest. Four workers.

use std::sync::Arc;

use annulus_ops::testing::random;
use annulus_ops::{
    AdamW, Affine, Backend, Moments, Rotary, contiguous, embedding, embedding_backward,
    input_gradient, linear_cross_entropy_gradients, parameter_gradients, projected_onto,
    projections, rms_norm, rms_norm_backward, rope, rope_qkv_backward, swiglu, swiglu_backward,
};
use annulus_sequence::Positions;
use candle_core::{Device, Result, Tensor};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

/// The program's allocator: fresh pages for every output would cost more than the arithmetic.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const WORKERS: usize = 4;
const TOKENS: usize = 4096;
const HIDDEN: usize = 256;
const INTERMEDIATE: usize = 688;
const HEADS: usize = 8;
const VOCABULARY: usize = 258;

/// Times `run`, which does `work` operations or reads and writes so many values.
fn time<T>(criterion: &mut Criterion, name: &str, work: usize, run: impl Fn() -> Result<T>) {
    let mut group = criterion.benchmark_group(name);
    group.sample_size(20).throughput(Throughput::Elements(work as u64));
    group.bench_function(format!("{TOKENS} tokens"), |bencher| {
        bencher.iter(|| run().expect("operands that fit"));
    });
    group.finish();
}

fn products(criterion: &mut Criterion, pool: &Backend) -> Result<()> {
    for (inputs, outputs) in [(HIDDEN, INTERMEDIATE), (INTERMEDIATE, HIDDEN), (HIDDEN, HIDDEN)] {
        let (x, dy) = (random("x", &[TOKENS, inputs])?, random("dy", &[TOKENS, outputs])?);
        let weight = random("weight", &[outputs, inputs])?;
        let one = Affine { weight: &weight, bias: None };
        let work = 2 * TOKENS * inputs * outputs;
        let name = |word: &str| format!("{word} {inputs} to {outputs}");
        time(criterion, &name("projection"), work, || projections(pool, &x, [one]));
        time(criterion, &name("projected onto"), work, || projected_onto(pool, &dy, &x, one));
        time(criterion, &name("input gradient"), work, || input_gradient(pool, [one], [&dy]));
        time(criterion, &name("parameter gradient"), work, || {
            parameter_gradients(pool, &x, [one], [&dy], [None])
        });
    }
    let (x, weight) = (random("x", &[TOKENS, HIDDEN])?, random("weight", &[VOCABULARY, HIDDEN])?);
    let targets: Vec<i64> = (0..TOKENS).map(|i| (i * 7 % VOCABULARY) as i64).collect();
    let targets = Tensor::from_vec(targets, TOKENS, &Device::Cpu)?;
    time(criterion, "linear cross entropy", 6 * TOKENS * HIDDEN * VOCABULARY, || {
        linear_cross_entropy_gradients(pool, &x, &weight, &targets, 1024)
    });
    Ok(())
}

fn elementwise(criterion: &mut Criterion, pool: &Backend) -> Result<()> {
    let values = TOKENS * HIDDEN;
    let (x, dy) = (random("x", &[TOKENS, HIDDEN])?, random("dy", &[TOKENS, HIDDEN])?);
    let weight = random("weight", &[HIDDEN])?;
    time(criterion, "rms norm", 2 * values, || rms_norm(pool, &x, &weight, 1e-5));
    time(criterion, "rms norm backward", 4 * values, || {
        rms_norm_backward(pool, &x, &weight, 1e-5, &dy, Some(&dy))
    });

    let wide = TOKENS * INTERMEDIATE;
    let [gate, up, dact] = ["gate", "up", "dact"].map(|name| random(name, &[TOKENS, INTERMEDIATE]));
    let (gate, up, dact) = (gate?, up?, dact?);
    time(criterion, "swiglu", 3 * wide, || swiglu(pool, &gate, &up));
    time(criterion, "swiglu backward", 6 * wide, || swiglu_backward(pool, &gate, &up, &dact));

    let head_dim = HIDDEN / HEADS;
    let frequencies = Rotary::frequencies(head_dim, 1e4);
    let rotary = Arc::new(Rotary::new(&Positions::all(TOKENS), &frequencies, 1.0));
    let heads_last = x.reshape((1, TOKENS, HEADS, head_dim))?;
    let heads_first = heads_last.transpose(1, 2)?;
    let turned = heads_first.contiguous()?;
    time(criterion, "rope", 2 * values, || rope(pool, [heads_first.clone()], &rotary));
    time(criterion, "rope backward", 6 * values, || {
        rope_qkv_backward(pool, [(); 3].map(|()| turned.clone()), &rotary, true)
    });
    time(criterion, "heads first", 2 * values, || contiguous(pool, &heads_first));
    Ok(())
}

fn tables(criterion: &mut Criterion, pool: &Backend) -> Result<()> {
    let ids: Vec<u32> = (0..TOKENS).map(|i| (i * 7 % VOCABULARY) as u32).collect();
    let ids = Tensor::from_vec(ids, (1, TOKENS), &Device::Cpu)?;
    let (table, dy) = (random("table", &[VOCABULARY, HIDDEN])?, random("dy", &[TOKENS, HIDDEN])?);
    time(criterion, "embedding", 2 * TOKENS * HIDDEN, || embedding(pool, &ids, &table));
    time(criterion, "embedding backward", TOKENS * HIDDEN, || {
        embedding_backward(pool, &ids, VOCABULARY, &dy)
    });

    let (parameter, gradient) = (random("p", &[1 << 20])?, random("g", &[1 << 20])?);
    let (moments, betas) = (Moments::zeros(&parameter)?, (0.9, 0.95));
    let (learning_rate, epsilon, weight_decay) = (1e-4, 1e-8, 0.1);
    let adamw = AdamW { learning_rate, betas, epsilon, weight_decay, step: 3 };
    time(criterion, "adamw", 7 << 20, || adamw.update(pool, &parameter, &gradient, 1.0, &moments));
    Ok(())
}

fn all(criterion: &mut Criterion) {
    let pool = Backend::cpu(WORKERS);
    for group in [products, elementwise, tables] {
        group(criterion, &pool).expect("operands that fit");
    }
}

criterion_group!(benches, all);
criterion_main!(benches);
