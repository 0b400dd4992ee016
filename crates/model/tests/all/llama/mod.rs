//! The whole model on one rank: against a dense model in f64, against stored outputs of
//! transformers, and stage by stage.

mod dense;
mod golden;
mod lora;
mod stages;
mod support;
