//! What steps take on described clusters, held to arithmetic by hand and to the papers.

mod choices;
mod clusters;
mod kinds;
mod papers;
mod steps;
mod support;
mod timelines;
