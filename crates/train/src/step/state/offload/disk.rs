//! Offloads tensors to a disk while they are not used, in a file of the rank's own.
//!
//! A thread of the rank writes offloaded tensors while the rank computes, and reads them back before they are used (prefetching). The file
//! has no name, so the system removes it however the process ends, and tensors are in it byte by byte as in memory, because only this
//! process reads it.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use annulus_memory::{Class, on_behalf_of};
use annulus_ops::on_host;
use bytemuck::{Pod, Zeroable, cast_slice, cast_slice_mut};
use candle_core::{CpuStorage, DType, Device, Shape, Storage, Tensor, WithDType};
use half::bf16;
use parking_lot::{Condvar, Mutex};

use super::{Alive, IN_FLIGHT, Offload, Offloaded, failure};
use crate::Result;

/// The interval at which a waiting rank says that it is alive.
const PULSE: Duration = Duration::from_millis(20);

/// A disk to which a rank offloads.
#[derive(Debug)]
pub(super) struct Disk(Arc<Scratch>);

/// A rank's file for offloaded tensors, and the thread that writes and reads it.
#[derive(Debug)]
struct Scratch {
    folder: PathBuf,
    /// Whether the folder was made for this file.
    is_new: bool,
    /// The device to which tensors are read back.
    device: Device,
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    /// The end of the used part of the file, from which on there is room.
    end: AtomicU64,
    /// The writes under way, the oldest first.
    writing: Mutex<VecDeque<Arc<Slot>>>,
}

/// Tensors in the file.
#[derive(Debug)]
struct OnDisk {
    scratch: Arc<Scratch>,
    place: Place,
}

/// A place in the file, and what is there.
#[derive(Debug)]
struct Place {
    /// The offset of the first of them in the file.
    at: u64,
    forms: Vec<(DType, Shape)>,
    slot: Arc<Slot>,
    is_prefetched: AtomicBool,
}

/// How far the write or read of offloaded tensors is, and who waits for it.
#[derive(Debug, Default)]
struct Slot {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Writing,
    OnDisk,
    Read(Vec<Tensor>),
    Failed(io::Error),
}

/// A write or read that the thread is to do.
#[derive(Debug)]
enum Job {
    Write { at: u64, tensors: Vec<Tensor>, slot: Arc<Slot> },
    Read { at: u64, forms: Vec<(DType, Shape)>, slot: Arc<Slot> },
}

impl Disk {
    /// The file of a rank, without a name, in `folder`, which is made if missing; tensors that are read back count to the given rank and
    /// class.
    pub(super) fn open(folder: &Path, owner: usize, class: Class, device: Device) -> Result<Disk> {
        let failed = |error| failure("write", folder, &error);
        let is_new = !folder.exists();
        let file = || {
            std::fs::create_dir_all(folder)?;
            tempfile::tempfile_in(folder)
        };
        let file = file().map_err(failed)?;
        let (jobs, hear) = channel();
        let thread = thread::Builder::new().name(format!("offload {owner}"));
        let thread = thread.spawn(move || serve(&file, owner, class, &hear)).map_err(failed)?;
        Ok(Disk(Arc::new(Scratch {
            folder: folder.to_owned(),
            is_new,
            device,
            jobs: Some(jobs),
            thread: Some(thread),
            end: AtomicU64::new(0),
            writing: Mutex::default(),
        })))
    }
}

impl Offload for Disk {
    fn write(&self, tensors: Vec<Tensor>, alive: Alive<'_>) -> Result<Box<dyn Offloaded>> {
        let (scratch, place) = (self.0.clone(), self.0.write(tensors, alive)?);
        Ok(Box::new(OnDisk { scratch, place }))
    }

    fn discard(&self) {
        self.0.end.store(0, Ordering::Relaxed);
        self.0.writing.lock().clear();
    }
}

impl Offloaded for OnDisk {
    fn prefetch(&self) -> Result<()> {
        self.scratch.prefetch(&self.place);
        Ok(())
    }

    fn restore(&self, alive: Alive<'_>) -> Result<Vec<Tensor>> {
        self.scratch.restore(&self.place, alive)
    }

    fn peek(&self, alive: Alive<'_>) -> Result<Vec<Tensor>> {
        self.scratch.peek(&self.place, alive)
    }

    fn rewrite(&mut self, tensors: Vec<Tensor>, alive: Alive<'_>) -> Result<()> {
        self.scratch.rewrite(&mut self.place, tensors, alive)
    }
}

impl Scratch {
    fn write(&self, tensors: Vec<Tensor>, alive: Alive<'_>) -> Result<Place> {
        let form = |tensor: &Tensor| (tensor.dtype(), tensor.shape().clone());
        let forms: Vec<_> = tensors.iter().map(form).collect();
        let bytes: usize = forms.iter().map(size).sum();
        let at = self.end.fetch_add(bytes as u64, Ordering::Relaxed);
        let mut place = Place::new(at, forms);
        self.rewrite(&mut place, tensors, alive)?;
        Ok(place)
    }

    fn rewrite(&self, place: &mut Place, tensors: Vec<Tensor>, alive: Alive<'_>) -> Result<()> {
        while self.writing.lock().len() >= IN_FLIGHT {
            let first = self.writing.lock().pop_front();
            if let Some(first) = first {
                self.wait(&first, alive, |state| matches!(state, State::Writing))?;
            }
        }
        *place = place.renewed();
        self.writing.lock().push_back(place.slot.clone());
        self.tell(Job::Write { at: place.at, tensors, slot: place.slot.clone() });
        Ok(())
    }

    fn prefetch(&self, place: &Place) {
        if !place.is_prefetched.swap(true, Ordering::Relaxed) {
            let Place { at, forms, slot, .. } = place;
            self.tell(Job::Read { at: *at, forms: forms.clone(), slot: slot.clone() });
        }
    }

    fn restore(&self, place: &Place, alive: Alive<'_>) -> Result<Vec<Tensor>> {
        self.prefetch(place);
        self.wait(&place.slot, alive, |state| !matches!(state, State::Read(_)))?;
        // Not `Writing`: who still finds this slot among the writes under way would wait for ever.
        match std::mem::replace(&mut *place.slot.state.lock(), State::OnDisk) {
            State::Read(tensors) => {
                let back = |tensor: Tensor| tensor.to_device(&self.device);
                Ok(tensors.into_iter().map(back).collect::<candle_core::Result<_>>()?)
            }
            _ => Err(failure("read", &self.folder, &io::ErrorKind::UnexpectedEof.into())),
        }
    }

    fn peek(&self, place: &Place, alive: Alive<'_>) -> Result<Vec<Tensor>> {
        // If the write failed, other bytes are in its place.
        self.wait(&place.slot, alive, |state| matches!(state, State::Writing))?;
        self.restore(&place.renewed(), alive)
    }

    fn tell(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // If the thread has ended, whoever waits for the job gets an error.
            let _ = jobs.send(job);
        }
    }

    /// Blocks while the state of `slot` `is_under_way`; an error where the write or read failed.
    fn wait(
        &self,
        slot: &Slot,
        alive: Alive<'_>,
        is_under_way: impl Fn(&State) -> bool,
    ) -> Result<()> {
        let mut state = slot.state.lock();
        loop {
            if let State::Failed(error) = &*state {
                return Err(failure("keep what is offloaded in", &self.folder, error));
            }
            if !is_under_way(&state) {
                return Ok(());
            }
            if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
                let gone = io::Error::other("the thread that writes and reads them has ended");
                return Err(failure("keep what is offloaded in", &self.folder, &gone));
            }
            slot.changed.wait_for(&mut state, PULSE);
            alive()?;
        }
    }
}

impl Place {
    fn new(at: u64, forms: Vec<(DType, Shape)>) -> Place {
        Place { at, forms, slot: Arc::default(), is_prefetched: AtomicBool::new(false) }
    }

    /// The same place, of nothing written or prefetched yet.
    fn renewed(&self) -> Place {
        Place::new(self.at, self.forms.clone())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // Whoever waited for the thread has had an error if it panicked.
            let _ = thread.join();
        }
        if self.is_new {
            // Fails, rightly, where the folder holds anything else.
            let _ = std::fs::remove_dir(&self.folder);
        }
    }
}

/// The thread: does its jobs in order.
fn serve(file: &File, owner: usize, class: Class, jobs: &Receiver<Job>) {
    while let Ok(job) = jobs.recv() {
        let (slot, state) = match job {
            Job::Write { at, tensors, slot } => (slot, write(file, at, tensors)),
            Job::Read { slot, .. } if matches!(*slot.state.lock(), State::Failed(_)) => continue,
            Job::Read { at, forms, slot } => {
                let read = || read(file, at, &forms);
                (slot, on_behalf_of(owner, class, read))
            }
        };
        *slot.state.lock() = state.unwrap_or_else(State::Failed);
        slot.changed.notify_all();
    }
}

fn write(file: &File, mut at: u64, tensors: Vec<Tensor>) -> io::Result<State> {
    for tensor in tensors {
        let tensor = on_host(&tensor).map_err(io::Error::other)?;
        let (storage, layout) = tensor.storage_and_layout();
        let range = layout.start_offset()..layout.start_offset() + layout.shape().elem_count();
        let bytes: &[u8] = match &*storage {
            Storage::Cpu(CpuStorage::F32(all)) => cast_slice(&all[range]),
            Storage::Cpu(CpuStorage::BF16(all)) => cast_slice(&all[range]),
            _ => return Err(unsupported(tensor.dtype())),
        };
        file.write_all_at(bytes, at)?;
        at += bytes.len() as u64;
    }
    Ok(State::OnDisk)
}

fn read(file: &File, mut at: u64, forms: &[(DType, Shape)]) -> io::Result<State> {
    let mut tensor = |form: &(DType, Shape)| {
        let from = at;
        at += size(form) as u64;
        match form.0 {
            DType::F32 => tensor_at::<f32>(file, from, &form.1),
            DType::BF16 => tensor_at::<bf16>(file, from, &form.1),
            other => Err(unsupported(other)),
        }
    };
    Ok(State::Read(forms.iter().map(&mut tensor).collect::<io::Result<_>>()?))
}

/// The tensor whose elements are at an offset of the file.
fn tensor_at<T: WithDType + Pod>(file: &File, at: u64, shape: &Shape) -> io::Result<Tensor> {
    let mut all = vec![<T as Zeroable>::zeroed(); shape.elem_count()];
    file.read_exact_at(cast_slice_mut(&mut all), at)?;
    Tensor::from_vec(all, shape, &Device::Cpu).map_err(io::Error::other)
}

fn unsupported(dtype: DType) -> io::Error {
    io::Error::other(format!("what is offloaded is not {}", dtype.as_str()))
}

/// The size of a tensor in bytes.
fn size((dtype, shape): &(DType, Shape)) -> usize {
    dtype.size_in_bytes() * shape.elem_count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file of rank 0 in `folder`.
    fn offload(folder: &Path) -> Result<Disk> {
        Disk::open(folder, 0, Class::Activations, Device::Cpu)
    }

    fn tensors(seed: f32) -> Vec<Tensor> {
        let wide: Vec<f32> = (0..700_000).map(|n| (n as f32 * 0.37 + seed).sin()).collect();
        let wide = Tensor::from_vec(wide, (7, 100_000), &Device::Cpu).unwrap();
        let narrow = wide.narrow(1, 5, 33).unwrap().to_dtype(DType::BF16).unwrap();
        // A copy, a view of some rows, and a view whose elements are not neighbours.
        vec![narrow, wide.narrow(0, 2, 3).unwrap(), wide.t().unwrap()]
    }

    fn bits(tensor: &Tensor) -> Vec<u8> {
        let mut bytes = Vec::new();
        tensor.write_bytes(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn what_was_offloaded_is_restored_with_its_bits() {
        let folder = tempfile::tempdir().unwrap();
        let offload = offload(folder.path()).unwrap();
        for round in 0..2 {
            offload.discard();
            let write = |seed: usize| {
                offload.write(tensors((round * 10 + seed) as f32), &|| Ok(())).unwrap()
            };
            let places: Vec<_> = (0..6).map(write).collect();
            places[4].prefetch().unwrap();
            for (seed, place) in places.into_iter().enumerate().rev() {
                let restored = place.restore(&|| Ok(())).unwrap();
                for (found, wanted) in restored.iter().zip(tensors((round * 10 + seed) as f32)) {
                    assert_eq!((found.dims(), found.dtype()), (wanted.dims(), wanted.dtype()));
                    assert_eq!(bits(found), bits(&wanted));
                }
            }
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "a file has a name");
    }

    #[test]
    fn what_cannot_be_written_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = offload(&file.join("below")).unwrap_err().to_string();
        assert!(error.contains("below") && error.starts_with("cannot write"), "{error}");
        let offload = offload(folder.path()).unwrap();
        let ids = Tensor::new(&[1_u32, 2], &Device::Cpu).unwrap();
        let place = offload.write(vec![ids], &|| Ok(())).unwrap();
        let error = place.restore(&|| Ok(())).unwrap_err().to_string();
        assert!(error.contains("what is offloaded is not u32"), "{error}");
    }
}
