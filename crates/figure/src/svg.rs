//! A picture as SVG.

use std::fmt::Write as _;

use crate::picture::{Align, Color, LETTER, Picture, Shape};

pub(crate) fn draw(picture: &Picture) -> String {
    let Picture { width, height, shapes } = picture;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" font-family=\"monospace\" font-size=\"15\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    for shape in shapes {
        // Writing to a string cannot fail.
        let _ = match shape {
            Shape::Box { at: [x, y], size: [w, h], color } => writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" fill=\"{}\"/>",
                hex(*color)
            ),
            Shape::Line { from: [x, y], to: [u, v], width, color } => writeln!(
                svg,
                "<line x1=\"{x:.1}\" y1=\"{y:.1}\" x2=\"{u:.1}\" y2=\"{v:.1}\" \
                 stroke=\"{}\" stroke-width=\"{width}\" stroke-linecap=\"round\"/>",
                hex(*color)
            ),
            Shape::Text { at: [x, y], text, align, color } => writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{}\" fill=\"{}\">{}</text>",
                y + LETTER[1] / 4.0,
                anchor(*align),
                hex(*color),
                escaped(text)
            ),
        };
    }
    svg.push_str("</svg>\n");
    svg
}

fn hex([red, green, blue]: Color) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

fn anchor(align: Align) -> &'static str {
    match align {
        Align::Left => "start",
        Align::Middle => "middle",
        Align::Right => "end",
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
