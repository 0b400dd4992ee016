//! The emulator in `kernels/emulator`: the CUDA sources, compiled by a C++ compiler and run on the CPU to find their mistakes.
//!
//! What a GPU may do in any order happens in an order drawn from a seed; what may arrive late arrives late. A launch in which a GPU would
//! hang or go wrong is an error that says why.

use std::ffi::{CString, c_char, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use candle_core::{Device, Error, Result, Tensor, bail};
use libloading::Library;
use parking_lot::Mutex;

use super::addresses::touched;
use super::host_copies::HostCopies;
use super::kept::Kept;
use super::late_copies::LateCopies;
use super::memories::Memories;
use super::processor::{Boxes, Launch, Mark, Owner, Processor, TensorMap, Uploaded};

/// The shared memory of an H100's block (CUDA C++ programming guide, "Technical specifications per compute capability").
const LARGEST_SHARED: u32 = 227 << 10;

/// Fewer multiprocessors than a GPU has, so that even for small inputs blocks of threads go from item to item.
const MULTIPROCESSORS: usize = 3;

type LaunchFunction = unsafe extern "C" fn(
    kernel: *const c_char,
    grid: *const u32,
    shared: u32,
    arguments: *const c_void,
    argument_bytes: u64,
    seed: u64,
    workers: u32,
    message: *mut c_char,
    message_bytes: u64,
) -> i32;

type MapFunction = unsafe extern "C" fn(
    map: *mut TensorMap,
    base: *const c_void,
    element_bytes: i32,
    sizes: *const i64,
    strides: *const i64,
    boxes: *const i32,
) -> i32;

/// A processor that runs kernels on the CPU, slowly.
#[derive(Clone, Debug)]
pub struct Emulator {
    library: Arc<Library>,
    seed: Arc<AtomicU64>,
    /// The architecture for which kernels are chosen.
    architecture: u32,
    /// The number of threads that share the blocks of a launch.
    workers: u32,
    kept: Arc<Kept>,
    /// Where several emulators have a memory each: these memories, and the index of this one's.
    apart: Option<(Arc<Memories>, usize)>,
    /// The peak of a pool that a GPU would have, and what it is once that is forgotten.
    pool: Option<Arc<(AtomicU64, u64)>>,
}

/// Memory aligned to 128 bytes.
#[derive(Debug)]
struct Lines(#[expect(dead_code, reason = "held for its address")] Vec<Line>);

#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
struct Line([u8; 128]);

impl Owner for Lines {}

thread_local! {
    static COUNTER: AtomicI32 = const { AtomicI32::new(0) };
}

/// The owner of memory that is never freed.
#[derive(Debug)]
struct Lasting;

impl Owner for Lasting {}

/// Compiler options for this processor, whose instructions round once where the kernels do; each operation is rounded as written. Optimised
/// more, all kernels take a third longer to compile, on one core, and their tests no less to run.
const OPTIONS: [&str; 4] = ["-std=c++17", "-O2", "-march=native", "-ffp-contract=off"];

/// Held by the thread of a process that compiles, while others wait.
static COMPILING: Mutex<()> = Mutex::new(());

impl Emulator {
    /// Compiles the kernels below `folder` (`kernels/`) for the CPU into `into` with the C++ compiler `CXX` or `c++`, unless the same
    /// compiler has compiled the same sources for the same processor.
    ///
    /// # Errors
    /// When there is no compiler, and what it reports.
    pub fn compile(folder: &Path, into: &Path) -> Result<PathBuf> {
        std::fs::create_dir_all(into)?;
        let mut made_of = blake3::Hasher::new();
        // A single name, whichever crate's tests ask.
        hash(&folder.canonicalize()?, &mut made_of)?;
        // The compiler's predefined macros give its version and the processor's instructions.
        made_of.update(&said(compiler().args(["-dM", "-E", "-x", "c++", "/dev/null"]))?);
        let library = into.join(format!("libannulus_emulator-{}.so", made_of.finalize().to_hex()));
        let _one = COMPILING.lock();
        if library.exists() {
            return Ok(library);
        }
        // Written under another name and renamed, since others may be compiling the same.
        let part = into.join(format!("emulator-{}.part", std::process::id()));
        let mut compiler = compiler();
        compiler.args(["-g1", "-shared", "-fPIC", "-pthread", "-o"]);
        said(compiler.arg(&part).arg(folder.join("emulate.cpp")))?;
        std::fs::rename(&part, &library)?;
        Ok(library)
    }

    /// Loads the library that [`Emulator::compile`] made. Kernels are chosen as for a processor of `architecture`.
    ///
    /// # Errors
    /// A library that cannot be loaded, or has other kernels.
    pub fn open(library: &Path, architecture: u32, workers: u32) -> Result<Emulator> {
        // SAFETY: the library runs nothing when it is loaded but the registration of its kernels.
        let opened = unsafe { Library::new(library) };
        let library =
            opened.map_err(|error| Error::Msg(format!("{}: {error}", library.display())))?;
        let seed = Arc::new(AtomicU64::new(1));
        let kept = Arc::default();
        let library = Arc::new(library);
        Ok(Emulator { library, seed, architecture, workers, kept, apart: None, pool: None })
    }

    /// This emulator with a pool of its own as a GPU has one, which reports the first of these peaks until that is forgotten, and then the
    /// second.
    #[must_use]
    pub fn with_pool_peaks(self, [first, then]: [u64; 2]) -> Emulator {
        Emulator { pool: Some(Arc::new((AtomicU64::new(first), then))), ..self }
    }

    /// Emulators that each have a memory of their own, which no other reaches. They keep every tensor that they have computed with: for
    /// small tests.
    pub fn apart(&self, processors: usize) -> Vec<Emulator> {
        let memories = Arc::new(Memories::of(processors));
        let one = |number| Emulator {
            kept: Arc::default(),
            apart: Some((memories.clone(), number)),
            ..self.clone()
        };
        (0..processors).map(one).collect()
    }

    /// Draws the order of what comes next from `seed`.
    pub fn reseed(&self, seed: u64) {
        self.seed.store(seed, Ordering::Relaxed);
    }

    fn symbol<T: Copy>(&self, name: &str) -> Result<T> {
        // SAFETY: the types of the two functions are written beside them in `kernels/emulator`.
        let symbol = unsafe { self.library.get::<T>(name.as_bytes()) };
        symbol.map(|symbol| *symbol).map_err(|error| Error::Msg(error.to_string()))
    }
}

fn compiler() -> Command {
    let mut command = Command::new(std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned()));
    command.args(OPTIONS);
    command
}

fn said(compiler: &mut Command) -> Result<Vec<u8>> {
    let name = compiler.get_program().to_string_lossy().into_owned();
    let output = compiler
        .output()
        .map_err(|error| Error::Msg(format!("the C++ compiler `{name}`: {error}")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Error::Msg(format!("`{name}` cannot compile the kernels:\n{said}")));
    }
    Ok(output.stdout)
}

/// Hashes every file below `folder`, in the order of their names.
fn hash(folder: &Path, hasher: &mut blake3::Hasher) -> Result<()> {
    let entries = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let mut paths = entries.collect::<Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        hasher.update(path.to_string_lossy().as_bytes());
        if path.is_dir() {
            hash(&path, hasher)?;
        } else {
            hasher.update(&std::fs::read(&path)?);
        }
    }
    Ok(())
}

impl Processor for Emulator {
    fn device(&self) -> &Device {
        &Device::Cpu
    }

    fn architecture(&self) -> u32 {
        self.architecture
    }

    fn shared_memory(&self) -> u32 {
        LARGEST_SHARED
    }

    fn multiprocessors(&self) -> usize {
        MULTIPROCESSORS
    }

    fn upload(&self, bytes: &[u8]) -> Result<Uploaded> {
        let lines: Vec<Line> = bytes
            .chunks(128)
            .map(|chunk| {
                let mut line = Line([0; 128]);
                line.0[..chunk.len()].copy_from_slice(chunk);
                line
            })
            .collect();
        Ok(Uploaded { address: lines.as_ptr() as u64, owner: Box::new(Lines(lines)) })
    }

    /// A counter for each thread, since launches of threads run concurrently.
    fn counter(&self) -> Result<Uploaded> {
        COUNTER.with(|counter| {
            Ok(Uploaded { address: counter.as_ptr() as u64, owner: Box::new(Lasting) })
        })
    }

    fn kept(&self) -> &Kept {
        &self.kept
    }

    unsafe fn launch(&self, launch: &Launch<'_>, arguments: &[u8]) -> Result<()> {
        let lent = touched::take();
        if let Some((memories, own)) = &self.apart {
            memories
                .compute(*own, &lent)
                .map_err(|error| error.context(launch.kernel.to_owned()))?;
        }
        let function: LaunchFunction = self.symbol("emulator_launch")?;
        let kernel = CString::new(launch.kernel).map_err(Error::wrap)?;
        let mut message = vec![0_u8; 1024];
        // SAFETY: the caller vouches for the arguments; all else outlives the call.
        let failed = unsafe {
            function(
                kernel.as_ptr(),
                launch.grid.as_ptr(),
                launch.shared,
                arguments.as_ptr().cast(),
                arguments.len() as u64,
                self.seed.fetch_add(1, Ordering::Relaxed),
                self.workers,
                message.as_mut_ptr().cast(),
                message.len() as u64,
            )
        };
        if failed == 0 {
            return Ok(());
        }
        COUNTER.with(|counter| counter.store(0, Ordering::Relaxed));
        message.truncate(message.iter().position(|byte| *byte == 0).unwrap_or(message.len()));
        Err(launch.failed(String::from_utf8_lossy(&message)))
    }

    fn tensor_map(&self, boxes: &Boxes) -> Result<TensorMap> {
        let function: MapFunction = self.symbol("emulator_tensor_map")?;
        let [sizes, strides, box_sizes] = boxes.dimensions();
        let box_sizes = box_sizes.map(|size| size as i32);
        let (sizes, strides) = (sizes.map(|size| size as i64), strides.map(|size| size as i64));
        let mut map = TensorMap::NONE;
        // SAFETY: reads five sizes, four strides, five box sizes, and writes the map.
        let failed = unsafe {
            function(
                &raw mut map,
                boxes.address as *const c_void,
                2,
                sizes.as_ptr(),
                strides.as_ptr(),
                box_sizes.as_ptr(),
            )
        };
        if failed == 0 { Ok(map) } else { Err(Error::Msg(format!("no tensor map of {boxes:?}"))) }
    }

    fn pool_peak(&self) -> Option<u64> {
        self.pool.as_ref().map(|pool| pool.0.load(Ordering::Relaxed))
    }

    fn forget_pool_peak(&self) {
        if let Some(pool) = &self.pool {
            pool.0.store(pool.1, Ordering::Relaxed);
        }
    }

    /// The number of the memory, 0 for all emulators that share the host's.
    fn memory(&self) -> u64 {
        self.apart.as_ref().map_or(0, |(_, own)| 1 + *own as u64)
    }

    /// A launch returns when its kernel has run; a mark only records the order.
    fn mark(&self) -> Result<Mark> {
        Ok(Arc::new(self.apart.as_ref().map(|(memories, own)| memories.mark(*own))))
    }

    fn wait_for(&self, mark: &Mark) -> Result<()> {
        let Some(mark) = mark.downcast_ref::<Option<Vec<u64>>>() else {
            bail!("found a mark of another kind of processor")
        };
        if let Some(((memories, own), mark)) = self.apart.as_ref().zip(mark.as_ref()) {
            memories.wait_for(*own, mark);
        }
        Ok(())
    }

    fn fetch(&self, tensor: &Tensor, from: &dyn Processor) -> Result<Tensor> {
        let copy = tensor.force_contiguous()?.detach();
        if let Some((memories, own)) = &self.apart {
            let Some(owner) = from.memory().checked_sub(1) else {
                bail!("found a tensor of a processor without a memory of its own")
            };
            if let [from, to] = &touched::of(&[tensor], &[&copy])[..] {
                memories.copy(*own, owner as usize, from, to)?;
            }
        }
        Ok(copy)
    }

    fn host_copies(&self) -> Result<Box<dyn HostCopies>> {
        Ok(Box::new(LateCopies(self.clone())))
    }

    fn touches(&self, reads: &[&Tensor], writes: &[&Tensor]) -> Result<()> {
        match &self.apart {
            Some((memories, own)) => memories.compute(*own, &touched::of(reads, writes)),
            None => Ok(()),
        }
    }
}
