//! One optimizer step: forward and backward, sums of gradients, AdamW, and what the step costs.

pub(crate) mod backward;
pub(crate) mod finished;
pub(crate) mod finite;
pub(crate) mod hashes;
pub(crate) mod kept;
pub(crate) mod measure;
pub(crate) mod rank;
pub(crate) mod slices;
pub(crate) mod state;
pub(crate) mod stepper;
pub(crate) mod sum;
pub(crate) mod trainer;
