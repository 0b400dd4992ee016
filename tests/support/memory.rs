//! The most memory that the program under test had, as it tells at its end: what its parent can ask the system for counts the
//! parent's own memory at the start of its child, and the most of all children.

/// The variable with the file that it is told in.
pub const PEAK: &str = "ANNULUS_TEST_PEAK";

/// Tells it where it is asked for.
pub fn tell() {
    if let Some(file) = std::env::var_os(PEAK) {
        std::fs::write(file, peak().to_string()).expect("a scratch file");
    }
}

#[cfg(target_os = "linux")]
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the system counts");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("with a peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

#[cfg(not(target_os = "linux"))]
fn peak() -> u64 {
    use nix::sys::resource::{UsageWho, getrusage};

    let unit = if cfg!(target_os = "macos") { 1 } else { 1024 };
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("the system counts");
    usage.max_rss() as u64 * unit
}
