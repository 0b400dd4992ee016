//! What the experiment file means, and what is said of what it does not.

mod costs;
mod hostile;
mod lora;
mod masks;
mod messages;
mod models;
mod planning;
mod reading;
mod ropes;
mod sliding;
mod small;
mod splits;
mod stages;
mod support;
mod wire;
mod writing;
