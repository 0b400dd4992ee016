//! A picture as pixels, and those as PNG.

use std::convert::Infallible;
use std::io;

use embedded_graphics::Pixel;
use embedded_graphics::geometry::{OriginDimensions, Size};
use embedded_graphics::mono_font::MonoTextStyle;
use embedded_graphics::mono_font::iso_8859_1::FONT_9X18;
use embedded_graphics::pixelcolor::{Rgb888, RgbColor};
use embedded_graphics::prelude::{DrawTarget, Drawable, Point};
use embedded_graphics::text::{Alignment, Baseline, Text, TextStyleBuilder};

use crate::picture::{Align, Color, DASH, Picture, Shape, WHITE};

/// The largest picture in pixels: far beyond what a screen has.
const LARGEST: u64 = 1 << 26;

pub(crate) fn draw(picture: &Picture) -> io::Result<Vec<u8>> {
    let Picture { width, height, ref shapes } = *picture;
    if u64::from(width) * u64::from(height) > LARGEST {
        let message = format!("a picture of {width} by {height} pixels is too large");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let pixels = WHITE.repeat(width as usize * height as usize);
    let mut canvas = Canvas { width, height, pixels };
    for shape in shapes {
        canvas.shape(shape);
    }
    canvas.encode()
}

/// Pixels by row, three bytes each.
struct Canvas {
    width: u32,
    height: u32,
    pixels: Vec<u8>,
}

impl Canvas {
    fn shape(&mut self, shape: &Shape) {
        match shape {
            Shape::Box { at: [x, y], size: [w, h], color } => {
                let inside = |u: f64, v: f64| {
                    cover(u - x, x + w - u).min(1.0) * cover(v - y, y + h - v).min(1.0)
                };
                self.paint([*x, *y], [x + w, y + h], *color, inside);
            }
            Shape::Line { from, to, width, color } => self.line([*from, *to], *width, *color),
            Shape::Path { points, width, color, dashed } => {
                let whole = || points.windows(2).map(|ends| [ends[0], ends[1]]).collect();
                let lines: Vec<_> = if *dashed { dashes(points) } else { whole() };
                for ends in lines {
                    self.line(ends, *width, *color);
                }
            }
            Shape::Text { at, text, align, color } => self.text(*at, text, *align, *color),
        }
    }

    fn line(&mut self, [from, to]: [[f64; 2]; 2], width: f64, color: Color) {
        let reach = width / 2.0 + 1.0;
        let low = [from[0].min(to[0]) - reach, from[1].min(to[1]) - reach];
        let high = [from[0].max(to[0]) + reach, from[1].max(to[1]) + reach];
        let near = |u: f64, v: f64| width / 2.0 + 0.5 - distance([u, v], [from, to]);
        self.paint(low, high, color, near);
    }

    /// Mixes `color` into the pixels between two corners, each by the share of it that `cover` says of its middle.
    fn paint(
        &mut self,
        low: [f64; 2],
        high: [f64; 2],
        color: Color,
        cover: impl Fn(f64, f64) -> f64,
    ) {
        let range = |low: f64, high: f64, most: u32| {
            low.floor().max(0.0) as u32..(high.ceil().max(0.0) as u32).min(most)
        };
        for row in range(low[1], high[1], self.height) {
            for column in range(low[0], high[0], self.width) {
                let share = cover(f64::from(column) + 0.5, f64::from(row) + 0.5).clamp(0.0, 1.0);
                let at = 3 * (row as usize * self.width as usize + column as usize);
                for (pixel, color) in self.pixels[at..at + 3].iter_mut().zip(color) {
                    let mixed = f64::from(*pixel) * (1.0 - share) + f64::from(color) * share;
                    *pixel = mixed.round() as u8;
                }
            }
        }
    }

    fn text(&mut self, at: [f64; 2], text: &str, align: Align, [red, green, blue]: Color) {
        let alignment = match align {
            Align::Left => Alignment::Left,
            Align::Middle => Alignment::Center,
            Align::Right => Alignment::Right,
        };
        let style = TextStyleBuilder::new().alignment(alignment).baseline(Baseline::Middle).build();
        let letters = MonoTextStyle::new(&FONT_9X18, Rgb888::new(red, green, blue));
        let place = Point::new(at[0].round() as i32, at[1].round() as i32);
        let Ok(_) = Text::with_text_style(text, place, letters, style).draw(self);
    }

    fn encode(&self) -> io::Result<Vec<u8>> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, self.width, self.height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.write_header()?.write_image_data(&self.pixels)?;
        Ok(file)
    }
}

/// The dashes along lines from point to point, as SVG makes them: gaps go on around corners.
fn dashes(points: &[[f64; 2]]) -> Vec<[[f64; 2]; 2]> {
    let mut dashes = Vec::new();
    // What of the current dash or gap was drawn already.
    let (mut is_dash, mut drawn) = (true, 0.0);
    for ends in points.windows(2) {
        let [[a, b], [c, d]] = [ends[0], ends[1]];
        let length = (c - a).hypot(d - b);
        let at = |along: f64| [a + (c - a) * along / length, b + (d - b) * along / length];
        let mut along = 0.0;
        while along < length {
            let left = DASH[usize::from(!is_dash)] - drawn;
            let to = length.min(along + left);
            if is_dash {
                dashes.push([at(along), at(to)]);
            }
            if to - along < left {
                drawn += to - along;
            } else {
                (is_dash, drawn) = (!is_dash, 0.0);
            }
            along = to;
        }
    }
    dashes
}

/// The share of a pixel within an edge, given how far its middle is from both edges.
fn cover(before: f64, after: f64) -> f64 {
    before.min(after) + 0.5
}

/// From a point to a line between two.
fn distance([x, y]: [f64; 2], [[a, b], [c, d]]: [[f64; 2]; 2]) -> f64 {
    let (dx, dy) = (c - a, d - b);
    let length = dx * dx + dy * dy;
    let along = if length == 0.0 { 0.0 } else { ((x - a) * dx + (y - b) * dy) / length };
    let along = along.clamp(0.0, 1.0);
    (x - a - along * dx).hypot(y - b - along * dy)
}

impl OriginDimensions for Canvas {
    fn size(&self) -> Size {
        Size::new(self.width, self.height)
    }
}

impl DrawTarget for Canvas {
    type Color = Rgb888;
    type Error = Infallible;

    fn draw_iter<I>(&mut self, pixels: I) -> Result<(), Infallible>
    where
        I: IntoIterator<Item = Pixel<Rgb888>>,
    {
        for Pixel(Point { x, y }, color) in pixels {
            let (Ok(x), Ok(y)) = (u32::try_from(x), u32::try_from(y)) else { continue };
            if x < self.width && y < self.height {
                let at = 3 * (y as usize * self.width as usize + x as usize);
                self.pixels[at..at + 3].copy_from_slice(&[color.r(), color.g(), color.b()]);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dashes_go_on_around_a_corner() {
        let found = dashes(&[[0.0, 0.0], [10.0, 0.0], [10.0, 10.0]]);
        // 7 of a line, 5 of a gap of which 2 lie behind the corner, 7 of a line, the beginning of a gap.
        assert_eq!(found, [[[0.0, 0.0], [7.0, 0.0]], [[10.0, 2.0], [10.0, 9.0]]]);
    }
}
