//! How long the program's allocator keeps pages that were freed.

use std::ffi::{c_int, c_long};

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

/// Keeps freed pages for a minute, so that steps use them again. To be called before the first
/// large block is asked for, where mimalloc is the program's allocator.
pub fn keep_freed_pages() {
    keep_for(KEPT_FOR);
}

/// Gives freed pages back at once, and takes none of 2 MiB that little is in: where memory is short, those would come on top. The
/// former alone took a third more of the processor's time: 48.4 s for 36.2 s of a run of five steps on a busy machine.
pub fn return_freed_pages() {
    keep_for(0);
    #[cfg(target_os = "linux")]
    // SAFETY: a flag of this process. Where the system does not know it, pages stay as they are.
    let _ = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
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
