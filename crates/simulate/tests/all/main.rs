//! Estimates of steps on clusters, and choices by them.

mod choices;
mod clusters;
mod groups;
mod papers;
mod proposals;
mod settings;
mod steps;
mod support;
mod timelines;
mod waits;
