//! The one way in which files are opened, read, written and replaced: only regular files are read, nothing is read without
//! a bound, links are not followed where we write, and what is written appears whole or not at all.

mod disk;
pub mod hugging_face;
mod identity;
mod open;
mod pending;
mod pid_lock;
mod within;

pub use disk::{free_space, is_full};
pub use identity::Identity;
pub use open::{append, lock, open, read, read_to_string, regular};
pub use pending::{Pending, PendingFolder, copy, is_leftover, leftovers, remove, sweep, write};
pub use pid_lock::PidLock;
pub use within::{Outside, subfolder, within};
