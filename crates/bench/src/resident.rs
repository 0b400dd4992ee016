//! The memory of this process as the system sees it.

use std::fs;

/// The most this process may have had resident since a moment, above what it had then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    base: f64,
}

impl Watch {
    /// From now on.
    pub(crate) fn start() -> Watch {
        // The system keeps one peak per process; writing 5 here starts it anew.
        let _ = fs::write("/proc/self/clear_refs", "5");
        Watch { base: status("VmRSS:").unwrap_or(f64::NAN) }
    }

    /// MiB that were resident at the start.
    pub(crate) fn base(self) -> f64 {
        self.base
    }

    /// MiB that have been resident at once since the start.
    pub(crate) fn peak() -> f64 {
        status("VmHWM:").unwrap_or(f64::NAN)
    }

    /// The difference.
    pub(crate) fn growth(self) -> f64 {
        Watch::peak() - self.base
    }
}

/// A line of this process's status, MiB.
fn status(key: &str) -> Option<f64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kibibytes: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes / 1024.0)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn growth_is_seen_and_stays_a_peak() {
        let watch = Watch::start();
        drop(std::hint::black_box(vec![1u8; 64 << 20]));
        assert!(watch.growth() >= 60.0 && Watch::peak() > watch.base());
    }
}
