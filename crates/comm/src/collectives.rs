//! What the collectives of [`Communicator`] are made of: exchanges, and sums in a fixed order.
//!
//! Sums are made by a fixed binary tree over the ranks, so that their bits depend neither on timing nor on which rank computes them.

use candle_core::{Device, Tensor, WithDType};

use crate::{Communicator, Error, Form, Label, P2pOp, Reduce, Result, sum};

/// The values of all ranks, by rank; their numbers may differ. For a few values in memory of the host, whatever ranks compute on.
///
/// # Errors
/// As [`Communicator::all_gather`].
pub fn all_gather_values<T: WithDType>(
    comm: &(impl Communicator + ?Sized),
    label: Label,
    values: &[T],
) -> Result<Vec<Vec<T>>> {
    let gathered = comm.all_gather(label, &Tensor::new(values, &Device::Cpu)?)?;
    gathered.iter().map(|one| Ok(one.to_vec1()?)).collect()
}

/// Sends `parts[r]` to rank `r`, and returns what every rank sent here, by rank. The own part does not travel. `form` is that of all
/// parts for this rank, where it is known.
pub(crate) fn all_to_all(
    comm: &(impl Communicator + ?Sized),
    label: Label,
    mut parts: Vec<Tensor>,
    form: Option<&Form>,
) -> Result<Vec<Tensor>> {
    let (rank, world) = (comm.rank(), comm.world_size());
    let own = parts[rank].detach();
    let receive = |from| P2pOp::Receive { from, form: form.cloned() };
    let mut moves: Vec<_> = peers(rank, world).map(receive).collect();
    parts.remove(rank);
    moves.extend(peers(rank, world).zip(parts).map(|(to, tensor)| P2pOp::Send { tensor, to }));
    let mut gathered = comm.exchange(label, moves)?.wait()?;
    gathered.insert(rank, own);
    Ok(gathered)
}

/// All ranks of `world` but `rank`, in order.
pub(crate) fn peers(rank: usize, world: usize) -> impl Iterator<Item = usize> {
    (0..world).filter(move |&peer| peer != rank)
}

/// Reduces neighbours, then neighbours of those, until one is left.
pub(crate) fn tree(mut tensors: Vec<Tensor>, reduce: Reduce) -> Result<Tensor> {
    while tensors.len() > 1 {
        let pairs = tensors.chunks(2).map(|pair| match pair {
            [left, right] => combine(left, right, reduce),
            rest => Ok(rest[0].clone()),
        });
        tensors = pairs.collect::<candle_core::Result<_>>()?;
    }
    Ok(tensors.swap_remove(0))
}

fn combine(left: &Tensor, right: &Tensor, reduce: Reduce) -> candle_core::Result<Tensor> {
    match reduce {
        Reduce::Sum => sum(left, right),
        // Candle's maximum may drop a NaN, which alone differs from itself.
        Reduce::Max => {
            let larger = left.maximum(right)?;
            let larger = right.ne(right)?.where_cond(right, &larger)?;
            left.ne(left)?.where_cond(left, &larger)
        }
    }
}

/// The error of a call that no group of this size can serve.
pub(crate) fn misused(
    comm: &(impl Communicator + ?Sized),
    label: Label,
    found: &str,
    wanted: &str,
) -> Error {
    let rank = comm.global_rank(comm.rank());
    Error::Call { rank, label, found: found.into(), wanted: wanted.into() }
}
