//! Random tiles, a kernel run over them, and the error measure.

use annulus_ops::Pool;
use annulus_ops::attention::{
    Attended, AttentionKernel, BackwardTile, Dense, Fused, Instructions, KeyValueGradients, Tile,
    dense,
};
use annulus_ops::testing::{error, random, to_f64};
use annulus_sequence::{Mask, Positions, Visibility};
use candle_core::{DType, Device, Tensor};

/// The largest error of any tensor in f32, as [`error`] measures it.
pub(crate) const TOLERANCE: f64 = 5e-6;

/// Batch, query heads, KV heads, length of a head.
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

/// The results of a kernel.
#[derive(Clone, Debug)]
pub(crate) struct Results {
    pub(crate) attended: Attended,
    pub(crate) dq: Tensor,
    /// Gradients of keys and values, by tile.
    pub(crate) gradients: Vec<KeyValueGradients>,
}

/// The keys of a rank, with their visibility from the current queries.
#[derive(Clone, Debug)]
pub(crate) struct Shard {
    pub(crate) k: Tensor,
    pub(crate) v: Tensor,
    pub(crate) visibility: Vec<Visibility>,
}

/// `2 N(0, 1)`, so that softmax is peaked; the same for the same name and shape.
pub(crate) fn peaked(name: &str, shape: [usize; 4]) -> Tensor {
    (random(name, &shape).unwrap() * 2.0).unwrap()
}

impl Case {
    pub(crate) fn random(heads: Heads, queries: usize, keys: usize) -> Case {
        let Heads(batch, query_heads, kv_heads, dim) = heads;
        Case {
            q: peaked("q", [batch, query_heads, queries, dim]),
            k: peaked("k", [batch, kv_heads, keys, dim]),
            v: peaked("v", [batch, kv_heads, keys, dim]),
            gradient: peaked("gradient", [batch, query_heads, queries, dim]),
            scale: 1.0 / (dim as f64).sqrt(),
        }
    }

    pub(crate) fn dense(&self, mask: &Mask, queries: &Positions, keys: &Positions) -> Dense {
        let Case { q, k, v, gradient, scale } = self;
        dense([q, k, v, gradient], mask, [queries, keys], *scale, None).unwrap()
    }

    /// All tensors rounded to `dtype`.
    pub(crate) fn rounded(&self, dtype: DType) -> Case {
        let [q, k, v, gradient] =
            [&self.q, &self.k, &self.v, &self.gradient].map(|t| t.to_dtype(dtype).unwrap());
        Case { q, k, v, gradient, scale: self.scale }
    }

    /// The queries of one rank, with all keys and values.
    pub(crate) fn of_rank(&self, positions: &Positions) -> Case {
        Case {
            q: rows(&self.q, positions),
            gradient: rows(&self.gradient, positions),
            ..self.clone()
        }
    }

    /// The keys and values of one rank, as the queries of another see them.
    pub(crate) fn shard_of(&self, mask: &Mask, queries: &Positions, keys: &Positions) -> Shard {
        let visibility = vec![Visibility::new(mask, queries, keys)];
        Shard { k: rows(&self.k, keys), v: rows(&self.v, keys), visibility }
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
        Tile::new(&self.k, &self.v, &self.visibility)
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
        // Where nothing is seen the log-sum-exp is -inf exactly; elsewhere it is compared like the others.
        let [lse, wanted] = [&self.attended.lse, &expected.lse].map(|lse| to_f64(lse).unwrap());
        let seen: Vec<bool> = wanted.iter().map(|lse| lse.is_finite()).collect();
        assert!(lse.iter().zip(&seen).all(|(lse, seen)| *seen || *lse == f64::NEG_INFINITY));
        let [lse, wanted] = [lse, wanted].map(|all| {
            let all = all.iter().zip(&seen).filter_map(|(lse, seen)| seen.then_some(*lse));
            Tensor::from_iter(all, &Device::Cpu).unwrap()
        });
        let pairs = [
            ("out", &self.attended.out, &expected.out),
            ("lse", &lse, &wanted),
            ("dq", &self.dq, &expected.dq),
            ("dk", dk, &expected.dk),
            ("dv", dv, &expected.dv),
        ];
        for (name, found, wanted) in pairs {
            let error = error(found, wanted).unwrap();
            assert!(error <= tolerance, "{what}: {name} is off by {error:e}");
        }
    }
}

/// The bits of every result.
pub(crate) fn bits(results: &Results) -> Vec<u64> {
    let mut tensors = vec![&results.attended.out, &results.attended.lse, &results.dq];
    tensors.extend(results.gradients.iter().flat_map(|one| [&one.dk, &one.dv]));
    tensors.into_iter().flat_map(|tensor| to_f64(tensor).unwrap()).map(f64::to_bits).collect()
}

/// The kernel with every set of vector instructions that this processor has.
pub(crate) fn machines(workers: usize) -> Vec<Fused> {
    let pool = Pool::new(workers);
    Instructions::tested().map(|instructions| Fused { pool: pool.clone(), instructions }).collect()
}

pub(crate) fn fused(workers: usize) -> Fused {
    Fused::new(Pool::new(workers))
}

/// The rows of `tensor` [B, H, S, D] at `positions`.
pub(crate) fn rows(tensor: &Tensor, positions: &Positions) -> Tensor {
    let indices: Vec<u32> = positions.iter().map(|position| position as u32).collect();
    let indices = Tensor::new(indices, tensor.device()).unwrap();
    tensor.index_select(&indices, 2).unwrap().contiguous().unwrap()
}
