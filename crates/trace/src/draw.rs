//! A drawing of one attention of a trace as plain SVG: per rank a lane for computing and one below it for waiting, with an arrow for every
//! block.

use std::fmt::Write as _;

use annulus_figure::in_svg;

use crate::{Activity, Link, Pass, Span, Trace, TracedBlock, links};

/// Sizes in pixels: the width of a pass, the margin for names, a lane, the gap between ranks, the space above a pass.
const WIDTH: f64 = 1040.0;
const MARGIN: f64 = 72.0;
const LANE: f64 = 16.0;
const GAP: f64 = 12.0;
const TITLE: f64 = 44.0;
/// The height of the axis below a pass, and the number of its parts.
const AXIS: f64 = 22.0;
const PARTS: u32 = 5;

/// Colors of computing, of sums and results, of posts, of waits, and of arrows.
const TILES: &str = "#3b6fb5";
const RESULTS: &str = "#8fb0da";
const POSTS: &str = "#777777";
const WAITS: &str = "#e8590c";
const ARROWS: &str = "#2b8a3e";

/// One pass, and where it is drawn.
struct Panel<'a> {
    ranks: Vec<Vec<&'a Span>>,
    /// The host of each rank, where there are several hosts.
    hosts: Vec<&'a str>,
    start: u64,
    end: u64,
    top: f64,
}

impl Trace {
    /// Both passes of `layer` as an SVG file.
    pub fn to_svg(&self, layer: usize) -> String {
        self.drawn(layer, " xmlns=\"http://www.w3.org/2000/svg\"")
    }

    /// Both passes of `layer` as an SVG element within an HTML page, which needs no namespace.
    pub fn to_inline_svg(&self, layer: usize) -> String {
        self.drawn(layer, "")
    }

    fn drawn(&self, layer: usize, namespace: &str) -> String {
        let links = links(self);
        let mut body = String::new();
        let mut top = 30.0;
        let several = (1..self.locations.len()).any(|rank| self.are_apart(0, rank));
        let hosts =
            self.locations.iter().filter(|_| several).map(|location| location.host.as_str());
        let hosts: Vec<&str> = hosts.collect();
        for pass in Pass::ALL {
            let ranks: Vec<Vec<&Span>> =
                (0..self.ranks.len()).map(|rank| self.first_time(rank, layer, pass)).collect();
            let all = || ranks.iter().flatten();
            let Some(start) = all().map(|span| span.begin).min() else { continue };
            let end = all().map(|span| span.end).max().unwrap_or(start).max(start + 1);
            let panel = Panel { ranks, hosts: hosts.clone(), start, end, top: top + TITLE };
            let took = (end - start) as f64 / 1e6;
            let title = format!("{} of layer {layer}: {took:.3} ms", pass.name());
            text(&mut body, [MARGIN, top + TITLE - 14.0], &title);
            panel.draw(&mut body, &links);
            panel.axis(&mut body);
            top = panel.top + panel.height() + AXIS;
        }
        let legend =
            "blue: tiles; light: results and sums; grey: posts; orange: waits; green: blocks";
        text(&mut body, [MARGIN, top + 22.0], legend);
        let (width, height) = (MARGIN + WIDTH + 24.0, top + 36.0);
        let mut svg = format!(
            "<svg{namespace} viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
        );
        text(&mut svg, [12.0, 20.0], &self.heading());
        svg + &body + "</svg>\n"
    }
}

impl Panel<'_> {
    fn height(&self) -> f64 {
        self.ranks.len() as f64 * (2.0 * LANE + GAP)
    }

    fn x(&self, at: u64) -> f64 {
        let share = at.saturating_sub(self.start) as f64 / (self.end - self.start) as f64;
        MARGIN + WIDTH * share
    }

    /// The upper edge of a rank's lane: lane 0 computes, lane 1 communicates.
    fn y(&self, rank: usize, lane: usize) -> f64 {
        self.top + rank as f64 * (2.0 * LANE + GAP) + lane as f64 * LANE
    }

    /// Draws the axis: milliseconds since the start of the pass.
    fn axis(&self, svg: &mut String) {
        let y = self.top + self.height();
        let took = (self.end - self.start) as f64 / 1e6;
        let end = MARGIN + WIDTH;
        let line = |svg: &mut String, [x1, y1, x2, y2]: [f64; 4]| {
            let _ = writeln!(
                svg,
                "<line x1=\"{x1:.2}\" y1=\"{y1:.2}\" x2=\"{x2:.2}\" y2=\"{y2:.2}\" stroke=\"#777777\"/>"
            );
        };
        line(svg, [MARGIN, y, end, y]);
        for part in 0..=PARTS {
            let share = f64::from(part) / f64::from(PARTS);
            let (x, at) = (MARGIN + WIDTH * share, took * share);
            line(svg, [x, y, x, y + 4.0]);
            // The last label ends where the axis does, at the edge of the picture.
            let (unit, anchor) = if part == PARTS { (" ms", "end") } else { ("", "middle") };
            let _ = writeln!(
                svg,
                "<text x=\"{x:.2}\" y=\"{:.2}\" font-size=\"10\" text-anchor=\"{anchor}\" \
                 fill=\"#555555\">{at:.3}{unit}</text>",
                y + 16.0
            );
        }
    }

    fn draw(&self, svg: &mut String, links: &[Link<'_>]) {
        for (rank, spans) in self.ranks.iter().enumerate() {
            self.name(svg, rank);
            for span in spans {
                self.bar(svg, rank, span);
            }
        }
        let within = |span: &Span| span.begin >= self.start && span.end <= self.end;
        let drawn = |span: &Span, rank: usize| {
            let own = self.ranks.get(rank);
            within(span) && own.is_some_and(|own| own.iter().any(|own| std::ptr::eq(*own, span)))
        };
        for Link { moved, sent, came, .. } in links {
            if drawn(sent, moved.from) && drawn(came, moved.to) {
                let [x1, x2] = [sent.begin, came.end].map(|at| self.x(at));
                let [y1, y2] = [moved.from, moved.to].map(|rank| self.y(rank, 1) + LANE / 2.0);
                let _ = writeln!(
                    svg,
                    "<line x1=\"{x1:.2}\" y1=\"{y1:.2}\" x2=\"{x2:.2}\" y2=\"{y2:.2}\" \
                     stroke=\"{ARROWS}\" stroke-opacity=\"0.6\"><title>{} from {} to {}, {} bytes</title>\
                     </line><circle cx=\"{x2:.2}\" cy=\"{y2:.2}\" r=\"2.5\" fill=\"{ARROWS}\"/>",
                    in_svg(&moved.block.to_string()),
                    moved.from,
                    moved.to,
                    moved.bytes
                );
            }
        }
    }

    /// Writes the name before a rank's lanes.
    fn name(&self, svg: &mut String, rank: usize) {
        let (y, name) = (self.y(rank, 0), format!("rank {rank}"));
        let Some(host) = self.hosts.get(rank) else {
            text(svg, [12.0, y + 20.0], &name);
            return;
        };
        text(svg, [12.0, y + 13.0], &name);
        let _ = writeln!(
            svg,
            "<text x=\"12.00\" y=\"{:.2}\" font-size=\"10\" fill=\"#555555\">{}<title>{}</title></text>",
            y + 26.0,
            in_svg(&short(host)),
            in_svg(host)
        );
    }

    fn bar(&self, svg: &mut String, rank: usize, span: &Span) {
        let (lane, fill, name) = match &span.activity {
            Activity::Compute { tiles, pairs, .. } => {
                let tiles: Vec<String> = tiles.iter().map(ToString::to_string).collect();
                (0, TILES, format!("{}, {pairs} pairs", tiles.join(" ")))
            }
            Activity::Finish { queries, .. } => {
                (0, RESULTS, format!("results of {}", listed(queries)))
            }
            Activity::Fold { block, .. } => (0, RESULTS, format!("{block} is added")),
            Activity::Post { bytes, .. } => (1, POSTS, format!("posts {bytes} bytes")),
            Activity::Wait { moved, .. } => {
                (1, WAITS, format!("waits for {} of rank {}", moved.block, moved.from))
            }
            Activity::Drain { .. } => (1, WAITS, String::from("waits until its blocks have left")),
            Activity::Send { .. } | Activity::Stage { .. } | Activity::Sum { .. } => return,
        };
        let hop = span.activity.place().map_or(0, |place| place.hop);
        let (x, y) = (self.x(span.begin), self.y(rank, lane));
        let width = (self.x(span.end) - x).max(0.5);
        let took = span.length() as f64 / 1e6;
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{:.2}\" fill=\"{fill}\">\
             <title>hop {hop}: {}, {took:.3} ms</title></rect>",
            LANE - 2.0,
            in_svg(&name)
        );
        if let Activity::Compute { tiles, .. } = &span.activity
            && let [tile] = &tiles[..]
        {
            label(svg, [x, y], width, &tile.to_string());
        }
    }
}

/// Writes a label into a bar where it has room: some six pixels a letter.
fn label(svg: &mut String, [x, y]: [f64; 2], width: f64, name: &str) {
    if width < 7.0 * name.len() as f64 {
        return;
    }
    let (x, y) = (x + width / 2.0, y + LANE - 5.0);
    let _ = writeln!(
        svg,
        "<text x=\"{x:.2}\" y=\"{y:.2}\" font-size=\"10\" text-anchor=\"middle\" \
         fill=\"#ffffff\">{}</text>",
        in_svg(name)
    );
}

fn listed(pieces: &[TracedBlock]) -> String {
    pieces.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// The end of a host's name, which tells hosts of a cluster apart, as far as the margin has room.
fn short(host: &str) -> String {
    const MOST: usize = 9;
    let name = host.split('.').next().unwrap_or(host);
    let surplus = name.chars().count().saturating_sub(MOST);
    let end: String = name.chars().skip(if surplus == 0 { 0 } else { surplus + 1 }).collect();
    if surplus == 0 { end } else { format!("…{end}") }
}

fn text(svg: &mut String, [x, y]: [f64; 2], words: &str) {
    let words = in_svg(words);
    let _ = writeln!(svg, "<text x=\"{x:.2}\" y=\"{y:.2}\" fill=\"#222222\">{words}</text>");
}
