//! The whole program, and what of the crates meets only there.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod bisect;
mod bytes;
mod chats;
mod clusters;
mod commands;
mod compare;
mod crashes;
mod drills;
mod evaluate;
mod experiments;
mod explained;
mod export;
mod extension;
mod front_door;
mod goldens;
mod hostile;
mod hub;
mod launchers;
mod long_lines;
mod mixture;
mod offload;
mod pages;
mod plans;
mod processes;
mod reading;
mod replay;
mod report;
mod reproduce;
mod resume;
mod same_bits;
mod stages;
mod sweeps;
mod tensorboard;
mod traces;
mod transformers;
