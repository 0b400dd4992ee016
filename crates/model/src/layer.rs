//! A layer's two halves: attention, and feed-forward.
//!
//! Axes: b sequences, s positions of this rank, d hidden size, n query heads, k key/value heads, h
//! elements per head, f intermediate size, r any rows.

use annulus_attention::{Place, Qkv};
use annulus_ops::{rope, swiglu};
use candle_core::{Result, Tensor};

use crate::parameters::{Norm, Projection, linear, names};
use crate::{Config, Shard, Specification, Stage, Weights};

/// `x + o(attend(rope(q), rope(k), v))` with q, k, v projected from the norm of x.
#[derive(Debug)]
pub(crate) struct AttentionHalf {
    layer: usize,
    head_dim: usize,
    norm: Norm,
    q: Projection,
    k: Projection,
    v: Projection,
    o: Projection,
    parameters: Vec<String>,
}

impl AttentionHalf {
    pub(crate) fn new(config: &Config, layer: usize) -> AttentionHalf {
        let Config { hidden_size, head_dim, attention_bias, .. } = *config;
        let queries = config.num_attention_heads * head_dim;
        let keys = config.num_key_value_heads * head_dim;
        let projection = |word, shape| {
            let path = format!("model.layers.{layer}.self_attn.{word}");
            Projection::new(&path, shape, attention_bias)
        };
        let path = format!("model.layers.{layer}.input_layernorm");
        let mut half = AttentionHalf {
            layer,
            head_dim,
            norm: Norm::new(&path, hidden_size, config.rms_norm_eps),
            q: projection("q_proj", [queries, hidden_size]),
            k: projection("k_proj", [keys, hidden_size]),
            v: projection("v_proj", [keys, hidden_size]),
            o: projection("o_proj", [hidden_size, queries]),
            parameters: Vec::new(),
        };
        half.parameters = names(half.specification());
        half
    }
    /// Its parameters.
    pub(crate) fn specification(&self) -> impl Iterator<Item = &Specification> {
        let projections = [&self.q, &self.k, &self.v, &self.o];
        std::iter::once(&self.norm.weight)
            .chain(projections.into_iter().flat_map(Projection::parameters))
    }
    /// [B, S, heads * H] to [B, heads, S, H], contiguous.
    fn split_heads(&self, x_bsd: &Tensor) -> Result<Tensor> {
        let (b, s, d) = x_bsd.dims3()?;
        x_bsd.reshape((b, s, d / self.head_dim, self.head_dim))?.transpose(1, 2)?.contiguous()
    }
}

impl Stage for AttentionHalf {
    fn parameters(&self) -> &[String] {
        &self.parameters
    }
    fn forward(&self, x_bsd: &Tensor, weights: &Weights, shard: &Shard) -> Result<Tensor> {
        let Shard { pool, rotary, attention, kept, step, .. } = shard;
        let normed_bsd = self.norm.apply(x_bsd, weights, pool)?;
        let heads = |projection| self.split_heads(&linear(projection, &normed_bsd, weights, pool)?);
        let q_bnsh = rope(pool, &heads(&self.q)?, rotary)?;
        let k_bksh = rope(pool, &heads(&self.k)?, rotary)?;
        let v_bksh = heads(&self.v)?;

        let place = Place { step: *step, layer: self.layer };
        let qkv = Qkv { q: q_bnsh, k: k_bksh, v: v_bksh };
        let out_bnsh = attention.attend(place, &qkv, kept.as_ref())?;
        let out_bsd = out_bnsh.transpose(1, 2)?.contiguous()?.flatten_from(2)?;
        x_bsd + linear(&self.o, &out_bsd, weights, pool)?
    }
}

/// `x + down(silu(gate) * up)` with gate and up projected from the norm of x.
#[derive(Debug)]
pub(crate) struct FeedForwardHalf {
    norm: Norm,
    gate: Projection,
    up: Projection,
    down: Projection,
    parameters: Vec<String>,
}

impl FeedForwardHalf {
    pub(crate) fn new(config: &Config, layer: usize) -> FeedForwardHalf {
        let Config { hidden_size, intermediate_size, mlp_bias, .. } = *config;
        let projection = |word, shape| {
            Projection::new(&format!("model.layers.{layer}.mlp.{word}"), shape, mlp_bias)
        };
        let path = format!("model.layers.{layer}.post_attention_layernorm");
        let mut half = FeedForwardHalf {
            norm: Norm::new(&path, hidden_size, config.rms_norm_eps),
            gate: projection("gate_proj", [intermediate_size, hidden_size]),
            up: projection("up_proj", [intermediate_size, hidden_size]),
            down: projection("down_proj", [hidden_size, intermediate_size]),
            parameters: Vec::new(),
        };
        half.parameters = names(half.specification());
        half
    }
    /// Its parameters.
    pub(crate) fn specification(&self) -> impl Iterator<Item = &Specification> {
        let projections = [&self.gate, &self.up, &self.down];
        std::iter::once(&self.norm.weight)
            .chain(projections.into_iter().flat_map(Projection::parameters))
    }
}

impl Stage for FeedForwardHalf {
    fn parameters(&self) -> &[String] {
        &self.parameters
    }
    fn rowwise(&self) -> bool {
        true
    }
    fn forward(&self, x_rd: &Tensor, weights: &Weights, shard: &Shard) -> Result<Tensor> {
        let pool = &shard.pool;
        let normed_rd = self.norm.apply(x_rd, weights, pool)?;
        let gate_rf = linear(&self.gate, &normed_rd, weights, pool)?;
        let up_rf = linear(&self.up, &normed_rd, weights, pool)?;
        x_rd + linear(&self.down, &swiglu(pool, &gate_rf, &up_rf)?, weights, pool)?
    }
}
