//! NCCL without GPUs: a library of our own (`kernels/emulator/nccl/`), whose device is the host.
//!
//! It has NCCL's functions and, beside them, streams, each with a thread on which sends and receives run later. So everything but
//! the GPU and NVIDIA's library is tested where there is neither. The library's source file says which failures it makes on request.

use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use candle_core::{CpuStorage, DType, Device, Error, Result, Shape, Storage, Tensor};
use libloading::os::unix::Library as Loaded;

use crate::Library;
use crate::lane::{Gate, Lane, Mark, Piece};

/// How long to sleep between two checks of a mark that is waited for.
const SLEEP: Duration = Duration::from_micros(50);

/// The streams of our own library.
#[derive(Clone, Copy)]
pub(crate) struct Streams {
    create: unsafe extern "C" fn() -> *mut c_void,
    destroy: unsafe extern "C" fn(*mut c_void),
    record: unsafe extern "C" fn(*mut c_void) -> u64,
    query: unsafe extern "C" fn(*mut c_void, u64) -> i32,
    gate: unsafe extern "C" fn(*mut c_void),
}

impl Streams {
    pub(crate) fn of(loaded: &Loaded) -> Option<Streams> {
        // SAFETY: the types are those that stand beside the functions in `kernels/emulator/nccl/libnccl.cpp`; the library is kept beside them.
        unsafe {
            Some(Streams {
                create: *loaded.get(b"emulated_stream_create\0").ok()?,
                destroy: *loaded.get(b"emulated_stream_destroy\0").ok()?,
                record: *loaded.get(b"emulated_event_record\0").ok()?,
                query: *loaded.get(b"emulated_event_query\0").ok()?,
                gate: *loaded.get(b"emulated_gate\0").ok()?,
            })
        }
    }
}

/// The library in `kernels/`, compiled into `into` with the C++ compiler `CXX` or `c++`.
///
/// # Errors
/// When there is no compiler, or what it says.
pub fn compile(kernels: &Path, into: &Path) -> std::io::Result<PathBuf> {
    std::fs::create_dir_all(into)?;
    let source = kernels.join("emulator/nccl/libnccl.cpp");
    let (library, own) = (into.join("libnccl.so.2"), std::process::id());
    let thread = std::thread::current().id();
    // Written under another name and renamed, as other processes may be compiling it too.
    let part = into.join(format!("libnccl-{own}-{thread:?}.part"));
    let mut compiler = Command::new(std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned()));
    compiler.args(["-std=c++17", "-O2", "-g1", "-Wall", "-Wextra", "-shared", "-fPIC", "-pthread"]);
    let output = compiler.arg("-o").arg(&part).arg(&source).arg("-lrt").output()?;
    if !output.status.success() {
        return Err(std::io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    std::fs::rename(&part, &library)?;
    Ok(library)
}

/// A stream of the host, if the library is our own.
pub(crate) fn lane(library: &Arc<Library>) -> Option<Arc<dyn Lane>> {
    let streams = library.streams?;
    // SAFETY: takes nothing.
    let handle = unsafe { (streams.create)() } as usize;
    Some(Arc::new(OfHost(Arc::new(Stream { handle, streams, _library: library.clone() }))))
}

/// A stream of the library.
struct Stream {
    handle: usize,
    streams: Streams,
    _library: Arc<Library>,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("handle", &self.handle).finish_non_exhaustive()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: made by `create`, and not used any more.
        unsafe { (self.streams.destroy)(self.handle as *mut c_void) };
    }
}

/// The lane of the host.
#[derive(Debug)]
struct OfHost(Arc<Stream>);

impl Lane for OfHost {
    fn enter(&self) -> Result<()> {
        Ok(())
    }

    fn stream(&self) -> *mut c_void {
        self.0.handle as *mut c_void
    }

    fn carries(&self, tensor: &Tensor) -> bool {
        tensor.device().is_cpu()
    }

    /// What is computed on the host is over when its call returns: a gate does not wait, unless it is told to be late.
    fn gate(&self) -> Result<Gate> {
        let stream = self.0.clone();
        Ok(Box::new(move || {
            // SAFETY: the stream lives.
            unsafe { (stream.streams.gate)(stream.handle as *mut c_void) };
            Ok(())
        }))
    }

    fn mark(&self) -> Result<Arc<dyn Mark>> {
        // SAFETY: the stream lives.
        let number = unsafe { (self.0.streams.record)(self.stream()) };
        Ok(Arc::new(OnHost { stream: self.0.clone(), number }))
    }

    fn leaving(&self, tensor: &Tensor, to: usize) -> Result<Piece> {
        piece(&tensor.detach().contiguous()?, to)
    }

    fn buffer(&self, dtype: DType, shape: Shape, from: usize) -> Result<Piece> {
        // Nobody else has the tensor, and nobody reads it before all elements have come.
        piece(&Tensor::zeros(shape, dtype, &Device::Cpu)?, from)
    }
}

fn piece(tensor: &Tensor, peer: usize) -> Result<Piece> {
    let width = tensor.dtype().size_in_bytes();
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        candle_core::bail!("a tensor is not on the device that it names")
    };
    let first = match storage {
        CpuStorage::U8(all) => all.as_ptr() as usize,
        CpuStorage::U32(all) => all.as_ptr() as usize,
        CpuStorage::I64(all) => all.as_ptr() as usize,
        CpuStorage::BF16(all) => all.as_ptr() as usize,
        CpuStorage::F16(all) => all.as_ptr() as usize,
        CpuStorage::F32(all) => all.as_ptr() as usize,
        CpuStorage::F64(all) => all.as_ptr() as usize,
        _ => candle_core::bail!(
            "cannot send a tensor of dtype {}: convert it to one of u8, u32, i64, bf16, f16, f32, f64",
            tensor.dtype().as_str()
        ),
    };
    let (address, bytes) = (first + layout.start_offset() * width, tensor.elem_count() * width);
    Ok(Piece { peer, address, bytes, tensor: tensor.clone() })
}

/// A moment on a stream of the host.
#[derive(Debug)]
struct OnHost {
    stream: Arc<Stream>,
    number: u64,
}

impl Mark for OnHost {
    fn is_over(&self) -> Result<bool> {
        let handle = self.stream.handle as *mut c_void;
        // SAFETY: the stream lives.
        match unsafe { (self.stream.streams.query)(handle, self.number) } {
            0 => Ok(true),
            1 => Ok(false),
            _ => Err(Error::Msg("a transfer was given up".to_owned())),
        }
    }

    /// Waits on the calling thread, as the host is what computes.
    fn precede_computing(&self, given_up: &dyn Fn() -> bool) -> Result<()> {
        while !self.is_over()? {
            if given_up() {
                candle_core::bail!("a transfer was given up");
            }
            std::thread::sleep(SLEEP);
        }
        Ok(())
    }
}
