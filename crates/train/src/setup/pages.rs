//! How long the program's allocator, mimalloc, keeps pages that were freed.

use std::ffi::{c_int, c_long};
use std::ops::Range;

use annulus_machine::Resident;
use annulus_memory::current;
use annulus_plan::{Plan, Process};

unsafe extern "C" {
    /// mimalloc's function that sets an option; this crate depends on mimalloc for it.
    fn mi_option_set(option: c_int, value: c_long);
    /// mimalloc's function that returns empty pages to the system.
    fn mi_collect(force: bool);
}

// The allocator's library is linked only if something of its crate is used.
use mimalloc as _;

/// `mi_option_purge_delay`, the same number in versions 2 and 3.
const PURGE_DELAY: c_int = 15;
/// How long freed pages are kept, milliseconds. By default it is a tenth of a second: then every step of training is given its memory anew,
/// page by page, and each page must be zeroed first, which took a fifth of the time. Not forever, because what is freed in one shape may
/// not serve another.
const KEPT_FOR: c_long = 60_000;
/// The environment variable with a user's own delay, which is then left as it is.
const VARIABLE: &str = "MIMALLOC_PURGE_DELAY";

/// Keeps freed pages for a minute, so that steps use them again, unless a process nears its plan; and avoids pages of 2 MiB, of which
/// little may be in use: a step was no faster with those. Must be called before the first large block is allocated, where mimalloc is the
/// program's allocator.
pub(super) fn keep_freed_pages() {
    keep_for(KEPT_FOR);
    #[cfg(target_os = "linux")]
    // SAFETY: a flag of this process. If the system does not know it, pages stay as they are.
    let _ = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
}

/// Returns freed pages to the system at once, where memory is short. It costs processor time: every block is given new pages, each of which
/// is zeroed first.
pub(crate) fn return_freed_pages() {
    keep_for(0);
}

/// The memory that a process may have, which is planned. Pages freed in one shape that do not serve another come on top of it, so near the
/// plan only a small share of it is kept.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    /// The planned memory of the process, bytes.
    most: u64,
    /// What the process has in addition to what its ranks hold, bytes.
    base: u64,
    /// The ranks that are threads of the process.
    ranks: Range<usize>,
}

/// From so many eighths of the plan on, a process is near it.
const NEAR: u64 = 5;
/// Near the plan, freed pages may take one of so many parts of it, or [`LITTLE`] bytes if that is more.
const PARTS: u64 = 128;
const LITTLE: u64 = 2 << 20;

impl Room {
    /// No bound.
    pub(crate) const ANY: Room = Room { most: u64::MAX, base: 0, ranks: 0..0 };

    /// The bound of the process with these ranks of `plan`, on a host with `cores` cores.
    pub(crate) fn of(plan: &Plan, cores: usize, ranks: Range<usize>, base: u64) -> Room {
        let (held, process) = (plan.with_cores(cores), ranks.start / ranks.len().max(1));
        let planned =
            plan.processes(&held).get(process).map(|held| Process { base, ..*held }.all());
        Room { most: planned.unwrap_or(u64::MAX), base, ranks }
    }

    /// Returns freed pages if the process is near its plan. Called between two stages of a model; takes microseconds if there are few
    /// pages.
    pub(crate) fn keep(&self) {
        if self.most == u64::MAX {
            return;
        }
        let has = Resident::here().map_or(0, |resident| resident.now);
        let held: u64 = self.ranks.clone().map(|rank| current(rank).together).sum();
        let kept = has.saturating_sub(self.base + held);
        if has > self.most / 8 * NEAR && kept > (self.most / PARTS).max(LITTLE) {
            return_what_was_freed();
        }
    }
}

/// Returns, once, all pages freed so far: memory of a run's start has no shape that its steps ask for.
pub(crate) fn return_what_was_freed() {
    // SAFETY: may be called at any time, by any thread.
    unsafe { mi_collect(true) }
}

fn keep_for(milliseconds: c_long) {
    if std::env::var_os(VARIABLE).is_none() {
        // SAFETY: sets a number, atomically.
        unsafe { mi_option_set(PURGE_DELAY, milliseconds) }
    }
}
