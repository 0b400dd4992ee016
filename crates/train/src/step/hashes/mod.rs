//! Hashes of the state that do not depend on which rank holds what.
//!
//! A tensor's hash is a sum modulo 2^64 over its elements, of a mix of each element's index and its bits as f32: every rank adds the
//! elements that it would write to a checkpoint, in any order. Tensors that differ in a bit have different hashes, up to a chance of 2^-64.

pub(crate) mod dump;
pub(crate) mod points;

use std::collections::BTreeMap;

use annulus_comm::{Communicator, Label, all_gather_values};
use annulus_model::Weights;
use candle_core::{DType, Tensor};

use crate::checkpoint::Piece;
use crate::step::slices::Slices;
use crate::{Result, TrainError};

/// Hashes by tensor: `gradients.NAME`, `weights.NAME`, `first.NAME`, `second.NAME` and `master.NAME`.
pub(crate) type Hashes = BTreeMap<String, u64>;

/// The kind of weights in names of hashes; the optimizer's tensors are named as in a checkpoint.
pub(crate) const WEIGHTS: &str = "weights";
/// The kind of gradients, before clipping, in names of hashes.
pub(crate) const GRADIENTS: &str = "gradients";

/// This rank's part of the hashes of `gradients`: the slices that it updates.
pub(crate) fn of_gradients(slices: &Slices<'_>, gradients: &Weights) -> Result<Hashes> {
    let of = |(name, slice): (&String, &Tensor)| {
        Ok((format!("{GRADIENTS}.{name}"), of_pieces(slices.own_gradient(name, slice)?)?))
    };
    gradients.iter().map(of).collect()
}

/// This rank's part of the hashes of all weights.
pub(crate) fn of_weights(slices: &Slices<'_>) -> Result<Hashes> {
    let of =
        |name: String| Ok((format!("{WEIGHTS}.{name}"), of_pieces(slices.own_weight(&name)?)?));
    slices.weights().into_iter().map(|one| of(one.name)).collect()
}

/// This rank's part of the hashes of the optimizer's moments and f32 masters.
pub(crate) fn of_kept(slices: &Slices<'_>) -> Result<Hashes> {
    let of = |name: String| {
        let own = of_pieces(slices.own_kept(&name)?)?;
        Ok((name, own))
    };
    slices.optimizer().into_iter().map(|one| of(one.name)).collect()
}

/// The hashes of whole tensors, added up over all ranks. All ranks must call it, with the same tensors.
pub(crate) fn gather(comm: &dyn Communicator, step: u64, own: &Hashes) -> Result<Hashes> {
    let values: Vec<i64> = own.values().map(|hash| hash.cast_signed()).collect();
    let label = Label { step, pass: "hashes", ..Label::default() };
    let mut sums = vec![0_u64; own.len()];
    for of_rank in all_gather_values(comm, label, &values)? {
        if of_rank.len() != sums.len() {
            return Err(TrainError::Internal("ranks hash other tensors".into()));
        }
        for (sum, part) in sums.iter_mut().zip(of_rank) {
            *sum = sum.wrapping_add(part.cast_unsigned());
        }
    }
    Ok(own.keys().cloned().zip(sums).collect())
}

fn of_pieces(pieces: Vec<Piece>) -> Result<u64> {
    let mut sum = 0_u64;
    for Piece { elements, runs } in pieces {
        let values: Vec<f32> = elements.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        let mut rest = values.as_slice();
        for (begins, many) in runs {
            let (run, behind) = rest.split_at(many);
            sum = sum.wrapping_add(of_run(begins as u64, run));
            rest = behind;
        }
    }
    Ok(sum)
}

/// The part of neighbouring elements, the first of which has index `begins`, in their tensor's hash; of all elements it is the hash.
pub(crate) fn of_run(begins: u64, values: &[f32]) -> u64 {
    let mixes = (begins..).zip(values).map(|(at, value)| mixed(at, value.to_bits()));
    mixes.fold(0, u64::wrapping_add)
}

/// A bijection of 64 bits (Stafford's 13th mix of MurmurHash3's, as in SplitMix64), here of an element's index and bits.
fn mixed(at: u64, bits: u32) -> u64 {
    let mut x = (at.rotate_left(32) ^ u64::from(bits)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_of_places_and_bits_alone() {
        let values: Vec<f32> = (0..1000).map(|n| (n as f32 * 0.37).sin()).collect();
        let whole = of_run(0, &values);
        let parts = [(700, 1000), (0, 3), (3, 700)]
            .map(|(from, to)| of_run(from as u64, &values[from..to]));
        assert_eq!(parts.into_iter().fold(0, u64::wrapping_add), whole);
        for at in [0, 3, 999] {
            let mut other = values.clone();
            other[at] = f32::from_bits(other[at].to_bits() ^ 1);
            assert_ne!(of_run(0, &other), whole, "{at}");
        }
        let mut swapped = values.clone();
        swapped.swap(5, 800);
        assert_ne!(of_run(0, &swapped), whole);
        assert_ne!(of_run(0, &[0.0]), of_run(0, &[-0.0]));
    }
}
