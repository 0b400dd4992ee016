//! A layer's two halves: attention, and feed-forward.
//!
//! Axes: b sequences, s positions of this rank, d hidden size, n query heads, k KV heads, h
//! elements per head, f intermediate size, r any rows.

use annulus_architecture::Shape;
use annulus_attention::{CallSite, Qkv};
use annulus_ops::attention::Attended;
use annulus_ops::{
    Backend, SwiGluGradients, contiguous, readable, rope_qkv, rope_qkv_backward, swiglu,
    swiglu_backward,
};
use candle_core::{Result, Tensor};

use crate::lora::ProjectionContext;
use crate::parameters::{
    INPUTS, Norm, OUTPUTS, Projection, emit_gradients, fused_projections, names, project,
    project_back,
};
use crate::stage::{Forward, kept};
use crate::{Config, GradientSink, Keep, Shard, Specification, Stage, Weights};

/// The attention half of a layer: `x + o(attend(rope(q), rope(k), v))` with q, k, v projected from the norm of x; in some families the
/// heads of q and k go through norms of their own before they are rotated (Henry et al., arXiv 2010.04245), or some layers rotate nothing.
#[derive(Debug)]
pub(crate) struct AttentionHalf {
    layer: usize,
    head_dim: usize,
    norm: Norm,
    q: Projection,
    k: Projection,
    v: Projection,
    o: Projection,
    /// The norms of every head of queries and of keys, in families that have them.
    head_norms: Option<[Norm; 2]>,
    parameters: Vec<String>,
}

/// Queries and keys by token as projected, which their norms need in backward.
type Projected = Option<[Tensor; 2]>;

impl AttentionHalf {
    pub(crate) fn new(config: &Config, layer: usize) -> AttentionHalf {
        let shape = &config.shape;
        let (hidden_size, head_dim) = (shape.hidden_size, shape.head_dim);
        let queries = shape.num_attention_heads * head_dim;
        let keys = shape.num_key_value_heads * head_dim;
        let bias = shape.has_query_key_value_bias();
        let within = |word| format!("model.layers.{layer}.self_attn.{word}");
        let projection = |word, shape, dim, bias| {
            Projection::new(config, layer, &within(word), shape, dim, bias)
        };
        let head_norm = |word| Norm::new(&within(word), head_dim, config);
        let path = format!("model.layers.{layer}.input_layernorm");
        let mut half = AttentionHalf {
            layer,
            head_dim,
            norm: Norm::new(&path, hidden_size, config),
            q: projection("q_proj", [queries, hidden_size], OUTPUTS, bias),
            k: projection("k_proj", [keys, hidden_size], OUTPUTS, bias),
            v: projection("v_proj", [keys, hidden_size], OUTPUTS, bias),
            o: projection("o_proj", [hidden_size, queries], INPUTS, shape.attention_bias),
            head_norms: shape.has_query_key_norm().then(|| ["q_norm", "k_norm"].map(head_norm)),
            parameters: Vec::new(),
        };
        half.parameters = names(half.specification());
        half
    }
    /// The parameters of the half.
    pub(crate) fn specification(&self) -> impl Iterator<Item = &Specification> {
        let projections = [&self.q, &self.k, &self.v, &self.o];
        std::iter::once(&self.norm.weight)
            .chain(projections.into_iter().flat_map(Projection::parameters))
            .chain(self.head_norms.iter().flatten().map(|norm| &norm.weight))
    }
    /// Names of parameters whose products read the same input. Empty where queries and keys have norms: these read rows without gaps.
    pub(crate) fn fused_projections(&self) -> Vec<Vec<String>> {
        if self.head_norms.is_some() {
            Vec::new()
        } else {
            fused_projections([&self.q, &self.k, &self.v])
        }
    }
    /// Queries, keys and values, projected from the norm of x.
    fn project(
        &self,
        x_bsd: &Tensor,
        weights: &Weights,
        shard: &Shard,
    ) -> Result<(Qkv, Projected)> {
        let Shard { backend, rotary, .. } = shard;
        let context = ProjectionContext { weights, shard, layer: self.layer, first: 0 };
        let normed_bsd = self.normed(x_bsd, context)?;
        let [q_bsd, k_bsd, v_bsd] = project([&self.q, &self.k, &self.v], &normed_bsd, context)?;
        drop(normed_bsd);
        let projected = self.head_norms.is_some().then(|| [q_bsd.clone(), k_bsd.clone()]);
        let normed = |x_bsd: Tensor, which: usize| match &self.head_norms {
            Some(norms) => {
                norms[which].apply(&self.by_head(&x_bsd)?, weights, backend)?.flatten_from(2)
            }
            None => Ok(x_bsd),
        };
        let qkv = [normed(q_bsd, 0)?, normed(k_bsd, 1)?, v_bsd];
        let [q, k, v] = rope_qkv(backend, qkv, rotary.of(self.layer))?;
        Ok((Qkv { q, k, v }, projected))
    }
    /// The norm of x, of all rows.
    fn normed(&self, x_bsd: &Tensor, context: ProjectionContext<'_>) -> Result<Tensor> {
        let own = self.norm.apply(x_bsd, context.weights, context.backend())?;
        context.shard.all_rows(context.label("attention's input"), &own)
    }
    /// Queries, keys and values that were kept; `None` where they were not.
    fn made(&self, mut tensors: Vec<Tensor>) -> Result<Option<(Qkv, Projected)>> {
        if tensors.is_empty() {
            return Ok(None);
        }
        let projected = tensors.split_off(3);
        let projected = if self.head_norms.is_some() { Some(kept(projected)?) } else { None };
        let [q, k, v] = kept(tensors)?;
        Ok(Some((Qkv { q, k, v }, projected)))
    }
    /// The gradients of queries and keys before their norms, given those after.
    fn before_norms(
        &self,
        [dq_bsd, dk_bsd]: [Tensor; 2],
        projected: Projected,
        weights: &Weights,
        backend: &Backend,
        sink: &mut dyn GradientSink,
    ) -> Result<[Tensor; 2]> {
        let Some((norms, [q_bsd, k_bsd])) = self.head_norms.as_ref().zip(projected) else {
            return Ok([dq_bsd, dk_bsd]);
        };
        let mut before = |norm: &Norm, x_bsd: Tensor, dy_bsd: Tensor| {
            let (x, dy) = (self.by_head(&x_bsd)?, self.by_head(&dy_bsd)?);
            norm.backward(&x, weights, backend, &dy, None, sink)?.flatten_from(2)
        };
        Ok([before(&norms[0], q_bsd, dq_bsd)?, before(&norms[1], k_bsd, dk_bsd)?])
    }
    /// Reshapes [B, S, heads * H] to [B, S, heads, H].
    fn by_head(&self, x_bsd: &Tensor) -> Result<Tensor> {
        let (b, s, d) = x_bsd.dims3()?;
        x_bsd.reshape((b, s, d / self.head_dim, self.head_dim))
    }
    /// [B, S, heads * H] viewed as [B, heads, S, H].
    fn heads_first(&self, x_bsd: &Tensor) -> Result<Tensor> {
        self.by_head(x_bsd)?.transpose(1, 2)
    }
    fn place(&self, shard: &Shard) -> CallSite {
        CallSite { step: shard.step, layer: self.layer }
    }
    /// The gradient of x, given that of the output. Queries, keys and values are recomputed where they were not kept, the norm of x always,
    /// so as not to hold it while attention works.
    fn backward(
        &self,
        (x_bsd, made, attended): (&Tensor, Option<(Qkv, Projected)>, Attended),
        dy_bsd: &Tensor,
        (weights, shard): (&Weights, &Shard),
        sink: &mut dyn GradientSink,
    ) -> Result<Tensor> {
        let Shard { backend, rotary, .. } = shard;
        let attention = shard.attention.of(self.layer);
        let context = ProjectionContext { weights, shard, layer: self.layer, first: 0 };
        let out_bsd = heads_last(&attended.out, shard)?;
        let dy_of_all = shard.all_rows(context.label("gradient of attention's output"), dy_bsd)?;
        emit_gradients([&self.o], &out_bsd, [&dy_of_all], context, sink)?;
        drop(out_bsd);
        let dout_bsd = project_back([&self.o], [&dy_of_all], context)?;
        drop(dy_of_all);
        let dout_bnsh = readable(backend, &self.heads_first(&dout_bsd)?)?;
        drop(dout_bsd);

        let (qkv, projected) = match made {
            Some(made) => made,
            None => self.project(x_bsd, weights, shard)?,
        };
        let found = attention.backward(self.place(shard), qkv, attended, dout_bnsh)?;
        let found = [found.q, found.k, found.v];
        let packed_qkv = self.head_norms.is_none();
        let rotary = rotary.of(self.layer);
        let [dq_bsd, dk_bsd, dv_bsd] = rope_qkv_backward(backend, found, rotary, packed_qkv)?;
        let [dq_bsd, dk_bsd] =
            self.before_norms([dq_bsd, dk_bsd], projected, weights, backend, sink)?;

        let normed_bsd = self.normed(x_bsd, context)?;
        let (qkv, dqkv) = ([&self.q, &self.k, &self.v], [&dq_bsd, &dk_bsd, &dv_bsd]);
        emit_gradients(qkv, &normed_bsd, dqkv, context, sink)?;
        drop(normed_bsd);
        let label = context.label("gradient of attention's input");
        let dnormed_bsd = shard.own_rows(label, &project_back(qkv, dqkv, context)?)?;
        self.norm.backward(x_bsd, weights, backend, &dnormed_bsd, Some(dy_bsd), sink)
    }
}

/// Transposes [B, heads, S, H] to [B, S, heads * H].
fn heads_last(x_bnsh: &Tensor, shard: &Shard) -> Result<Tensor> {
    contiguous(&shard.backend, &x_bnsh.transpose(1, 2)?)?.flatten_from(2)
}

impl Stage for AttentionHalf {
    fn parameters(&self) -> &[String] {
        &self.parameters
    }
    fn forward<'a>(
        &'a self,
        x_bsd: &Tensor,
        weights: &Weights,
        shard: &'a Shard,
    ) -> Result<Forward<'a>> {
        let made = self.project(x_bsd, weights, shard)?;
        let attended = shard.attention.of(self.layer).forward(self.place(shard), &made.0)?;
        let out_bsd = heads_last(&attended.out, shard)?;
        let y_bsd = self.o.onto(
            x_bsd,
            &out_bsd,
            ProjectionContext { weights, shard, layer: self.layer, first: 0 },
        )?;
        let tensors = match shard.keep {
            Keep::Nothing => return Ok(Forward::without_backward(y_bsd)),
            Keep::Attention => vec![x_bsd.clone(), attended.out, attended.lse],
            Keep::Everything => {
                let (Qkv { q, k, v }, projected) = made;
                let first = [x_bsd.clone(), attended.out, attended.lse, q, k, v];
                first.into_iter().chain(projected.into_iter().flatten()).collect()
            }
        };
        Ok(Forward::keeping(y_bsd, tensors, |mut tensors, dy_bsd, weights, sink| {
            let made = tensors.split_off(3);
            let [x_bsd, out, lse] = kept(tensors)?;
            let made = self.made(made)?;
            let all = (&x_bsd, made, Attended { out, lse });
            self.backward(all, dy_bsd, (weights, shard), sink)
        }))
    }
}

/// The feed-forward half of a layer: `x + down(silu(gate) * up)` with gate and up projected from the norm of x.
#[derive(Debug)]
pub(crate) struct FeedForwardHalf {
    layer: usize,
    norm: Norm,
    gate: Projection,
    up: Projection,
    down: Projection,
    parameters: Vec<String>,
}

impl FeedForwardHalf {
    pub(crate) fn new(config: &Config, layer: usize) -> FeedForwardHalf {
        let Shape { hidden_size, intermediate_size, mlp_bias, .. } = config.shape;
        let projection = |word, shape, dim| {
            let path = format!("model.layers.{layer}.mlp.{word}");
            Projection::new(config, layer, &path, shape, dim, mlp_bias)
        };
        let path = format!("model.layers.{layer}.post_attention_layernorm");
        let mut half = FeedForwardHalf {
            layer,
            norm: Norm::new(&path, hidden_size, config),
            gate: projection("gate_proj", [intermediate_size, hidden_size], OUTPUTS),
            up: projection("up_proj", [intermediate_size, hidden_size], OUTPUTS),
            down: projection("down_proj", [hidden_size, intermediate_size], INPUTS),
            parameters: Vec::new(),
        };
        half.parameters = names(half.specification());
        half
    }
    /// The parameters of the half.
    pub(crate) fn specification(&self) -> impl Iterator<Item = &Specification> {
        let projections = [&self.gate, &self.up, &self.down];
        std::iter::once(&self.norm.weight)
            .chain(projections.into_iter().flat_map(Projection::parameters))
    }
    /// Names of parameters whose products read the same input.
    pub(crate) fn fused_projections(&self) -> Vec<Vec<String>> {
        fused_projections([&self.gate, &self.up])
    }
    /// The norm of x, of all rows.
    fn normed(&self, x_rd: &Tensor, context: ProjectionContext<'_>) -> Result<Tensor> {
        let own = self.norm.apply(x_rd, context.weights, context.backend())?;
        context.shard.all_rows(context.label("feed-forward's input"), &own)
    }
    /// The norm of x, of all rows, and the gate and up projections of it.
    fn project(
        &self,
        x_rd: &Tensor,
        context: ProjectionContext<'_>,
    ) -> Result<(Tensor, [Tensor; 2])> {
        let normed_rd = self.normed(x_rd, context)?;
        let both = project([&self.gate, &self.up], &normed_rd, context)?;
        Ok((normed_rd, both))
    }
    /// The gradient of x, given that of the output; gate and up are recomputed where they were not kept.
    fn backward(
        &self,
        x_rd: &Tensor,
        gate_and_up: Option<[Tensor; 2]>,
        dy_rd: &Tensor,
        context: ProjectionContext<'_>,
        sink: &mut dyn GradientSink,
    ) -> Result<Tensor> {
        let (weights, backend) = (context.weights, context.backend());
        let (normed_rd, [gate_rf, up_rf]) = match gate_and_up {
            Some(both) => (self.normed(x_rd, context)?, both),
            None => self.project(x_rd, context)?,
        };
        let dy_of_all =
            &context.shard.all_rows(context.label("gradient of feed-forward's output"), dy_rd)?;
        let dact_rf = project_back([&self.down], [dy_of_all], context)?;
        let SwiGluGradients { gate: dgate_rf, up: dup_rf, y: act_rf } =
            swiglu_backward(backend, &gate_rf, &up_rf, &dact_rf)?;
        drop((gate_rf, up_rf, dact_rf));
        emit_gradients([&self.down], &act_rf, [dy_of_all], context, sink)?;
        drop(act_rf);

        let (both, dboth) = ([&self.gate, &self.up], [&dgate_rf, &dup_rf]);
        emit_gradients(both, &normed_rd, dboth, context, sink)?;
        let label = context.label("gradient of feed-forward's input");
        let dnormed_rd = context.shard.own_rows(label, &project_back(both, dboth, context)?)?;
        self.norm.backward(x_rd, weights, backend, &dnormed_rd, Some(dy_rd), sink)
    }
}

impl Stage for FeedForwardHalf {
    fn parameters(&self) -> &[String] {
        &self.parameters
    }
    fn rowwise(&self) -> bool {
        true
    }
    fn forward<'a>(
        &'a self,
        x_rd: &Tensor,
        weights: &Weights,
        shard: &'a Shard,
    ) -> Result<Forward<'a>> {
        self.forward_from(0, x_rd, weights, shard)
    }
    fn forward_from<'a>(
        &'a self,
        first: usize,
        x_rd: &Tensor,
        weights: &Weights,
        shard: &'a Shard,
    ) -> Result<Forward<'a>> {
        let context = ProjectionContext { weights, shard, layer: self.layer, first };
        let (_, [gate_rf, up_rf]) = self.project(x_rd, context)?;
        let act_rf = swiglu(&shard.backend, &gate_rf, &up_rf)?;
        let y_rd = self.down.onto(x_rd, &act_rf, context)?;
        let tensors = match shard.keep {
            Keep::Nothing => return Ok(Forward::without_backward(y_rd)),
            Keep::Attention => vec![x_rd.clone()],
            Keep::Everything => vec![x_rd.clone(), gate_rf, up_rf],
        };
        Ok(Forward::keeping(y_rd, tensors, move |mut tensors, dy_rd, weights, sink| {
            let both = tensors.split_off(1);
            let [x_rd] = kept(tensors)?;
            let both = if both.is_empty() { None } else { Some(kept(both)?) };
            self.backward(
                &x_rd,
                both,
                dy_rd,
                ProjectionContext { weights, shard, layer: self.layer, first },
                sink,
            )
        }))
    }
}
