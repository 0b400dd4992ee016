//! A model to be computed: its shape, and what its weights are.

use annulus_architecture::{Besides, Element, Lora, Shape};
use candle_core::DType;

/// A model of the Llama family.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Family, sizes and flags.
    pub shape: Shape,
    /// Rows of the embedding, which `shape` may leave open.
    pub vocab_size: usize,
    /// What weights are computed in: f32 or bf16.
    pub dtype: DType,
    /// What is trained; `None`: everything.
    pub lora: Option<Lora>,
}

impl Config {
    /// True for a part that is trained itself.
    pub(crate) fn trains(&self, what: Besides) -> bool {
        self.lora.as_ref().is_none_or(|lora| lora.trains(what))
    }
}

/// Candle's name of a type.
pub fn element_type(element: impl Into<Element>) -> DType {
    match element.into() {
        Element::F32 => DType::F32,
        Element::Bf16 => DType::BF16,
        Element::F16 => DType::F16,
    }
}
