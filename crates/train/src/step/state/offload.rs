//! Tensors that are elsewhere while nobody uses them: on a disk, in a file of the rank's own.
//!
//! A thread of the rank writes offloaded tensors while the rank goes on, and reads them back ahead of their use. What a stage keeps for
//! backward is thus in memory for a few stages only. The file has no name, so nothing is left of it however the process ends.

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
use candle_core::{CpuStorage, DType, Device, Shape, Storage, Tensor};
use half::bf16;
use parking_lot::{Condvar, Mutex};

use crate::{Result, TrainError};

/// How many writes (what a stage kept, or the moments of a parameter) may be under way at once: one more waits. The planner counts with the
/// same number.
pub(crate) const IN_FLIGHT: usize = annulus_plan::OFFLOADS_IN_FLIGHT;
/// The interval at which a waiting rank says that it is alive.
const PULSE: Duration = Duration::from_millis(20);
/// How many bytes are written or read at a time.
const CHUNK: usize = annulus_plan::OFFLOAD_CHUNK;

/// A rank's file for offloaded tensors, and the thread that writes and reads it.
#[derive(Debug)]
pub(crate) struct Offload {
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

/// Handle of tensors that are offloaded.
#[derive(Debug)]
pub(crate) struct Away {
    at: u64,
    forms: Vec<(DType, Shape)>,
    slot: Arc<Slot>,
    is_asked: AtomicBool,
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
    Leaving,
    Away,
    Back(Vec<Tensor>),
    Failed(io::Error),
}

/// A write or read that the thread is to do.
#[derive(Debug)]
enum Job {
    Write { at: u64, tensors: Vec<Tensor>, slot: Arc<Slot> },
    Read { at: u64, forms: Vec<(DType, Shape)>, slot: Arc<Slot> },
}

impl Offload {
    /// The file of a rank, without a name, in `folder`, which is made if missing; tensors that are read back count to the given rank and
    /// class.
    pub(crate) fn new(
        folder: &Path,
        owner: usize,
        class: Class,
        device: Device,
    ) -> Result<Offload> {
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
        Ok(Offload {
            folder: folder.to_owned(),
            is_new,
            device,
            jobs: Some(jobs),
            thread: Some(thread),
            end: AtomicU64::new(0),
            writing: Mutex::default(),
        })
    }

    /// Forgets everything in the file: none of it is wanted any more.
    pub(crate) fn forget(&self) {
        self.end.store(0, Ordering::Relaxed);
        self.writing.lock().clear();
    }

    /// Begins to write tensors; calls `alive` now and then while it waits because too many writes are under way.
    pub(crate) fn put(&self, tensors: Vec<Tensor>, alive: &dyn Fn() -> Result<()>) -> Result<Away> {
        let form = |tensor: &Tensor| (tensor.dtype(), tensor.shape().clone());
        let forms: Vec<_> = tensors.iter().map(form).collect();
        let bytes: usize = forms.iter().map(size).sum();
        let at = self.end.fetch_add(bytes as u64, Ordering::Relaxed);
        let mut away = Away { at, forms, slot: Arc::default(), is_asked: AtomicBool::new(false) };
        self.put_back(&mut away, tensors, alive)?;
        Ok(away)
    }

    /// Begins to write tensors to the place in the file of those that were taken from `away`.
    pub(crate) fn put_back(
        &self,
        away: &mut Away,
        tensors: Vec<Tensor>,
        alive: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        while self.writing.lock().len() >= IN_FLIGHT {
            let first = self.writing.lock().pop_front();
            if let Some(first) = first {
                self.wait(&first, alive, |state| matches!(state, State::Leaving))?;
            }
        }
        *away = away.again();
        self.writing.lock().push_back(away.slot.clone());
        self.tell(Job::Write { at: away.at, tensors, slot: away.slot.clone() });
        Ok(())
    }

    /// Begins to read back what `away` stands for, unless that has begun.
    pub(crate) fn ask(&self, away: &Away) {
        if !away.is_asked.swap(true, Ordering::Relaxed) {
            let Away { at, forms, slot, .. } = away;
            self.tell(Job::Read { at: *at, forms: forms.clone(), slot: slot.clone() });
        }
    }

    /// The tensors that `away` stands for, read back; waits for them.
    pub(crate) fn take(&self, away: &Away, alive: &dyn Fn() -> Result<()>) -> Result<Vec<Tensor>> {
        self.ask(away);
        self.wait(&away.slot, alive, |state| !matches!(state, State::Back(_)))?;
        // Nobody waits for the read any more: what is taken is not under way.
        match std::mem::replace(&mut *away.slot.state.lock(), State::Away) {
            State::Back(tensors) => {
                let back = |tensor: Tensor| tensor.to_device(&self.device);
                Ok(tensors.into_iter().map(back).collect::<candle_core::Result<_>>()?)
            }
            _ => Err(failure("read", &self.folder, &io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// A copy of the tensors that `away` stands for; they stay in the file.
    pub(crate) fn look(&self, away: &Away, alive: &dyn Fn() -> Result<()>) -> Result<Vec<Tensor>> {
        // If the write failed, other bytes are in its place.
        self.wait(&away.slot, alive, |state| matches!(state, State::Leaving))?;
        self.take(&away.again(), alive)
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
        alive: &dyn Fn() -> Result<()>,
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

impl Away {
    /// A fresh handle of the same tensors: nothing written or asked for yet.
    fn again(&self) -> Away {
        let Away { at, ref forms, .. } = *self;
        Away { at, forms: forms.clone(), slot: Arc::default(), is_asked: AtomicBool::new(false) }
    }
}

impl Drop for Offload {
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

/// The error that something cannot be kept in `folder`, with the way out.
fn failure(what: &str, folder: &Path, error: &io::Error) -> TrainError {
    let message = format!("cannot {what} `{}`: {error}", folder.display());
    let hint = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free some space there, name a folder with more by `memory.offload_folder`, or set `memory.offload=none`"
        }
        _ => "name another folder by `memory.offload_folder`, or set `memory.offload=none`",
    };
    TrainError::offload(message, hint)
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
    let mut put = |bytes: &[u8]| {
        at += bytes.len() as u64;
        file.write_all_at(bytes, at - bytes.len() as u64)
    };
    for tensor in tensors {
        let tensor = on_host(&tensor).map_err(io::Error::other)?;
        let (storage, layout) = tensor.storage_and_layout();
        let range = layout.start_offset()..layout.start_offset() + layout.shape().elem_count();
        match &*storage {
            Storage::Cpu(CpuStorage::F32(all)) => encode(&all[range], f32::to_le_bytes, &mut put)?,
            Storage::Cpu(CpuStorage::BF16(all)) => {
                encode(&all[range], bf16::to_le_bytes, &mut put)?;
            }
            _ => return Err(unsupported(tensor.dtype())),
        }
    }
    Ok(State::Away)
}

fn encode<T: Copy, const N: usize>(
    all: &[T],
    bytes: impl Fn(T) -> [u8; N],
    put: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut chunk = Vec::with_capacity(CHUNK);
    for some in all.chunks(CHUNK / N) {
        chunk.clear();
        chunk.extend(some.iter().flat_map(|one| bytes(*one)));
        put(&chunk)?;
    }
    Ok(())
}

fn read(file: &File, mut at: u64, forms: &[(DType, Shape)]) -> io::Result<State> {
    let mut get = |bytes: &mut [u8]| {
        at += bytes.len() as u64;
        file.read_exact_at(bytes, at - bytes.len() as u64)
    };
    let tensor = |(dtype, shape): &(DType, Shape)| {
        let (count, cpu) = (shape.elem_count(), &Device::Cpu);
        let tensor = match dtype {
            DType::F32 => {
                Tensor::from_vec(decode(count, f32::from_le_bytes, &mut get)?, shape, cpu)
            }
            DType::BF16 => {
                Tensor::from_vec(decode(count, bf16::from_le_bytes, &mut get)?, shape, cpu)
            }
            other => return Err(unsupported(*other)),
        };
        tensor.map_err(io::Error::other)
    };
    Ok(State::Back(forms.iter().map(tensor).collect::<io::Result<_>>()?))
}

fn decode<T, const N: usize>(
    count: usize,
    from: impl Fn([u8; N]) -> T,
    get: &mut dyn FnMut(&mut [u8]) -> io::Result<()>,
) -> io::Result<Vec<T>> {
    let mut all = Vec::with_capacity(count);
    let mut chunk = vec![0; CHUNK];
    while all.len() < count {
        let some = &mut chunk[..((count - all.len()) * N).min(CHUNK)];
        get(some)?;
        let (elements, _) = some.as_chunks();
        all.extend(elements.iter().map(|one| from(*one)));
    }
    Ok(all)
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
    fn offload(folder: &Path) -> Result<Offload> {
        Offload::new(folder, 0, Class::Activations, Device::Cpu)
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
    fn what_was_put_away_comes_back_with_its_bits() {
        let folder = tempfile::tempdir().unwrap();
        let offload = offload(folder.path()).unwrap();
        for round in 0..2 {
            offload.forget();
            let put =
                |seed: usize| offload.put(tensors((round * 10 + seed) as f32), &|| Ok(())).unwrap();
            let away: Vec<Away> = (0..6).map(put).collect();
            offload.ask(&away[4]);
            for (seed, away) in away.into_iter().enumerate().rev() {
                let back = offload.take(&away, &|| Ok(())).unwrap();
                for (found, wanted) in back.iter().zip(tensors((round * 10 + seed) as f32)) {
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
        let away = offload.put(vec![ids], &|| Ok(())).unwrap();
        let error = offload.take(&away, &|| Ok(())).unwrap_err().to_string();
        assert!(error.contains("what is offloaded is not u32"), "{error}");
    }
}
