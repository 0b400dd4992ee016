//! The configuration of a model: its shape, and the dtype and training of its weights.

use annulus_architecture::{Element, FullyTrained, Lora, Shape};
use candle_core::DType;

/// The configuration of a model of the Llama family.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The family, sizes and flags.
    pub shape: Shape,
    /// The rows of the embedding, which `shape` may leave open.
    pub vocab_size: usize,
    /// The dtype that the model computes in: f32 or bf16.
    pub dtype: DType,
    /// The adapters that are trained; `None`: every parameter is trained.
    pub lora: Option<Lora>,
}

impl Config {
    /// Whether `what`, beside the projections, is trained itself.
    pub(crate) fn trains(&self, what: FullyTrained) -> bool {
        self.lora.as_ref().is_none_or(|lora| lora.trains(what))
    }
}

/// Candle's dtype for an element type.
pub fn element_type(element: impl Into<Element>) -> DType {
    match element.into() {
        Element::F32 => DType::F32,
        Element::Bf16 => DType::BF16,
        Element::F16 => DType::F16,
    }
}
