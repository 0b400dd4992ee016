//! Questions to a model: loss, answers, text, attention as a whole.

pub(crate) mod evaluate;
pub(crate) mod generate;
pub(crate) mod judge;
pub(crate) mod score;
pub(crate) mod weights;
pub mod whole;
