//! A model as a list of stages.

use std::fmt;
use std::sync::Arc;

use annulus_architecture::{Frequencies, Shape};
use annulus_attention::Attention;
use annulus_ops::{Backend, Rotary};
use annulus_sequence::Positions;
use candle_core::{Result, Tensor, bail};

use crate::tensor::CollectiveLabel;
use crate::{TensorRanks, Weights};

/// What a forward pass keeps for backward beside the input of every stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// Nothing is kept: there is no backward.
    #[default]
    Nothing,
    /// Attention's output and log-sum-exp are kept; backward recomputes the rest.
    Attention,
    /// All results of matrix products are kept: queries, keys, values, gate and up too.
    Everything,
}

/// One rank's part of a micro-batch, and what a stage needs to run. B sequences, S positions on this rank.
#[derive(Clone, Debug)]
pub struct Shard {
    /// Token ids, u32 [B, S].
    pub inputs: Tensor,
    /// Targets, i64 [B, S], shifted before sharding; [`annulus_ops::IGNORED`] where there is none.
    pub targets: Tensor,
    /// The attention of every layer, over the ranks that share the sequence.
    pub attention: Attentions,
    /// The tensor-parallel ranks of these positions, each with a part of heads, feed-forward and vocabulary. Between layers each has some
    /// of the B S rows: `x` is then [rows, D].
    pub tensor: TensorRanks,
    /// The rotary embedding of every layer, at this rank's positions.
    pub rotary: Rotaries,
    /// The workers or GPU of this rank.
    pub backend: Backend,
    /// The number of the optimizer step, for errors.
    pub step: u64,
    /// What the forward pass keeps.
    pub keep: Keep,
    /// The dropout of adapters' inputs, if any.
    pub dropout: Option<DropoutKey>,
}

impl Shard {
    /// The label of a collective of this step, outside of layers.
    pub(crate) fn label(&self, name: &'static str) -> CollectiveLabel {
        CollectiveLabel { step: self.step, layer: 0, name }
    }

    /// All rows [B, S, ..], gathered from each rank's own; a rank alone has them all.
    pub(crate) fn all_rows(&self, label: CollectiveLabel, own: &Tensor) -> Result<Tensor> {
        if self.tensor.is_alone() {
            return Ok(own.clone());
        }
        let all = self.tensor.gathered(label, own)?;
        let (sequences, positions) = self.inputs.dims2()?;
        // A rowwise stage on a few rows takes them as they are.
        let is_all = all.dim(0)? == sequences * positions;
        if is_all { all.reshape((sequences, positions, all.dim(1)?)) } else { Ok(all) }
    }

    /// This rank's own rows of the sum of all ranks' `all` [.., D]; a rank alone has the sum.
    pub(crate) fn own_rows(&self, label: CollectiveLabel, all: &Tensor) -> Result<Tensor> {
        if self.tensor.is_alone() {
            return Ok(all.clone());
        }
        self.tensor.scattered(label, &all.flatten_to(all.rank() - 2)?)
    }
}

/// The rotary embedding of every layer, at the positions of one rank.
#[derive(Clone, Debug)]
pub struct Rotaries {
    rotary: Arc<Rotary>,
    /// That of layers without.
    identity: Arc<Rotary>,
    nope_layers: Arc<[usize]>,
}

impl Rotaries {
    /// Those of the layers of `shape`, with these `frequencies` where it has a rotary embedding.
    pub fn new(shape: &Shape, frequencies: &Frequencies, positions: &Positions) -> Rotaries {
        let Frequencies { inverse, factor } = frequencies;
        Rotaries {
            rotary: Arc::new(Rotary::new(positions, inverse, *factor)),
            identity: Arc::new(Rotary::identity(positions, shape.head_dim)),
            nope_layers: shape.nope_layers.as_slice().into(),
        }
    }

    /// That of layer `layer`.
    pub fn of(&self, layer: usize) -> &Arc<Rotary> {
        if self.nope_layers.contains(&layer) { &self.identity } else { &self.rotary }
    }
}

/// What the random numbers of dropout depend on, besides step, module and position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropoutKey {
    /// The experiment's seed.
    pub seed: u64,
    /// The number of the micro-batch's first sequence in its step.
    pub sequence: usize,
}

/// The attention of every layer; layers of one group share an attention.
#[derive(Clone, Debug)]
pub struct Attentions {
    groups: Vec<Attention>,
    /// The index of each layer's attention.
    layers: Arc<[usize]>,
}

impl Attentions {
    /// Attentions with the layers that each is for; every one of `layers` is in exactly one list.
    ///
    /// # Errors
    /// When there is no attention, a layer beyond `layers`, and a layer that is in no list or in several.
    pub fn new(
        layers: usize,
        groups: impl IntoIterator<Item = (Attention, Vec<usize>)>,
    ) -> Result<Attentions> {
        let mut of_layer = vec![None; layers];
        let mut all = Vec::new();
        for (attention, own) in groups {
            for layer in own {
                let Some(place) = of_layer.get_mut(layer) else {
                    bail!(
                        "attentions: found one for layer {layer}, expected layers below {layers}"
                    );
                };
                if place.replace(all.len()).is_some() {
                    bail!(
                        "attentions: layer {layer} is listed twice, expected one attention for it"
                    );
                }
            }
            all.push(attention);
        }
        if all.is_empty() {
            bail!("attentions: found none, expected one for each of {layers} layers");
        }
        let of = |(layer, place): (usize, Option<usize>)| match place {
            Some(place) => Ok(place),
            None => {
                bail!("attentions: none is for layer {layer}, expected one for each of {layers}")
            }
        };
        let layers = of_layer.into_iter().enumerate().map(of).collect::<Result<_>>()?;
        Ok(Attentions { groups: all, layers })
    }
    /// The attention of a layer.
    pub fn of(&self, layer: usize) -> &Attention {
        &self.groups[self.layers[layer]]
    }
    /// The positions of this rank: the same in all layers.
    pub fn positions(&self) -> &Positions {
        self.groups[0].positions()
    }
    /// The attentions changed by `change`, which gets the number of each.
    ///
    /// # Errors
    /// The first error of `change`.
    pub fn map(
        &self,
        change: impl Fn(usize, &Attention) -> Result<Attention>,
    ) -> Result<Attentions> {
        let groups = self.groups.iter().enumerate().map(|(group, one)| change(group, one));
        Ok(Attentions { groups: groups.collect::<Result<_>>()?, layers: self.layers.clone() })
    }
}

/// Where backward puts the gradients of parameters.
pub trait GradientSink {
    /// The sum of the gradients so far of the parameter `name`, to which a product may add in place; `None`: there is none yet.
    fn sum(&self, name: &str) -> Option<Tensor>;
    /// Adds a gradient of the parameter `name`, f32 in its shape, or a table of order-free sums.
    ///
    /// # Errors
    /// What the sum's owner says.
    fn add(&mut self, name: &str, gradient: Tensor) -> Result<()>;
}

/// The result of a stage's forward.
pub struct Forward<'a> {
    /// The output of the stage.
    pub output: Tensor,
    /// The tensors that backward needs, the input first where it reads that: whoever holds them may offload them meanwhile. Empty where
    /// there is no backward.
    pub kept: Vec<Tensor>,
    /// The stage's backward pass.
    pub back: Pullback<'a>,
}

/// The backward pass of a stage: takes what forward kept, the gradient of the output, and the stage's weights again; returns the gradient
/// of the input, and hands those of parameters to the sink. Holds no tensor between the passes.
pub type Pullback<'a> =
    Box<dyn FnOnce(Vec<Tensor>, &Tensor, &Weights, &mut dyn GradientSink) -> Result<Tensor> + 'a>;

impl fmt::Debug for Forward<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Forward { output, kept, .. } = self;
        f.debug_struct("Forward")
            .field("output", output)
            .field("kept", kept)
            .finish_non_exhaustive()
    }
}

impl<'a> Forward<'a> {
    /// A result with what backward needs.
    pub(crate) fn keeping(
        output: Tensor,
        kept: Vec<Tensor>,
        back: impl FnOnce(Vec<Tensor>, &Tensor, &Weights, &mut dyn GradientSink) -> Result<Tensor> + 'a,
    ) -> Forward<'a> {
        Forward { output, kept, back: Box::new(back) }
    }
    /// A result without a backward pass.
    pub(crate) fn without_backward(output: Tensor) -> Forward<'a> {
        Forward::keeping(output, Vec::new(), |_, _, _, _| {
            candle_core::bail!("internal: backward, but nothing was kept for it")
        })
    }
}

/// The kept tensors, of which there must be N.
pub(crate) fn kept<const N: usize>(tensors: Vec<Tensor>) -> Result<[Tensor; N]> {
    let found = tensors.len();
    tensors.try_into().map_err(|_| {
        candle_core::Error::Msg(format!("internal: {found} tensors were kept, expected {N}"))
    })
}

/// A part of the model that is run forward and backward as one.
///
/// Backward is written out instead of recorded: Candle's tape keeps every intermediate until the
/// end, and makes zeros and adds for every gradient.
pub trait Stage: Send + Sync + fmt::Debug {
    /// The names of the stage's parameters, as in a Hugging Face file.
    fn parameters(&self) -> &[String];
    /// Whether rows of the input are computed independently, so that the stage may run on a few rows at a time: `x` is then [.., D] of any
    /// rows.
    fn rowwise(&self) -> bool {
        false
    }
    /// Whether the stage's backward reads weights.
    fn reads_weights_back(&self) -> bool {
        true
    }
    /// Maps `x` [B, S, D] to [B, S, D], and returns what its backward needs. The first stage ignores `x` and reads `shard.inputs`; the last
    /// returns the scalar f64 sum of losses over `shard.targets`, which is on the host where there is a backward.
    ///
    /// # Errors
    /// A missing weight, and what operators and ranks say.
    fn forward<'a>(
        &'a self,
        x: &Tensor,
        weights: &Weights,
        shard: &'a Shard,
    ) -> Result<Forward<'a>>;
    /// Forward of some rows, the first of which is row number `first` of all, where the stage is [`Stage::rowwise`].
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
