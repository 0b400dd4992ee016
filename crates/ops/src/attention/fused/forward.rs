//! Forward: for every block of query rows, piece by piece, `scores = scale q kT`, fold, `out += weights v`.

use std::any::Any;
use std::sync::Mutex;

use annulus_sequence::Spans;
use candle_core::{DType, Result, Tensor};
use pulp::Arch;

use super::matrix::{Into, Matrix, multiply};
use super::pieces::{Piece, Pieces, ROWS, rows_of};
use super::scores::{Fold, STEP, Scores, hide};
use super::{Arithmetic, Shelf, blocks, heaviest_first, in_waves, lock, widened};
use crate::Pool;
use crate::attention::sizes::{Queries, spans};
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

/// A block of query rows: what it holds and its part of the state.
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
        let Queries { heads, rows, dim, .. } = self.sizes;
        let keys = self.sizes.keys(tile)?;
        let [q, k, v] = [&self.q, tile.k, tile.v].map(|input| Elements::of(pool, input));
        let (q, k, v) = (&*q?, &*k?, &*v?);
        let pieces = Pieces::of_rows(tile.visibility);
        let arithmetic = Arithmetic { instructions: Arch::new(), scale: self.scale };
        let state: Vec<Mutex<Rows<'_>>> = blocks(&mut self.out, rows * dim, ROWS * dim)
            .zip(blocks(&mut self.maximum, rows, ROWS))
            .zip(blocks(&mut self.sum, rows, ROWS))
            .map(|((out, maximum), sum)| Mutex::new(Rows { out, maximum, sum }))
            .collect();
        let blocks = rows.div_ceil(ROWS);
        let pieces_of = |head: usize, block| pieces[(head / heads).min(pieces.len() - 1)].of(block);
        let jobs = heaviest_first(self.sizes.batch * heads, blocks, |head, block| {
            pieces_of(head, block).len()
        });

        in_waves(pool, jobs.len(), progress, |job| {
            let (head, block) = jobs[job];
            let range = rows_of(block, rows);
            let start = head * rows + range.start;
            let q = Matrix::new(&q[start * dim..], range.len(), dim, dim);
            let spans = &spans(tile.visibility, head / heads)[range];
            let first_key = head / (heads / keys.heads) * keys.rows;
            let mut state = lock(&state[head * blocks + block]);
            self.scratch.with(|scores| {
                for piece in pieces_of(head, block) {
                    let start = (first_key + piece.columns.start) * dim;
                    let [k, v] = [k, v]
                        .map(|values| Matrix::new(&values[start..], piece.columns.len(), dim, dim));
                    state.attend(arithmetic, q, [k, v], (piece, spans), &mut scores.0);
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
                    out.iter_mut().for_each(|value| *value /= sum);
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
    /// Folds a piece: its keys and values, and which of its columns each row sees.
    fn attend(
        &mut self,
        arithmetic: Arithmetic,
        q: Matrix<'_>,
        [k, v]: [Matrix<'_>; 2],
        (piece, spans): (&Piece, &[Spans]),
        scores: &mut [f32],
    ) {
        let (columns, dim) = (piece.columns.len(), v.columns());
        multiply(scores, STEP, Into::Overwrite, arithmetic.scale, q, k.transposed());
        if piece.masked {
            hide(scores, spans, &piece.columns);
        }
        arithmetic.instructions.dispatch(Fold {
            scores,
            columns,
            maximum: self.maximum,
            sum: self.sum,
            out: self.out,
            dim,
        });
        let weights = Matrix::new(scores, q.rows(), columns, STEP);
        multiply(self.out, dim, Into::Add, 1.0, weights, v);
    }
}
