//! A picture as shapes: what both formats are drawn from.

use std::io;

use crate::{canvas, svg};

/// Red, green, blue.
pub(crate) type Color = [u8; 3];

pub(crate) const BLACK: Color = [0x22, 0x22, 0x22];
pub(crate) const GREY: Color = [0xdd, 0xdd, 0xdd];
pub(crate) const WHITE: Color = [0xff, 0xff, 0xff];

/// The width and height of a letter.
pub(crate) const LETTER: [f64; 2] = [9.0, 18.0];

/// The length of a dash, and of the gap behind it.
pub(crate) const DASH: [f64; 2] = [7.0, 5.0];

/// Where a text lies from its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Middle,
    Right,
}

/// One shape, in pixels from the top left corner.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Shape {
    /// A filled rectangle.
    Box { at: [f64; 2], size: [f64; 2], color: Color },
    /// A line.
    Line { from: [f64; 2], to: [f64; 2], width: f64, color: Color },
    /// Lines from point to point, at least two of them.
    Path { points: Vec<[f64; 2]>, width: f64, color: Color, dashed: bool },
    /// A text whose middle line goes through `at`.
    Text { at: [f64; 2], text: String, align: Align, color: Color },
}

/// A picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// The width in pixels.
    pub width: u32,
    /// The height in pixels.
    pub height: u32,
    pub(crate) shapes: Vec<Shape>,
}

impl Picture {
    pub(crate) fn new(width: u32, height: u32) -> Picture {
        Picture { width, height, shapes: Vec::new() }
    }
    pub(crate) fn fill(&mut self, at: [f64; 2], size: [f64; 2], color: Color) {
        self.shapes.push(Shape::Box { at, size, color });
    }
    pub(crate) fn line(&mut self, from: [f64; 2], to: [f64; 2], width: f64, color: Color) {
        self.shapes.push(Shape::Line { from, to, width, color });
    }
    /// One point is no line.
    pub(crate) fn path(&mut self, points: Vec<[f64; 2]>, width: f64, color: Color, dashed: bool) {
        if points.len() > 1 {
            self.shapes.push(Shape::Path { points, width, color, dashed });
        }
    }
    pub(crate) fn text(&mut self, at: [f64; 2], text: &str, align: Align) {
        self.colored(at, text, align, BLACK);
    }
    pub(crate) fn colored(&mut self, at: [f64; 2], text: &str, align: Align, color: Color) {
        self.shapes.push(Shape::Text { at, text: text.to_owned(), align, color });
    }
    /// As SVG, a file of its own.
    pub fn to_svg(&self) -> String {
        svg::draw(self, " xmlns=\"http://www.w3.org/2000/svg\"")
    }
    /// As SVG within an HTML page, which knows the element by its name: no address of a namespace is needed.
    pub fn to_inline_svg(&self) -> String {
        svg::draw(self, "")
    }
    /// As PNG.
    ///
    /// # Errors
    /// When it is too large for the format.
    pub fn to_png(&self) -> io::Result<Vec<u8>> {
        canvas::draw(self)
    }
}
