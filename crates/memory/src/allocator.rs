//! An allocator that counts large blocks by account.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::hint::black_box;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Class;
use crate::account::Account;
use crate::confine::{give, take};

/// The least bytes of a block that is counted.
pub const LARGE: usize = 1024;
/// Bytes before a counted block: one cache line, so that the block stays aligned to one.
const HEADER: usize = 64;

thread_local! {
    /// The last counted block that this thread was given, to find out whether the allocator is installed.
    static LAST: Cell<usize> = const { Cell::new(0) };
}

/// Counts a block for another class of the same owner. Does nothing for small blocks, and where [`Counting`] is not the program's
/// allocator.
///
/// # Safety
/// The program's allocator gave `block` for this very `layout`, and it is not freed meanwhile.
pub unsafe fn recharge(block: *const u8, layout: Layout, class: Class) {
    let Some((front, _)) = counted(layout).filter(|_| is_installed()) else { return };
    // SAFETY: every counted block of the program's allocator, which is `Counting`, has a header
    // `front` bytes in front; it is only ever written atomically once the block is handed out.
    let account = unsafe { &*header(block.cast_mut().sub(front)) };
    let before = Account::from_number(account.load(Ordering::Relaxed));
    let after = before.of_class(class);
    let (from, to) = (before.number(), after.number());
    // If two threads recharge the same block, one comes second.
    let done = account.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    if done.is_ok() && before != after {
        before.hand_over(after, layout.size());
    }
}

/// Whether the program's allocator is [`Counting`]: an allocation is then seen by it. Otherwise nothing is counted.
pub fn is_installed() -> bool {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    *INSTALLED.get_or_init(|| {
        let block: Vec<u8> = black_box(Vec::with_capacity(LARGE));
        LAST.get() == block.as_ptr() as usize
    })
}

/// An allocator that counts what another one allocates.
#[derive(Debug)]
pub struct Counting<A>(A);

impl<A> Counting<A> {
    /// An allocator that counts what `inner` allocates.
    pub const fn new(inner: A) -> Counting<A> {
        Counting(inner)
    }
}

/// The bytes before a counted block, and the layout of both together; `None` where the block is small, or too large for a layout.
fn counted(layout: Layout) -> Option<(usize, Layout)> {
    if layout.size() < LARGE {
        return None;
    }
    let front = layout.align().max(HEADER);
    let whole = Layout::from_size_align(layout.size().checked_add(front)?, front).ok()?;
    Some((front, whole))
}

/// Writes the account before a new block and counts the block; null stays null.
///
/// # Safety
/// `base` is null or starts a block of at least `front + size` bytes, aligned to `front`, which is
/// at least [`HEADER`].
unsafe fn hand_out(base: *mut u8, front: usize, size: usize, account: Account) -> *mut u8 {
    if base.is_null() {
        return base;
    }
    account.gain(size);
    // SAFETY: the caller says that `front` bytes precede the block.
    let block = unsafe {
        header(base).write(AtomicUsize::new(account.number()));
        base.add(front)
    };
    LAST.set(block as usize);
    block
}

/// Where a counted block's account is stored; `counted` aligns it to [`HEADER`] or more.
fn header(base: *mut u8) -> *mut AtomicUsize {
    base.cast()
}

/// The account of the block whose allocation begins at `base`.
///
/// # Safety
/// `hand_out` wrote there.
unsafe fn account(base: *mut u8) -> Account {
    // SAFETY: the caller says so.
    Account::from_number(unsafe { &*header(base) }.load(Ordering::Relaxed))
}

// SAFETY: every block comes from `A` and goes back to `A` with the layout it was asked for: whether
// a block has a header, and how long it is, is a function of the layout that the caller passes at
// both ends.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counting<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: a whole is never empty; a small layout is passed on as it came.
        unsafe {
            match counted(layout) {
                Some((front, whole)) => {
                    hand_out(self.0.alloc(whole), front, layout.size(), Account::here())
                }
                None => self.0.alloc(layout),
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: as in `alloc`.
        unsafe {
            match counted(layout) {
                Some((front, whole)) => {
                    hand_out(self.0.alloc_zeroed(whole), front, layout.size(), Account::here())
                }
                None => self.0.alloc_zeroed(layout),
            }
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        give(layout.size());
        // SAFETY: a small block was passed through; `hand_out` returned any other, `front` bytes
        // into a `whole` that starts with its owner.
        unsafe {
            let Some((front, whole)) = counted(layout) else {
                return self.0.dealloc(block, layout);
            };
            let base = block.sub(front);
            account(base).lose(layout.size());
            self.0.dealloc(base, whole);
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that `size`, rounded up to the alignment, does not overflow.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (counted(layout), counted(new)) {
            // SAFETY: a small block stays small.
            (None, None) => unsafe {
                give(layout.size());
                take(size);
                self.0.realloc(block, layout, size)
            },
            // SAFETY: `front` depends on the alignment alone, so the header stays where it is.
            (Some((front, whole)), Some((_, larger))) => unsafe {
                give(layout.size());
                take(size);
                let base = block.sub(front);
                let was = account(base);
                let moved = self.0.realloc(base, whole, larger.size());
                if moved.is_null() {
                    return moved;
                }
                was.lose(layout.size());
                hand_out(moved, front, size, was)
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
