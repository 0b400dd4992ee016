//! Memory by owner and class: an allocator that counts large blocks for the rank that allocated them, and by what they are for.
//!
//! Ranks are threads of one process, so the process's size says nothing about one rank. A large block is preceded by the account that it
//! was counted to, so that the same account is reduced whoever frees it. Small blocks are not counted: tensors are large.
//!
//! The class of a block is what the allocating thread says ([`scope`]); where that is known only later, the block is charged again
//! ([`recharge`]).
//!
//! [`confine`] limits what a thread may allocate while it reads files that others wrote.
//!
//! The counters are statics because an allocator is one.

mod account;
mod allocator;
mod class;
mod confine;

pub use account::{Bytes, current, enter, on_behalf_of, peaks, reset_peaks};
pub use allocator::{Counting, LARGE, is_installed, recharge};
pub use class::{ByClass, Class, Scope, class, scope};
pub use confine::{Confined, Limits, confine, room_to_confine};
