//! Charges a tensor's memory to a class after it is allocated.

use std::alloc::Layout;

use annulus_memory::{Class, recharge};
use candle_core::{CpuStorage, Storage, Tensor};

/// Counts the storage of `tensors`, which their views share, for `class`, where memory is counted.
pub fn charge<'a>(tensors: impl IntoIterator<Item = &'a Tensor>, class: Class) {
    tensors.into_iter().for_each(|tensor| storage_of(tensor, class));
}

fn storage_of(tensor: &Tensor, class: Class) {
    let (storage, _) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else { return };
    match storage {
        CpuStorage::U32(values) => block(values, class),
        CpuStorage::I64(values) => block(values, class),
        CpuStorage::BF16(values) => block(values, class),
        CpuStorage::F32(values) => block(values, class),
        CpuStorage::F64(values) => block(values, class),
        // Operators make no other types.
        _ => {}
    }
}

fn block<T>(values: &Vec<T>, class: Class) {
    let Ok(layout) = Layout::array::<T>(values.capacity()) else { return };
    // SAFETY: a vector's block comes from the program's allocator, for so many elements; it lives
    // as long as the vector, which is borrowed.
    unsafe { recharge(values.as_ptr().cast(), layout, class) }
}
