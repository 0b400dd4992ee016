//! The one way in which files are opened, read, written and replaced: only regular files are read, nothing is read without
//! a bound, links are not followed where we write, and what is written appears whole or not at all.

mod identity;
mod open;
mod pending;
mod within;

pub use identity::Identity;
pub use open::{append, lock, open, read, read_to_string, regular};
pub use pending::{Pending, PendingFolder, copy, is_leftover, leftovers, remove, sweep, write};
pub use within::{Outside, subfolder, within};
