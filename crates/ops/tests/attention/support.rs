//! Random tiles, a kernel run over them, and the measure of what is off.

use annulus_ops::Pool;
use annulus_ops::attention::{
    Attended, AttentionKernel, BackwardTile, Dense, Fused, KeyValueGradients, Tile, dense,
};
use annulus_sequence::{Layout, Mask, Positions, Visibility};
use candle_core::{DType, Device, Tensor};

/// The error of any tensor in f32: see [`error`].
pub(crate) const TOLERANCE: f64 = 5e-6;

/// Batch, query heads, key/value heads, length of a head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads(pub usize, pub usize, pub usize, pub usize);

/// Queries, keys and values of a whole sequence, and the gradient of the output.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) q: Tensor,
    pub(crate) k: Tensor,
    pub(crate) v: Tensor,
    pub(crate) gradient: Tensor,
    pub(crate) scale: f64,
}

/// What a kernel gave.
#[derive(Clone, Debug)]
pub(crate) struct Results {
    pub(crate) attended: Attended,
    pub(crate) dq: Tensor,
    /// By tile.
    pub(crate) gradients: Vec<KeyValueGradients>,
}

/// Keys of a rank, and how the queries at hand see them.
#[derive(Clone, Debug)]
pub(crate) struct Shard {
    pub(crate) k: Tensor,
    pub(crate) v: Tensor,
    pub(crate) visibility: Vec<Visibility>,
}

/// `2 N(0, 1)`, so that softmax is peaked; the same for the same seed.
pub(crate) fn normal(shape: impl Into<candle_core::Shape>, seed: u64) -> Tensor {
    let shape = shape.into();
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    };
    let values: Vec<f32> = (0..shape.elem_count())
        .map(|_| {
            let radius = (-2.0 * uniform().ln()).sqrt();
            (2.0 * radius * (std::f64::consts::TAU * uniform()).cos()) as f32
        })
        .collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

impl Case {
    pub(crate) fn random(heads: Heads, queries: usize, keys: usize) -> Case {
        let Heads(batch, query_heads, kv_heads, dim) = heads;
        let seed = (queries * 1009 + keys * 31 + dim) as u64;
        Case {
            q: normal((batch, query_heads, queries, dim), seed),
            k: normal((batch, kv_heads, keys, dim), seed + 1),
            v: normal((batch, kv_heads, keys, dim), seed + 2),
            gradient: normal((batch, query_heads, queries, dim), seed + 3),
            scale: 1.0 / (dim as f64).sqrt(),
        }
    }

    pub(crate) fn dense(&self, mask: &Mask, queries: &Positions, keys: &Positions) -> Dense {
        let Case { q, k, v, gradient, scale } = self;
        dense(q, k, v, gradient, mask, queries, keys, *scale).unwrap()
    }

    /// All tensors rounded to `dtype`.
    pub(crate) fn rounded(&self, dtype: DType) -> Case {
        let [q, k, v, gradient] =
            [&self.q, &self.k, &self.v, &self.gradient].map(|t| t.to_dtype(dtype).unwrap());
        Case { q, k, v, gradient, scale: self.scale }
    }

    /// The keys and values as one shard.
    pub(crate) fn shard(&self, mask: &Mask, queries: &Positions, keys: &Positions) -> Shard {
        let visibility = vec![Visibility::new(mask, queries, keys)];
        Shard { k: self.k.clone(), v: self.v.clone(), visibility }
    }

    /// Forward and backward over `shards` in their order, the backward pass with gradients that start from nothing.
    pub(crate) fn run(&self, kernel: &dyn AttentionKernel, shards: &[Shard]) -> Results {
        let mut state = kernel.begin(&self.q, self.scale).unwrap();
        for shard in shards {
            kernel.forward(&[shard.tile()], &mut *state, &|| Ok(())).unwrap();
        }
        let attended = kernel.finish(state).unwrap();
        let mut state =
            kernel.begin_backward(&self.q, &attended, &self.gradient, self.scale).unwrap();
        let tiles =
            shards.iter().map(|shard| BackwardTile { tile: shard.tile(), carried: None }).collect();
        let gradients = kernel.backward(tiles, &mut *state, &|| Ok(())).unwrap();
        Results { attended, dq: kernel.finish_backward(state).unwrap(), gradients }
    }
}

impl Shard {
    pub(crate) fn tile(&self) -> Tile<'_> {
        Tile { k: &self.k, v: &self.v, visibility: &self.visibility }
    }
}

impl Results {
    /// Compares everything with the dense result; there must be one tile.
    pub(crate) fn check(&self, expected: &Dense, tolerance: f64, what: &str) {
        let KeyValueGradients { dk, dv } = &self.gradients[0];
        self.check_with(expected, dk, dv, tolerance, what);
    }

    pub(crate) fn check_with(
        &self,
        expected: &Dense,
        dk: &Tensor,
        dv: &Tensor,
        tolerance: f64,
        what: &str,
    ) {
        let pairs = [
            ("out", &self.attended.out, &expected.out),
            ("lse", &self.attended.lse, &expected.lse),
            ("dq", &self.dq, &expected.dq),
            ("dk", dk, &expected.dk),
            ("dv", dv, &expected.dv),
        ];
        for (name, found, wanted) in pairs {
            let error = error(found, wanted);
            assert!(error <= tolerance, "{what}: {name} is off by {error:e}");
        }
    }
}

/// `max|a - b| / max|b|`, or `max|a - b|` where all of `b` is zero; infinities must be in the same places.
pub(crate) fn error(found: &Tensor, wanted: &Tensor) -> f64 {
    assert_eq!(found.dims(), wanted.dims());
    let (found, wanted) = (numbers(found), numbers(wanted));
    let (mut difference, mut largest) = (0.0_f64, 0.0_f64);
    for (&found, &wanted) in found.iter().zip(&wanted) {
        if wanted.is_infinite() || found.is_infinite() {
            assert!(found == wanted, "found {found}, wanted {wanted}");
            continue;
        }
        assert!(!found.is_nan() && !wanted.is_nan(), "found {found}, wanted {wanted}");
        difference = difference.max((found - wanted).abs());
        largest = largest.max(wanted.abs());
    }
    if largest == 0.0 { difference } else { difference / largest }
}

pub(crate) fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// The bits of every result.
pub(crate) fn bits(results: &Results) -> Vec<u64> {
    let mut tensors = vec![&results.attended.out, &results.attended.lse, &results.dq];
    tensors.extend(results.gradients.iter().flat_map(|one| [&one.dk, &one.dv]));
    tensors.into_iter().flat_map(numbers).map(f64::to_bits).collect()
}

pub(crate) fn fused(workers: usize) -> Fused {
    Fused { pool: Pool::new(workers) }
}

/// The rows of `tensor` [B, H, S, D] at `positions`.
pub(crate) fn rows(tensor: &Tensor, positions: &Positions) -> Tensor {
    let indices: Vec<u32> = positions.iter().map(|position| position as u32).collect();
    let indices = Tensor::new(indices, &Device::Cpu).unwrap();
    tensor.index_select(&indices, 2).unwrap().contiguous().unwrap()
}

pub(crate) fn deal(layout: Layout, tokens: usize, world: usize) -> Vec<Positions> {
    layout.deal(tokens, world).unwrap()
}
