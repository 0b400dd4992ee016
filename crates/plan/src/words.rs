//! How strategies, durations and sizes are written.

use annulus_sequence::{Exchange, Strategy};

/// Seconds of an hour.
const HOUR: f64 = 3600.0;
/// Seconds of a day.
const DAY: f64 = 24.0 * HOUR;

/// What a strategy is called in its shape: `usp 4 x 2`, `megatron a2a`.
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

/// Seconds in a unit that leaves a number of at least 1; from two hours on hours, from two days on days.
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

/// Bytes in the largest unit that leaves a number of at least 1.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut name = "B";
    for unit in UNITS {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        name = unit;
    }
    if name == "B" { format!("{bytes} B") } else { format!("{value:.1} {name}") }
}
