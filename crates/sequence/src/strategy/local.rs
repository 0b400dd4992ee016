//! One rank holds everything: the reference that every other strategy equals.
//!
//! ```text
//!          keys 0 1 2 3
//! rank 0  q   [ one    ]
//!             [   tile ]    nothing moves
//! ```

use super::split::{backward_tile, fold, forward_tile};
use crate::Hop;

pub(super) fn forward() -> Vec<Vec<Hop>> {
    vec![vec![Hop { tiles: vec![forward_tile(0, 0)], ..Hop::default() }]]
}

pub(super) fn backward() -> Vec<Vec<Hop>> {
    let (tiles, folds) = (vec![backward_tile(0, 0)], vec![fold(0)]);
    vec![vec![Hop { tiles, folds, ..Hop::default() }]]
}
