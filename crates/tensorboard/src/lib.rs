//! TensorBoard event files, nothing else: scalars, text, pictures, the order of charts and hyperparameters; records with
//! checksums, a flush that flushes.
//!
//! A file is a list of records (`record`), each of them one protocol buffer message `Event`
//! (`event`). Both formats are small enough to be written by hand, and are held to TensorBoard's own
//! reader.

mod event;
mod message;
mod plugins;
mod read;
mod record;
mod writer;

pub use event::{Event, Payload};
pub use plugins::{Category, Chart, Setting};
pub use read::read;
pub use writer::{Writer, remove, remove_step};
