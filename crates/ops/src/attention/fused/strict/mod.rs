//! Attention whose bits do not depend on who holds which block of positions, nor on the order in which blocks meet.
//!
//! Positions are in blocks of B neighbours, whatever the ranks. What a block of queries and one of keys come to is computed by
//! itself: the same bits wherever it is, since an element of a product adds along its depth in order, and what a mask hides adds 0.
//! These partial results are added order-free ([`crate::order_free`]). Softmax is to the base 2, with each partial maximum rounded up
//! to a multiple of the bins' width, so that going over to a larger maximum moves bins and rounds nothing.
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
