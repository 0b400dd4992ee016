//! Memory per rank: an allocator that counts large blocks to the rank that asked for them.
//!
//! Ranks are threads of one process, so the process's size says nothing of one rank. A large block
//! carries, in front, the rank it was counted to, so that whoever frees it, it is that rank's count
//! which falls. Small blocks are passed through uncounted: tensors are large.
//!
//! The counters are statics because an allocator is one.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Blocks of at least so many bytes are counted.
pub const LARGE: usize = 1024;
/// Ranks of one process that are told apart.
pub const RANKS: usize = 256;
/// Where blocks of other threads are counted.
const NOBODY: usize = RANKS;
/// What precedes a counted block: one cache line, so that the block stays aligned to one.
const HEADER: usize = 64;

static CURRENT: [AtomicU64; RANKS + 1] = [const { AtomicU64::new(0) }; RANKS + 1];
static PEAK: [AtomicU64; RANKS + 1] = [const { AtomicU64::new(0) }; RANKS + 1];

thread_local! {
    static OWNER: Cell<usize> = const { Cell::new(NOBODY) };
}

/// From here on, what this thread allocates is counted to `rank`.
pub fn enter(rank: usize) {
    OWNER.set(rank.min(NOBODY));
}

/// Bytes in large blocks that `rank` holds now; 0 where [`Counting`] is not the program's
/// allocator.
pub fn current(rank: usize) -> u64 {
    CURRENT[rank.min(NOBODY)].load(Ordering::Relaxed)
}

/// The most bytes in large blocks that `rank` has held at once since [`reset_peak`].
pub fn peak(rank: usize) -> u64 {
    PEAK[rank.min(NOBODY)].load(Ordering::Relaxed)
}

/// The peak of `rank` starts again from what it holds now.
pub fn reset_peak(rank: usize) {
    PEAK[rank.min(NOBODY)].store(current(rank), Ordering::Relaxed);
}

fn gain(owner: usize, bytes: usize) {
    let now = CURRENT[owner].fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
    PEAK[owner].fetch_max(now, Ordering::Relaxed);
}

fn lose(owner: usize, bytes: usize) {
    CURRENT[owner].fetch_sub(bytes as u64, Ordering::Relaxed);
}

/// Any allocator, counting.
#[derive(Debug)]
pub struct Counting<A>(A);

impl<A> Counting<A> {
    /// Counts what `inner` allocates.
    pub const fn new(inner: A) -> Counting<A> {
        Counting(inner)
    }
}

/// The bytes in front of a counted block, and the layout of both together; `None` where the block
/// is small, or too large to have a layout.
fn counted(layout: Layout) -> Option<(usize, Layout)> {
    if layout.size() < LARGE {
        return None;
    }
    let front = layout.align().max(HEADER);
    let whole = Layout::from_size_align(layout.size().checked_add(front)?, front).ok()?;
    Some((front, whole))
}

/// Writes the owner in front of a new block and counts it; null stays null.
///
/// # Safety
/// `base` is null or starts a block of at least `front + size` bytes, aligned to `front`, which is
/// at least [`HEADER`].
unsafe fn hand_out(base: *mut u8, front: usize, size: usize) -> *mut u8 {
    if base.is_null() {
        return base;
    }
    let owner = OWNER.get();
    gain(owner, size);
    // SAFETY: the caller says that `front` bytes precede the block.
    unsafe {
        header(base).write(owner);
        base.add(front)
    }
}

/// Where a counted block's owner is; `counted` aligns it to [`HEADER`] or more.
fn header(base: *mut u8) -> *mut usize {
    base.cast()
}

// SAFETY: every block comes from `A` and goes back to `A` with the layout it was asked for: whether
// a block has a header, and how long it is, is a function of the layout that the caller passes at
// both ends.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counting<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: a whole is never empty; a small layout is passed on as it came.
        unsafe {
            match counted(layout) {
                Some((front, whole)) => hand_out(self.0.alloc(whole), front, layout.size()),
                None => self.0.alloc(layout),
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        unsafe {
            match counted(layout) {
                Some((front, whole)) => hand_out(self.0.alloc_zeroed(whole), front, layout.size()),
                None => self.0.alloc_zeroed(layout),
            }
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: a small block was passed through; `hand_out` returned any other, `front` bytes
        // into a `whole` that starts with its owner.
        unsafe {
            let Some((front, whole)) = counted(layout) else {
                return self.0.dealloc(block, layout);
            };
            let base = block.sub(front);
            lose(header(base).read(), layout.size());
            self.0.dealloc(base, whole);
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that `size`, rounded up to the alignment, does not overflow.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (counted(layout), counted(new)) {
            // SAFETY: a small block stays small.
            (None, None) => unsafe { self.0.realloc(block, layout, size) },
            // SAFETY: `front` depends on the alignment alone, so the header stays where it is.
            (Some((front, whole)), Some((_, larger))) => unsafe {
                let base = block.sub(front);
                let owner = header(base).read();
                let moved = self.0.realloc(base, whole, larger.size());
                if moved.is_null() {
                    return moved;
                }
                lose(owner, layout.size());
                hand_out(moved, front, size)
            },
            // SAFETY: both blocks hold at least the smaller size, and `block` is not used again.
            _ => unsafe {
                let moved = self.alloc(new);
                if !moved.is_null() {
                    ptr::copy_nonoverlapping(block, moved, layout.size().min(size));
                    self.dealloc(block, layout);
                }
                moved
            },
        }
    }
}
