//! Weights by Hugging Face name: in memory, from safetensors, to safetensors.
//!
//! Files are not trusted: what a header claims is checked against the file's size before anything
//! is made of it, and what does not fit the model is an error, all of it at once.

mod adapter;
mod error;
mod folder;
mod header;
mod load;
mod save;

use std::collections::BTreeMap;

use candle_core::Tensor;

pub use adapter::{load_adapter, save_adapter};
pub use error::{Flaw, WeightsError};
pub use load::{fingerprint, load, load_typed};
pub use save::{save, save_file};

/// Weights by name. Ordered, so that every rank goes through them alike.
pub type Weights = BTreeMap<String, Tensor>;
