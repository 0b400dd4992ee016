//! What the experiment file means, and what is said of what it does not.

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
