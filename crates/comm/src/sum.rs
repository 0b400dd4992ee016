//! Sums of two tensors whose bits do not depend on how a tensor is divided.

use candle_core::{CpuStorage, CustomOp2, DType, Layout, Shape, Tensor, bail};
use half::{bf16, f16};

/// The sum of two tensors of one shape and dtype, rounded to nearest, on a CPU as elsewhere: Candle's own sums of 16 bits are rounded toward
/// zero on ARM, but in the last elements to nearest, so that their bits would depend on how a tensor is divided.
///
/// # Errors
/// What Candle says of tensors that cannot be added.
pub fn sum(left: &Tensor, right: &Tensor) -> candle_core::Result<Tensor> {
    if !left.device().is_cpu() || !matches!(left.dtype(), DType::BF16 | DType::F16) {
        return left + right;
    }
    left.contiguous()?.apply_op2_no_bwd(&right.contiguous()?, &RoundedSum)
}

/// The sum of two tensors of 16 bits without gaps, on a CPU.
struct RoundedSum;

impl CustomOp2 for RoundedSum {
    fn name(&self) -> &'static str {
        "rounded sum"
    }
    fn cpu_fwd(
        &self,
        left: &CpuStorage,
        left_layout: &Layout,
        right: &CpuStorage,
        right_layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let shape = left_layout.shape();
        let places = [left_layout, right_layout].map(Layout::contiguous_offsets);
        let ([Some((a, b)), Some((c, d))], true) = (places, shape == right_layout.shape()) else {
            bail!("sum: found {left_layout:?} and {right_layout:?}, expected one shape");
        };
        let sum = match (left, right) {
            (CpuStorage::BF16(left), CpuStorage::BF16(right)) => {
                let pairs = left[a..b].iter().zip(&right[c..d]);
                CpuStorage::BF16(
                    pairs.map(|(a, b)| bf16::from_f32(a.to_f32() + b.to_f32())).collect(),
                )
            }
            (CpuStorage::F16(left), CpuStorage::F16(right)) => {
                let pairs = left[a..b].iter().zip(&right[c..d]);
                CpuStorage::F16(
                    pairs.map(|(a, b)| f16::from_f32(a.to_f32() + b.to_f32())).collect(),
                )
            }
            _ => bail!("sum: found tensors of two dtypes"),
        };
        Ok((sum, shape.clone()))
    }
}
