//! Adds tensors in place, where the sum belongs to one rank, and adds tensors of all ranks.

use candle_core::{CpuStorage, DType, InplaceOp2, Layout, Result, Tensor, bail};

use crate::gpu::operators;
use crate::rows::{Elements, check_place, in_place_mut, tensor};
use crate::{Backend, order_free};

/// Elements of all parts that are added before the next: they stay in the first cache.
const BLOCK: usize = 1024;

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
/// summed everywhere. Beside the parts it takes the memory of one tensor. On the CPU the calling thread adds.
///
/// # Errors
/// When there are none, a shape or type is another, or a tensor has gaps.
pub fn add_all(backend: &Backend, parts: &[Tensor]) -> Result<Tensor> {
    if let Some(other) = parts.iter().find(|part| part.shape() != parts[0].shape()) {
        bail!("add_all: found {:?}, expected {:?}", other.shape(), parts[0].shape());
    }
    parts.iter().try_for_each(check_place)?;
    match (backend, parts) {
        (_, []) => bail!("add_all: found no tensors"),
        (Backend::Gpu(processor), _) => operators::add_all(&**processor, parts),
        (Backend::Cpu(_), [only]) => Ok(only.clone()),
        (Backend::Cpu(pool), _) => {
            let read = parts.iter().map(|part| Elements::of(pool, part));
            let read = read.collect::<Result<Vec<_>>>()?;
            let slices: Vec<&[f32]> = read.iter().map(|part| &**part).collect();
            tensor(pool, summed(&slices), parts[0].shape(), DType::F32)
        }
    }
}

/// The sum of parts of equal length, by the tree of [`add_all`].
fn summed(parts: &[&[f32]]) -> Vec<f32> {
    let mut sum = Vec::with_capacity(parts[0].len());
    // Sums of as many parts as a power of two, each of more than the next: as the digits of a number that counts the parts.
    let mut sums: Vec<(usize, Vec<f32>)> = Vec::new();
    for start in (0..parts[0].len()).step_by(BLOCK) {
        let block = start..parts[0].len().min(start + BLOCK);
        for part in parts {
            let mut own = (1, part[block.clone()].to_vec());
            while let Some(before) = sums.pop_if(|before| before.0 == own.0) {
                own = merged(before, own);
            }
            sums.push(own);
        }
        while let [.., _, _] = &sums[..] {
            let (last, before) = (sums.pop(), sums.pop());
            sums.extend(before.zip(last).map(|(before, last)| merged(before, last)));
        }
        sums.drain(..).for_each(|(_, block)| sum.extend(block));
    }
    sum
}

/// The sum of the parts of both.
fn merged(
    (count, mut sum): (usize, Vec<f32>),
    (more, other): (usize, Vec<f32>),
) -> (usize, Vec<f32>) {
    sum.iter_mut().zip(other).for_each(|(to, from)| *to += from);
    (count + more, sum)
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

    /// Neighbours are added, then neighbours of those, in tensors: the sum by its definition.
    fn by_pairs(parts: &[Tensor]) -> Result<Tensor> {
        let pairs = parts.chunks(2).map(|pair| match pair {
            [left, right] => left + right,
            _ => Ok(pair[0].clone()),
        });
        match parts {
            [only] => Ok(only.clone()),
            _ => by_pairs(&pairs.collect::<Result<Vec<_>>>()?),
        }
    }

    #[test]
    fn neighbours_are_added_first() -> Result<()> {
        let backend = Backend::serial();
        for count in 1..=17 {
            for shape in [&[7][..], &[3, 1024], &[2, 1025], &[0, 5]] {
                let one = |part: usize| random(&format!("part {part} of {count}"), shape);
                let parts = (0..count).map(one).collect::<Result<Vec<_>>>()?;
                let (found, wanted) = (add_all(&backend, &parts)?, by_pairs(&parts)?);
                let bits = |sum: &Tensor| -> Result<Vec<u32>> {
                    Ok(sum.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
                };
                assert_eq!(found.dims(), shape);
                assert!(bits(&found)? == bits(&wanted)?, "{count} parts of {shape:?}");
            }
        }
        assert!(add_all(&backend, &[]).is_err());
        let gaps = random("gaps", &[4, 6])?.t()?;
        assert!(add_all(&backend, &[gaps.clone(), gaps]).is_err());
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
