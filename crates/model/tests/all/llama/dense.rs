//! A second implementation of the model in f64, with every matrix written out: slow, obvious, and made only of Candle's operators.

use annulus_architecture::{Family, Rope, Shape};
use annulus_model::{Keep, Llama, Shard, Weights};
use annulus_ops::IGNORED;
use annulus_ops::testing::{error, error_l2};
use candle_core::{D, DType, Device, Result, Tensor};

use super::support::{
    gradients, kernels, logits, normed, shaped, sliding, taped, tiny, tokens, uneven, variables,
};

struct Dense<'a> {
    shape: &'a Shape,
    weights: &'a Weights,
    /// By layer, how many keys a query sees; none: all before it.
    windows: [Option<usize>; 2],
}

impl Dense<'_> {
    fn linear(&self, path: &str, x: &Tensor) -> Result<Tensor> {
        let y = x.broadcast_matmul(&self.weights[&format!("{path}.weight")].t()?)?;
        match self.weights.get(&format!("{path}.bias")) {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }
    fn norm(&self, path: &str, x: &Tensor) -> Result<Tensor> {
        let mean = (x.sqr()?.mean_keepdim(D::Minus1)? + self.shape.rms_norm_eps)?;
        x.broadcast_div(&mean.sqrt()?)?.broadcast_mul(&self.weights[&format!("{path}.weight")])
    }
    fn heads(&self, path: &str, x: &Tensor, heads: usize) -> Result<Tensor> {
        let (b, s, _) = x.dims3()?;
        let y = self.linear(&format!("{path}_proj"), x)?;
        let mut y = y.reshape((b, s, heads, self.shape.head_dim))?;
        if self.shape.has_query_key_norm() && !path.ends_with('v') {
            y = self.norm(&format!("{path}_norm"), &y)?;
        }
        y.transpose(1, 2)?.contiguous()
    }
    /// Rotates element `i` with element `i + D / 2`.
    fn rope(x: &Tensor) -> Result<Tensor> {
        let (_, _, s, dim) = x.dims4()?;
        let half = dim / 2;
        let angle = |index: usize| {
            let exponent = -2.0 * (index % half) as f64 / dim as f64;
            (index / half) as f64 * Rope::THETA.powf(exponent)
        };
        let table = |function: fn(f64) -> f64| {
            let values: Vec<f64> = (0..s * half).map(|index| function(angle(index))).collect();
            Tensor::from_vec(values, (s, half), &Device::Cpu)
        };
        let (cos, sin) = (table(f64::cos)?, table(f64::sin)?);
        let (a, b) = (x.narrow(3, 0, half)?, x.narrow(3, half, half)?);
        let first = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
        let second = (b.broadcast_mul(&cos)? + a.broadcast_mul(&sin)?)?;
        Tensor::cat(&[first, second], 3)
    }
    fn repeat(&self, x: &Tensor) -> Result<Tensor> {
        let (b, heads, s, dim) = x.dims4()?;
        let group = self.shape.num_attention_heads / heads;
        let wide = x.unsqueeze(2)?.broadcast_as((b, heads, group, s, dim))?.contiguous()?;
        wide.reshape((b, heads * group, s, dim))
    }
    fn attention(&self, index: usize, x: &Tensor) -> Result<Tensor> {
        let (b, s, _) = x.dims3()?;
        let (layer, window) = (format!("model.layers.{index}"), self.windows[index]);
        let rotates = !self.shape.nope_layers.contains(&index);
        let rope = |x: Tensor| if rotates { Self::rope(&x) } else { Ok(x) };
        let Shape { num_attention_heads: queries, num_key_value_heads: keys, .. } = *self.shape;
        let path = |word: &str| format!("{layer}.self_attn.{word}");
        let q = rope(self.heads(&path("q"), x, queries)?)?;
        let k = self.repeat(&rope(self.heads(&path("k"), x, keys)?)?)?;
        let v = self.repeat(&self.heads(&path("v"), x, keys)?)?;
        let seen = |query, key| key <= query && query - key < window.unwrap_or(s);
        let hidden = |i| if seen(i / s, i % s) { 0.0 } else { f64::NEG_INFINITY };
        let hidden: Vec<f64> = (0..s * s).map(hidden).collect();
        let hidden = Tensor::from_vec(hidden, (s, s), &Device::Cpu)?;
        let scores = (q.matmul(&k.t()?.contiguous()?)? / (self.shape.head_dim as f64).sqrt())?;
        let weights = softmax(&scores.broadcast_add(&hidden)?)?;
        let out = weights.matmul(&v)?.transpose(1, 2)?.contiguous()?.reshape((b, s, ()))?;
        self.linear(&path("o_proj"), &out)
    }
    fn feed_forward(&self, layer: &str, x: &Tensor) -> Result<Tensor> {
        let gate = self.linear(&format!("{layer}.mlp.gate_proj"), x)?;
        let up = self.linear(&format!("{layer}.mlp.up_proj"), x)?;
        let silu = (&gate / (gate.neg()?.exp()? + 1.0)?)?;
        self.linear(&format!("{layer}.mlp.down_proj"), &(silu * up)?)
    }
    fn logits(&self, inputs: &Tensor) -> Result<Tensor> {
        let (b, s) = inputs.dims2()?;
        let table = &self.weights["model.embed_tokens.weight"];
        let mut x = table.index_select(&inputs.flatten_all()?, 0)?.reshape((b, s, ()))?;
        for index in 0..self.windows.len() {
            let layer = format!("model.layers.{index}");
            let normed = self.norm(&format!("{layer}.input_layernorm"), &x)?;
            x = (&x + self.attention(index, &normed)?)?;
            let normed = self.norm(&format!("{layer}.post_attention_layernorm"), &x)?;
            x = (&x + self.feed_forward(&layer, &normed)?)?;
        }
        let head = if self.shape.tie_word_embeddings { "model.embed_tokens" } else { "lm_head" };
        self.linear(head, &self.norm("model.norm", &x)?)
    }
}

fn softmax(x: &Tensor) -> Result<Tensor> {
    let raised = x.broadcast_sub(&x.max_keepdim(D::Minus1)?.detach())?.exp()?;
    raised.broadcast_div(&raised.sum_keepdim(D::Minus1)?)
}

/// The sum of `-log softmax(logits)[target]` over the targets that count.
fn cross_entropy(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let counts = targets.ne(IGNORED)?.to_dtype(DType::F64)?;
    let index = targets.maximum(0i64)?.unsqueeze(D::Minus1)?;
    let picked = softmax(logits)?.log()?.gather(&index, D::Minus1)?.squeeze(D::Minus1)?;
    (picked * counts)?.sum_all()?.neg()
}

#[test]
fn loss_logits_and_every_gradient_are_those_of_the_dense_model() {
    let biased = |shape: &mut Shape| (shape.attention_bias, shape.mlp_bias) = (true, true);
    let tied =
        |shape: &mut Shape| (shape.tie_word_embeddings, shape.num_key_value_heads) = (true, 1);
    let qwen2 = |shape: &mut Shape| shape.model_type = Family::Qwen2;
    let nope = |layer: usize| shaped(tiny(), move |shape| shape.nope_layers = vec![layer]);
    let all = [None; 2];
    let cases = [
        (tiny(), all),
        (shaped(tiny(), biased), all),
        (shaped(tiny(), tied), all),
        (shaped(tiny(), normed), [Some(4), None]),
        (shaped(tiny(), qwen2), [Some(3), None]),
        (tiny(), [Some(5), Some(2)]),
        (nope(0), all),
        (nope(1), [None, Some(4)]),
    ];
    for (config, windows) in cases {
        let weights = uneven(&config);
        let tokens = tokens(&config, 2, 13);
        let wide = weights.iter().map(|(name, w)| (name.clone(), w.to_dtype(DType::F64).unwrap()));
        let wide = variables(&wide.collect());
        let dense_logits =
            Dense { shape: &config.shape, weights: &wide, windows }.logits(&tokens.0).unwrap();
        let dense_loss = cross_entropy(&dense_logits, &tokens.1).unwrap();
        let dense_gradients = taped(&dense_loss, &wide);

        let model = Llama::new(&config, 5);
        for kernel in kernels() {
            let shard = sliding(&config, tokens.clone(), kernel, &windows);
            let logits = logits(&model, &weights, &shard);
            assert!(error(&logits, &dense_logits).unwrap() < 5e-6);
            for keep in [Keep::Attention, Keep::Everything] {
                let shard = Shard { keep, ..shard.clone() };
                let (loss, found) = gradients(&model, &weights, &shard);
                assert_eq!((loss.dtype(), loss.dims()), (DType::F64, &[][..]));
                assert!(error(&loss, &dense_loss).unwrap() < 1e-6);
                assert_eq!(found.len(), dense_gradients.len());
                for (name, gradient) in found {
                    let error = error_l2(&gradient, &dense_gradients[&name]).unwrap();
                    assert!(error < 2e-5, "{name}: {error:e}");
                }
            }
        }
    }
}
