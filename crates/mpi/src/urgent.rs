//! Scheduling of a thread that computes little and must not wait long for a core.

#[cfg(target_os = "linux")]
use std::time::Duration;

/// The shortest time slice that Linux grants.
#[cfg(target_os = "linux")]
const SLICE: Duration = Duration::from_micros(100);

/// Asks the system to give this thread short time slices, soon after it wakes: where computing threads occupy all cores, a thread that
/// wakes otherwise waits for the end of another's slice, some milliseconds, while a link is idle. Linux does so since 6.12 (EEVDF with
/// time slices per thread); elsewhere nothing changes. It needs no privilege, and takes no larger share of the cores.
pub fn wake_soon() {
    #[cfg(target_os = "linux")]
    {
        let size = size_of::<libc::sched_attr>() as u32;
        // SAFETY: all fields are numbers, of which zero is one.
        let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
        // SAFETY: 0 is this thread; the system writes at most `size` bytes of the structure.
        let read =
            unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
        if read == 0 && attributes.sched_policy == libc::SCHED_OTHER as u32 {
            attributes.sched_runtime = SLICE.as_nanos() as u64;
            // SAFETY: as above; the system reads. A system that refuses changes nothing.
            let _ = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
        }
    }
}
