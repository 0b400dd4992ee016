//! The machine: what it is, and how busy others keep it.
//!
//! Everything is read from Linux's files; elsewhere names are short and nobody else is seen.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

/// Ticks per second of the counters in `/proc`: fixed, whatever the kernel's own clock.
const TICKS: f64 = 100.0;

/// The machine as a JSON object: processor, cores and memory.
pub(crate) fn describe() -> Value {
    let memory = annulus_machine::machine_memory().map(gibibytes);
    json!({ "processor": processor(), "cores": annulus_machine::cores(), "memory_gib": memory })
}

/// The processor's name, where the system says so in a file.
fn processor() -> String {
    annulus_machine::processor().unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// Bytes in GiB, to a tenth.
fn gibibytes(bytes: u64) -> f64 {
    (bytes as f64 / f64::from(1 << 30) * 10.0).round() / 10.0
}

/// The commit that was built, and whether files differ from it; empty outside of a repository.
pub(crate) fn commit() -> String {
    let describe = ["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"];
    let folder = env!("CARGO_MANIFEST_DIR");
    let said = Command::new("git").args(describe).current_dir(folder).output();
    let said = said.ok().filter(|said| said.status.success());
    said.map_or_else(String::new, |said| String::from_utf8_lossy(&said.stdout).trim().to_owned())
}

/// Today in UTC, as 2026-01-31.
pub(crate) fn date() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    annulus_text::date(since.map_or(0, |since| since.as_secs()))
}

/// Seconds of processor time that all programs have used since the machine started.
pub(crate) fn busy_seconds() -> Option<f64> {
    busy(&fs::read_to_string("/proc/stat").ok()?)
}

/// Ticks of user, nice, system, irq and softirq in the first line; neither idle time nor what the machine's host took.
fn busy(text: &str) -> Option<f64> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let counts: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let busy = [0, 1, 2, 5, 6].map(|index| counts.get(index).copied());
    Some(busy.into_iter().sum::<Option<f64>>()? / TICKS)
}

/// Seconds of processor time of a process, without those it started.
pub(crate) fn processor_seconds(process: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name, in brackets, may hold anything.
    let after = text.rsplit_once(')').map_or("", |(_, after)| after);
    let ticks = after.split_whitespace().skip(11).take(2);
    ticks.filter_map(|word| word.parse::<f64>().ok()).sum::<f64>() / TICKS
}

/// Seconds of processor time of a process with all its descendants.
pub(crate) fn processor_seconds_of_tree(process: u32) -> f64 {
    let children = format!("/proc/{process}/task/{process}/children");
    let children = fs::read_to_string(Path::new(&children)).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|word| word.parse().ok());
    processor_seconds(process) + children.map(processor_seconds_of_tree).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_as_the_system_writes_them() {
        let stat = "cpu  1000 200 300 99999 50 10 20 7 0 0\ncpu0 1 2 3\n";
        assert_eq!(busy(stat), Some(15.3));
        assert_eq!(busy("cpu  1 2\n"), None);
        assert_eq!(gibibytes(16 << 30), 16.0);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn own_work_is_seen() {
        let (own, all) = (processor_seconds(std::process::id()), busy_seconds());
        // Counted in ticks of a hundredth of a second; on a busy machine it may take long to get one.
        let start = std::time::Instant::now();
        let is_seen =
            || processor_seconds_of_tree(std::process::id()) > own && busy_seconds() > all;
        while !is_seen() {
            assert!(start.elapsed().as_secs() < 60, "{own} and {all:?} do not grow");
        }
    }
}
