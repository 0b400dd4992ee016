//! Matrix products by cuBLAS, on Candle's handle and stream.

use std::ffi::c_void;

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::cublas::{result, sys};
use candle_core::cuda_backend::{WrapErr, gemm_reduced_precision_f32};
use candle_core::{CudaDevice, CudaStorage, DType, Layout, Result, bail};
use parking_lot::Mutex;

use super::super::cuda::{reading, writing};
use super::product::{Call, Operand, Output};

/// Makes a device's handle compute every sum in f32: otherwise parts of a product may be rounded to 16 bits before they are added (cuBLAS,
/// `cublasMath_t`).
///
/// # Errors
/// What cuBLAS says.
pub(in crate::gpu) fn sum_in_f32(device: &CudaDevice) -> Result<()> {
    let blas = device.cublas_handle();
    let mode = sys::cublasMath_t::CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
    device.cuda_stream().context().bind_to_thread().w()?;
    // SAFETY: the handle lives as long as the device.
    unsafe { sys::cublasSetMathMode(*blas.handle(), mode) }.result().w()
}

/// Held while a product is started, one for each GPU by its number. Ranks that share a GPU share Candle's handle and its workspace: the two
/// kernels of one product must not be separated by one of another product. Those of another GPU do not wait, as a full queue blocks a launch.
static STARTING: [Mutex<()>; 64] = [const { Mutex::new(()) }; 64];

/// Computes `c = first second`, or adds it to `c`: all sums in f32.
pub(super) fn multiply(
    call: &Call,
    (first, first_layout): (&CudaStorage, &Layout),
    (second, second_layout): (&CudaStorage, &Layout),
    (c, c_layout): (&mut CudaStorage, &Layout),
    output: Output,
) -> Result<()> {
    let dtypes = [first.dtype(), c.dtype()];
    let types = [element(first.dtype())?, element(c.dtype())?];
    let [input_size, output_size] = [first.dtype(), c.dtype()].map(|dtype| dtype.size_in_bytes());
    let bytes = |layout: &Layout, size: usize| (layout.start_offset() * size) as u64;
    let precision = precision(first.dtype());
    let blas = c.device.cublas_handle();
    let context = c.device.cuda_stream().context().clone();
    context.bind_to_thread().w()?;
    let starting = &STARTING[context.ordinal() % STARTING.len()];
    reading(first, &mut |first| {
        reading(second, &mut |second| {
            writing(c, &mut |c| {
                let at = [
                    first + bytes(first_layout, input_size),
                    second + bytes(second_layout, input_size),
                    c + bytes(c_layout, output_size),
                ];
                let _held = starting.lock();
                // SAFETY: the addresses hold what the layouts reach, which `call` was made of.
                unsafe { start(*blas.handle(), call, at, types, precision, output) }
            })
        })
    })
    .map_err(|error| call.failed(dtypes, error))
}

/// # Safety
/// The addresses must hold matrices as `call` says.
unsafe fn start(
    handle: sys::cublasHandle_t,
    call: &Call,
    [first, second, c]: [u64; 3],
    [input_type, output_type]: [sys::cudaDataType; 2],
    precision: sys::cublasComputeType_t,
    output: Output,
) -> Result<()> {
    let [first_operand, second_operand] = call.operands;
    let (alpha, beta) = (1.0_f32, if output == Output::Accumulate { 1.0_f32 } else { 0.0 });
    // SAFETY: the caller's promise; the two factors are read before this returns.
    unsafe {
        result::gemm_ex(
            handle,
            order(first_operand),
            order(second_operand),
            int(call.m)?,
            int(call.n)?,
            int(call.k)?,
            (&raw const alpha).cast(),
            first as *const c_void,
            input_type,
            int(first_operand.step)?,
            second as *const c_void,
            input_type,
            int(second_operand.step)?,
            (&raw const beta).cast(),
            c as *mut c_void,
            output_type,
            int(call.step)?,
            precision,
            sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
        )
    }
    .w()
}

fn order(operand: Operand) -> sys::cublasOperation_t {
    if operand.transposed {
        sys::cublasOperation_t::CUBLAS_OP_T
    } else {
        sys::cublasOperation_t::CUBLAS_OP_N
    }
}

fn int(size: usize) -> Result<i32> {
    match i32::try_from(size) {
        Ok(size) => Ok(size),
        Err(_) => bail!("product: found a size of {size}, expected at most {}", i32::MAX),
    }
}

fn element(dtype: DType) -> Result<sys::cudaDataType> {
    match dtype {
        DType::F32 => Ok(sys::cudaDataType::CUDA_R_32F),
        DType::BF16 => Ok(sys::cudaDataType::CUDA_R_16BF),
        DType::F16 => Ok(sys::cudaDataType::CUDA_R_16F),
        other => bail!("product: found {other:?}, expected F32, BF16 or F16"),
    }
}

/// The precision of sums, f32; products of f32 inputs have it too, unless Candle was told to use less.
fn precision(inputs: DType) -> sys::cublasComputeType_t {
    if inputs == DType::F32 && gemm_reduced_precision_f32() {
        sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32
    } else {
        sys::cublasComputeType_t::CUBLAS_COMPUTE_32F
    }
}
