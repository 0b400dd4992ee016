//! The public items of the crate.

mod quantity;
