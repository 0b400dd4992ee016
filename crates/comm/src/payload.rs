//! The bytes of a tensor as they are sent: their number, hash, and damage for tests.

use annulus_mpi::Leaving;
use candle_core::{DType, Device, Result, Shape, Tensor};
use twox_hash::XxHash3_64;

use crate::Form;

/// The size of the elements of `tensor`, in bytes: what it takes to send it, whatever it shares or however its elements lie in memory.
pub fn bytes_of(tensor: &Tensor) -> u64 {
    (tensor.elem_count() * tensor.dtype().size_in_bytes()) as u64
}

/// A checksum of the elements, the shape and the dtype, a scalar I64. It is made by XXH3, which is nearly as fast as reading memory and
/// detects damage, but no deliberate changes.
pub(crate) fn checksum(tensor: &Tensor) -> Result<Tensor> {
    Tensor::new(hash(tensor)? as i64, &Device::Cpu)
}

/// A hash of the elements, the shape and the dtype of `tensor`, mixed with two numbers.
pub(crate) fn mixed(tensor: &Tensor, with: [u64; 2]) -> crate::Result<u64> {
    let [a, b, c] = [hash(tensor)?, with[0], with[1]].map(u64::to_le_bytes);
    Ok(XxHash3_64::oneshot([a, b, c].as_flattened()))
}

fn hash(tensor: &Tensor) -> Result<u64> {
    let form = XxHash3_64::oneshot(Form::of(tensor).to_string().as_bytes());
    let leaving = Leaving::tensor(tensor)?;
    leaving.wait()?;
    Ok(XxHash3_64::oneshot_with_seed(form, leaving.bytes()))
}

/// The form of every [`checksum`].
pub(crate) fn form_of_checksum() -> Form {
    Form { dtype: DType::I64, shape: Shape::from(()) }
}

/// A copy in which one bit of the middle element is flipped.
pub(crate) fn flip_bit(tensor: &Tensor) -> Result<Tensor> {
    let leaving = Leaving::tensor(tensor)?;
    leaving.wait()?;
    let mut bytes = leaving.bytes().to_vec();
    if bytes.is_empty() {
        return Ok(tensor.clone());
    }
    let width = tensor.dtype().size_in_bytes();
    bytes[tensor.elem_count() / 2 * width] ^= 1;
    Tensor::from_raw_buffer(&bytes, tensor.dtype(), tensor.dims(), tensor.device())
}
