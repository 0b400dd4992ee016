//! Tests of the experiment file: its meaning, and its error messages.

mod elsewhere;
mod hostile;
mod lora;
mod messages;
mod models;
mod reading;
mod ropes;
mod small;
mod stages;
mod sweeps;
mod writing;
