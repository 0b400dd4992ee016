//! Tensor parallelism: ranks that share heads, feed-forward and vocabulary, and the rows between layers.
//!
//! Each rank holds a part of every matrix ([`Placement`]), and some rows of the residual stream (Megatron-LM: Shoeybi et al. 2019, arXiv
//! 1909.08053; rows between layers: Korthikanti et al. 2022, arXiv 2205.05198). A product with a part of a matrix needs all rows, or gives
//! a part of a sum for all rows. So there are two collectives, each the backward pass of the other:
//!
//! ```text
//! all rows = gathered(own rows)        own rows = scattered(parts of all rows), summed over ranks
//! ```
//!
//! The gradient of a parameter that every rank holds whole comes from own rows, or own heads: it is a part of a sum over these ranks.

use std::ops::Range;
use std::sync::Arc;

use annulus_comm::{Communicator, Label, bytes_of};
use annulus_trace::{Activity, begin};
use candle_core::{Result, Tensor};

/// How tensor-parallel ranks hold a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Placement {
    /// Every rank holds all of it.
    Replicated,
    /// Every rank holds an equal part along this dimension, in the order of ranks; of an indivisible vocabulary, a nearly equal one.
    Sharded(usize),
}

/// The elements of part `rank` of `ranks`, along a dimension of `size` elements.
fn part(size: usize, rank: usize, ranks: usize) -> Range<usize> {
    size * rank / ranks..size * (rank + 1) / ranks
}

impl Placement {
    /// The shape of the part of `whole` that rank `rank` of `ranks` holds.
    pub fn cut_shape(self, whole: &[usize], (rank, ranks): (usize, usize)) -> Vec<usize> {
        let mut shape = whole.to_vec();
        if let Placement::Sharded(dim) = self {
            shape[dim] = part(shape[dim], rank, ranks).len();
        }
        shape
    }

    /// Where elements `range` of a part lie in `whole`, both flat: runs of neighbours, each as its first index and its length.
    pub fn runs(
        self,
        whole: &[usize],
        (rank, ranks): (usize, usize),
        range: Range<usize>,
    ) -> Vec<(usize, usize)> {
        let Placement::Sharded(dim) = self else { return vec![(range.start, range.len())] };
        if ranks == 1 {
            return vec![(range.start, range.len())];
        }
        let inner: usize = whole[dim + 1..].iter().product();
        let part = part(whole[dim], rank, ranks);
        let (apart, together, first) = (whole[dim] * inner, part.len() * inner, part.start * inner);
        let (mut runs, mut at) = (Vec::new(), range.start);
        while at < range.end {
            let (row, column) = (at / together, at % together);
            let many = (together - column).min(range.end - at);
            runs.push((row * apart + first + column, many));
            at += many;
        }
        runs
    }
}

/// The tensor-parallel ranks that this rank belongs to.
#[derive(Clone, Debug)]
pub struct TensorRanks(Arc<dyn Communicator>);

/// What a collective is called in labels of messages and in traces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CollectiveLabel {
    pub(crate) step: u64,
    pub(crate) layer: usize,
    /// The name of what is gathered or summed: the label's pass.
    pub(crate) name: &'static str,
}

impl TensorRanks {
    /// The tensor-parallel ranks of a communicator.
    pub fn new(ranks: Arc<dyn Communicator>) -> TensorRanks {
        TensorRanks(ranks)
    }

    /// Whether there is no other rank: everything is whole, and nothing is sent.
    pub fn is_alone(&self) -> bool {
        self.0.world_size() == 1
    }

    /// This rank's number, and the number of ranks.
    pub fn place(&self) -> (usize, usize) {
        (self.0.rank(), self.0.world_size())
    }

    /// The rows, or classes, of `size` that are this rank's.
    pub fn own(&self, size: usize) -> Range<usize> {
        let (rank, ranks) = self.place();
        part(size, rank, ranks)
    }

    /// All rows [R, ..] in the order of ranks, gathered from each rank's `own`, which must be of equal length.
    pub(crate) fn gathered(&self, label: CollectiveLabel, own: &Tensor) -> Result<Tensor> {
        if self.is_alone() {
            return Ok(own.clone());
        }
        let own = &own.contiguous()?;
        let rows = self.timed(label, own, |label| self.0.all_gather(label, own))?;
        Tensor::cat(&rows, 0)
    }

    /// This rank's rows of the sum over ranks of `all` [R, ..].
    pub(crate) fn scattered(&self, label: CollectiveLabel, all: &Tensor) -> Result<Tensor> {
        if self.is_alone() {
            return Ok(all.clone());
        }
        let (rows, (_, ranks)) = (all.dim(0)?, self.place());
        if !rows.is_multiple_of(ranks) {
            candle_core::bail!("internal: {rows} rows between {ranks} tensor-parallel ranks");
        }
        let rows_of = |rank| {
            let part = part(rows, rank, ranks);
            all.narrow(0, part.start, part.len())
        };
        let parts = (0..ranks).map(rows_of).collect::<Result<Vec<_>>>()?;
        self.timed(label, all, |label| self.0.reduce_scatter(label, parts))
    }

    /// The tensor of every rank, in the order of ranks.
    pub(crate) fn all_gather(&self, label: CollectiveLabel, own: &Tensor) -> Result<Vec<Tensor>> {
        if self.is_alone() {
            return Ok(vec![own.clone()]);
        }
        self.timed(label, own, |label| self.0.all_gather(label, own))
    }

    /// Runs a collective that sends `tensor`, as a recorded span.
    fn timed<T>(
        &self,
        label: CollectiveLabel,
        tensor: &Tensor,
        run: impl FnOnce(Label) -> annulus_comm::Result<T>,
    ) -> Result<T> {
        let CollectiveLabel { step, layer, name } = label;
        let waiting = begin();
        let result = run(Label { step, layer, pass: name, hop: 0 })?;
        let bytes = bytes_of(tensor);
        let among = Some(self.0.ends());
        waiting.end(|| Activity::Sum { name: name.to_owned(), bytes, among });
        Ok(result)
    }
}
