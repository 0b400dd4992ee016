//! A model as a list of stages.

use std::sync::Arc;

use annulus_attention::Attention;
use annulus_ops::{Backend, Rotary};
use annulus_sequence::Positions;
use candle_core::{Result, Tensor};

use crate::tensor::Spot;
use crate::{TensorRanks, Weights};

/// What a forward pass keeps for backward besides the input of every stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// Nothing: there is no backward.
    #[default]
    Nothing,
    /// Attention's output and log-sum-exp; backward makes the rest again.
    Attention,
    /// All that would cost a product of matrices: queries, keys, values, gate and up too.
    Everything,
}

/// What one rank holds of a micro-batch, and what a stage may use. B sequences, S positions on this
/// rank.
#[derive(Clone, Debug)]
pub struct Shard {
    /// u32 [B, S].
    pub inputs: Tensor,
    /// i64 [B, S]; [`annulus_ops::IGNORED`] where there is none. Shifted before sharding.
    pub targets: Tensor,
    /// Attention over the ranks that share the sequence, of every layer.
    pub attention: Attentions,
    /// The ranks that share these positions, each with a part of the heads, of the feed-forward and of the vocabulary. Between layers
    /// each has some of the B S rows: `x` is [rows, D] then.
    pub tensor: TensorRanks,
    /// Cosines and sines at this rank's positions.
    pub rotary: Arc<Rotary>,
    /// This rank's workers.
    pub backend: Backend,
    /// The optimizer step, for errors.
    pub step: u64,
    /// What the forward pass keeps.
    pub keep: Keep,
    /// What adapters leave out of their inputs, where they do so.
    pub dropping: Option<Dropping>,
}

impl Shard {
    /// Of a collective of its step, outside of layers.
    pub(crate) fn spot(&self, name: &'static str) -> Spot {
        Spot { step: self.step, layer: 0, name }
    }

    /// All rows of own ones, [B, S, ..]; where no other rank has any, as they are.
    pub(crate) fn all_rows(&self, spot: Spot, own: &Tensor) -> Result<Tensor> {
        if self.tensor.is_alone() {
            return Ok(own.clone());
        }
        let all = self.tensor.gathered(spot, own)?;
        let (sequences, positions) = self.inputs.dims2()?;
        // A stage that is run on a few rows at a time takes them as they are.
        let is_all = all.dim(0)? == sequences * positions;
        if is_all { all.reshape((sequences, positions, all.dim(1)?)) } else { Ok(all) }
    }

    /// Own rows of a sum of which `all` [.., D] is this rank's part; where there is no other rank, as they are.
    pub(crate) fn own_rows(&self, spot: Spot, all: &Tensor) -> Result<Tensor> {
        if self.tensor.is_alone() {
            return Ok(all.clone());
        }
        self.tensor.scattered(spot, &all.flatten_to(all.rank() - 2)?)
    }
}

/// What draws of what is left out are functions of, besides step, module and place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropping {
    /// The experiment's seed.
    pub seed: u64,
    /// The number of the first sequence among those of the step.
    pub sequence: usize,
}

/// The attention of every layer: layers that see alike and are split alike share one.
#[derive(Clone, Debug)]
pub struct Attentions {
    groups: Vec<Attention>,
    /// By layer, which of them it has.
    layers: Arc<[usize]>,
}

impl Attentions {
    /// One attention for the layers whose numbers stand beside it; every one of `layers` stands beside one.
    ///
    /// # Panics
    /// When there is no attention, or a layer beyond `layers`.
    pub fn new(
        layers: usize,
        groups: impl IntoIterator<Item = (Attention, Vec<usize>)>,
    ) -> Attentions {
        let mut of_layer = vec![0; layers];
        let mut all = Vec::new();
        for (attention, own) in groups {
            for layer in own {
                of_layer[layer] = all.len();
            }
            all.push(attention);
        }
        assert!(!all.is_empty(), "a layer has an attention");
        Attentions { groups: all, layers: of_layer.into() }
    }
    /// The attention of a layer.
    pub fn of(&self, layer: usize) -> &Attention {
        &self.groups[self.layers[layer]]
    }
    /// This rank's positions: the same in all layers.
    pub fn positions(&self) -> &Positions {
        self.groups[0].positions()
    }
    /// Every attention changed, told by its number.
    #[must_use]
    pub fn map(&self, change: impl Fn(usize, &Attention) -> Attention) -> Attentions {
        let groups =
            self.groups.iter().enumerate().map(|(group, one)| change(group, one)).collect();
        Attentions { groups, layers: self.layers.clone() }
    }
}

/// Where backward hands the gradients of parameters: name, and f32 in the parameter's shape.
pub type Harvest<'a> = &'a mut dyn FnMut(&str, Tensor) -> Result<()>;

/// What a stage came to.
pub struct Forward<'a> {
    /// Its output.
    pub output: Tensor,
    /// What backward needs of it, its input first where it reads that: whoever holds it may put it elsewhere meanwhile. Nothing where
    /// there is no backward.
    pub kept: Vec<Tensor>,
    /// Its backward pass.
    pub back: Pullback<'a>,
}

/// The backward pass of a stage: takes what forward kept and the gradient of its output, gives that of its input, and
/// hands over those of its parameters. It is handed the weights of its stage anew: it holds no tensor between the passes.
pub type Pullback<'a> =
    Box<dyn FnOnce(Vec<Tensor>, &Tensor, &Weights, Harvest<'_>) -> Result<Tensor> + 'a>;

impl<'a> Forward<'a> {
    /// With what backward needs.
    pub(crate) fn keeping(
        output: Tensor,
        kept: Vec<Tensor>,
        back: impl FnOnce(Vec<Tensor>, &Tensor, &Weights, Harvest<'_>) -> Result<Tensor> + 'a,
    ) -> Forward<'a> {
        Forward { output, kept, back: Box::new(back) }
    }
    /// Where nothing was kept.
    pub(crate) fn no_way_back(output: Tensor) -> Forward<'a> {
        Forward::keeping(output, Vec::new(), |_, _, _, _| {
            candle_core::bail!("internal: backward, but nothing was kept for it")
        })
    }
}

/// What was kept, as so many tensors.
pub(crate) fn kept<const N: usize>(tensors: Vec<Tensor>) -> Result<[Tensor; N]> {
    let found = tensors.len();
    tensors.try_into().map_err(|_| {
        candle_core::Error::Msg(format!("internal: {found} tensors were kept, wanted {N}"))
    })
}

/// A part of the model that is run forward and backward as one.
///
/// Backward is written out instead of recorded: Candle's tape keeps every intermediate until the
/// end, and makes zeros and adds for every gradient.
pub trait Stage: Send + Sync + std::fmt::Debug {
    /// The names of its parameters, as in a Hugging Face file.
    fn parameters(&self) -> &[String];
    /// Whether every row of the input is computed by itself, so that the stage may be run on a few
    /// rows at a time: `x` is then [.., D] of any rows.
    fn rowwise(&self) -> bool {
        false
    }
    /// Whether its pullback reads weights.
    fn reads_weights_back(&self) -> bool {
        true
    }
    /// `x` [B, S, D] to [B, S, D], and what its backward needs. The first stage ignores `x` and reads
    /// `shard.inputs`; the last returns the scalar f64 sum of losses over `shard.targets`, which is on
    /// the host where there is a pullback.
    ///
    /// # Errors
    /// A missing weight, and what operators and ranks say.
    fn forward<'a>(
        &'a self,
        x: &Tensor,
        weights: &Weights,
        shard: &'a Shard,
    ) -> Result<Forward<'a>>;
    /// The same of some rows, the first of which is number `first` of all, where the stage is [`Stage::rowwise`].
    ///
    /// # Errors
    /// As [`Stage::forward`].
    fn forward_from<'a>(
        &'a self,
        first: usize,
        x: &Tensor,
        weights: &Weights,
        shard: &'a Shard,
    ) -> Result<Forward<'a>> {
        if first > 0 {
            candle_core::bail!("internal: this stage is not run on some rows at a time");
        }
        self.forward(x, weights, shard)
    }
}
