//! Backward, from the final log-sum-exp: nothing is rescaled, gradients just add.
//!
//! ```text
//! p = exp(scale q kT - lse)    dp = g vT    ds = p (dp - delta)    delta = sum(g out)
//! dv += pT g    dk += scale dsT q    dq += scale ds k
//! ```
//!
//! Where there are enough key/value heads for the workers, a job is a head: five products per piece. Otherwise a job is a block
//! of key columns, then a block of query rows: `p` and `ds` are computed twice, seven products. Either way every sum adds the
//! same pieces in the same order.

use std::any::Any;
use std::sync::Mutex;

use annulus_sequence::Visibility;
use candle_core::{DType, Result, Tensor};
use pulp::Arch;

use super::matrix::{Into, Matrix, multiply};
use super::pieces::{COLUMNS, Piece, Pieces, ROWS, rows_of};
use super::scores::{Differentiate, STEP, Scores, hide};
use super::{Arithmetic, Shelf, heaviest_first, in_waves, lock, locked, widened};
use crate::Pool;
use crate::attention::sizes::{Keys, Queries, spans, wrong};
use crate::attention::{Attended, BackwardTile, KeyValueGradients, Progress, State};
use crate::rows::{Elements, tensor};

/// Pieces per job between two calls of `progress`: about a tenth of a second.
const PIECES_PER_WAVE: usize = 1024;
/// Elements of carried gradients per job.
const CARRIED_CHUNK: usize = 1 << 16;

/// What is kept while tiles go by.
#[derive(Debug)]
pub(super) struct Backward {
    sizes: Queries,
    scale: f32,
    q: Tensor,
    gradient: Tensor,
    /// The log-sum-exp, +inf in rows that see nothing, so that their probabilities are 0; [B, Hq, Sq].
    shift: Vec<f32>,
    /// The sum over a row of output times its gradient, [B, Hq, Sq].
    delta: Vec<f32>,
    /// The gradient of the queries so far, [B, Hq, Sq, D].
    dq: Vec<f32>,
    scratch: Shelf<Scratch>,
}

/// Room for a piece's probabilities and gradients of scores.
#[derive(Debug, Default)]
struct Scratch {
    p: Scores,
    ds: Scores,
}

/// What the jobs of a tile read.
struct Context<'a> {
    sizes: Queries,
    keys: Keys,
    arithmetic: Arithmetic,
    q: &'a [f32],
    gradient: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    shift: &'a [f32],
    delta: &'a [f32],
    /// By batch row, or one for all.
    pieces: Vec<Pieces>,
    visibility: &'a [Visibility],
    scratch: &'a Shelf<Scratch>,
}

/// What the jobs of a tile write, in blocks.
struct Outputs<'a> {
    dq: Vec<Mutex<&'a mut [f32]>>,
    dk: Vec<Mutex<&'a mut [f32]>>,
    dv: Vec<Mutex<&'a mut [f32]>>,
}

/// A piece of one query head.
#[derive(Clone, Copy)]
struct Place<'a> {
    /// Of all batch rows' query heads.
    head: usize,
    /// The block of query rows.
    block: usize,
    piece: &'a Piece,
}

impl State for Backward {
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

impl Backward {
    pub(super) fn new(
        pool: &Pool,
        q: &Tensor,
        attended: &Attended,
        gradient: &Tensor,
        scale: f64,
    ) -> Result<Backward> {
        let sizes = Queries::new(q, scale)?;
        sizes.check(attended, gradient)?;
        let gradient = widened(pool, gradient)?;
        let delta = row_products(pool, &attended.out, &gradient, sizes)?;
        let mut shift = Elements::of(pool, &attended.lse)?.to_vec();
        for shift in &mut shift {
            if *shift == f32::NEG_INFINITY {
                *shift = f32::INFINITY;
            }
        }
        let (q, dq) = (widened(pool, q)?, vec![0.0; q.elem_count()]);
        let (scale, scratch) = (scale as f32, Shelf::default());
        Ok(Backward { sizes, scale, q, gradient, shift, delta, dq, scratch })
    }

    /// Adds one tile to the gradient of the queries; returns that of its keys and values, added to what it carried.
    pub(super) fn tile(
        &mut self,
        pool: &Pool,
        BackwardTile { tile, carried }: BackwardTile<'_>,
        progress: Progress<'_>,
    ) -> Result<KeyValueGradients> {
        let Queries { batch, rows, dim, .. } = self.sizes;
        let keys = self.sizes.keys(&tile)?;
        let [q, gradient, k, v] =
            [&self.q, &self.gradient, tile.k, tile.v].map(|input| Elements::of(pool, input));
        let context = Context {
            sizes: self.sizes,
            keys,
            arithmetic: Arithmetic { instructions: Arch::new(), scale: self.scale },
            q: &q?,
            gradient: &gradient?,
            k: &k?,
            v: &v?,
            shift: &self.shift,
            delta: &self.delta,
            pieces: Pieces::of_rows(tile.visibility),
            visibility: tile.visibility,
            scratch: &self.scratch,
        };
        let shape = (batch, keys.heads, keys.rows, dim);
        let mut dk = vec![0.0; batch * keys.heads * keys.rows * dim];
        let mut dv = dk.clone();
        let outputs = Outputs {
            dq: locked(&mut self.dq, rows * dim, ROWS * dim),
            dk: locked(&mut dk, keys.rows * dim, COLUMNS * dim),
            dv: locked(&mut dv, keys.rows * dim, COLUMNS * dim),
        };
        if by_heads_is_cheaper(batch * keys.heads, pool.workers()) {
            context.by_heads(pool, &outputs, progress)?;
        } else {
            context.by_columns(pool, &outputs, progress)?;
            context.by_rows(pool, &outputs, progress)?;
        }
        drop(outputs);
        if let Some(KeyValueGradients { dk: old_dk, dv: old_dv }) = carried {
            add(pool, &mut dk, &old_dk, shape)?;
            add(pool, &mut dv, &old_dv, shape)?;
        }
        let [dk, dv] = [dk, dv].map(|values| tensor(pool, values, shape, DType::F32));
        Ok(KeyValueGradients { dk: dk?, dv: dv? })
    }

    /// The gradient of the queries.
    pub(super) fn finish(self, pool: &Pool) -> Result<Tensor> {
        tensor(pool, self.dq, self.sizes.shape(), DType::F32)
    }
}

impl<'a> Context<'a> {
    /// A job is a key/value head: five products per piece.
    fn by_heads(&self, pool: &Pool, outputs: &Outputs<'_>, progress: Progress<'_>) -> Result<()> {
        let by_columns = self.pieces_by_columns();
        let columns = self.keys.rows.div_ceil(COLUMNS);
        let pieces = self.sizes.rows.div_ceil(ROWS) * self.group();
        let wave = (PIECES_PER_WAVE / pieces).max(1);
        for start in (0..columns).step_by(wave) {
            progress()?;
            pool.run(self.sizes.batch * self.keys.heads, |kv_head| {
                for column in start..columns.min(start + wave) {
                    let pieces = &self.of_batch(&by_columns, kv_head / self.keys.heads)[column];
                    self.key_gradients(kv_head, column, pieces, outputs, |place, ds| {
                        self.add_query_gradient(place, ds, outputs);
                    });
                }
            });
        }
        Ok(())
    }

    /// A job is a block of key columns of a key/value head: gradients of keys and values.
    fn by_columns(&self, pool: &Pool, outputs: &Outputs<'_>, progress: Progress<'_>) -> Result<()> {
        let by_columns = self.pieces_by_columns();
        let pieces = |kv_head: usize, column: usize| -> &[(usize, &Piece)] {
            &self.of_batch(&by_columns, kv_head / self.keys.heads)[column]
        };
        let (heads, columns) =
            (self.sizes.batch * self.keys.heads, self.keys.rows.div_ceil(COLUMNS));
        let jobs = heaviest_first(heads, columns, |head, column| pieces(head, column).len());
        in_waves(pool, jobs.len(), progress, |job| {
            let (kv_head, column) = jobs[job];
            self.key_gradients(kv_head, column, pieces(kv_head, column), outputs, |_, _| ());
        })
    }

    /// A job is a block of query rows of a query head: gradients of queries.
    fn by_rows(&self, pool: &Pool, outputs: &Outputs<'_>, progress: Progress<'_>) -> Result<()> {
        let pieces =
            |head: usize, block| self.of_batch(&self.pieces, head / self.sizes.heads).of(block);
        let (heads, blocks) = (self.sizes.batch * self.sizes.heads, self.sizes.rows.div_ceil(ROWS));
        let jobs = heaviest_first(heads, blocks, |head, block| pieces(head, block).len());
        in_waves(pool, jobs.len(), progress, |job| {
            let (head, block) = jobs[job];
            self.scratch.with(|scratch| {
                for piece in pieces(head, block) {
                    let place = Place { head, block, piece };
                    self.differentiate(place, scratch);
                    self.add_query_gradient(place, &scratch.ds, outputs);
                }
            });
        })
    }

    /// `dv += pT g`, `dk += scale dsT q` over all `pieces` of a block of key columns; `also` gets every piece's `ds`.
    fn key_gradients(
        &self,
        kv_head: usize,
        column: usize,
        pieces: &[(usize, &'a Piece)],
        outputs: &Outputs<'_>,
        also: impl Fn(Place<'_>, &Scores),
    ) {
        let (dim, group) = (self.sizes.dim, self.group());
        let index = kv_head * self.keys.rows.div_ceil(COLUMNS) + column;
        let (mut dk, mut dv) = (lock(&outputs.dk[index]), lock(&outputs.dv[index]));
        self.scratch.with(|scratch| {
            for head in kv_head * group..(kv_head + 1) * group {
                for &(block, piece) in pieces {
                    let place = Place { head, block, piece };
                    self.differentiate(place, scratch);
                    let start = (piece.columns.start - column * COLUMNS) * dim;
                    let [q, gradient] = [self.q, self.gradient].map(|all| self.rows(all, place));
                    let [p, ds] = [&scratch.p, &scratch.ds]
                        .map(|all| all.matrix(q.rows(), piece.columns.len()).transposed());
                    multiply(&mut dv[start..], dim, Into::Add, 1.0, p, gradient);
                    multiply(&mut dk[start..], dim, Into::Add, self.arithmetic.scale, ds, q);
                    also(place, &scratch.ds);
                }
            }
        });
    }

    /// `dq += scale ds k`.
    fn add_query_gradient(&self, place: Place<'_>, ds: &Scores, outputs: &Outputs<'_>) {
        let k = self.columns(self.k, place);
        let blocks = self.sizes.rows.div_ceil(ROWS);
        let mut dq = lock(&outputs.dq[place.head * blocks + place.block]);
        let ds = ds.matrix(rows_of(place.block, self.sizes.rows).len(), k.rows());
        multiply(&mut dq, self.sizes.dim, Into::Add, self.arithmetic.scale, ds, k);
    }

    /// The probabilities of a piece and the gradients of its scores.
    fn differentiate(&self, place: Place<'_>, Scratch { p, ds }: &mut Scratch) {
        let [q, gradient] = [self.q, self.gradient].map(|all| self.rows(all, place));
        let [k, v] = [self.k, self.v].map(|all| self.columns(all, place));
        let Arithmetic { instructions, scale } = self.arithmetic;
        multiply(&mut p.0, STEP, Into::Overwrite, scale, q, k.transposed());
        multiply(&mut ds.0, STEP, Into::Overwrite, 1.0, gradient, v.transposed());
        let rows = rows_of(place.block, self.sizes.rows);
        if place.piece.masked {
            let spans = spans(self.visibility, place.head / self.sizes.heads);
            hide(&mut p.0, &spans[rows.clone()], &place.piece.columns);
        }
        let start = place.head * self.sizes.rows;
        let rows = start + rows.start..start + rows.end;
        instructions.dispatch(Differentiate {
            scores: &mut p.0,
            gradients: &mut ds.0,
            columns: k.rows(),
            shift: &self.shift[rows.clone()],
            delta: &self.delta[rows],
        });
    }

    /// The rows of `all`, laid out as queries, that belong to a block of query rows.
    fn rows(&self, all: &'a [f32], place: Place<'_>) -> Matrix<'a> {
        let (rows, dim) = (rows_of(place.block, self.sizes.rows), self.sizes.dim);
        let start = place.head * self.sizes.rows + rows.start;
        Matrix::new(&all[start * dim..], rows.len(), dim, dim)
    }

    /// The rows of `all`, laid out as keys, that belong to the columns of a piece.
    fn columns(&self, all: &'a [f32], place: Place<'_>) -> Matrix<'a> {
        let (columns, dim) = (&place.piece.columns, self.sizes.dim);
        let start = place.head / self.group() * self.keys.rows + columns.start;
        Matrix::new(&all[start * dim..], columns.len(), dim, dim)
    }

    /// Query heads per key/value head.
    fn group(&self) -> usize {
        self.sizes.heads / self.keys.heads
    }

    fn pieces_by_columns(&self) -> Vec<Vec<Vec<(usize, &Piece)>>> {
        self.pieces.iter().map(|pieces| pieces.by_columns(self.keys.rows)).collect()
    }

    /// What belongs to a batch row, where all may share one.
    fn of_batch<'b, T>(&self, items: &'b [T], index: usize) -> &'b T {
        &items[index.min(items.len() - 1)]
    }
}

/// Whether five products in as many jobs as heads end sooner than seven in any number of jobs.
fn by_heads_is_cheaper(heads: usize, workers: usize) -> bool {
    5 * heads.next_multiple_of(workers) <= 7 * heads
}

/// The sum over every row of `a` times `b`, in f64.
fn row_products(pool: &Pool, a: &Tensor, b: &Tensor, sizes: Queries) -> Result<Vec<f32>> {
    let (a, b) = (Elements::of(pool, a)?, Elements::of(pool, b)?);
    let (a, b): (&[f32], &[f32]) = (&a, &b);
    let dim = sizes.dim;
    let mut sums = vec![0.0; a.len() / dim];
    pool.for_chunks(&mut sums, ROWS, |block, sums| {
        let start = block * ROWS * dim;
        let rows = a[start..].chunks(dim).zip(b[start..].chunks(dim));
        for (sum, (a, b)) in sums.iter_mut().zip(rows) {
            *sum = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32;
        }
    });
    Ok(sums)
}

/// Adds what was carried.
fn add(
    pool: &Pool,
    to: &mut [f32],
    carried: &Tensor,
    shape: (usize, usize, usize, usize),
) -> Result<()> {
    if carried.dims4()? != shape {
        return wrong(format!("carried gradients of {:?}, wanted {shape:?}", carried.dims()));
    }
    let carried: &[f32] = &Elements::of(pool, carried)?;
    pool.for_chunks(to, CARRIED_CHUNK, |index, to| {
        let carried = &carried[index * CARRIED_CHUNK..];
        to.iter_mut().zip(carried).for_each(|(to, carried)| *to += carried);
    });
    Ok(())
}
