//! The reference kernel: plain loops, slow and obvious, in f64.
//!
//! It carries the same state across tiles as the fast kernels (unnormalized output, running maximum, running sum per row), so that the two
//! differ only in rounding.

use annulus_sequence::Spans;
use candle_core::{DType, Device, Result, Tensor};

use super::dense::{add, dot, values};
use super::sizes::{Keys, Queries, spans};
use super::{
    Attended, AttentionKernel, BackwardTile, KeyValueGradients, Prepared, Progress, State, Tile,
    own, taken,
};

/// The reference kernel of plain loops, computing in f64. It takes any float dtype.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

#[derive(Debug)]
struct Forward {
    sizes: Queries,
    dtype: DType,
    scale: f64,
    q: Vec<f64>,
    out: Vec<f64>,
    maximum: Vec<f64>,
    sum: Vec<f64>,
}

#[derive(Debug)]
struct Backward {
    sizes: Queries,
    scale: f64,
    q: Vec<f64>,
    gradient: Vec<f64>,
    lse: Vec<f64>,
    delta: Vec<f64>,
    dq: Vec<f64>,
}

impl State for Forward {}

impl State for Backward {}

impl AttentionKernel for Reference {
    fn is_plain_softmax(&self) -> bool {
        true
    }

    fn begin(&self, q: &Tensor, scale: f64) -> Result<Box<dyn State>> {
        let sizes = Queries::new(q, scale)?;
        let (dtype, q) = (q.dtype(), values(q)?);
        let rows = q.len() / sizes.dim;
        let (out, maximum) = (vec![0.0; q.len()], vec![f64::NEG_INFINITY; rows]);
        Ok(Box::new(Forward { sizes, dtype, scale, out, maximum, sum: vec![0.0; rows], q }))
    }

    fn forward(
        &self,
        tiles: &[Tile<'_>],
        state: &mut dyn State,
        progress: Progress<'_>,
    ) -> Result<()> {
        let state: &mut Forward = own(state)?;
        for tile in tiles {
            let keys = state.sizes.keys(tile)?;
            let (k, v) = (values(tile.k)?, values(tile.v)?);
            for head in 0..state.sizes.batch * state.sizes.heads {
                progress()?;
                let spans = spans(tile.visibility, head / state.sizes.heads);
                for (row, spans) in spans.iter().enumerate() {
                    state.fold(head, row, spans, keys, tile, [&k, &v]);
                }
            }
        }
        Ok(())
    }

    fn finish(&self, state: Box<dyn State>) -> Result<Attended> {
        let Forward { sizes, dtype, mut out, maximum, sum, .. } = taken(state)?;
        let shape = (sizes.batch, sizes.heads, sizes.rows);
        for (out, &sum) in out.chunks_mut(sizes.dim).zip(&sum).filter(|(_, sum)| **sum != 0.0) {
            for value in out {
                *value /= sum;
            }
        }
        let lse: Vec<f32> =
            maximum.iter().zip(&sum).map(|(maximum, sum)| (maximum + sum.ln()) as f32).collect();
        Ok(Attended {
            out: Tensor::from_vec(out, sizes.shape(), &Device::Cpu)?.to_dtype(dtype)?,
            lse: Tensor::from_vec(lse, shape, &Device::Cpu)?,
        })
    }

    fn prepare(&self, attended: &Attended, gradient: &Tensor) -> Result<Prepared> {
        let sizes = Queries::of(attended, gradient)?;
        let (out, gradients) = (values(&attended.out)?, values(gradient)?);
        let rows = out.chunks(sizes.dim).zip(gradients.chunks(sizes.dim));
        let delta: Vec<f32> = rows.map(|(out, gradient)| dot(out, gradient) as f32).collect();
        let delta = Tensor::from_vec(delta, (sizes.batch, sizes.heads, sizes.rows), &Device::Cpu)?;
        Ok(Prepared { gradient: gradient.detach(), lse: attended.lse.detach(), delta })
    }

    fn begin_prepared(
        &self,
        q: &Tensor,
        prepared: &Prepared,
        scale: f64,
    ) -> Result<Box<dyn State>> {
        let sizes = Queries::new(q, scale)?;
        sizes.check(prepared)?;
        let Prepared { gradient, lse, delta } = prepared;
        let (q, gradient) = (values(q)?, values(gradient)?);
        let (lse, delta) = (values(lse)?, values(delta)?);
        let dq = vec![0.0; q.len()];
        Ok(Box::new(Backward { sizes, scale, q, gradient, lse, delta, dq }))
    }

    fn backward(
        &self,
        tiles: Vec<BackwardTile<'_>>,
        state: &mut dyn State,
        progress: Progress<'_>,
    ) -> Result<Vec<KeyValueGradients>> {
        let state: &mut Backward = own(state)?;
        tiles.into_iter().map(|tile| state.tile(tile, progress)).collect()
    }

    fn finish_backward(&self, state: Box<dyn State>) -> Result<Tensor> {
        let Backward { sizes, dq, .. } = taken(state)?;
        Tensor::from_vec(dq, sizes.shape(), &Device::Cpu)?.to_dtype(DType::F32)
    }
}

impl Forward {
    /// Folds the keys that one row sees into its running output, maximum and sum.
    fn fold(
        &mut self,
        head: usize,
        row: usize,
        spans: &Spans,
        keys: Keys,
        tile: &Tile<'_>,
        [k, v]: [&[f64]; 2],
    ) {
        let factor = factors(tile, self.sizes.heads, head, row);
        let dim = self.sizes.dim;
        let row = head * self.sizes.rows + row;
        let start = head / (self.sizes.heads / keys.heads) * keys.rows;
        let query = &self.q[row * dim..(row + 1) * dim];
        let out = &mut self.out[row * dim..(row + 1) * dim];
        for column in visible(spans) {
            let key = (start + column) * dim..(start + column + 1) * dim;
            let score = self.scale * dot(query, &k[key.clone()]);
            let maximum = self.maximum[row].max(score);
            // Where nothing was seen yet the maximum is -inf: the factor is 0, and no difference of infinities is taken.
            let (kept, weight) = ((self.maximum[row] - maximum).exp(), (score - maximum).exp());
            let left = weight * factor(column);
            for (out, value) in out.iter_mut().zip(&v[key]) {
                *out = *out * kept + left * value;
            }
            self.sum[row] = self.sum[row] * kept + weight;
            self.maximum[row] = maximum;
        }
    }
}

impl Backward {
    fn tile(
        &mut self,
        BackwardTile { tile, carried }: BackwardTile<'_>,
        progress: Progress<'_>,
    ) -> Result<KeyValueGradients> {
        let keys = self.sizes.keys(&tile)?;
        let (k, v) = (values(tile.k)?, values(tile.v)?);
        let (mut dk, mut dv) = (vec![0.0; k.len()], vec![0.0; k.len()]);
        for head in 0..self.sizes.batch * self.sizes.heads {
            progress()?;
            for (row, spans) in spans(tile.visibility, head / self.sizes.heads).iter().enumerate() {
                self.row(head, row, spans, (keys, &tile), [&k, &v], [&mut dk, &mut dv]);
            }
        }
        let shape = (self.sizes.batch, keys.heads, keys.rows, self.sizes.dim);
        let [dk, dv] = [dk, dv]
            .map(|values| Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(DType::F32));
        match carried {
            Some(carried) => {
                Ok(KeyValueGradients { dk: (carried.dk + dk?)?, dv: (carried.dv + dv?)? })
            }
            None => Ok(KeyValueGradients { dk: dk?, dv: dv? }),
        }
    }

    fn row(
        &mut self,
        head: usize,
        row: usize,
        spans: &Spans,
        (keys, tile): (Keys, &Tile<'_>),
        [k, v]: [&[f64]; 2],
        [dk, dv]: [&mut [f64]; 2],
    ) {
        let factor = factors(tile, self.sizes.heads, head, row);
        let dim = self.sizes.dim;
        let row = head * self.sizes.rows + row;
        let start = head / (self.sizes.heads / keys.heads) * keys.rows;
        let at = row * dim..(row + 1) * dim;
        let (query, gradient) = (&self.q[at.clone()], &self.gradient[at.clone()]);
        for column in visible(spans) {
            let key = (start + column) * dim..(start + column + 1) * dim;
            let (key_row, value_row) = (&k[key.clone()], &v[key.clone()]);
            let p = (self.scale * dot(query, key_row) - self.lse[row]).exp();
            let factor = factor(column);
            let ds = self.scale * p * (factor * dot(gradient, value_row) - self.delta[row]);
            add(&mut dv[key.clone()], p * factor, gradient);
            add(&mut dk[key], ds, query);
            add(&mut self.dq[at.clone()], ds, key_row);
        }
    }
}

/// The dropout factors of a query row's weights, by key column.
fn factors(tile: &Tile<'_>, heads: usize, head: usize, row: usize) -> impl Fn(usize) -> f64 {
    let (batch, head) = (head / heads, head % heads);
    let dropped = tile.dropped;
    move |column| {
        let factor = dropped.map(|dropped| dropped.factor(batch, head, row, column));
        factor.map_or(1.0, f64::from)
    }
}

fn visible(spans: &Spans) -> impl Iterator<Item = usize> {
    spans.iter().flat_map(|span| span.start as usize..span.end as usize)
}
