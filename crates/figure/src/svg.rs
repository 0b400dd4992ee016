//! A picture as SVG.

use std::fmt::Write as _;

use crate::picture::{Align, Color, DASH, LETTER, Picture, Shape};

/// With `namespace` as an attribute of the root, if it is not empty.
pub(crate) fn draw(picture: &Picture, namespace: &str) -> String {
    let Picture { width, height, shapes } = picture;
    let mut svg = opened([*width, *height], namespace);
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
            Shape::Path { points, width, color, dashed } => writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" {}/>",
                places(points),
                hex(*color),
                stroke(*width, *dashed)
            ),
            Shape::Text { at: [x, y], text, align, color } => writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{}\" fill=\"{}\">{}</text>",
                y + LETTER[1] / 4.0,
                anchor(*align),
                hex(*color),
                in_svg(text)
            ),
        };
    }
    svg.push_str("</svg>\n");
    svg
}

/// The root, and a white ground.
fn opened([width, height]: [u32; 2], namespace: &str) -> String {
    format!(
        "<svg{namespace} viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" font-family=\"monospace\" font-size=\"15\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    )
}

fn places(points: &[[f64; 2]]) -> String {
    let places: Vec<String> = points.iter().map(|[x, y]| format!("{x:.1},{y:.1}")).collect();
    places.join(" ")
}

fn stroke(width: f64, dashed: bool) -> String {
    let [line, gap] = DASH;
    let dashes = if dashed { format!(" stroke-dasharray=\"{line} {gap}\"") } else { String::new() };
    format!("stroke-width=\"{width}\" stroke-linejoin=\"round\"{dashes}")
}

pub(crate) fn hex([red, green, blue]: Color) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

fn anchor(align: Align) -> &'static str {
    match align {
        Align::Left => "start",
        Align::Middle => "middle",
        Align::Right => "end",
    }
}

/// `text` escaped, and as the content of an element of SVG.
pub fn in_svg(text: &str) -> String {
    annulus_text::escaped(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
