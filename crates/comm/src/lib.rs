//! How tensors travel between ranks.
//!
//! One trait, [`Communicator`]; one engine so far, [`threads`]: ranks as threads of one process, with nothing to install and
//! nothing copied. [`Metered`] and [`Faulty`] wrap any engine. No transport of our own: an engine is somebody's library.
#![allow(clippy::todo, reason = "skeleton")]

mod communicator;
mod error;
mod faulty;
mod mesh;
mod metered;
pub mod threads;

pub use communicator::{Communicator, Hold, Label, Move, Pending, Reduce, Transfer};
pub use error::{Cause, Error, Failure, Result};
pub use faulty::{Fault, Faulty, When};
pub use mesh::{Axis, Mesh};
pub use metered::{Metered, Traffic};
