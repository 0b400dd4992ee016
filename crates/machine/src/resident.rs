//! The resident memory of this process, as the system reports it, mapped files included.

use std::fs;

/// The resident memory of a process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// Bytes that are resident now.
    pub now: u64,
    /// The peak since the process began, or since [`Resident::forget_peak`].
    pub peak: u64,
    /// Bytes of `now` that are shared with other processes: MPI's messages between processes of a host.
    pub shared: u64,
}

impl Resident {
    /// The resident memory of this process; `None` where the system does not report it in a file.
    pub fn here() -> Option<Resident> {
        Resident::read(&fs::read_to_string("/proc/self/status").ok()?)
    }

    /// Restarts the peak from what is resident now, where the system allows it.
    pub fn forget_peak() {
        // Elsewhere the peak is that of the whole process.
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
