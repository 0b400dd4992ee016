//! What ranks hold, and how they share it: weights, gradients, masters and moments, whole or as slices.

pub(crate) mod division;
pub(crate) mod gathered;
pub(crate) mod gradients;
pub(crate) mod meeting;
pub(crate) mod moments;
pub(crate) mod offload;
pub(crate) mod optimizer;
pub(crate) mod parameters;
pub(crate) mod side_by_side;
