//! Weights by Hugging Face name: in memory, from safetensors, to safetensors.
//!
//! Files are not trusted: what does not fit the model is an error, all of it at once.

mod adapter;
mod error;
mod folder;
mod layout;
mod load;
mod save;
mod stored;

use std::collections::BTreeMap;

use candle_core::Tensor;

pub use adapter::{adapter_layout, stored_adapter};
pub use error::{Flaw, WeightsError};
pub use layout::{Described, Layout, LayoutWriter};
pub use load::{OF_TENSORS, fingerprint, fingerprint_of_files, load, stored};
pub use save::{save, save_file};
pub use stored::{Runs, Stored, elements, tensor};

/// Weights by name. Ordered, so that every rank goes through them alike.
pub type Weights = BTreeMap<String, Tensor>;
