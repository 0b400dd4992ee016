//! The largest errors that `verify` allows, by the dtype that ranks compute in.

use candle_core::DType;

use crate::verify::measure::{distance, error};

/// The largest allowed errors of tensors against their references.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// The limit of the output against dense f64.
    pub out: f64,
    /// The limit of the log-sum-exp against dense f64: max|a - b| / max|b|.
    pub lse: f64,
    /// The limit of dq, dk, dv against dense f64.
    pub gradients: f64,
    /// The limit of the loss, relative.
    pub loss: f64,
    /// The limit of parameter gradients: |a - b| / |b| in the Euclidean norm.
    pub parameters: f64,
    /// The limit of visible keys: the output is 1 / count, to one unit in the last place.
    pub visibility: f64,
    /// The limit of visible keys under a strided pattern, where a row merges several softmaxes, each with a rounded log-sum-exp.
    pub strided_visibility: f64,
    /// Whether out, dq, dk and dv are compared in the Euclidean norm, |a - b| / |b|, not by max|a - b| / max|b|.
    is_of_norms: bool,
}

impl Limits {
    /// The limits in f32.
    pub const F32: Limits = Limits {
        out: 5e-6,
        lse: 5e-6,
        gradients: 5e-6,
        loss: 1e-5,
        parameters: 2e-5,
        visibility: 1.0,
        strided_visibility: 8.0,
        is_of_norms: false,
    };
    /// The limits in bf16, whose unit roundoff is 2^-9: attention rounds its weights, the gradients of its scores and its results once
    /// each, a model every tensor that it keeps.
    pub const BF16: Limits = Limits {
        out: 4e-3,
        lse: 2e-5,
        gradients: 8e-3,
        loss: 2e-3,
        parameters: 3e-2,
        is_of_norms: true,
        ..Limits::F32
    };

    /// The limits of what is computed in `dtype`.
    pub fn of(dtype: DType) -> Limits {
        if dtype == DType::BF16 { Limits::BF16 } else { Limits::F32 }
    }

    /// The error of the tensor `name` of attention against its reference `b`, in the limit's measure; `largest`: the norm of the largest
    /// of the three gradients.
    pub(super) fn error(&self, name: &str, a: &[f64], b: &[f64], largest: f64) -> f64 {
        if self.is_of_norms && name != "lse" { distance(a, b, largest) } else { error(a, b) }
    }
}
