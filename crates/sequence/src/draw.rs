//! Who holds what and what moves, as text.

use crate::{Layout, Schedule};

/// Who holds which position, and what each rank sees of each other rank.
pub fn draw_layout(_layout: Layout, _tokens: usize, _world: usize) -> String {
    todo!()
}

/// Hop by hop: what every rank computes and sends.
pub fn draw_schedule(_schedule: &Schedule) -> String {
    todo!()
}
