//! Files of tensors (safetensors) and their indices: what a header claims is checked against the file before anything is made of
//! it, and tensors are read where they lie, never mapped, so that a file that is cut short meanwhile is an error and no signal.

mod error;
mod file;
mod header;
mod json;

pub use error::{Problem, TensorsError, shown};
pub use file::TensorFile;
pub use header::{Entry, Room};
pub use json::read_index;
pub use safetensors::Dtype;
