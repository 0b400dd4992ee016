//! Attention with kept scores, for keys that arrive before their values: between the two comes a softmax of whole rows.
//!
//! The textbook's formula, without running statistics. With q already scaled, by tile of keys, then of values:
//!
//! ```text
//! s = q kT, -inf where nothing is seen    m = max s    w = exp(s - m)    out = sum (w v) / sum w    lse = m + log sum w
//! ```
//!
//! In f32 whatever comes in; one head at a time, so that little is held beside the scores.

use std::collections::BTreeMap;

use annulus_ops::attention::{Attended, Dropped};
use annulus_ops::{Affine, Backend, input_gradient, projections};
use annulus_sequence::{Block, View};
use candle_core::{D, DType, Device, Result, Tensor, bail};

/// A callback between products.
type Progress<'a> = &'a dyn Fn() -> Result<()>;

/// The scores of a block of queries [B, H, S, D].
#[derive(Debug)]
pub(crate) struct Scores {
    /// The backend that computes products.
    backend: Backend,
    /// Scaled queries [S, D] by batch row and head.
    queries: Vec<Vec<Tensor>>,
    /// By block of keys, then by batch row and head: scores [S, keys], and weights once values arrive.
    kept: BTreeMap<Block, Vec<Vec<Tensor>>>,
    /// Maximum and sum of every row, [S, 1], once all scores are there.
    statistics: Option<Vec<Vec<[Tensor; 2]>>>,
    /// Sums of weighted values, [S, D].
    out: Vec<Vec<Tensor>>,
    dtype: DType,
}

impl Scores {
    pub(crate) fn begin(backend: Backend, q: &Tensor, dtype: DType, scale: f64) -> Result<Scores> {
        let queries = by_head(&(q.to_dtype(DType::F32)? * scale)?)?;
        let zeros = |row: &Vec<Tensor>| row.iter().map(Tensor::zeros_like).collect();
        let out = queries.iter().map(zeros).collect::<Result<_>>()?;
        Ok(Scores { backend, queries, kept: BTreeMap::new(), statistics: None, out, dtype })
    }

    /// Computes scores with the keys [B, H, S, D] of a block, as far as `views` show them.
    pub(crate) fn score(
        &mut self,
        block: Block,
        k: &Tensor,
        views: &[View],
        progress: Progress<'_>,
    ) -> Result<()> {
        let keys = by_head(&k.to_dtype(DType::F32)?)?;
        let unseen = Tensor::full(f32::NEG_INFINITY, (), k.device())?;
        let mut kept = Vec::new();
        for (row, (queries, keys)) in self.queries.iter().zip(&keys).enumerate() {
            let group = queries.len() / keys.len();
            let seen = seen(views, row, [queries[0].dim(0)?, k.dim(2)?], k.device())?;
            let mut of_row = Vec::new();
            for (head, q) in queries.iter().enumerate() {
                progress()?;
                let keys = Affine { weight: &keys[head / group], bias: None };
                let [scores] = projections(&self.backend, q, [keys])?;
                of_row.push(match &seen {
                    Some(seen) => {
                        seen.where_cond(&scores, &unseen.broadcast_as(scores.shape())?)?
                    }
                    None => scores,
                });
            }
            kept.push(of_row);
        }
        self.kept.insert(block, kept);
        Ok(())
    }

    /// Adds the weighted values [B, H, S, D] of a block of keys, then drops their weights.
    pub(crate) fn weigh(
        &mut self,
        block: Block,
        v: &Tensor,
        dropped: Option<Dropped<'_>>,
        progress: Progress<'_>,
    ) -> Result<()> {
        if self.statistics.is_none() {
            self.statistics = Some(self.softmax(progress)?);
        }
        let Some(kept) = self.kept.remove(&block) else {
            bail!("attention: {block} were not scored")
        };
        let values = by_head(&v.to_dtype(DType::F32)?)?;
        for (row, (weights, values)) in kept.into_iter().zip(&values).enumerate() {
            let group = weights.len() / values.len();
            for (head, weights) in weights.into_iter().enumerate() {
                progress()?;
                let weights = left(weights, dropped, [row, head])?;
                let out = &mut self.out[row][head];
                let values = Affine { weight: &values[head / group], bias: None };
                *out = (&*out + input_gradient(&self.backend, [values], [&weights])?)?;
            }
        }
        Ok(())
    }

    /// Divides by the sums, and casts: the only division and the only cast.
    pub(crate) fn finish(self) -> Result<Attended> {
        let Some(statistics) = self.statistics else { bail!("attention: no values were weighed") };
        let (mut outs, mut lses) = (Vec::new(), Vec::new());
        for (outs_of_row, statistics) in self.out.iter().zip(&statistics) {
            let (mut out, mut lse) = (Vec::new(), Vec::new());
            for (sum_of_values, [maximum, sum]) in outs_of_row.iter().zip(statistics) {
                // A row that sees nothing has sum and output zero.
                let some = sum.maximum(f64::from(f32::MIN_POSITIVE))?;
                out.push(sum_of_values.broadcast_div(&some)?);
                lse.push((maximum + sum.log()?)?.squeeze(D::Minus1)?);
            }
            outs.push(Tensor::stack(&out, 0)?);
            lses.push(Tensor::stack(&lse, 0)?);
        }
        let out = Tensor::stack(&outs, 0)?.to_dtype(self.dtype)?;
        Ok(Attended { out, lse: Tensor::stack(&lses, 0)? })
    }

    /// Turns all scores into weights, not yet divided; returns maximum and sum of every row.
    fn softmax(&mut self, progress: Progress<'_>) -> Result<Vec<Vec<[Tensor; 2]>>> {
        let heads = |(row, heads): (usize, &Vec<Tensor>)| {
            (0..heads.len()).map(|head| (row, head)).collect::<Vec<_>>()
        };
        let mut statistics: Vec<Vec<[Tensor; 2]>> = vec![Vec::new(); self.queries.len()];
        let places: Vec<_> = self.queries.iter().enumerate().flat_map(heads).collect();
        for (row, head) in places {
            progress()?;
            let of_tile = |tile: &Vec<Vec<Tensor>>| tile[row][head].max_keepdim(D::Minus1);
            let maxima = self.kept.values().map(of_tile).collect::<Result<Vec<_>>>()?;
            // A finite stand-in for rows that see nothing: no difference of infinities is taken.
            let most = Tensor::cat(&maxima, 1)?.max_keepdim(1)?.maximum(f64::from(f32::MIN))?;
            let mut sum = most.zeros_like()?;
            for tile in self.kept.values_mut() {
                let scores = &mut tile[row][head];
                *scores = scores.broadcast_sub(&most)?.exp()?;
                sum = (sum + scores.sum_keepdim(D::Minus1)?)?;
            }
            statistics[row].push([most, sum]);
        }
        Ok(statistics)
    }
}

/// [B, H, S, D] as [S, D] by batch row and head.
fn by_head(tensor: &Tensor) -> Result<Vec<Vec<Tensor>>> {
    let (batch, heads, ..) = tensor.dims4()?;
    let of_row = |row| (0..heads).map(|head| tensor.get(row)?.get(head)).collect();
    (0..batch).map(of_row).collect()
}

/// The visible keys of each row, u8 [queries, keys]; `None` where every row sees all.
fn seen(
    views: &[View],
    row: usize,
    [queries, keys]: [usize; 2],
    device: &Device,
) -> Result<Option<Tensor>> {
    let mut seen = vec![0u8; queries * keys];
    for View { queries, keys: columns, visibility } in views {
        let spans = &visibility[row.min(visibility.len() - 1)].queries;
        for (query, spans) in queries.rows.iter().zip(spans) {
            for column in spans.iter().flat_map(|span| span.start as usize..span.end as usize) {
                seen[query * keys + columns.rows.offset + columns.rows.stride * column] = 1;
            }
        }
    }
    if seen.iter().all(|seen| *seen == 1) {
        return Ok(None);
    }
    Tensor::from_vec(seen, (queries, keys), device).map(Some)
}

/// The weights [queries, keys] of a batch row and a head after dropout.
fn left(weights: Tensor, dropped: Option<Dropped<'_>>, [row, head]: [usize; 2]) -> Result<Tensor> {
    let Some(Dropped { dropout, head: first, queries, keys }) = dropped else {
        return Ok(weights);
    };
    let factor = |query, key| dropout.factor(dropout.sequence + row, first + head, query, key);
    let of_query = |query| keys.iter().map(move |key| factor(query, key));
    let factors: Vec<f32> = queries.iter().flat_map(of_query).collect();
    &weights * Tensor::from_vec(factors, weights.shape(), weights.device())?
}
