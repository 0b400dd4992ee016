//! How long the program's allocator keeps pages that were freed.

use std::ffi::{c_int, c_long};

unsafe extern "C" {
    /// Of mimalloc, which this crate depends on for it.
    fn mi_option_set(option: c_int, value: c_long);
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

/// Gives freed pages back at once: where memory is short, those kept would come on top.
pub(crate) fn return_freed_pages() {
    keep_for(0);
}

fn keep_for(milliseconds: c_long) {
    if std::env::var_os(VARIABLE).is_none() {
        // SAFETY: sets a number, atomically.
        unsafe { mi_option_set(PURGE_DELAY, milliseconds) }
    }
}
