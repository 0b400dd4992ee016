//! What of this process's memory is in the machine's, as the system sees it: files that it maps, too.

use std::fs;

/// Bytes of a process that are in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// Now.
    pub now: u64,
    /// The most since the process began, or since [`Resident::forget_peak`].
    pub peak: u64,
    /// Of those now, what is shared with other processes: MPI's messages between processes of a host.
    pub shared: u64,
}

impl Resident {
    /// Of this process; `None` where the system does not say so in a file.
    pub fn here() -> Option<Resident> {
        Resident::read(&fs::read_to_string("/proc/self/status").ok()?)
    }

    /// The peak starts again from what there is now, where the system lets it.
    pub fn forget_peak() {
        // Where it does not, the peak is that of the whole life.
        let _ = fs::write("/proc/self/clear_refs", "5");
    }

    fn read(status: &str) -> Option<Resident> {
        let bytes = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
            kibibytes.checked_mul(1024)
        };
        let now = bytes("VmRSS:")?;
        Some(Resident { now, peak: bytes("VmHWM:")?, shared: bytes("RssShmem:").unwrap_or(0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read() {
        let status = "Name: x\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\nRssShmem:\t       4 kB\n";
        let wanted = Resident { now: 1 << 20, peak: 2 << 20, shared: 4 << 10 };
        assert_eq!(Resident::read(status), Some(wanted));
        assert_eq!(Resident::read("VmRSS: many kB\n"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn growth_is_seen_and_stays_a_peak() {
        Resident::forget_peak();
        let before = Resident::here().unwrap();
        drop(std::hint::black_box(vec![1u8; 64 << 20]));
        let after = Resident::here().unwrap();
        assert!(after.peak >= before.now + (60 << 20), "{before:?} {after:?}");
    }
}
