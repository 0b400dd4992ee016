//! Adds tensors in place, where the sum belongs to one rank, and adds tensors of all ranks.

use candle_core::{CpuStorage, InplaceOp2, Layout, Result, Tensor, bail};

use crate::gpu::operators;
use crate::rows::{check_place, in_place_mut};
use crate::{Backend, order_free};

/// Adds `from` to `to` in place, both f32 or both tables of order-free sums, and without gaps. All views of `to` change, and where a
/// communicator returned it other ranks' too: those take a [`Tensor::copy`] first. On the CPU the calling thread adds.
///
/// # Errors
/// When the shapes differ, or a tensor has another type or gaps.
pub fn accumulate(backend: &Backend, to: &Tensor, from: &Tensor) -> Result<()> {
    if to.shape() != from.shape() {
        bail!("accumulate: found {:?}, expected {:?}", from.shape(), to.shape());
    }
    if order_free::is_order_free(to) {
        return order_free::add_sums(backend, to, from);
    }
    if let Backend::Gpu(processor) = backend {
        [to, from].map(check_place).into_iter().collect::<Result<()>>()?;
        return operators::accumulate(&**processor, to, from);
    }
    to.inplace_op2(from, &Accumulate)
}

/// The sum of one or more `parts`, f32 of one shape: neighbours are added, then neighbours of those, the tree by which ranks' tensors are
/// summed everywhere.
///
/// # Errors
/// When there are none, shapes or types differ, or on a GPU a tensor has gaps.
pub fn add_all(backend: &Backend, parts: &[Tensor]) -> Result<Tensor> {
    if let Some(other) = parts.iter().find(|part| part.shape() != parts[0].shape()) {
        bail!("add_all: found {:?}, expected {:?}", other.shape(), parts[0].shape());
    }
    if let Backend::Gpu(processor) = backend {
        parts.iter().try_for_each(check_place)?;
        return operators::add_all(&**processor, parts);
    }
    match parts {
        [] => bail!("add_all: found no tensors"),
        [only] => Ok(only.clone()),
        _ => {
            let pairs = parts.chunks(2).map(|pair| match pair {
                [left, right] => left + right,
                _ => Ok(pair[0].clone()),
            });
            add_all(backend, &pairs.collect::<Result<Vec<_>>>()?)
        }
    }
}

struct Accumulate;

impl InplaceOp2 for Accumulate {
    fn name(&self) -> &'static str {
        "accumulate"
    }
    fn cpu_fwd(
        &self,
        to: &mut CpuStorage,
        to_layout: &Layout,
        from: &CpuStorage,
        from_layout: &Layout,
    ) -> Result<()> {
        let to = in_place_mut(to, to_layout)?;
        let (CpuStorage::F32(from), Some((start, end))) = (from, from_layout.contiguous_offsets())
        else {
            bail!("accumulate: found {:?} with gaps or of another type, expected F32", from_layout);
        };
        to.iter_mut().zip(&from[start..end]).for_each(|(to, from)| *to += from);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, random};

    #[test]
    fn neighbours_are_added_first() -> Result<()> {
        let parts = (0..5).map(|rank| random(&format!("part {rank}"), &[7]));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        let [a, b, c, d, e] = [0, 1, 2, 3, 4].map(|part| &parts[part]);
        let wanted = ((((a + b)? + (c + d)?)?) + e)?;
        assert_eq!(error(&add_all(&Backend::serial(), &parts)?, &wanted)?, 0.0);
        Ok(())
    }

    #[test]
    fn a_sum_grows_in_place() -> Result<()> {
        let (to, from) = ((random("to", &[3, 5, 7])? * 1.0)?, random("from", &[3, 5, 7])?);
        let (wanted, seen) = ((&to + &from)?, to.clone());
        let pool = Backend::serial();
        accumulate(&pool, &to, &from)?;
        assert_eq!((error(&to, &wanted)?, error(&seen, &wanted)?), (0.0, 0.0));
        assert!(accumulate(&pool, &to, &from.t()?).is_err());
        assert!(accumulate(&pool, &to.narrow(2, 0, 2)?, &from.narrow(2, 0, 2)?).is_err());
        Ok(())
    }
}
