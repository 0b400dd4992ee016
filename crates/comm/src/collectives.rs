//! Collectives made from `exchange` alone, for engines and wrappers.
//!
//! An engine that has its own may use them where it can promise the order of sums: a fixed binary
//! tree over the ranks, so that the bits depend neither on timing nor on who asks.

use candle_core::{DType, Device, Tensor};

use crate::{Communicator, Error, Form, Label, Move, Reduce, Result};

/// See [`Communicator::all_gather`].
///
/// # Errors
/// As the method of [`Communicator`].
pub fn all_gather(
    comm: &(impl Communicator + ?Sized),
    label: Label,
    tensor: &Tensor,
) -> Result<Vec<Tensor>> {
    all_to_all(comm, label, vec![tensor.clone(); comm.world()])
}

/// See [`Communicator::all_to_all`]. The own part does not travel.
///
/// # Errors
/// As the method of [`Communicator`].
pub fn all_to_all(
    comm: &(impl Communicator + ?Sized),
    label: Label,
    parts: Vec<Tensor>,
) -> Result<Vec<Tensor>> {
    expect_parts(comm, label, &parts)?;
    swap(comm, label, parts, None)
}

/// Everybody's part for this rank, of this form where all have one.
fn swap(
    comm: &(impl Communicator + ?Sized),
    label: Label,
    mut parts: Vec<Tensor>,
    form: Option<&Form>,
) -> Result<Vec<Tensor>> {
    let (rank, world) = (comm.rank(), comm.world());
    let own = parts[rank].detach();
    let peers = || (0..world).filter(|&peer| peer != rank);
    let receive = |from| Move::Receive { from, form: form.cloned() };
    let mut moves: Vec<_> = peers().map(receive).collect();
    parts.remove(rank);
    moves.extend(peers().zip(parts).map(|(to, tensor)| send(tensor, to)));
    let mut gathered = comm.exchange(label, moves)?.wait()?;
    gathered.insert(rank, own);
    Ok(gathered)
}

/// See [`Communicator::reduce_scatter`].
///
/// # Errors
/// As the method of [`Communicator`].
pub fn reduce_scatter(
    comm: &(impl Communicator + ?Sized),
    label: Label,
    parts: Vec<Tensor>,
) -> Result<Tensor> {
    expect_parts(comm, label, &parts)?;
    let form = Form::of(&parts[comm.rank()]);
    tree(swap(comm, label, parts, Some(&form))?, Reduce::Sum)
}

/// See [`Communicator::all_reduce`]: every rank reduces its own slice of the flattened tensors,
/// then the slices are gathered. What has fewer elements than there are ranks is gathered whole;
/// the tree, and so the bits, are the same.
///
/// # Errors
/// As the method of [`Communicator`].
pub fn all_reduce(
    comm: &(impl Communicator + ?Sized),
    label: Label,
    tensor: &Tensor,
    reduce: Reduce,
) -> Result<Tensor> {
    let (elements, world) = (tensor.elem_count(), comm.world());
    if elements < world || world == 1 {
        let form = Form::of(tensor);
        return tree(swap(comm, label, vec![tensor.clone(); world], Some(&form))?, reduce);
    }
    let flat = tensor.detach().flatten_all()?;
    let bound = |rank: usize| elements * rank / world;
    let slices = (0..world).map(|r| flat.narrow(0, bound(r), bound(r + 1) - bound(r)));
    let slices = slices.collect::<candle_core::Result<Vec<_>>>()?;
    let form = Form::of(&slices[comm.rank()]);
    let own = tree(swap(comm, label, slices, Some(&form))?, reduce)?;
    let reduced = Tensor::cat(&all_gather(comm, label, &own)?, 0)?;
    Ok(reduced.reshape(tensor.shape())?)
}

/// See [`Communicator::broadcast`].
///
/// # Errors
/// As the method of [`Communicator`].
pub fn broadcast(
    comm: &(impl Communicator + ?Sized),
    label: Label,
    tensor: Option<&Tensor>,
    root: usize,
) -> Result<Tensor> {
    if comm.rank() != root {
        let mut arrived =
            comm.exchange(label, vec![Move::Receive { from: root, form: None }])?.wait()?;
        return arrived.pop().ok_or_else(|| misused(comm, label, "no tensor", "one"));
    }
    let wanted = "the root's tensor";
    let tensor = tensor.ok_or_else(|| misused(comm, label, "nothing to broadcast", wanted))?;
    let peers = (0..comm.world()).filter(|&peer| peer != root);
    comm.exchange(label, peers.map(|to| send(tensor.clone(), to)).collect())?.wait()?;
    Ok(tensor.detach())
}

/// See [`Communicator::gather`]. The own tensor does not travel.
///
/// # Errors
/// As the method of [`Communicator`].
pub fn gather(
    comm: &(impl Communicator + ?Sized),
    label: Label,
    tensor: &Tensor,
    root: usize,
) -> Result<Option<Vec<Tensor>>> {
    if comm.rank() != root {
        comm.exchange(label, vec![send(tensor.clone(), root)])?.wait()?;
        return Ok(None);
    }
    let peers = (0..comm.world()).filter(|&peer| peer != root);
    let moves = peers.map(|from| Move::Receive { from, form: None }).collect();
    let mut gathered = comm.exchange(label, moves)?.wait()?;
    gathered.insert(root, tensor.detach());
    Ok(Some(gathered))
}

/// See [`Communicator::barrier`].
///
/// # Errors
/// As the method of [`Communicator`].
pub fn barrier(comm: &(impl Communicator + ?Sized), label: Label) -> Result<()> {
    all_gather(comm, label, &Tensor::zeros((), DType::U8, &Device::Cpu)?).map(drop)
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
        Reduce::Sum => left + right,
        // Candle's maximum may drop a NaN, which alone differs from itself.
        Reduce::Max => {
            let larger = left.maximum(right)?;
            let larger = right.ne(right)?.where_cond(right, &larger)?;
            left.ne(left)?.where_cond(left, &larger)
        }
    }
}

fn send(tensor: Tensor, to: usize) -> Move {
    Move::Send { tensor, to }
}

fn expect_parts(comm: &(impl Communicator + ?Sized), label: Label, parts: &[Tensor]) -> Result<()> {
    if parts.len() == comm.world() {
        return Ok(());
    }
    let found = format!("{} parts", parts.len());
    Err(misused(comm, label, &found, &format!("one for each of {} ranks", comm.world())))
}

fn misused(comm: &(impl Communicator + ?Sized), label: Label, found: &str, wanted: &str) -> Error {
    let rank = comm.original(comm.rank());
    Error::Call { rank, label, found: found.into(), wanted: wanted.into() }
}
