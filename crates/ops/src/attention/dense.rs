//! Dense attention in f64 from positions: what every kernel is held to.
//!
//! ```text
//! s = scale q kT    lse = log sum exp s    p = exp(s - lse)    out = p v
//! dv = pT g    ds = p (g vT - sum(g out))    dq = scale ds k    dk = scale dsT q
//! ```

use annulus_sequence::{Mask, Positions};
use candle_core::{DType, Result, Tensor};

use super::sizes::{Queries, widened, wrong};

/// What dense attention gives, all f64.
#[derive(Clone, Debug)]
pub struct Dense {
    /// [B, Hq, Sq, D].
    pub out: Tensor,
    /// [B, Hq, Sq].
    pub lse: Tensor,
    /// [B, Hq, Sq, D].
    pub dq: Tensor,
    /// [B, Hkv, Sk, D].
    pub dk: Tensor,
    /// [B, Hkv, Sk, D].
    pub dv: Tensor,
}

/// A block of queries against a block of keys, in f64, by `mask.allows` on every pair of positions.
///
/// `q` and `gradient` are [B, Hq, Sq, D], `k` and `v` [B, Hkv, Sk, D], of any float dtype; `gradient` is that of the output.
/// A row that sees nothing has output 0, log-sum-exp -inf, and adds nothing to any gradient.
///
/// # Errors
/// When shapes or numbers of positions do not fit together.
#[expect(clippy::too_many_arguments, reason = "the reference takes everything at once")]
pub fn dense(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    gradient: &Tensor,
    mask: &Mask,
    queries: &Positions,
    keys: &Positions,
    scale: f64,
) -> Result<Dense> {
    let sizes = Queries::new(q, scale)?;
    let (batch, kv_heads, columns, dim) = k.dims4()?;
    check(sizes, q, k, v, gradient)?;
    if (queries.tokens(), keys.tokens()) != (sizes.rows, columns) {
        let found = (queries.tokens(), keys.tokens());
        let wanted = (sizes.rows, columns);
        return wrong(format!("positions of {found:?} queries and keys, wanted {wanted:?}"));
    }
    let query_positions: Vec<usize> = queries.iter().collect();
    let key_positions: Vec<usize> = keys.iter().collect();
    let visible: Vec<Vec<usize>> = query_positions
        .iter()
        .map(|&q| (0..columns).filter(|&column| mask.allows(q, key_positions[column])).collect())
        .collect();

    let [q, k, v, gradient] = [values(q)?, values(k)?, values(v)?, values(gradient)?];
    let mut out = vec![0.0; q.len()];
    let mut lse = vec![f64::NEG_INFINITY; q.len() / dim];
    let (mut dq, mut dk, mut dv) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; k.len()]);
    for head in 0..batch * sizes.heads {
        let start = head / (sizes.heads / kv_heads) * columns;
        for (row, visible) in visible.iter().enumerate().filter(|(_, seen)| !seen.is_empty()) {
            let row = head * sizes.rows + row;
            let key_at = |column: usize| at(start + column, dim);
            let (query, g) = (&q[at(row, dim)], &gradient[at(row, dim)]);
            let scores: Vec<f64> =
                visible.iter().map(|&column| scale * dot(query, &k[key_at(column)])).collect();
            lse[row] = log_sum_exp(&scores);
            let p: Vec<f64> = scores.iter().map(|score| (score - lse[row]).exp()).collect();
            for (&column, p) in visible.iter().zip(&p) {
                add(&mut out[at(row, dim)], *p, &v[key_at(column)]);
                add(&mut dv[key_at(column)], *p, g);
            }
            let delta = dot(g, &out[at(row, dim)]);
            for (&column, p) in visible.iter().zip(&p) {
                let ds = scale * p * (dot(g, &v[key_at(column)]) - delta);
                add(&mut dq[at(row, dim)], ds, &k[key_at(column)]);
                add(&mut dk[key_at(column)], ds, query);
            }
        }
    }

    let shape = sizes.shape();
    let key_shape = (batch, kv_heads, columns, dim);
    let device = &candle_core::Device::Cpu;
    Ok(Dense {
        out: Tensor::from_vec(out, shape, device)?,
        lse: Tensor::from_vec(lse, (batch, sizes.heads, sizes.rows), device)?,
        dq: Tensor::from_vec(dq, shape, device)?,
        dk: Tensor::from_vec(dk, key_shape, device)?,
        dv: Tensor::from_vec(dv, key_shape, device)?,
    })
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
    wrong(format!("queries {q:?}, keys {k:?}, values {v:?} and output gradient {g:?} do not fit"))
}

fn values(tensor: &Tensor) -> Result<Vec<f64>> {
    widened(tensor, DType::F64)?.flatten_all()?.to_vec1()
}

fn at(row: usize, dim: usize) -> std::ops::Range<usize> {
    row * dim..(row + 1) * dim
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(to: &mut [f64], factor: f64, values: &[f64]) {
    for (to, value) in to.iter_mut().zip(values) {
        *to += factor * value;
    }
}

fn log_sum_exp(scores: &[f64]) -> f64 {
    let maximum = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    maximum + scores.iter().map(|score| (score - maximum).exp()).sum::<f64>().ln()
}
