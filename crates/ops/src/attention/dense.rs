//! Dense attention in f64 from positions: the reference of all kernels.
//!
//! ```text
//! s = scale q kT    lse = log sum exp s    p = exp(s - lse)    out = p v
//! dv = pT g    ds = p (g vT - sum(g out))    dq = scale ds k    dk = scale dsT q
//! ```

use annulus_sequence::{Mask, Positions};
use candle_core::{DType, Device, Result, Tensor};

use super::sizes::{Queries, widened, wrong};
use super::{Dropout, Dropped};

/// The results of dense attention, all f64.
#[derive(Clone, Debug)]
pub struct Dense {
    /// The output, [B, Hq, Sq, D].
    pub out: Tensor,
    /// The log-sum-exp, [B, Hq, Sq].
    pub lse: Tensor,
    /// The gradient of queries, [B, Hq, Sq, D].
    pub dq: Tensor,
    /// The gradient of keys, [B, Hkv, Sk, D].
    pub dk: Tensor,
    /// The gradient of values, [B, Hkv, Sk, D].
    pub dv: Tensor,
}

/// A block of queries against a block of keys, in f64, by `mask.allows_in` on every pair of positions, with dropout of weights if any.
///
/// `q` and `gradient` are [B, Hq, Sq, D], `k` and `v` [B, Hkv, Sk, D], of any float dtype; `gradient` is that of the output. Dropout is that
/// of these query heads, the first of which is number [`Dropout::head`]. A row that sees nothing has output 0, log-sum-exp -inf, and adds nothing to any gradient.
///
/// # Errors
/// When shapes or numbers of positions do not fit together.
pub fn dense(
    [q, k, v, gradient]: [&Tensor; 4],
    mask: &Mask,
    [queries, keys]: [&Positions; 2],
    scale: f64,
    dropout: Option<Dropout>,
) -> Result<Dense> {
    let sizes = Queries::new(q, scale)?;
    let (batch, kv_heads, columns, _) = k.dims4()?;
    check(sizes, q, k, v, gradient)?;
    let (positions, wanted) = ((queries.tokens(), keys.tokens()), (sizes.rows, columns));
    if positions != wanted {
        return wrong(&format!("positions of {positions:?} queries and keys, expected {wanted:?}"));
    }
    let visible = visible(mask, queries, keys);
    let dropped = dropout.map(|dropout| Dropped { dropout, head: dropout.head, queries, keys });
    let factor = |head: usize, row, column| {
        let (batch, head) = (head / sizes.heads, head % sizes.heads);
        let factor = dropped.map(|dropped| dropped.factor(batch, head, row, column));
        factor.map_or(1.0, f64::from)
    };
    let mut rows = Rows::new(sizes.dim, scale, [q, k, v, gradient])?;
    for head in 0..batch * sizes.heads {
        let keys = head / (sizes.heads / kv_heads) * columns;
        let visible = &visible[(head / sizes.heads).min(visible.len() - 1)];
        for (row, visible) in visible.iter().enumerate().filter(|(_, seen)| !seen.is_empty()) {
            let factors: Vec<f64> =
                visible.iter().map(|column| factor(head, row, *column)).collect();
            rows.attend(head * sizes.rows + row, keys, visible, &factors);
        }
    }
    let keys = (batch, kv_heads, columns, sizes.dim);
    Ok(Dense {
        out: Tensor::from_vec(rows.out, sizes.shape(), &Device::Cpu)?,
        lse: Tensor::from_vec(rows.lse, (batch, sizes.heads, sizes.rows), &Device::Cpu)?,
        dq: Tensor::from_vec(rows.dq, sizes.shape(), &Device::Cpu)?,
        dk: Tensor::from_vec(rows.dk, keys, &Device::Cpu)?,
        dv: Tensor::from_vec(rows.dv, keys, &Device::Cpu)?,
    })
}

/// The columns that each query sees, by query and, where the mask tells them apart, by batch row.
fn visible(mask: &Mask, queries: &Positions, keys: &Positions) -> Vec<Vec<Vec<usize>>> {
    let at: Vec<usize> = keys.iter().collect();
    let seen_by = |row: usize, query: usize| -> Vec<usize> {
        (0..at.len()).filter(|&column| mask.allows_in(row, query, at[column])).collect()
    };
    let of_row = |row: usize| queries.iter().map(|query| seen_by(row, query)).collect();
    (0..mask.rows()).map(of_row).collect()
}

/// Inputs and results as rows of `dim` numbers.
struct Rows {
    dim: usize,
    scale: f64,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    gradient: Vec<f64>,
    out: Vec<f64>,
    lse: Vec<f64>,
    dq: Vec<f64>,
    dk: Vec<f64>,
    dv: Vec<f64>,
}

impl Rows {
    fn new(dim: usize, scale: f64, [q, k, v, gradient]: [&Tensor; 4]) -> Result<Rows> {
        let zeros = |like: &Tensor| vec![0.0; like.elem_count()];
        Ok(Rows {
            dim,
            scale,
            out: zeros(q),
            lse: vec![f64::NEG_INFINITY; q.elem_count() / dim],
            dq: zeros(q),
            dk: zeros(k),
            dv: zeros(v),
            q: values(q)?,
            k: values(k)?,
            v: values(v)?,
            gradient: values(gradient)?,
        })
    }

    /// Computes query row `row`, which sees the `visible` rows of keys from `keys` on, with weights multiplied by `factors`.
    fn attend(&mut self, row: usize, keys: usize, visible: &[usize], factors: &[f64]) {
        let at = |row: usize| row * self.dim..(row + 1) * self.dim;
        let key = |column: usize| at(keys + column);
        let (query, gradient) = (&self.q[at(row)], &self.gradient[at(row)]);
        let out = &mut self.out[at(row)];

        let score = |&column: &usize| self.scale * dot(query, &self.k[key(column)]);
        let scores: Vec<f64> = visible.iter().map(score).collect();
        self.lse[row] = log_sum_exp(&scores);
        let p: Vec<f64> = scores.iter().map(|score| (score - self.lse[row]).exp()).collect();
        for ((&column, p), factor) in visible.iter().zip(&p).zip(factors) {
            add(out, p * factor, &self.v[key(column)]);
            add(&mut self.dv[key(column)], p * factor, gradient);
        }
        let delta = dot(gradient, out);
        for ((&column, p), factor) in visible.iter().zip(&p).zip(factors) {
            let ds = self.scale * p * (factor * dot(gradient, &self.v[key(column)]) - delta);
            add(&mut self.dq[at(row)], ds, &self.k[key(column)]);
            add(&mut self.dk[key(column)], ds, query);
        }
    }
}

fn check(sizes: Queries, q: &Tensor, k: &Tensor, v: &Tensor, gradient: &Tensor) -> Result<()> {
    let (batch, heads, _, dim) = k.dims4()?;
    let fits = (batch, dim) == (sizes.batch, sizes.dim)
        && heads > 0
        && sizes.heads.is_multiple_of(heads)
        && v.dims() == k.dims()
        && gradient.dims() == q.dims();
    if fits {
        return Ok(());
    }
    let [q, k, v, g] = [q, k, v, gradient].map(Tensor::dims);
    wrong(&format!("queries {q:?}, keys {k:?}, values {v:?} and output gradient {g:?} do not fit"))
}

/// The elements in f64, row-major.
pub(super) fn values(tensor: &Tensor) -> Result<Vec<f64>> {
    widened(tensor, DType::F64)?.flatten_all()?.to_vec1()
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Adds `factor * values` to `to`.
pub(super) fn add(to: &mut [f64], factor: f64, values: &[f64]) {
    for (to, value) in to.iter_mut().zip(values) {
        *to += factor * value;
    }
}

fn log_sum_exp(scores: &[f64]) -> f64 {
    let maximum = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    maximum + scores.iter().map(|score| (score - maximum).exp()).sum::<f64>().ln()
}
