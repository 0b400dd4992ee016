//! A stream of a GPU for transfers, beside the one that computes, and events between the two.

use std::ffi::c_void;
use std::sync::Arc;

use candle_core::backend::BackendDevice;
use candle_core::cuda_backend::cudarc::driver::result::stream::get_priority_range;
use candle_core::cuda_backend::cudarc::driver::sys::{
    CUmoduleLoadingMode_enum as Loading, cuModuleGetLoadingMode,
};
use candle_core::cuda_backend::cudarc::driver::{CudaEvent, CudaStream, DevicePtr, DevicePtrMut};
use candle_core::cuda_backend::{CudaStorageSlice, WrapErr, kernels};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, DType, Device, Error, Result, Shape, Storage, Tensor};

use crate::lane::{Gate, Lane, Mark, Piece};

/// The lane of a GPU.
#[derive(Debug)]
pub(crate) struct OfGpu {
    device: CudaDevice,
    /// The stream that computes.
    computing: Arc<CudaStream>,
    /// The stream of transfers.
    own: Arc<CudaStream>,
}

/// A kernel of each of Candle's modules that training calls.
const LOADED: [(&str, kernels::Module); 8] = [
    ("affine_f32", kernels::AFFINE),
    ("badd_f32", kernels::BINARY),
    ("cast_f32_f32", kernels::CAST),
    ("fill_f32", kernels::FILL),
    ("is_u32_f32", kernels::INDEXING),
    ("sum_f32", kernels::REDUCE),
    ("where_u8_f32", kernels::TERNARY),
    ("ucopy_f32", kernels::UNARY),
];

impl OfGpu {
    /// A new lane of `device`. Candle loads a kernel at its first call, and loading waits for all that the GPU does, also for a transfer
    /// whose other end may wait for what this process does next. So the kernels are loaded here.
    ///
    /// # Errors
    /// Where CUDA itself loads a kernel of a loaded module at its first launch, be it ours or that of a library; what the driver says.
    pub(crate) fn new(device: &CudaDevice) -> Result<OfGpu> {
        expect_early_loading()?;
        for (kernel, module) in LOADED {
            device.get_or_load_func(kernel, &module)?;
        }
        let computing = device.cuda_stream();
        let context = computing.context();
        context.bind_to_thread().w()?;
        // Attention fills every multiprocessor: NCCL's thread blocks run beside it only if they are scheduled first.
        let (_, first) = get_priority_range().w()?;
        let own = context.new_stream_with_priority(first).w()?;
        Ok(OfGpu { device: device.clone(), computing, own })
    }
}

/// Refuses lazy loading (CUDA C++ programming guide, "Lazy Loading"), which only a variable switches off, before the first call of CUDA.
fn expect_early_loading() -> Result<()> {
    let mut mode = Loading::CU_MODULE_EAGER_LOADING;
    // SAFETY: the driver writes one number, which is one of the enumeration.
    unsafe { cuModuleGetLoadingMode(&raw mut mode) }.result().w()?;
    if mode == Loading::CU_MODULE_LAZY_LOADING {
        candle_core::bail!(
            "CUDA loads kernels at their first launch, which may wait for a transfer for ever: set CUDA_MODULE_LOADING=EAGER before the program starts"
        );
    }
    Ok(())
}

/// The error of a tensor whose elements are of a type that is not sent.
const NOT_SENT: &str =
    "cannot send a tensor of this dtype: convert it to one of u8, u32, i64, bf16, f16, f32, f64";

/// Applies `$then` to the typed slice of a storage whose elements can be sent.
macro_rules! typed {
    ($storage:expr, $slice:ident => $then:expr) => {
        match $storage {
            CudaStorageSlice::U8($slice) => $then,
            CudaStorageSlice::U32($slice) => $then,
            CudaStorageSlice::I64($slice) => $then,
            CudaStorageSlice::BF16($slice) => $then,
            CudaStorageSlice::F16($slice) => $then,
            CudaStorageSlice::F32($slice) => $then,
            CudaStorageSlice::F64($slice) => $then,
            _ => return Err(Error::Msg(NOT_SENT.to_owned())),
        }
    };
}

impl Lane for OfGpu {
    fn enter(&self) -> Result<()> {
        self.own.context().bind_to_thread().w()
    }

    fn stream(&self) -> *mut c_void {
        self.own.cu_stream().cast()
    }

    fn carries(&self, tensor: &Tensor) -> bool {
        matches!(tensor.device(), Device::Cuda(device) if device.same_device(&self.device))
    }

    fn gate(&self) -> Result<Gate> {
        let (event, own) = (self.computing.record_event(None).w()?, self.own.clone());
        Ok(Box::new(move || own.wait(&event).w()))
    }

    fn mark(&self) -> Result<Arc<dyn Mark>> {
        let event = self.own.record_event(None).w()?;
        Ok(Arc::new(OnGpu { event, computing: self.computing.clone() }))
    }

    fn leaving(&self, tensor: &Tensor, to: usize) -> Result<Piece> {
        let tensor = tensor.detach().contiguous()?;
        let width = tensor.dtype().size_in_bytes();
        let (storage, layout) = tensor.storage_and_layout();
        let Storage::Cuda(of_gpu) = &*storage else { return Err(elsewhere()) };
        let first = typed!(&of_gpu.slice, slice => slice.device_ptr(&self.computing).0);
        let address = first as usize + layout.start_offset() * width;
        drop(storage);
        let bytes = tensor.elem_count() * width;
        Ok(Piece { peer: to, address, bytes, tensor })
    }

    fn buffer(&self, dtype: DType, shape: Shape, from: usize) -> Result<Piece> {
        let bytes = shape.elem_count() * dtype.size_in_bytes();
        // SAFETY: nothing reads the memory before the transfer, which writes all of it.
        let mut storage: CudaStorage = unsafe { self.device.alloc_uninit(&shape, dtype) }?;
        let address =
            typed!(&mut storage.slice, slice => slice.device_ptr_mut(&self.computing).0) as usize;
        let tensor = Tensor::from_storage(Storage::Cuda(storage), shape, BackpropOp::none(), false);
        Ok(Piece { peer: from, address, bytes, tensor })
    }
}

/// A moment on the lane of a GPU.
#[derive(Debug)]
struct OnGpu {
    event: CudaEvent,
    computing: Arc<CudaStream>,
}

impl Mark for OnGpu {
    fn is_over(&self) -> Result<bool> {
        self.event.context().bind_to_thread().w()?;
        self.event.try_is_complete().w()
    }

    fn precede_computing(&self, _: &dyn Fn() -> bool) -> Result<()> {
        self.computing.wait(&self.event).w()
    }
}

fn elsewhere() -> Error {
    Error::Msg("a tensor is not on the device that it names".to_owned())
}
