//! Adding in place, where a sum is one's own.

use candle_core::{CpuStorage, InplaceOp2, Layout, Result, Tensor, bail};

use crate::gpu::operators;
use crate::rows::{check_place, in_place_mut};
use crate::{Backend, order_free};

/// `to += from`, both f32 or both tables of order-free sums, and without gaps. Whoever shares the storage of `to` sees it change. On the CPU the caller does it.
///
/// # Errors
/// When the shapes differ, or a tensor has another type or gaps.
pub fn accumulate(backend: &Backend, to: &Tensor, from: &Tensor) -> Result<()> {
    if to.shape() != from.shape() {
        bail!("accumulate: found {:?}, wanted {:?}", from.shape(), to.shape());
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
            bail!("accumulate: found {:?} with gaps or of another type, wanted F32", from_layout);
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
