//! What a trained model is asked: loss, answers, text, and attention over a whole sequence.

pub(crate) mod evaluate;
pub(crate) mod generate;
pub(crate) mod judge;
pub(crate) mod score;
pub mod whole;
