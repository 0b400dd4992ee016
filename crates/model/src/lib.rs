//! The Llama family, written for one device; Hugging Face weights in and out. Knows nothing of
//! strategies; of ranks, only those that share a layer's heads (`tensor.rs`).
//!
//! A model is a list of [`Stage`]s: embedding, then attention and feed-forward of every layer, then
//! the loss. Weights are handed in at every call and never kept.

mod config;
mod layer;
mod llama;
mod lora;
mod parameters;
mod sharded_vocabulary;
mod stage;
mod tensor;
mod vocabulary;
mod weights;

pub use config::{Config, element_type};
pub use llama::Llama;
pub use parameters::Specification;
pub use stage::{
    Attentions, DropoutKey, Forward, GradientSink, Keep, Pullback, Rotaries, Shard, Stage,
};
pub use tensor::{Placement, TensorRanks};
pub use vocabulary::Judged;
pub use weights::{
    Described, Flaw, Layout, LayoutWriter, OF_TENSORS, Runs, Stored, Weights, WeightsError,
    adapter_layout, elements, fingerprint, fingerprint_of_files, load, save, save_file, stored,
    stored_adapter, tensor,
};
