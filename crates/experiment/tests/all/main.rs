//! What the experiment file means, and what is said of what it does not.

mod hostile;
mod masks;
mod messages;
mod planning;
mod reading;
mod sliding;
mod small;
mod splits;
mod support;
mod wire;
mod writing;
