//! Curves, bars, heatmaps and strips as pictures: SVG for people who print, PNG for TensorBoard.
//!
//! A figure becomes a [`Picture`], a list of shapes; both formats are drawn from that list, so that they cannot differ.

mod bars;
mod canvas;
mod curves;
mod heatmap;
mod picture;
mod scale;
mod strips;
mod svg;

pub use bars::{Bar, Bars};
pub use curves::{Curves, POINTS, Point, Series, color, thinned};
pub use heatmap::Heatmap;
pub use picture::Picture;
pub use scale::Axis;
pub use strips::{StripRow, Strips};
pub use svg::in_svg;
