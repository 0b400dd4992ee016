//! The whole model on one rank: compared with a dense model in f64 and with stored outputs of transformers, and stage by stage.

mod dense;
mod golden;
mod lora;
mod stages;
mod support;
