//! Types of elements.

use annulus_yaml::words;

/// The dtype of weights and activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// 32 bits.
    F32,
    /// 16 bits, with f32 masters.
    Bf16,
}

words!(Dtype { F32 = "f32", Bf16 = "bf16" });

impl Dtype {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        Element::from(self).bytes()
    }
}

/// A comm dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// 32 bits.
    F32,
    /// 16 bits: 8 of precision and 8 of exponent.
    Bf16,
    /// 16 bits: 11 of precision and 5 of exponent; beyond 65504 is infinity.
    F16,
}

words!(Element { F32 = "f32", Bf16 = "bf16", F16 = "f16" });

impl Element {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Element::F32 => 4,
            Element::Bf16 | Element::F16 => 2,
        }
    }
}

impl From<Dtype> for Element {
    fn from(dtype: Dtype) -> Element {
        match dtype {
            Dtype::F32 => Element::F32,
            Dtype::Bf16 => Element::Bf16,
        }
    }
}
