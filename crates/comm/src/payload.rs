//! A tensor as what travels: how many bytes, and which.

use candle_core::{Device, Result, Tensor};

/// How many bytes travel.
pub(crate) fn size(tensor: &Tensor) -> u64 {
    (tensor.elem_count() * tensor.dtype().size_in_bytes()) as u64
}

/// A tensor of shape (1) that differs when a bit of the elements, the shape or the dtype does.
pub(crate) fn checksum(tensor: &Tensor) -> Result<Tensor> {
    let mut hash = blake3::Hasher::new();
    hash.update(format!("{:?} {:?}", tensor.dtype(), tensor.dims()).as_bytes());
    hash.update(&bytes(tensor)?);
    let mut head = [0; 8];
    hash.finalize_xof().fill(&mut head);
    Tensor::new(&[i64::from_le_bytes(head)], &Device::Cpu)
}

/// A copy in which one bit of the middle element is flipped.
pub(crate) fn flip_bit(tensor: &Tensor) -> Result<Tensor> {
    let mut bytes = bytes(tensor)?;
    if bytes.is_empty() {
        return Ok(tensor.clone());
    }
    let width = tensor.dtype().size_in_bytes();
    bytes[tensor.elem_count() / 2 * width] ^= 1;
    Tensor::from_raw_buffer(&bytes, tensor.dtype(), tensor.dims(), tensor.device())
}

fn bytes(tensor: &Tensor) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(size(tensor) as usize);
    tensor.write_bytes(&mut bytes)?;
    Ok(bytes)
}
