//! Attention whose bits do not depend on which rank holds which block of positions, nor on the order in which tiles are computed.
//!
//! Positions are in blocks of B neighbours, whatever the ranks. The partial result of a block of queries and a block of keys has the same
//! bits on any rank: elements of products are summed along the inner dimension in order, and masked entries add 0. Partial results are
//! added by order-free sums ([`crate::order_free`]). Softmax is to the base 2, with each partial maximum rounded up to a multiple of the
//! bins' width, so that rescaling to a larger maximum moves bins and rounds nothing.
//!
//! ```text
//! s = scale log2(e) q kT     m = 13 ceil(max(s) / 13)     p = 2^(s - m)     of a row and a block of keys
//! out = sum of 2^m (p v) / sum of 2^m (sum of p)
//! dv += pT g      dk += scale dsT q      dq += scale ds k                   of a block of queries and one of keys
//! ```

mod backward;
mod blocks;
mod forward;
mod weigh;

pub(super) use backward::Backward;
pub(crate) use blocks::{begun_at, sides};
pub(super) use forward::Forward;
