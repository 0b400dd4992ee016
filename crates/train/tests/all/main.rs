//! Training of tiny models: the same however it is split, cut or disturbed.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod callbacks;
mod checkpoints;
mod common;
mod counts;
mod data;
mod devices;
mod dropout;
mod faults;
mod generate;
mod given;
mod kernels;
mod lora;
mod masks;
mod masters;
mod resume;
mod score;
mod stages;
mod starts;
mod tensor;
mod traces;
mod training;
mod verify;
