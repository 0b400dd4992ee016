//! The two stages that know the vocabulary: tokens in, loss out.
//!
//! Axes: b sequences, s positions of this rank, d hidden size, v vocabulary.

use std::iter::zip;

use annulus_architecture::FullyTrained;
use annulus_ops::{
    IGNORED, Prediction, embedding, embedding_backward, linear_cross_entropy_gradients,
    linear_cross_entropy_input_gradient, linear_cross_entropy_loss, predictions, wide_linear,
};
use candle_core::{D, DType, Device, Result, Tensor};

use crate::lora::scaled;
use crate::parameters::{Norm, Projection, names};
use crate::sharded_vocabulary::{LossGradients, ShardLoss, embed, embed_backward, shard_loss};
use crate::stage::{Forward, kept};
use crate::{Config, Keep, Shard, Specification, Stage, Weights};

/// The first stage: tokens to rows of the embedding.
#[derive(Debug)]
pub(crate) struct Embed {
    table: Specification,
    parameters: Vec<String>,
}

impl Embed {
    pub(crate) fn new(config: &Config) -> Embed {
        let table = embedding_table(config);
        Embed { parameters: names([&table]), table }
    }
    /// The parameter of the stage.
    pub(crate) fn specification(&self) -> &Specification {
        &self.table
    }
}

impl Stage for Embed {
    fn parameters(&self) -> &[String] {
        &self.parameters
    }
    fn reads_weights_back(&self) -> bool {
        false
    }
    /// Keeps nothing: the gradient needs only the tokens.
    fn forward<'a>(
        &'a self,
        _: &Tensor,
        weights: &Weights,
        shard: &'a Shard,
    ) -> Result<Forward<'a>> {
        let table_vd = self.table.of(weights)?;
        let (rows, classes) = (table_vd.dim(0)?, self.table.shape[0]);
        let is_whole = shard.tensor.is_alone();
        let y_bsd = if is_whole {
            embedding(&shard.backend, &shard.inputs, table_vd)?
        } else {
            embed(table_vd, classes, shard)?
        };
        Ok(Forward::keeping(y_bsd, Vec::new(), move |_, dy_bsd, _, sink| {
            if self.table.trained {
                let dtable_vd = if is_whole {
                    embedding_backward(&shard.backend, &shard.inputs, rows, dy_bsd)?
                } else {
                    embed_backward(rows, classes, dy_bsd, shard)?
                };
                sink.add(&self.table.name, dtable_vd)?;
            }
            // The stage reads tokens, not its input.
            Tensor::zeros((), DType::F32, &Device::Cpu)
        }))
    }
}

/// The last stage: the last norm, the projection to the vocabulary (tied: the embedding) and the cross entropy, the last two as one
/// operator.
#[derive(Clone, Debug)]
pub(crate) struct Loss {
    chunk: usize,
    norm: Norm,
    head: Projection,
    parameters: Vec<String>,
}

impl Loss {
    /// The stage, which holds logits of `chunk` tokens at once.
    pub(crate) fn new(config: &Config, chunk: usize) -> Loss {
        let norm = Norm::new("model.norm", config.shape.hidden_size, config);
        let head = Projection::bare(if config.shape.tie_word_embeddings {
            embedding_table(config)
        } else {
            table(config, "lm_head", FullyTrained::Head)
        });
        let parameters = names(std::iter::once(&norm.weight).chain(head.parameters()));
        Loss { chunk, norm, head, parameters }
    }
    /// The parameters of the stage; where tied, the embedding again.
    pub(crate) fn specification(&self) -> impl Iterator<Item = &Specification> {
        std::iter::once(&self.norm.weight).chain(self.head.parameters())
    }
    /// Logits f32 [B, S, V] of `x` [B, S, D], all at once; with tensor parallelism, of all rows, from each rank's own.
    pub(crate) fn logits(
        &self,
        x_bsd: &Tensor,
        weights: &Weights,
        shard: &Shard,
    ) -> Result<Tensor> {
        self.logits_of_normed(&self.normed(x_bsd, weights, shard)?, weights, shard)
    }

    /// The norm of `x` [B, S, D]; with tensor parallelism, of all rows, from each rank's own.
    fn normed(&self, x_bsd: &Tensor, weights: &Weights, shard: &Shard) -> Result<Tensor> {
        let own_bsd = self.norm.apply(x_bsd, weights, &shard.backend)?;
        shard.all_rows(shard.label("the head's input"), &own_bsd)
    }

    /// Logits f32 [.., V] of rows [.., D], equal on all tensor-parallel ranks.
    fn logits_of_normed(
        &self,
        normed_bsd: &Tensor,
        weights: &Weights,
        shard: &Shard,
    ) -> Result<Tensor> {
        // As in training's loss: not rounded to what the model computes in.
        let part_bsv = wide_linear(&shard.backend, normed_bsd, self.head.weight.of(weights)?)?;
        let parts = shard.tensor.all_gather(shard.label("logits"), &part_bsv)?;
        Tensor::cat(&parts, D::Minus1)
    }
}

/// The model's loss and prediction at one target.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Judged {
    /// The number of the row in the shard, sequence by sequence.
    pub row: usize,
    /// The loss `-log softmax(logits)[target]`, natural log.
    pub loss: f64,
    /// The id of the largest logit, the smallest id among equals.
    pub predicted: u32,
}

impl Loss {
    /// The loss and prediction at every target of `x` [B, S, D], with tensor parallelism of all ranks' rows: `chunk` rows of logits at a
    /// time.
    pub(crate) fn judge(
        &self,
        x_bsd: &Tensor,
        weights: &Weights,
        shard: &Shard,
    ) -> Result<Vec<Judged>> {
        let targets: Vec<i64> = shard.targets.flatten_all()?.to_vec1()?;
        let asked = targets.iter().enumerate().filter(|(_, target)| **target != IGNORED);
        let asked: Vec<u32> = asked.map(|(row, _)| row as u32).collect();
        let normed_bsd = self.normed(x_bsd, weights, shard)?;
        let normed_rd = normed_bsd.flatten_to(normed_bsd.rank() - 2)?;
        let mut all = Vec::with_capacity(asked.len());
        for rows in asked.chunks(self.chunk) {
            let index = Tensor::new(rows, normed_rd.device())?;
            let some_rd = normed_rd.index_select(&index, 0)?.unsqueeze(0)?;
            let logits_rv = self.logits_of_normed(&some_rd, weights, shard)?.squeeze(0)?;
            let of_rows: Vec<i64> = rows.iter().map(|row| targets[*row as usize]).collect();
            let found = predictions(&shard.backend, &logits_rv, &of_rows)?;
            let judged = |(row, Prediction { loss, class })| Judged { row, loss, predicted: class };
            all.extend(zip(rows.iter().map(|row| *row as usize), found).map(judged));
        }
        Ok(all)
    }
}

/// A sum of losses, and the gradients of the norm's output and, where it is trained, of the head; `None` where nothing is kept.
type LossAndGradients = (f64, Option<(Tensor, Option<Tensor>)>);

impl Loss {
    /// The loss with the whole vocabulary on this rank.
    fn loss_and_gradients(
        &self,
        x_bsd: &Tensor,
        head_vd: &Tensor,
        shard: &Shard,
    ) -> Result<LossAndGradients> {
        let (Shard { backend, targets, .. }, chunk) = (shard, self.chunk);
        if shard.keep == Keep::Nothing {
            let loss = linear_cross_entropy_loss(backend, x_bsd, head_vd, targets, chunk)?;
            return Ok((loss, None));
        }
        if self.head.weight.trained {
            let found = linear_cross_entropy_gradients(backend, x_bsd, head_vd, targets, chunk)?;
            return Ok((found.loss, Some((found.x, Some(found.weight)))));
        }
        let (loss, dx_bsd) =
            linear_cross_entropy_input_gradient(backend, x_bsd, head_vd, targets, chunk)?;
        Ok((loss, Some((dx_bsd, None))))
    }
    /// The loss of own rows, given their norm, where each rank has a part of the vocabulary.
    fn sharded_loss_and_gradients(
        &self,
        x_rd: &Tensor,
        head_vd: &Tensor,
        shard: &Shard,
    ) -> Result<LossAndGradients> {
        let wanted = match (shard.keep, self.head.weight.trained) {
            (Keep::Nothing, _) => LossGradients::Nothing,
            (_, false) => LossGradients::Input,
            (_, true) => LossGradients::Both,
        };
        let x_rd = shard.tensor.gathered(shard.label("the loss's input"), x_rd)?;
        let classes = self.head.weight.shape[0];
        let ShardLoss { loss, dx_rd, dhead_vd } =
            shard_loss(&x_rd, head_vd, classes, self.chunk, wanted, shard)?;
        let Some(dx_rd) = dx_rd else { return Ok((loss, None)) };
        let dx_rd = shard.own_rows(shard.label("gradient of the loss's input"), &dx_rd)?;
        Ok((loss, Some((dx_rd, dhead_vd))))
    }
}

impl Stage for Loss {
    fn parameters(&self) -> &[String] {
        &self.parameters
    }
    /// Computes gradients together with the loss, chunk by chunk, and keeps them for backward.
    fn forward<'a>(
        &'a self,
        x_bsd: &Tensor,
        weights: &Weights,
        shard: &'a Shard,
    ) -> Result<Forward<'a>> {
        let backend = &shard.backend;
        let normed_bsd = self.norm.apply(x_bsd, weights, backend)?;
        let head_vd = self.head.weight.of(weights)?;
        let (loss, gradients) = if shard.tensor.is_alone() {
            self.loss_and_gradients(&normed_bsd, head_vd, shard)?
        } else {
            self.sharded_loss_and_gradients(&normed_bsd, head_vd, shard)?
        };
        // The loss is put on the host, which has waited for it: nothing else reads it.
        let loss = Tensor::new(loss, &Device::Cpu)?;
        let Some((dx_bsd, dhead_vd)) = gradients else {
            return Ok(Forward::without_backward(loss));
        };
        let tensors = [x_bsd.clone(), dx_bsd].into_iter().chain(dhead_vd).collect();
        Ok(Forward::keeping(loss, tensors, move |mut tensors, dloss, weights, sink| {
            let dhead_vd = tensors.split_off(2).pop();
            let [x_bsd, dx_bsd] = kept(tensors)?;
            let by: f64 = dloss.to_scalar()?;
            let times =
                |gradient: Tensor| if by == 1.0 { Ok(gradient) } else { scaled(&gradient, by) };
            if let Some(dhead_vd) = dhead_vd {
                sink.add(&self.head.weight.name, times(dhead_vd)?)?;
            }
            let dnormed_bsd = times(dx_bsd)?;
            self.norm.backward(&x_bsd, weights, backend, &dnormed_bsd, None, sink)
        }))
    }
}

fn embedding_table(config: &Config) -> Specification {
    table(config, "model.embed_tokens", FullyTrained::Embeddings)
}

fn table(config: &Config, path: &str, part: FullyTrained) -> Specification {
    let shape = [config.vocab_size, config.shape.hidden_size];
    Specification::new(format!("{path}.weight"), &shape).trained(config.trains(part)).sharded(0)
}
