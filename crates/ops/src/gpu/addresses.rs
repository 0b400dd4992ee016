//! Where tensors lie, for as long as a launch takes.
//!
//! Candle lends the storage of one tensor to a writer at a time; several are had by asking for the next while the one before is
//! lent. Tensors that are read are locked meanwhile, so that a kernel never reads what it writes by accident.

use std::cell::RefCell;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, Error, InplaceOp1, Layout, Result, Storage, Tensor};

/// Addresses of first elements: of tensors that are read, and of tensors that are written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Addresses {
    /// In the order in which they were handed in.
    pub reads: Vec<u64>,
    /// Likewise.
    pub writes: Vec<u64>,
}

/// Calls `then` with the addresses of all, which hold until it returns.
///
/// # Errors
/// When a tensor is both read and written, or on a device that kernels cannot reach.
pub(crate) fn addresses(
    reads: &[&Tensor],
    writes: &[&Tensor],
    then: &mut dyn FnMut(&Addresses) -> Result<()>,
) -> Result<()> {
    let read: Vec<usize> = reads.iter().map(|tensor| storage_of(tensor)).collect();
    let written: Vec<usize> = writes.iter().map(|tensor| storage_of(tensor)).collect();
    for (index, storage) in written.iter().enumerate() {
        if read.contains(storage) || written[..index].contains(storage) {
            let shape = writes[index].dims();
            return Err(Error::Msg(format!(
                "a kernel cannot write {shape:?} where it reads or writes something else"
            )));
        }
    }
    #[cfg(feature = "emulator")]
    touched::set(reads, writes);
    lend_writes(reads, writes, &mut Addresses::default(), then)
}

/// What the launch of this thread is lent, for an emulated processor with a memory of its own.
#[cfg(feature = "emulator")]
pub(super) mod touched {
    use std::cell::RefCell;
    use std::ops::Range;

    use candle_core::{Storage, Tensor};

    use super::super::memories::Touched;

    thread_local! {
        static LENT: RefCell<Vec<Touched>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn set(reads: &[&Tensor], writes: &[&Tensor]) {
        LENT.set(of(reads, writes));
    }

    /// What was lent last: it is so no more.
    pub(in super::super) fn take() -> Vec<Touched> {
        LENT.take()
    }

    pub(in super::super) fn of(reads: &[&Tensor], writes: &[&Tensor]) -> Vec<Touched> {
        let one = |writes| {
            move |tensor: &&Tensor| {
                let tensor = (*tensor).clone();
                let (storage, elements) = place(&tensor);
                Touched { storage, elements, writes, tensor }
            }
        };
        reads.iter().map(one(false)).chain(writes.iter().map(one(true))).collect()
    }

    /// Where the elements of its storage begin, and between which of them it is.
    fn place(tensor: &Tensor) -> (u64, Range<usize>) {
        let (storage, layout) = tensor.storage_and_layout();
        let address = match &*storage {
            Storage::Cpu(storage) => super::cpu(storage).unwrap_or_default(),
            _ => 0,
        };
        let reach = layout.dims().iter().zip(layout.stride());
        let reach: usize = reach.map(|(size, stride)| size.saturating_sub(1) * stride).sum();
        let start = layout.start_offset();
        (address, start..start + reach + 1)
    }
}

/// Which storage a tensor is in: one that is asked for twice would be waited for for ever.
fn storage_of(tensor: &Tensor) -> usize {
    let (storage, _) = tensor.storage_and_layout();
    std::ptr::from_ref::<Storage>(&storage) as usize
}

fn lend_writes(
    reads: &[&Tensor],
    writes: &[&Tensor],
    lent: &mut Addresses,
    then: &mut dyn FnMut(&Addresses) -> Result<()>,
) -> Result<()> {
    let Some((first, rest)) = writes.split_first() else {
        return lend_reads(reads, lent, then);
    };
    let go_on = RefCell::new(|address: u64| {
        lent.writes.push(address);
        lend_writes(reads, rest, lent, then)
    });
    first.inplace_op1(&Lend { go_on })
}

fn lend_reads(
    reads: &[&Tensor],
    lent: &mut Addresses,
    then: &mut dyn FnMut(&Addresses) -> Result<()>,
) -> Result<()> {
    let Some((first, rest)) = reads.split_first() else {
        return then(lent);
    };
    let (storage, layout) = first.storage_and_layout();
    let bytes = (layout.start_offset() * first.dtype().size_in_bytes()) as u64;
    match &*storage {
        Storage::Cpu(storage) => {
            lent.reads.push(cpu(storage)? + bytes);
            lend_reads(rest, lent, then)
        }
        #[cfg(feature = "cuda")]
        Storage::Cuda(storage) => super::cuda::reading(storage, &mut |address| {
            lent.reads.push(address + bytes);
            lend_reads(rest, lent, then)
        }),
        _ => Err(Error::Msg(format!("kernels cannot reach {:?}", first.device().location()))),
    }
}

/// Lends the storage it is applied to.
struct Lend<F> {
    go_on: RefCell<F>,
}

impl<F: FnMut(u64) -> Result<()>> InplaceOp1 for Lend<F> {
    fn name(&self) -> &'static str {
        "kernel"
    }
    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let bytes = (layout.start_offset() * storage.dtype().size_in_bytes()) as u64;
        let address = cpu_mut(storage)? + bytes;
        (self.go_on.borrow_mut())(address)
    }
    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut candle_core::CudaStorage, layout: &Layout) -> Result<()> {
        let bytes = (layout.start_offset() * storage.dtype().size_in_bytes()) as u64;
        super::cuda::writing(storage, &mut |address| (self.go_on.borrow_mut())(address + bytes))
    }
}

/// Where CPU storage starts; `$start` is `as_ptr` or `as_mut_ptr`.
macro_rules! start {
    ($storage:expr, $start:ident) => {
        match $storage {
            CpuStorage::U8(values) => Ok(values.$start() as u64),
            CpuStorage::U32(values) => Ok(values.$start() as u64),
            CpuStorage::I64(values) => Ok(values.$start() as u64),
            CpuStorage::BF16(values) => Ok(values.$start() as u64),
            CpuStorage::F16(values) => Ok(values.$start() as u64),
            CpuStorage::F32(values) => Ok(values.$start() as u64),
            CpuStorage::F64(values) => Ok(values.$start() as u64),
            other => Err(Error::Msg(format!("kernels cannot take {:?}", other.dtype()))),
        }
    };
}

fn cpu(storage: &CpuStorage) -> Result<u64> {
    start!(storage, as_ptr)
}

fn cpu_mut(storage: &mut CpuStorage) -> Result<u64> {
    start!(storage, as_mut_ptr)
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    #[test]
    fn addresses_are_those_of_first_elements() -> Result<()> {
        let all = Tensor::zeros((2, 4), DType::F32, &Device::Cpu)?;
        let second = all.narrow(0, 1, 1)?;
        let out = Tensor::zeros(3, DType::BF16, &Device::Cpu)?;
        let mut seen = Addresses::default();
        addresses(&[&all, &second, &all], &[&out], &mut |at| {
            seen = at.clone();
            Ok(())
        })?;
        assert_eq!(seen.reads[1], seen.reads[0] + 16);
        assert_eq!(seen.reads[2], seen.reads[0]);
        assert_eq!(seen.writes.len(), 1);
        Ok(())
    }

    #[test]
    fn what_is_written_may_be_nothing_else() -> Result<()> {
        let x = Tensor::zeros((2, 4), DType::F32, &Device::Cpu)?;
        let part = x.narrow(0, 1, 1)?;
        for (reads, writes) in [(vec![&part], vec![&x]), (vec![], vec![&x, &part])] {
            let found = addresses(&reads, &writes, &mut |_| Ok(())).unwrap_err().to_string();
            assert!(found.contains("reads or writes something else"), "{found}");
        }
        Ok(())
    }
}
