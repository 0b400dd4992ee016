//! What a trained model is asked: loss, answers and text.

pub(crate) mod evaluate;
pub(crate) mod generate;
pub(crate) mod judge;
pub(crate) mod score;
