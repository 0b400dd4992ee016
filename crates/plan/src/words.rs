//! How strategies, durations, sizes and long lines are written.

use annulus_sequence::{Exchange, Strategy, TERMINAL_WIDTH};

/// Seconds in an hour.
const HOUR: f64 = 3600.0;
/// Seconds in a day.
const DAY: f64 = 24.0 * HOUR;

/// The name of a strategy with its shape: `usp 4 x 2`, `megatron a2a`.
pub fn label(strategy: Strategy) -> String {
    let name = strategy.name();
    let label = match strategy {
        Strategy::Striped { width } if width > 1 => format!("{name} of {width}"),
        Strategy::AllGather { groups } if groups > 1 => format!("{name} in {groups} groups"),
        Strategy::Megatron { exchange } if exchange != Exchange::PointToPoint => {
            format!("{name} {}", exchange.name())
        }
        _ => name.to_owned(),
    };
    match strategy.shape() {
        Some([first, second]) => format!("{label} {first} x {second}"),
        None => label,
    }
}

/// A duration in a unit that leaves a number of at least 1: hours from two hours on, days from two days on.
pub fn duration(seconds: f64) -> String {
    let (scale, unit) = match seconds {
        s if s >= 2.0 * DAY => (1.0 / DAY, "days"),
        s if s >= 2.0 * HOUR => (1.0 / HOUR, "h"),
        s if s >= 1.0 || s == 0.0 => (1.0, "s"),
        s if s >= 1e-3 => (1e3, "ms"),
        _ => (1e6, "us"),
    };
    format!("{:.2} {unit}", seconds * scale)
}

/// A size in the largest unit that leaves a number of at least 1.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut name = "B";
    for unit in UNITS {
        // What would be rounded to 1024.0 is written in the next unit.
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        name = unit;
    }
    if name == "B" { format!("{bytes} B") } else { format!("{value:.1} {name}") }
}

/// `text` with every line no wider than a terminal: longer lines are wrapped, and the rest indented by `indent` blanks.
pub fn wrapped(text: &str, indent: usize) -> String {
    let lines: Vec<String> = text.split('\n').map(|line| wrapped_line(line, indent)).collect();
    lines.join("\n")
}

fn wrapped_line(line: &str, indent: usize) -> String {
    let (mut done, mut rest) = (String::new(), line.to_owned());
    loop {
        let end = rest.char_indices().nth(TERMINAL_WIDTH).map(|(end, next)| end + next.len_utf8());
        let last = |end: usize| rest[..end].rfind(' ').filter(|at| *at > indent);
        let Some(at) = end.and_then(last) else { return done + &rest };
        done.push_str(rest[..at].trim_end());
        done.push('\n');
        rest = " ".repeat(indent) + rest[at..].trim_start();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_go_on_below() {
        let text = format!("short\nlong    {}", "word ".repeat(30).trim_end());
        let shown = wrapped(&text, 8);
        assert!(shown.lines().all(|line| line.chars().count() <= TERMINAL_WIDTH), "{shown}");
        assert_eq!(shown.split_whitespace().count(), 32);
        assert_eq!(shown.lines().filter(|line| line.starts_with("        word")).count(), 2);
        let letters = format!("{} {}", "é".repeat(79), "数é ".repeat(60));
        let shown = wrapped(&letters, 0);
        assert!(shown.lines().all(|line| line.chars().count() <= TERMINAL_WIDTH), "{shown}");
        assert_eq!(size(1 << 20), "1.0 MiB");
        assert_eq!(
            [size((1 << 20) - 1), size(1023), size(1000 << 10)],
            ["1.0 MiB", "1023 B", "1000.0 KiB"]
        );
        let endless = "x".repeat(100);
        assert_eq!(wrapped(&endless, 8), endless, "a word is not cut");
    }
}
