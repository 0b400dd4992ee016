//! The sizes of a tile, checked before any arithmetic: kernels index without further checks.

use annulus_sequence::{Spans, Visibility};
use candle_core::{DType, Error, Result, Tensor};

use super::{Attended, Dropped, Prepared, Tile};

/// The sizes of a block of queries, [batch, heads, rows, dim]; none is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queries {
    pub(crate) batch: usize,
    pub(crate) heads: usize,
    pub(crate) rows: usize,
    pub(crate) dim: usize,
}

/// The sizes of keys and values that fit the queries, [batch, heads, rows, dim]; none is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) heads: usize,
    pub(crate) rows: usize,
}

impl Queries {
    /// The sizes of `q`, and a check of the scale of its scores.
    pub(crate) fn new(q: &Tensor, scale: f64) -> Result<Queries> {
        let (batch, heads, rows, dim) = q.dims4()?;
        if q.elem_count() == 0 {
            return wrong(&format!("queries of shape {:?} have no elements", q.dims()));
        }
        if !(scale.is_finite() && scale > 0.0) {
            return wrong(&format!(
                "the scale of scores is {scale}, expected a finite number above 0"
            ));
        }
        Ok(Queries { batch, heads, rows, dim })
    }

    /// The shape of a tensor with a row per query.
    pub(crate) fn shape(self) -> (usize, usize, usize, usize) {
        (self.batch, self.heads, self.rows, self.dim)
    }

    /// The sizes of forward's results; checks that the gradient of the output has them.
    pub(crate) fn of(attended: &Attended, gradient: &Tensor) -> Result<Queries> {
        let (batch, heads, rows, dim) = attended.out.dims4()?;
        let sizes = Queries { batch, heads, rows, dim };
        sizes.check_rows("output gradient", gradient)?;
        sizes.check_statistic("log-sum-exp", &attended.lse)?;
        Ok(sizes)
    }

    /// Checks that `prepared` belongs to these queries.
    pub(crate) fn check(self, prepared: &Prepared) -> Result<()> {
        self.check_rows("output gradient", &prepared.gradient)?;
        self.check_statistic("log-sum-exp", &prepared.lse)?;
        self.check_statistic("delta", &prepared.delta)
    }

    fn check_rows(self, name: &str, tensor: &Tensor) -> Result<()> {
        let wanted = self.shape();
        if tensor.dims4()? != wanted {
            return wrong(&format!("{name} of shape {:?}, expected {wanted:?}", tensor.dims()));
        }
        Ok(())
    }

    fn check_statistic(self, name: &str, tensor: &Tensor) -> Result<()> {
        let wanted = (self.batch, self.heads, self.rows);
        if tensor.dims3()? != wanted {
            return wrong(&format!("{name} of shape {:?}, expected {wanted:?}", tensor.dims()));
        }
        Ok(())
    }

    /// The sizes of the tile's keys; checks that its visibility stays within them.
    pub(crate) fn keys(self, tile: &Tile<'_>) -> Result<Keys> {
        let (batch, heads, rows, dim) = tile.k.dims4()?;
        if tile.v.dims() != tile.k.dims() {
            let (k, v) = (tile.k.dims(), tile.v.dims());
            return wrong(&format!("keys of shape {k:?} with values of shape {v:?}"));
        }
        if (batch, dim) != (self.batch, self.dim) || rows == 0 {
            let (k, q) = (tile.k.dims(), self.shape());
            return wrong(&format!("keys of shape {k:?} for queries of shape {q:?}"));
        }
        if heads == 0 || !self.heads.is_multiple_of(heads) {
            let found = self.heads;
            return wrong(&format!("{found} query heads are not a multiple of {heads} KV heads"));
        }
        let keys = Keys { heads, rows };
        self.check_visibility(tile.visibility, keys)?;
        if let Some(Dropped { queries, keys: columns, .. }) = tile.dropped {
            let found = (queries.tokens(), columns.tokens());
            if found != (self.rows, rows) {
                let wanted = (self.rows, rows);
                return wrong(&format!("weights left out of {found:?}, expected {wanted:?}"));
            }
        }
        Ok(keys)
    }

    fn check_visibility(self, visibility: &[Visibility], keys: Keys) -> Result<()> {
        let (found, batch) = (visibility.len(), self.batch);
        if found != 1 && found != batch {
            return wrong(&format!(
                "{found} visibilities for {batch} batch rows, expected 1 or {batch}"
            ));
        }
        for one in visibility {
            let found = (one.queries.len(), one.keys.len());
            let wanted = (self.rows, keys.rows);
            if found != wanted {
                return wrong(&format!(
                    "a visibility of {found:?} rows and columns, expected {wanted:?}"
                ));
            }
            let ends = one.queries.iter().flatten().filter(|span| span.start < span.end);
            if let Some(span) = ends.into_iter().find(|span| span.end as usize > keys.rows) {
                return wrong(&format!("a visible key {} of {} keys", span.end - 1, keys.rows));
            }
        }
        Ok(())
    }
}

/// The spans of batch row `index`, where all rows may share one visibility.
pub(crate) fn spans(visibility: &[Visibility], index: usize) -> &[Spans] {
    &visibility[index.min(visibility.len() - 1)].queries
}

/// The tensor as contiguous `dtype`; the same storage where it already is.
pub(crate) fn widened(tensor: &Tensor, dtype: DType) -> Result<Tensor> {
    tensor.detach().to_dtype(dtype)?.contiguous()
}

/// The error of an invalid argument.
pub(crate) fn wrong<T>(message: &str) -> Result<T> {
    Err(Error::Msg(format!("attention: {message}")))
}
