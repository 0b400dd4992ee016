//! Steps on clusters: what they take, and what is chosen by it.

mod choices;
mod clusters;
mod groups;
mod papers;
mod steps;
mod support;
mod timelines;
