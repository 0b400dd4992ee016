//! The memory of the computer that this is.

use std::fs;

/// Where Linux says what a container may use.
const CONTAINER_LIMIT: &str = "/sys/fs/cgroup/memory.max";

/// The memory of this machine or of the container, bytes; `None` where the system does not say so
/// in a file.
pub(crate) fn memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    let limit = fs::read_to_string(CONTAINER_LIMIT).ok().and_then(|text| text.trim().parse().ok());
    Some(limit.unwrap_or(u64::MAX).min(kibibytes * 1024))
}
