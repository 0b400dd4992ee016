//! The whole model on one rank: against a dense model in f64, against stored outputs of
//! transformers, and stage by stage.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod dense;
mod golden;
mod lora;
mod stages;
mod support;
