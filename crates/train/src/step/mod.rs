//! One optimizer step: forward and backward, sums of gradients, AdamW, and what the step costs.

pub(crate) mod backward;
pub(crate) mod division;
pub(crate) mod dump;
pub(crate) mod finite;
pub(crate) mod gathered;
pub(crate) mod gradients;
pub(crate) mod hashes;
pub(crate) mod hosts;
pub(crate) mod kept;
pub(crate) mod meeting;
pub(crate) mod memory;
pub(crate) mod moments;
pub(crate) mod offload;
pub(crate) mod optimizer;
pub(crate) mod parameters;
pub(crate) mod points;
pub(crate) mod rank;
pub(crate) mod resident;
pub(crate) mod side_by_side;
pub(crate) mod statistics;
pub(crate) mod stepper;
pub(crate) mod sum;
pub(crate) mod trainer;
