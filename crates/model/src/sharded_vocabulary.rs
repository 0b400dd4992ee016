//! Tokens in and loss out where tensor-parallel ranks have parts of the vocabulary.
//!
//! Of a token's logits each rank has those of its classes. What it tells the others of them is three numbers: their maximum m, the sum s
//! of exp(logit − m), and the target's logit if it is among them. With M the maximum of all m:
//!
//! ```text
//! loss = ln Σ s exp(m − M) + M − target's logit        d logit = exp(logit − m) · exp(m − M) / Σ s exp(m − M), less 1 at the target
//! ```

use std::ops::Range;

use annulus_ops::{
    Affine, Backend, IGNORED, SOFTMAX_STATISTICS, embedding, embedding_backward, input_gradient,
    parameter_gradients, partial_softmax, partial_softmax_gradient, wide_linear,
};
use candle_core::{DType, Result, Tensor};

use crate::Shard;

/// Own rows [R, D] of the embedding; `table_vd` is this rank's part of its table.
pub(crate) fn embed(table_vd: &Tensor, classes: usize, shard: &Shard) -> Result<Tensor> {
    let (ids, is_own) = own_tokens(classes, table_vd.dtype(), shard)?;
    let part_bsd = embedding(&shard.backend, &ids, table_vd)?.broadcast_mul(&is_own)?;
    shard.own_rows(shard.label("embedding"), &part_bsd)
}

/// The gradient of this rank's part of the table, given that of own rows.
pub(crate) fn embed_backward(
    rows: usize,
    classes: usize,
    dy_rd: &Tensor,
    shard: &Shard,
) -> Result<Tensor> {
    let dy_bsd = shard.all_rows(shard.label("gradient of the embedding"), dy_rd)?;
    let (ids, is_own) = own_tokens(classes, dy_bsd.dtype(), shard)?;
    embedding_backward(&shard.backend, &ids, rows, &dy_bsd.broadcast_mul(&is_own)?)
}

/// The row of each token in this rank's part of a table of `classes` classes, [B, S], and 1 where it has one, else 0: [B, S, 1].
fn own_tokens(classes: usize, dtype: DType, shard: &Shard) -> Result<(Tensor, Tensor)> {
    let own = shard.tensor.own(classes);
    let all: Vec<u32> = shard.inputs.flatten_all()?.to_vec1()?;
    let of = |id: &u32| own.contains(&(*id as usize)).then(|| id - own.start as u32);
    let rows: Vec<u32> = all.iter().map(|id| of(id).unwrap_or_default()).collect();
    let is_own: Vec<f32> = all.iter().map(|id| of(id).map_or(0.0, |_| 1.0)).collect();
    let (shape, device) = (shard.inputs.dims2()?, shard.inputs.device());
    let is_own = Tensor::from_vec(is_own, (shape.0, shape.1, 1), device)?.to_dtype(dtype)?;
    Ok((Tensor::from_vec(rows, shape, device)?, is_own))
}

/// The loss of a shard and its gradients.
pub(crate) struct ShardLoss {
    /// The sum of losses over own rows.
    pub(crate) loss: f64,
    /// The gradient of the input in all rows, a part of a sum over ranks [R, D]; `None` where no gradients are wanted.
    pub(crate) dx_rd: Option<Tensor>,
    /// The gradient of this rank's part of the head, f32, where it is trained.
    pub(crate) dhead_vd: Option<Tensor>,
}

/// Which gradients of a loss are computed: none, that of its input, or also that of the head.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LossGradients {
    Nothing,
    Input,
    Both,
}

/// The loss of `x` [R, D], all rows, with this rank's part of the head for `classes` classes; `chunk` rows of logits at a time.
pub(crate) fn shard_loss(
    x_rd: &Tensor,
    head_vd: &Tensor,
    classes: usize,
    chunk: usize,
    wanted: LossGradients,
    shard: &Shard,
) -> Result<ShardLoss> {
    let targets: Vec<i64> = shard.targets.flatten_all()?.to_vec1()?;
    let asked = (0..targets.len() as u32).filter(|row| targets[*row as usize] != IGNORED);
    let asked: Vec<u32> = asked.collect();
    let (own_rows, own_classes) = (shard.tensor.own(targets.len()), shard.tensor.own(classes));
    let mut loss = 0.0;
    let mut dx_of_asked = Vec::new();
    let of_head = || Tensor::zeros(head_vd.shape(), DType::F32, head_vd.device());
    let dhead_vd = (wanted == LossGradients::Both).then(of_head).transpose()?;
    for rows in asked.chunks(chunk) {
        let index = Tensor::new(rows, x_rd.device())?;
        let x_cd = x_rd.index_select(&index, 0)?;
        let classes_of = rows.iter().map(|row| targets[*row as usize] as usize);
        let found = Found::of(&x_cd, head_vd, classes_of.collect(), &own_classes, shard)?;
        let losses = rows.iter().zip(&found.losses);
        loss += losses
            .filter(|(row, _)| own_rows.contains(&(**row as usize)))
            .map(|(_, l)| l)
            .sum::<f64>();
        if wanted != LossGradients::Nothing {
            dx_of_asked.push(found.back(&x_cd, head_vd, dhead_vd.as_ref(), &shard.backend)?);
        }
    }
    let dx_rd = (wanted != LossGradients::Nothing).then(|| in_all_rows(x_rd, &asked, &dx_of_asked));
    let dx_rd = dx_rd.transpose()?;
    Ok(ShardLoss { loss, dx_rd, dhead_vd })
}

/// The gradient of all rows of `x`, from pieces for the rows with a target: zeros elsewhere.
fn in_all_rows(x_rd: &Tensor, asked: &[u32], pieces: &[Tensor]) -> Result<Tensor> {
    if pieces.is_empty() {
        return x_rd.zeros_like();
    }
    let of_asked = Tensor::cat(pieces, 0)?;
    if asked.len() == x_rd.dim(0)? {
        return Ok(of_asked);
    }
    x_rd.zeros_like()?.index_add(&Tensor::new(asked, x_rd.device())?, &of_asked, 0)
}

/// Some tokens' logits for this rank's classes.
struct Found {
    losses: Vec<f64>,
    /// exp(logit − own maximum), f32 [C, V].
    powers_cv: Tensor,
    /// The factor by token that turns powers into probabilities.
    factors: Vec<f32>,
    /// The index of the target among own classes, where it is one of them.
    targets: Vec<Option<usize>>,
}

impl Found {
    fn of(
        x_cd: &Tensor,
        head_vd: &Tensor,
        targets: Vec<usize>,
        own: &Range<usize>,
        shard: &Shard,
    ) -> Result<Found> {
        let here = |target: usize| own.contains(&target).then(|| target - own.start);
        let targets: Vec<Option<usize>> = targets.into_iter().map(here).collect();
        let logits_cv = wide_linear(&shard.backend, x_cd, head_vd)?;
        let (powers_cv, statistics) = partial_softmax(&shard.backend, logits_cv, &targets)?;
        let all = shard.tensor.all_gather(shard.label("parts of the loss"), &statistics)?;
        let all = all.iter().map(|statistics| statistics.flatten_all()?.to_vec1::<f32>());
        let all: Vec<Vec<f32>> = all.collect::<Result<_>>()?;
        let (own_rank, _) = shard.tensor.place();
        let tokens = 0..targets.len();
        let (losses, factors) =
            tokens.map(|token| combined(&all, own_rank, token * SOFTMAX_STATISTICS)).unzip();
        Ok(Found { losses, powers_cv, factors, targets })
    }

    /// The gradient of these tokens' rows of the input, a part of a sum over ranks; that of this rank's part of the head is added to `sum`.
    fn back(
        self,
        x_cd: &Tensor,
        head_vd: &Tensor,
        sum: Option<&Tensor>,
        backend: &Backend,
    ) -> Result<Tensor> {
        let dlogits_cv =
            partial_softmax_gradient(backend, self.powers_cv, &self.targets, &self.factors)?;
        let dlogits_cv = match backend {
            Backend::Cpu(_) => dlogits_cv,
            // The dtype that tensor cores multiply.
            Backend::Gpu(_) => dlogits_cv.to_dtype(x_cd.dtype())?,
        };
        let head = Affine { weight: head_vd, bias: None };
        if sum.is_some() {
            parameter_gradients(backend, x_cd, [head], [&dlogits_cv], [sum])?;
        }
        input_gradient(backend, [head], [&dlogits_cv])?.to_dtype(x_cd.dtype())
    }
}

/// The loss of the token at index `at` in all ranks' numbers, and the factor that turns own powers into probabilities.
fn combined(all: &[Vec<f32>], own: usize, at: usize) -> (f64, f32) {
    let statistic = |rank: usize, which: usize| f64::from(all[rank][at + which]);
    let ranks = || 0..all.len();
    let highest = ranks().map(|rank| statistic(rank, 0)).fold(f64::NEG_INFINITY, f64::max);
    let scale = |rank| (statistic(rank, 0) - highest).exp();
    let sum: f64 = ranks().map(|rank| statistic(rank, 1) * scale(rank)).sum();
    let target_logit: f64 = ranks().map(|rank| statistic(rank, 2)).sum();
    (sum.ln() + highest - target_logit, (scale(own) / sum) as f32)
}
