//! The addresses of tensors, for the duration of a launch.
//!
//! Candle lends the storage of one tensor to a writer at a time; several are had by asking for the next while the one before is lent, parts
//! of one storage together. Tensors that are read are locked meanwhile, so that a kernel never reads what it writes by accident.

use std::cell::RefCell;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, Error, InplaceOp1, Layout, Result, Storage, Tensor};

/// Addresses of first elements, of tensors that are read and of tensors that are written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Addresses {
    /// Addresses of the tensors that are read, in the order of the arguments.
    pub reads: Vec<u64>,
    /// Addresses of the tensors that are written, in the order of the arguments.
    pub writes: Vec<u64>,
}

/// Calls `then` with the addresses of all, which hold until it returns.
///
/// # Errors
/// When memory is written that is also read or written as another tensor, or on a device that kernels cannot reach.
pub(crate) fn addresses(
    reads: &[&Tensor],
    writes: &[&Tensor],
    then: &mut dyn FnMut(&Addresses) -> Result<()>,
) -> Result<()> {
    let (read, written) = (Asked::of(reads), Asked::of(writes));
    let is_read = |write: &Place| read.places.iter().any(|one| one.storage == write.storage);
    let mut storages = written.storages.iter();
    let bad = storages.find_map(|all| {
        let twice = written.overlapping(all);
        twice.or_else(|| all.first().copied().filter(|write| is_read(&written.places[*write])))
    });
    if let Some(write) = bad {
        let shape = writes[write].dims();
        return Err(Error::Msg(format!(
            "a kernel cannot write {shape:?} where it reads or writes something else"
        )));
    }
    #[cfg(feature = "emulator")]
    touched::set(reads, writes);
    let mut lent = Addresses { reads: vec![0; reads.len()], writes: vec![0; writes.len()] };
    lend_writes(&read, &written, &written.storages, &mut lent, then)
}

/// The storages lent to this thread's launch, for an emulated processor with a memory of its own.
#[cfg(feature = "emulator")]
pub(super) mod touched {
    use std::cell::RefCell;

    use candle_core::Tensor;

    use super::super::memories::Touched;
    use super::Place;

    thread_local! {
        static LENT: RefCell<Vec<Touched>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn set(reads: &[&Tensor], writes: &[&Tensor]) {
        LENT.set(of(reads, writes));
    }

    /// Takes the record of the storages that were lent last.
    pub(in super::super) fn take() -> Vec<Touched> {
        LENT.take()
    }

    pub(in super::super) fn of(reads: &[&Tensor], writes: &[&Tensor]) -> Vec<Touched> {
        let one = |writes| {
            move |tensor: &&Tensor| {
                let tensor = (*tensor).clone();
                let Place { storage, begin, end } = Place::of(&tensor);
                Touched { storage, bytes: begin..end, writes, tensor }
            }
        };
        reads.iter().map(one(false)).chain(writes.iter().map(one(true))).collect()
    }
}

/// The place of a tensor: its storage, and its first and last byte there.
#[derive(Clone, Copy)]
struct Place {
    storage: usize,
    begin: usize,
    end: usize,
}

impl Place {
    fn of(tensor: &Tensor) -> Place {
        let (storage, layout) = tensor.storage_and_layout();
        let steps = layout.dims().iter().zip(layout.stride());
        let reach: usize = steps.map(|(size, stride)| size.saturating_sub(1) * stride).sum();
        let (size, first) = (tensor.dtype().size_in_bytes(), layout.start_offset());
        let elements = if tensor.elem_count() == 0 { 0 } else { reach + 1 };
        let storage = std::ptr::from_ref::<Storage>(&storage) as usize;
        Place { storage, begin: first * size, end: (first + elements) * size }
    }
}

/// Tensors grouped by storage. A storage is locked once for all its tensors: asking twice could wait for a writer that waits for the
/// caller. Ranks that share weights ask in the same order, whichever parts they write.
struct Asked<'a> {
    tensors: &'a [&'a Tensor],
    places: Vec<Place>,
    /// For each storage the numbers of its tensors, ordered by where they begin.
    storages: Vec<Vec<usize>>,
}

impl<'a> Asked<'a> {
    fn of(tensors: &'a [&'a Tensor]) -> Asked<'a> {
        let places: Vec<Place> = tensors.iter().map(|tensor| Place::of(tensor)).collect();
        let mut order: Vec<usize> = (0..tensors.len()).collect();
        order.sort_by_key(|one| (places[*one].storage, places[*one].begin));
        let storages = order.chunk_by(|a, b| places[*a].storage == places[*b].storage);
        let storages = storages.map(<[usize]>::to_vec).collect();
        Asked { tensors, places, storages }
    }

    /// A tensor, of these in one storage, that shares bytes with another.
    fn overlapping(&self, all: &[usize]) -> Option<usize> {
        let some = |one: &&usize| self.places[**one].begin < self.places[**one].end;
        let pairs = all.iter().filter(some).zip(all.iter().filter(some).skip(1));
        let mut pairs = pairs.map(|(one, next)| (*next, self.places[*one].end));
        pairs.find(|(next, end)| self.places[*next].begin < *end).map(|(next, _)| next)
    }

    /// Stores the addresses of the tensors of a storage that begins at `storage`.
    fn put(&self, all: &[usize], storage: u64, addresses: &mut [u64]) {
        for one in all {
            addresses[*one] = storage + self.places[*one].begin as u64;
        }
    }
}

fn lend_writes(
    reads: &Asked<'_>,
    writes: &Asked<'_>,
    storages: &[Vec<usize>],
    lent: &mut Addresses,
    then: &mut dyn FnMut(&Addresses) -> Result<()>,
) -> Result<()> {
    let Some((all, rest)) = storages.split_first() else {
        return lend_reads(reads, &reads.storages, lent, then);
    };
    let first = all[0];
    let go_on = RefCell::new(|address: u64| {
        writes.put(all, address - writes.places[first].begin as u64, &mut lent.writes);
        lend_writes(reads, writes, rest, lent, then)
    });
    writes.tensors[first].inplace_op1(&Lend { go_on })
}

fn lend_reads(
    reads: &Asked<'_>,
    storages: &[Vec<usize>],
    lent: &mut Addresses,
    then: &mut dyn FnMut(&Addresses) -> Result<()>,
) -> Result<()> {
    let Some((all, rest)) = storages.split_first() else {
        return then(lent);
    };
    let first = reads.tensors[all[0]];
    let (storage, _) = first.storage_and_layout();
    let mut go_on = |address: u64| {
        reads.put(all, address, &mut lent.reads);
        lend_reads(reads, rest, lent, then)
    };
    match &*storage {
        Storage::Cpu(storage) => go_on(cpu(storage)?),
        #[cfg(feature = "cuda")]
        Storage::Cuda(storage) => super::cuda::reading(storage, &mut go_on),
        _ => Err(Error::Msg(format!("kernels cannot reach {:?}", first.device().location()))),
    }
}

/// Lends the storage that it is applied to.
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

/// The start of CPU storage; `$start` is `as_ptr` or `as_mut_ptr`.
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
    fn parts_of_one_storage_are_written_together() -> Result<()> {
        let all = Tensor::zeros((4, 4), DType::F32, &Device::Cpu)?;
        let [third, first, last] = [2, 0, 3].map(|row| all.narrow(0, row, 1));
        let (third, first, last, other) = (third?, first?, last?, all.copy()?);
        let mut seen = Addresses::default();
        addresses(&[], &[&third, &other, &first, &last], &mut |at| {
            seen = at.clone();
            Ok(())
        })?;
        let [at, at_other, at_first, at_last] = seen.writes[..] else { panic!("four") };
        assert_eq!((at_first + 32, at_last), (at, at + 16));
        assert!(at_other != 0 && !(at_first..at_first + 64).contains(&at_other));
        Ok(())
    }

    #[test]
    fn threads_that_write_parts_of_the_same_storages_do_not_wait_for_each_other() -> Result<()> {
        let [a, b] = [0, 1].map(|_| Tensor::zeros((2, 4), DType::F32, &Device::Cpu));
        let (a, b) = (a?, b?);
        let parts = |row| Ok::<_, Error>([a.narrow(0, row, 1)?, b.narrow(0, row, 1)?]);
        let ([a0, b0], [a1, b1]) = (parts(0)?, parts(1)?);
        let often = |writes: [&Tensor; 2]| {
            let wait = &mut |_: &Addresses| {
                std::thread::yield_now();
                Ok(())
            };
            (0..1000).try_for_each(|_| addresses(&[], &writes, wait))
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| often([&b1, &a1]));
            often([&a0, &b0]).and(other.join().expect("no panic"))
        })
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
