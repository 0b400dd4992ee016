//! The models that take a step: a small one, and the shape of Llama 3.2 1B.

use annulus_experiment::{Device, Offload, Recompute};
use annulus_sequence::Strategy;
use clap::{Args, ValueEnum};

use crate::arguments::{Dtype, word};
use crate::values::{device, positive};

/// Which model takes a step, in what numbers, and where.
#[derive(Args, Clone, Debug)]
pub(crate) struct Model {
    /// Which model takes the step
    #[arg(long = "model", default_value = "small")]
    pub(crate) size: Size,
    /// Its layers [default: 4 of the small one, 16 of the other]
    #[arg(long, value_parser = positive)]
    pub(crate) layers: Option<usize>,
    /// Type of its weights and activations; masters, moments and gradients are f32
    #[arg(long, default_value = "f32")]
    pub(crate) dtype: Dtype,
    /// The device: `auto`, `cpu`, `cuda`, `cuda:N` or `cuda:0-3`
    #[arg(long, default_value = "cpu", value_parser = device)]
    pub(crate) device: Device,
    /// Bit-equal results on a GPU too, at the price of a second pass of attention's backward
    #[arg(long)]
    pub(crate) deterministic: bool,
    /// The plan chooses the chunks of loss and feed-forward, as in training; else those of the 1b model are 2k and 8k tokens
    #[arg(long)]
    pub(crate) planned_chunks: bool,
}

/// The size of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Size {
    /// 3 million parameters, what anybody would write first
    Small,
    /// The shape of Llama 3.2 1B
    #[value(name = "1b")]
    Billion,
}

/// The sizes of a model.
struct Sizes {
    hidden: usize,
    mlp: usize,
    layers: usize,
    heads: usize,
    key_value_heads: usize,
    head_dim: usize,
    vocabulary: usize,
    epsilon: &'static str,
    theta: usize,
    tied: bool,
    /// Lines under the section `memory`.
    memory: &'static str,
}

const SMALL: Sizes = Sizes {
    hidden: 256,
    mlp: 688,
    layers: 4,
    heads: 8,
    key_value_heads: 4,
    head_dim: 32,
    vocabulary: 258,
    epsilon: "1e-6",
    theta: 10_000,
    tied: false,
    memory: "",
};

/// The config.json of meta-llama/Llama-3.2-1B. Pieces are written out: a GPU's memory is not the machine's, and this number of
/// rows keeps a GPU busy.
const BILLION: Sizes = Sizes {
    hidden: 2048,
    mlp: 8192,
    layers: 16,
    heads: 32,
    key_value_heads: 8,
    head_dim: 64,
    vocabulary: 128_256,
    epsilon: "1e-5",
    theta: 500_000,
    tied: true,
    memory: ", loss_chunk: 2k, mlp_chunk: 8k",
};

impl Model {
    /// The small model on the CPU, f32.
    pub(crate) const SMALL: Model = Model {
        size: Size::Small,
        layers: None,
        dtype: Dtype::F32,
        device: Device::Cpu,
        deterministic: false,
        planned_chunks: false,
    };

    fn sizes(&self) -> Sizes {
        match self.size {
            Size::Small => SMALL,
            Size::Billion => BILLION,
        }
    }

    /// The numbers of query heads, of KV heads, and of elements per head.
    pub(crate) fn heads(&self) -> [usize; 3] {
        let Sizes { heads, key_value_heads, head_dim, .. } = self.sizes();
        [heads, key_value_heads, head_dim]
    }

    pub(crate) fn layers(&self) -> usize {
        self.layers.unwrap_or(self.sizes().layers)
    }

    /// The text of an experiment with this model, on data of a format.
    pub(crate) fn experiment(
        &self,
        tokens: usize,
        ranks: usize,
        strategy: Strategy,
        recompute: Recompute,
        offload: Offload,
        format: &str,
    ) -> String {
        let Sizes { hidden, mlp, epsilon, theta, tied, memory, vocabulary, .. } = self.sizes();
        let [heads, key_value_heads, head_dim] = self.heads();
        let (layers, device, dtype) = (self.layers(), self.device.word(), word(&self.dtype));
        let (recompute, offload, strategy) = (recompute.word(), offload.word(), strategy.name());
        let deterministic = self.deterministic;
        let memory = if self.planned_chunks { "" } else { memory };
        format!(
            "\
name: bench
device: {device}
model:
  dtype: {dtype}
  hidden_size: {hidden}
  intermediate_size: {mlp}
  num_hidden_layers: {layers}
  num_attention_heads: {heads}
  num_key_value_heads: {key_value_heads}
  head_dim: {head_dim}
  vocab_size: {vocabulary}
  rms_norm_eps: {epsilon}
  rope_theta: {theta}
  tie_word_embeddings: {tied}
data: {{ format: {format}, tokens: {tokens}, batch: 1, evaluate: 0 }}
mesh: {{ sequence: {ranks} }}
attention: {{ strategy: {strategy}, deterministic: {deterministic} }}
memory: {{ recompute: {recompute}, offload: {offload}{memory} }}
optimizer: {{ learning_rate: 1e-4, betas: [0.9, 0.999], weight_decay: 0.01, clip: 0 }}
schedule: {{ steps: 1000 }}
"
        )
    }
}

#[cfg(test)]
mod tests {
    use annulus_experiment::{Dtype, Experiment, ModelSource, Shape, parse};
    use anyhow::{Result, anyhow, bail};

    use super::*;

    fn read(model: &Model) -> Result<(Experiment, Shape)> {
        let yaml =
            model.experiment(4096, 2, Strategy::STRIPED, Recompute::Layer, Offload::None, "text");
        let experiment = parse("bench", &yaml, &[]).map_err(|problems| anyhow!("{problems}"))?;
        let ModelSource::Inline(shape) = experiment.model.source.clone() else { bail!("{yaml}") };
        Ok((experiment, *shape))
    }

    #[test]
    fn models_have_the_parameters_that_are_said_of_them() -> Result<()> {
        let (small, shape) = read(&Model::SMALL)?;
        assert_eq!((shape.elements(), small.device), (3_034_368, Device::Cpu));
        let device = Device::Cuda(vec![1]);
        let model = Model {
            size: Size::Billion,
            dtype: super::Dtype::Bf16,
            device: device.clone(),
            ..Model::SMALL
        };
        let (large, shape) = read(&model)?;
        // What the model's page says, and transformers counts.
        assert_eq!(shape.elements(), 1_235_814_400);
        assert_eq!((large.device, large.model.dtype), (device, Dtype::Bf16));
        assert!(!large.attention.deterministic);
        let (_, fewer) = read(&Model { layers: Some(4), ..model })?;
        assert_eq!(fewer.elements(), 1_235_814_400 - 12 * 60_821_504);
        Ok(())
    }
}
