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

use candle_core::{DType, Result, Tensor};

use super::inputs::{Inputs, Place, of_batch};
use super::matrix::{Into, multiply};
use super::pieces::{COLUMNS, Piece, ROWS};
use super::scores::{Differentiate, STEP, Scores, hide};
use super::{Shelf, heaviest_first, in_waves, lock, locked, widened};
use crate::Pool;
use crate::attention::sizes::{Queries, wrong};
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
    inputs: Inputs<'a>,
    gradient: &'a [f32],
    shift: &'a [f32],
    delta: &'a [f32],
    scratch: &'a Shelf<Scratch>,
}

/// What the jobs of a tile write, in blocks.
struct Outputs<'a> {
    dq: Vec<Mutex<&'a mut [f32]>>,
    dk: Vec<Mutex<&'a mut [f32]>>,
    dv: Vec<Mutex<&'a mut [f32]>>,
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
        let keys = self.sizes.keys(&tile)?;
        let [q, k, v] = [&self.q, tile.k, tile.v].map(|input| Elements::of(pool, input));
        let qkv: [&[f32]; 3] = [&q?, &k?, &v?];
        let context = Context {
            inputs: Inputs::new(self.sizes, keys, self.scale, qkv, tile.visibility),
            gradient: &Elements::of(pool, &self.gradient)?,
            shift: &self.shift,
            delta: &self.delta,
            scratch: &self.scratch,
        };
        let [mut dk, mut dv] = context.run(pool, &mut self.dq, progress)?;
        let shape = (self.sizes.batch, keys.heads, keys.rows, self.sizes.dim);
        if let Some(carried) = carried {
            add(pool, &mut dk, &carried.dk, shape)?;
            add(pool, &mut dv, &carried.dv, shape)?;
        }
        let [dk, dv] = [dk, dv].map(|values| tensor(pool, values, shape, DType::F32));
        Ok(KeyValueGradients { dk: dk?, dv: dv? })
    }

    /// The gradient of the queries.
    pub(super) fn finish(self, pool: &Pool) -> Result<Tensor> {
        tensor(pool, self.dq, self.sizes.shape(), DType::F32)
    }
}

impl Context<'_> {
    /// Adds to the gradient of the queries; returns those of keys and values.
    fn run(&self, pool: &Pool, dq: &mut [f32], progress: Progress<'_>) -> Result<[Vec<f32>; 2]> {
        let (rows, dim) = (self.inputs.sizes.rows, self.inputs.sizes.dim);
        let keys = self.inputs.keys.rows;
        let mut dk = vec![0.0; self.inputs.kv_heads() * keys * dim];
        let mut dv = dk.clone();
        let outputs = Outputs {
            dq: locked(dq, rows * dim, ROWS * dim),
            dk: locked(&mut dk, keys * dim, COLUMNS * dim),
            dv: locked(&mut dv, keys * dim, COLUMNS * dim),
        };
        if by_heads_is_cheaper(self.inputs.kv_heads(), pool.workers()) {
            self.by_heads(pool, &outputs, progress)?;
        } else {
            self.by_columns(pool, &outputs, progress)?;
            self.by_rows(pool, &outputs, progress)?;
        }
        Ok([dk, dv])
    }

    /// A job is a key/value head: five products per piece.
    fn by_heads(&self, pool: &Pool, outputs: &Outputs<'_>, progress: Progress<'_>) -> Result<()> {
        let by_columns = self.inputs.pieces_by_columns();
        let columns = self.inputs.column_blocks();
        let wave = (PIECES_PER_WAVE / (self.inputs.row_blocks() * self.inputs.group())).max(1);
        for start in (0..columns).step_by(wave) {
            progress()?;
            pool.run(self.inputs.kv_heads(), |head| {
                let by_columns = of_batch(&by_columns, head / self.inputs.keys.heads);
                let wave = &by_columns[start..columns.min(start + wave)];
                for (column, pieces) in (start..).zip(wave) {
                    self.key_gradients((head, column), pieces, outputs, |place, ds| {
                        self.add_query_gradient(place, ds, outputs);
                    });
                }
            });
        }
        Ok(())
    }

    /// A job is a block of key columns of a key/value head: gradients of keys and values.
    fn by_columns(&self, pool: &Pool, outputs: &Outputs<'_>, progress: Progress<'_>) -> Result<()> {
        let by_columns = self.inputs.pieces_by_columns();
        let pieces = |head: usize, column: usize| -> &[(usize, &Piece)] {
            &of_batch(&by_columns, head / self.inputs.keys.heads)[column]
        };
        let (heads, columns) = (self.inputs.kv_heads(), self.inputs.column_blocks());
        let jobs = heaviest_first(heads, columns, |head, column| pieces(head, column).len());
        in_waves(pool, jobs.len(), progress, |job| {
            let (head, column) = jobs[job];
            self.key_gradients((head, column), pieces(head, column), outputs, |_, _| ());
        })
    }

    /// A job is a block of query rows of a query head: gradients of queries.
    fn by_rows(&self, pool: &Pool, outputs: &Outputs<'_>, progress: Progress<'_>) -> Result<()> {
        let (heads, blocks) = (self.inputs.heads(), self.inputs.row_blocks());
        let pieces = |head, block| self.inputs.pieces(head, block);
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
        (kv_head, column): (usize, usize),
        pieces: &[(usize, &Piece)],
        outputs: &Outputs<'_>,
        also: impl Fn(Place<'_>, &Scores),
    ) {
        let (dim, group) = (self.inputs.sizes.dim, self.inputs.group());
        let index = kv_head * self.inputs.column_blocks() + column;
        let (mut dk, mut dv) = (lock(&outputs.dk[index]), lock(&outputs.dv[index]));
        self.scratch.with(|scratch| {
            for head in kv_head * group..(kv_head + 1) * group {
                for &(block, piece) in pieces {
                    let place = Place { head, block, piece };
                    self.differentiate(place, scratch);
                    let [q, gradient] =
                        [self.inputs.q, self.gradient].map(|all| self.inputs.rows(all, place));
                    let [p, ds] = [&scratch.p, &scratch.ds]
                        .map(|all| all.matrix(q.rows(), piece.columns.len()).transposed());
                    let start = (piece.columns.start - column * COLUMNS) * dim;
                    multiply(&mut dv[start..], dim, Into::Add, 1.0, p, gradient);
                    multiply(&mut dk[start..], dim, Into::Add, self.inputs.scale, ds, q);
                    also(place, &scratch.ds);
                }
            }
        });
    }

    /// `dq += scale ds k`.
    fn add_query_gradient(&self, place: Place<'_>, ds: &Scores, outputs: &Outputs<'_>) {
        let k = self.inputs.columns(self.inputs.k, place);
        let ds = ds.matrix(self.inputs.range(place).len(), k.rows());
        let mut dq = lock(&outputs.dq[place.head * self.inputs.row_blocks() + place.block]);
        multiply(&mut dq, self.inputs.sizes.dim, Into::Add, self.inputs.scale, ds, k);
    }

    /// The probabilities of a piece and the gradients of its scores.
    fn differentiate(&self, place: Place<'_>, Scratch { p, ds }: &mut Scratch) {
        let inputs = &self.inputs;
        let [q, gradient] = [inputs.q, self.gradient].map(|all| inputs.rows(all, place));
        let [k, v] = [inputs.k, inputs.v].map(|all| inputs.columns(all, place));
        multiply(&mut p.0, STEP, Into::Overwrite, inputs.scale, q, k.transposed());
        multiply(&mut ds.0, STEP, Into::Overwrite, 1.0, gradient, v.transposed());
        if place.piece.masked {
            hide(&mut p.0, inputs.spans(place), &place.piece.columns);
        }
        inputs.instructions.dispatch(Differentiate {
            scores: &mut p.0,
            gradients: &mut ds.0,
            columns: k.rows(),
            shift: &self.shift[inputs.range(place)],
            delta: &self.delta[inputs.range(place)],
        });
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
        return wrong(&format!("carried gradients of {:?}, wanted {shape:?}", carried.dims()));
    }
    let carried: &[f32] = &Elements::of(pool, carried)?;
    pool.for_chunks(to, CARRIED_CHUNK, |index, to| {
        let carried = &carried[index * CARRIED_CHUNK..];
        to.iter_mut().zip(carried).for_each(|(to, carried)| *to += carried);
    });
    Ok(())
}
