//! Memory by owner and class: an allocator that counts large blocks to the rank that asked for
//! them, and to what they are for.
//!
//! Ranks are threads of one process, so the process's size says nothing of one rank. A large block
//! carries, in front, the account it was counted to, so that whoever frees it, it is that account
//! which falls. Small blocks are passed through uncounted: tensors are large.
//!
//! What a block is for is what the thread that asks says ([`scope`]); where that is known only
//! later, the block is charged again ([`recharge`]).
//!
//! [`confine`] limits what a thread may allocate while it reads files that others wrote.
//!
//! The counters are statics because an allocator is one.

mod account;
mod allocator;
mod class;
mod confine;

pub use account::{Bytes, current, enter, on_behalf_of, peaks, reset_peaks};
pub use allocator::{Counting, LARGE, recharge};
pub use class::{ByClass, Class, Scope, class, scope};
pub use confine::{Confined, Limits, confine, room_to_confine};
