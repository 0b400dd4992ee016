//! How long the program's allocator keeps pages that were freed.

use std::ffi::{c_int, c_long};
use std::ops::Range;

use annulus_machine::Resident;
use annulus_memory::current;
use annulus_plan::{Plan, Process};

unsafe extern "C" {
    /// Of mimalloc, which this crate depends on for it.
    fn mi_option_set(option: c_int, value: c_long);
    /// Of the same: gives pages back that nothing is in.
    fn mi_collect(force: bool);
}

// The allocator's library is linked where something of its crate is used.
use mimalloc as _;

/// `mi_option_purge_delay`, the same number in versions 2 and 3.
const PURGE_DELAY: c_int = 15;
/// Milliseconds. By default a tenth of a second: then every step of training is given its memory
/// anew, page by page, and each page must be zeroed first, which took a fifth of the time. Not
/// forever, because what is freed in one shape may not serve another.
const KEPT_FOR: c_long = 60_000;
/// Whoever sets it knows better.
const VARIABLE: &str = "MIMALLOC_PURGE_DELAY";

/// Keeps freed pages for a minute, so that steps use them again, unless a process nears its plan; and takes none of
/// 2 MiB, of which little may be in use: a step was no faster with those. To be called before the first large block is asked for,
/// where mimalloc is the program's allocator.
pub fn keep_freed_pages() {
    keep_for(KEPT_FOR);
    #[cfg(target_os = "linux")]
    // SAFETY: a flag of this process. Where the system does not know it, pages stay as they are.
    let _ = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
}

/// Gives freed pages back at once, where memory is short. That takes more of the processor's time: every block is given new pages, each
/// of which is zeroed first.
pub(crate) fn return_freed_pages() {
    keep_for(0);
}

/// What a process may have in memory: its plan. Pages that were freed in one shape and do not serve another come on top of it, so near
/// the plan no more than a small share of it is kept.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    /// The plan.
    most: u64,
    /// What the process has beside what its ranks hold.
    base: u64,
    /// Its ranks.
    ranks: Range<usize>,
}

/// Near the plan is what is above this share of it, in eighths.
const NEAR: u64 = 5;
/// One of so many parts of the plan may be kept there, or so many bytes.
const PARTS: u64 = 128;
const LITTLE: u64 = 2 << 20;

impl Room {
    /// Without a bound.
    pub(crate) const ANY: Room = Room { most: u64::MAX, base: 0, ranks: 0..0 };

    /// That of a process with these ranks of `plan`, on a host of so many cores.
    pub(crate) fn of(plan: &Plan, cores: usize, ranks: Range<usize>, base: u64) -> Room {
        let (held, process) = (plan.with_cores(cores), ranks.start / ranks.len().max(1));
        let planned =
            plan.processes(&held).get(process).map(|held| Process { base, ..*held }.all());
        Room { most: planned.unwrap_or(u64::MAX), base, ranks }
    }

    /// Between two stages of a model, which have freed what is not to be kept: takes microseconds where little is.
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

/// Gives back, once, what was freed so far: what a run starts from is of no shape that its steps ask for.
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
