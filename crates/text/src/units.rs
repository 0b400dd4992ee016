//! Numbers with units.

/// Seconds in an hour.
const HOUR: f64 = 3600.0;
/// Seconds in a day.
const DAY: f64 = 24.0 * HOUR;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_leaves_a_number_of_at_least_one() {
        assert_eq!(size(1 << 20), "1.0 MiB");
        assert_eq!(
            [size((1 << 20) - 1), size(1023), size(1000 << 10)],
            ["1.0 MiB", "1023 B", "1000.0 KiB"]
        );
        assert_eq!(
            [0.0, 2e-6, 0.25, 1.5, 7200.0, 172_800.0].map(duration),
            ["0.00 s", "2.00 us", "250.00 ms", "1.50 s", "2.00 h", "2.00 days"]
        );
    }
}
