//! Forward: for every block of query rows, piece by piece, `scores = scale q kT`, fold, `out += weights v`.

use std::any::Any;
use std::sync::Mutex;

use candle_core::{DType, Result, Tensor};

use super::inputs::{Inputs, Place};
use super::matrix::{Into, multiply};
use super::pieces::ROWS;
use super::scores::{Fold, STEP, Scores, hide};
use super::{Shelf, blocks, heaviest_first, in_waves, lock, widened};
use crate::Pool;
use crate::attention::sizes::Queries;
use crate::attention::{Attended, Progress, State, Tile};
use crate::rows::{Elements, tensor};

/// What is carried across tiles and hops.
#[derive(Debug)]
pub(super) struct Forward {
    sizes: Queries,
    dtype: DType,
    scale: f32,
    q: Tensor,
    /// Unnormalised output, [B, Hq, Sq, D].
    out: Vec<f32>,
    /// Running maximum of scaled scores, [B, Hq, Sq]; -inf where nothing was seen.
    maximum: Vec<f32>,
    /// Running sum of weights, [B, Hq, Sq].
    sum: Vec<f32>,
    scratch: Shelf<Scores>,
}

/// The state of a block of query rows.
#[derive(Debug)]
struct Rows<'a> {
    out: &'a mut [f32],
    maximum: &'a mut [f32],
    sum: &'a mut [f32],
}

impl State for Forward {
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

impl Forward {
    pub(super) fn new(pool: &Pool, q: &Tensor, scale: f64) -> Result<Forward> {
        let sizes = Queries::new(q, scale)?;
        let rows = sizes.batch * sizes.heads * sizes.rows;
        Ok(Forward {
            sizes,
            dtype: q.dtype(),
            scale: scale as f32,
            q: widened(pool, q)?,
            out: vec![0.0; rows * sizes.dim],
            maximum: vec![f32::NEG_INFINITY; rows],
            sum: vec![0.0; rows],
            scratch: Shelf::default(),
        })
    }

    /// Folds one tile into the state.
    pub(super) fn fold(
        &mut self,
        pool: &Pool,
        tile: &Tile<'_>,
        progress: Progress<'_>,
    ) -> Result<()> {
        let Queries { rows, dim, .. } = self.sizes;
        let keys = self.sizes.keys(tile)?;
        let [q, k, v] = [&self.q, tile.k, tile.v].map(|input| Elements::of(pool, input));
        let qkv: [&[f32]; 3] = [&q?, &k?, &v?];
        let inputs = Inputs::new(self.sizes, keys, self.scale, qkv, tile.visibility);
        let state: Vec<Mutex<Rows<'_>>> = blocks(&mut self.out, rows * dim, ROWS * dim)
            .zip(blocks(&mut self.maximum, rows, ROWS))
            .zip(blocks(&mut self.sum, rows, ROWS))
            .map(|((out, maximum), sum)| Mutex::new(Rows { out, maximum, sum }))
            .collect();
        let jobs = heaviest_first(inputs.heads(), inputs.row_blocks(), |head, block| {
            inputs.pieces(head, block).len()
        });
        in_waves(pool, jobs.len(), progress, |job| {
            let (head, block) = jobs[job];
            let mut rows = lock(&state[head * inputs.row_blocks() + block]);
            self.scratch.with(|scores| {
                for piece in inputs.pieces(head, block) {
                    rows.attend(&inputs, Place { head, block, piece }, scores);
                }
            });
        })
    }

    /// Divides by the sums and casts.
    pub(super) fn finish(mut self, pool: &Pool) -> Result<Attended> {
        let Queries { batch, heads, rows, dim } = self.sizes;
        let sums = &self.sum;
        pool.for_chunks(&mut self.out, ROWS * dim, |block, out| {
            for (out, &sum) in out.chunks_mut(dim).zip(&sums[block * ROWS..]) {
                // A row that saw nothing has sum 0 and output 0.
                if sum != 0.0 {
                    for value in out {
                        *value /= sum;
                    }
                }
            }
        });
        let lse: Vec<f32> =
            self.maximum.iter().zip(sums).map(|(maximum, sum)| maximum + sum.ln()).collect();
        Ok(Attended {
            out: tensor(pool, self.out, self.sizes.shape(), self.dtype)?,
            lse: tensor(pool, lse, (batch, heads, rows), DType::F32)?,
        })
    }
}

impl Rows<'_> {
    /// Folds in what the rows see of a piece.
    fn attend(&mut self, inputs: &Inputs<'_>, place: Place<'_>, scores: &mut Scores) {
        let q = inputs.rows(inputs.q, place);
        let [k, v] = [inputs.k, inputs.v].map(|all| inputs.columns(all, place));
        multiply(&mut scores.0, STEP, Into::Overwrite, inputs.scale, q, k.transposed());
        if place.piece.masked {
            hide(&mut scores.0, inputs.spans(place), &place.piece.columns);
        }
        inputs.instructions.dispatch(Fold {
            scores: &mut scores.0,
            columns: k.rows(),
            maximum: self.maximum,
            sum: self.sum,
            out: self.out,
            dim: inputs.sizes.dim,
        });
        let weights = scores.matrix(q.rows(), k.rows());
        multiply(self.out, inputs.sizes.dim, Into::Add, 1.0, weights, v);
    }
}
