//! Kernels on an NVIDIA GPU, launched on Candle's stream.
//!
//! All kernels are in one image (`kernels/entries.cu`, built by `build.rs`): code for several architectures, and PTX of sm_80, where that
//! is one of them, which the driver compiles for what comes later.

mod host_copies;
mod peers;
mod pool;

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::cuda_backend::cudarc::driver::sys::{
    self, CUdevice_attribute_enum as Attribute, CUfunction_attribute_enum,
};
use candle_core::cuda_backend::cudarc::driver::{
    CudaFunction, CudaModule, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr,
    DriverError, LaunchConfig, PushKernelArg, result,
};
use candle_core::cuda_backend::cudarc::nvrtc::Ptx;
use candle_core::cuda_backend::{CudaStorageSlice, WrapErr};
use candle_core::{CudaDevice, CudaStorage, Device, Error, Result, Tensor};
use parking_lot::Mutex;

use super::HostCopies;
use super::find::{Gpu, GpuUnavailable, code_for, loads, numbers};
use super::kept::Kept;
use super::operators::cublas;
use super::processor::{Boxes, Launch, Mark, Owner, Processor, TensorMap, Uploaded};
use super::untried;

pub(super) use peers::open_all;

/// The code of all kernels for all architectures.
static IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kernels.fatbin"));

/// The most bytes of one kernel's argument (CUDA C++ programming guide, "Global function argument processing").
const ARGUMENT: usize = 4096;

/// A GPU with the kernels loaded.
#[derive(Clone, Debug)]
pub(super) struct Cuda {
    device: Device,
    inner: CudaDevice,
    architecture: u32,
    shared_memory: u32,
    multiprocessors: usize,
    module: Arc<CudaModule>,
    /// Kernels by name, each with the shared memory that it may use.
    functions: Arc<Mutex<HashMap<String, (CudaFunction, u32)>>>,
    /// The counter for launches, of which one runs at a time: all are on one stream.
    counter: Arc<CudaSlice<u8>>,
    kept: Arc<Kept>,
    /// The number of this processor's memory. Unique even beside another processor on the same GPU, whose stream differs.
    memory: u64,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Argument([u8; ARGUMENT]);

// SAFETY: bytes, which kernels take as their own struct.
unsafe impl DeviceRepr for Argument {}

impl Owner for CudaSlice<u8> {}
impl Owner for Arc<CudaSlice<u8>> {}

impl Cuda {
    /// Loads the kernels onto `device`.
    fn new(device: &Device) -> Result<Cuda> {
        static OPENED: AtomicU64 = AtomicU64::new(1);
        let Device::Cuda(inner) = device else {
            return Err(Error::Msg(format!("{:?} is not a CUDA device", device.location())));
        };
        let context = inner.cuda_stream().context().clone();
        let (major, minor) = context.compute_capability().w()?;
        let shared = Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let shared_memory = context.attribute(shared).w()? as u32;
        let count = Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let multiprocessors = context.attribute(count).w()? as usize;
        let found = (10 * major + minor) as u32;
        let architecture = code_for(found, env!("ANNULUS_ARCHITECTURES")).architecture();
        let architecture =
            architecture.ok_or_else(|| Error::Msg(GpuUnavailable::Code(found).to_string()))?;
        let module = context.load_module(Ptx::from_binary(IMAGE.to_vec())).w()?;
        cublas::sum_in_f32(inner)?;
        Ok(Cuda {
            device: device.clone(),
            inner: inner.clone(),
            architecture,
            shared_memory,
            multiprocessors,
            module,
            functions: Arc::default(),
            counter: Arc::new(inner.cuda_stream().alloc_zeros(4).w()?),
            kept: Arc::default(),
            memory: OPENED.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// Opens GPU number `index` with a stream of its own, which all clones share: never a thread's default stream, for which other threads'
    /// streams do not wait. Freed memory stays with the process.
    fn open(index: usize) -> std::result::Result<Cuda, GpuUnavailable> {
        libraries()?;
        let said = |error: Error| GpuUnavailable::Driver(error.to_string());
        let cuda = Cuda::new(&Device::new_cuda_with_stream(index).map_err(said)?).map_err(said)?;
        untried::check_for(cuda.architecture).map_err(GpuUnavailable::Untried)?;
        pool::keep_freed_memory(&cuda.inner).map_err(said)?;
        // SAFETY: whatever uses this processor's tensors is on its one stream, or a `Handover` or `HostCopies`, which make their own events.
        unsafe { cuda.inner.disable_event_tracking() };
        Ok(cuda)
    }

    fn stream(&self) -> Arc<CudaStream> {
        self.inner.cuda_stream()
    }

    fn address(&self, slice: &CudaSlice<u8>) -> u64 {
        slice.device_ptr(&self.stream()).0
    }

    /// The kernel's function, allowed the shared memory that it asks for.
    fn function(&self, launch: &Launch<'_>) -> Result<CudaFunction> {
        let mut functions = self.functions.lock();
        if let Some((function, allowed)) = functions.get(launch.kernel)
            && *allowed >= launch.shared
        {
            return Ok(function.clone());
        }
        self.stream().context().bind_to_thread().w()?;
        let function = self.module.load_function(launch.kernel).w()?;
        let most = CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        function.set_attribute(most, launch.shared as i32).w()?;
        functions.insert(launch.kernel.to_owned(), (function.clone(), launch.shared));
        Ok(function)
    }
}

impl Processor for Cuda {
    fn device(&self) -> &Device {
        &self.device
    }

    fn architecture(&self) -> u32 {
        self.architecture
    }

    fn shared_memory(&self) -> u32 {
        self.shared_memory
    }

    fn multiprocessors(&self) -> usize {
        self.multiprocessors
    }

    fn upload(&self, bytes: &[u8]) -> Result<Uploaded> {
        let slice = self.stream().clone_htod(bytes).w()?;
        Ok(Uploaded { address: self.address(&slice), owner: Box::new(slice) })
    }

    fn counter(&self) -> Result<Uploaded> {
        let address = self.address(&self.counter);
        Ok(Uploaded { address, owner: Box::new(self.counter.clone()) })
    }

    fn kept(&self) -> &Kept {
        &self.kept
    }

    unsafe fn launch(&self, launch: &Launch<'_>, arguments: &[u8]) -> Result<()> {
        let mut argument = Argument([0; ARGUMENT]);
        argument.0[..arguments.len()].copy_from_slice(arguments);
        let function = self.function(launch).map_err(|error| launch.failed(error))?;
        let stream = self.stream();
        let [x, y, z] = launch.grid;
        let config = LaunchConfig {
            grid_dim: (x, y, z),
            block_dim: (launch.threads, 1, 1),
            shared_mem_bytes: launch.shared,
        };
        let mut builder = stream.launch_builder(&function);
        builder.arg(&argument);
        // SAFETY: the caller vouches for the arguments; the driver copies as many bytes as the kernel takes.
        unsafe { builder.launch(config) }.w().map_err(|error| launch.failed(error))?;
        Ok(())
    }

    fn tensor_map(&self, boxes: &Boxes) -> Result<TensorMap> {
        use sys::{
            CUtensorMapDataType_enum as Type, CUtensorMapFloatOOBfill_enum as Fill,
            CUtensorMapInterleave_enum as Interleave, CUtensorMapL2promotion_enum as Promotion,
            CUtensorMapSwizzle_enum as Swizzle,
        };
        let [sizes, strides, box_sizes] = boxes.dimensions();
        let (box_sizes, steps) = (box_sizes.map(|size| size as u32), [1_u32; 5]);
        let element = if boxes.bf16 {
            Type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
        } else {
            Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT16
        };
        self.stream().context().bind_to_thread().w()?;
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        // SAFETY: four sizes, three strides and four box sizes are read; the map is written.
        unsafe {
            sys::cuTensorMapEncodeTiled(
                &raw mut map,
                element,
                4,
                boxes.address as *mut c_void,
                sizes.as_ptr(),
                strides.as_ptr(),
                box_sizes.as_ptr(),
                steps.as_ptr(),
                Interleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                Swizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                Promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                Fill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        }
        .result()
        .w()?;
        Ok(TensorMap(map.opaque))
    }

    fn memory(&self) -> u64 {
        self.memory
    }

    fn pool_peak(&self) -> Option<u64> {
        Some(pool::peak(&self.inner).unwrap_or(0))
    }

    fn forget_pool_peak(&self) {
        // A driver that cannot goes on with the earlier peak, which is no reason to end a run.
        let _ = pool::forget_peak(&self.inner);
    }

    fn mark(&self) -> Result<Mark> {
        self.marked()
    }

    fn wait_for(&self, mark: &Mark) -> Result<()> {
        self.waits_for(mark)
    }

    fn fetch(&self, tensor: &Tensor, _: &dyn Processor) -> Result<Tensor> {
        self.fetched(tensor)
    }

    fn host_copies(&self) -> Result<Box<dyn HostCopies>> {
        Ok(Box::new(host_copies::Copies::of(self)?))
    }
}

/// All GPUs that the driver lists.
pub(super) fn gpus() -> std::result::Result<Vec<Gpu>, GpuUnavailable> {
    libraries()?;
    let said = |error: DriverError| GpuUnavailable::Driver(error.to_string());
    result::init().map_err(said)?;
    let (driver, toolkit) = (known().map_err(said)?, numbers(env!("ANNULUS_TOOLKIT")));
    if !loads(driver, toolkit) {
        return Err(GpuUnavailable::OldDriver(driver, toolkit));
    }
    let count = result::device::get_count().map_err(said)?;
    (0..count)
        .map(|index| {
            let device = result::device::get(index)?;
            let of = |attribute| {
                // SAFETY: `device` is one of the driver's.
                unsafe { result::device::get_attribute(device, attribute) }
            };
            let major = of(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
            let minor = of(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
            let shared = of(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
            // SAFETY: as above.
            let memory = unsafe { result::device::total_mem(device) }?;
            let architecture = (10 * major + minor) as u32;
            Ok(Gpu {
                index: index as usize,
                name: result::device::get_name(device)?,
                memory: memory as u64,
                architecture,
                shared_memory: shared as u32,
                code: code_for(architecture, env!("ANNULUS_ARCHITECTURES")),
            })
        })
        .collect::<std::result::Result<_, DriverError>>()
        .map_err(said)
}

/// The newest CUDA that the driver knows.
fn known() -> std::result::Result<[u32; 2], DriverError> {
    let mut version = 0;
    // SAFETY: the driver writes one number, as in 13000.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result()?;
    Ok([version / 1000, version % 1000 / 10].map(|number| number as u32))
}

/// Checks that all required libraries exist: a program that loads libraries itself would panic at the first call.
fn libraries() -> std::result::Result<(), GpuUnavailable> {
    let missing = needed().into_iter().find(|(_, found)| !found);
    missing.map_or(Ok(()), |(name, _)| Err(GpuUnavailable::Library(name)))
}

/// The libraries that are called, and whether each exists.
#[cfg(annulus_cuda_loads_itself)]
fn needed() -> [(&'static str, bool); 3] {
    use candle_core::cuda_backend::cudarc::{cublas, curand};
    // SAFETY: these look for libraries and call nothing.
    unsafe {
        [
            ("libcuda.so", sys::is_culib_present()),
            ("libcublas.so", cublas::sys::is_culib_present()),
            ("libcurand.so", curand::sys::is_culib_present()),
        ]
    }
}

/// The libraries of a program linked to all of them, which would not have started without.
#[cfg(not(annulus_cuda_loads_itself))]
fn needed() -> [(&'static str, bool); 0] {
    []
}

/// Applies `$then` to the typed slice of any storage that kernels take.
macro_rules! typed {
    ($storage:expr, $variant:ident, $slice:ident => $then:expr) => {
        match $storage {
            $variant::U8($slice) => $then,
            $variant::U32($slice) => $then,
            $variant::I64($slice) => $then,
            $variant::BF16($slice) => $then,
            $variant::F16($slice) => $then,
            $variant::F32($slice) => $then,
            $variant::F64($slice) => $then,
            _ => Err(Error::Msg("kernels cannot take this type".to_owned())),
        }
    };
}

/// The elements of a storage, whichever of them tensors view.
pub(crate) fn elements(storage: &CudaStorage) -> Result<usize> {
    typed!(&storage.slice, CudaStorageSlice, slice => Ok(slice.len()))
}

/// Calls `then` with the address of what is read. Whatever wrote it is earlier in the one stream.
pub(super) fn reading(
    storage: &CudaStorage,
    then: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    let stream = storage.device.cuda_stream();
    typed!(&storage.slice, CudaStorageSlice, slice => {
        let (address, _until_launched) = slice.device_ptr(&stream);
        then(address)
    })
}

/// Calls `then` with the address of what is written, after all earlier work of the one stream.
pub(super) fn writing(
    storage: &mut CudaStorage,
    then: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    let stream = storage.device.cuda_stream();
    typed!(&mut storage.slice, CudaStorageSlice, slice => {
        let (address, _until_launched) = slice.device_ptr_mut(&stream);
        then(address)
    })
}
