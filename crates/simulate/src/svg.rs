//! The sweet spot as a picture: a heat map in plain SVG, readable in light and in dark.

use annulus_figure::in_svg;

use crate::grid::{SWEET, count, told};
use crate::{Cell, Grid};

/// Width and height of a cell; also the margins left of and above the cells.
const CELL: (usize, usize) = (64, 26);
const MARGIN: (usize, usize) = (84, 64);
/// Height below the cells for the legend.
const LEGEND: usize = 70;
/// The least width: room for the title and the longest line of the legend, at most eight pixels a letter.
const WIDTH: usize = 440;
const LETTER: usize = 8;

impl Grid {
    /// The grid as an SVG file: lengths downwards, devices to the right, darker where less time is lost; sweet cells are framed, and those
    /// that do not fit are struck out.
    pub fn to_svg(&self, title: &str) -> String {
        let title = format!("{title}: {}", self.named());
        let cells = MARGIN.0 + CELL.0 * self.devices.len() + 24;
        let width = cells.max(WIDTH).max(24 + LETTER * title.chars().count());
        let height = MARGIN.1 + CELL.1 * self.tokens.len() + LEGEND;
        let mut svg = vec![format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
        )];
        svg.push(text(12, 20, "start", &title));
        svg.push(text(12, 42, "start", "tokens of a sequence against devices that share it"));
        for (column, devices) in self.devices.iter().enumerate() {
            let x = MARGIN.0 + CELL.0 * column + CELL.0 / 2;
            svg.push(text(x, MARGIN.1 - 6, "middle", &devices.to_string()));
        }
        for (row, (tokens, cells)) in self.tokens.iter().zip(&self.cells).enumerate() {
            let y = MARGIN.1 + CELL.1 * row;
            svg.push(text(MARGIN.0 - 8, y + 17, "end", &count(*tokens)));
            for (column, cell) in cells.iter().enumerate() {
                svg.push(drawn(MARGIN.0 + CELL.0 * column, y, cell.as_ref()));
            }
        }
        let y = MARGIN.1 + CELL.1 * self.tokens.len() + 20;
        let legend = [
            String::from("numbers: per cent of the time that devices compute"),
            format!("framed: at least {:.0} %, and it fits", 100.0 * SWEET),
            String::from("struck out: does not fit; grey: cannot run"),
        ];
        for (line, words) in legend.iter().enumerate() {
            svg.push(text(12, y + 18 * line, "start", words));
        }
        svg.push(String::from("</svg>\n"));
        svg.concat()
    }
}

fn drawn(x: usize, y: usize, cell: Option<&Cell>) -> String {
    let (w, h) = (CELL.0 - 2, CELL.1 - 2);
    let (fill, ink, label) = match cell {
        None => (String::from("#dddddd"), "#555555", String::new()),
        Some(cell) => {
            let ink = if cell.efficiency > 0.55 { "#ffffff" } else { "#222222" };
            (colour(cell.efficiency), ink, format!("{:.0}", 100.0 * cell.efficiency))
        }
    };
    let frame = match cell {
        Some(cell) if cell.is_sweet() => " stroke=\"#d9480f\" stroke-width=\"3\"",
        _ => "",
    };
    let (right, bottom) = (x + w, y + h);
    let struck = match cell {
        Some(cell) if !cell.fits => format!(
            "<line x1=\"{x}\" y1=\"{bottom}\" x2=\"{right}\" y2=\"{y}\" stroke=\"#d9480f\"/>\n"
        ),
        _ => String::new(),
    };
    let (middle, line) = (x + w / 2, y + 16);
    format!(
        "<g><title>{}</title><rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" \
         fill=\"{fill}\"{frame}/>\n{struck}<text x=\"{middle}\" y=\"{line}\" \
         text-anchor=\"middle\" fill=\"{ink}\">{label}</text></g>\n",
        told(cell)
    )
}

fn text(x: usize, y: usize, anchor: &str, words: &str) -> String {
    let words = in_svg(words);
    format!("<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" fill=\"#222222\">{words}</text>\n")
}

/// The color of an efficiency, from nearly white to dark blue.
fn colour(efficiency: f64) -> String {
    let (light, dark) = ([240.0, 244.0, 250.0], [16.0, 62.0, 122.0]);
    let share = efficiency.clamp(0.0, 1.0);
    let mix = |index: usize| (light[index] + (dark[index] - light[index]) * share) as u8;
    format!("#{:02x}{:02x}{:02x}", mix(0), mix(1), mix(2))
}
