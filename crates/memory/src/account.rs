//! Counters of memory by owner and class.

use std::cell::Cell;
use std::ops::Index;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{ByClass, Class, class, scope};

/// The most owners of one process that are told apart.
const OWNERS: usize = 256;
/// The account of blocks of threads without an owner.
const NOBODY: usize = OWNERS;
const CLASSES: usize = Class::ALL.len();

/// Bytes held now, and the peak since the last reset: of every class, and of all classes together.
struct Counter {
    now: AtomicU64,
    most: AtomicU64,
}

impl Counter {
    const fn new() -> Counter {
        Counter { now: AtomicU64::new(0), most: AtomicU64::new(0) }
    }
    fn gain(&self, bytes: u64) {
        let now = self.now.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.most.fetch_max(now, Ordering::Relaxed);
    }
    fn lose(&self, bytes: u64) {
        self.now.fetch_sub(bytes, Ordering::Relaxed);
    }
    fn reset(&self) {
        self.most.store(self.now.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

struct Owner {
    classes: [Counter; CLASSES],
    together: Counter,
}

static OWNED: [Owner; OWNERS + 1] =
    [const { Owner { classes: [const { Counter::new() }; CLASSES], together: Counter::new() } };
        OWNERS + 1];

thread_local! {
    static OWNER: Cell<usize> = const { Cell::new(NOBODY) };
}

/// Counts what this thread allocates from now on for `owner`.
pub fn enter(owner: usize) {
    OWNER.set(owner.min(NOBODY));
}

/// Runs `make` and counts what it allocates for `owner` as of `class`, on whatever thread this is.
pub fn on_behalf_of<T>(owner: usize, class: Class, make: impl FnOnce() -> T) -> T {
    let _class = scope(class);
    let _back = Back(OWNER.replace(owner.min(NOBODY)));
    make()
}

/// Restores a thread's owner when dropped, after a panic too.
struct Back(usize);

impl Drop for Back {
    fn drop(&mut self) {
        OWNER.set(self.0);
    }
}

/// Bytes in large blocks of one owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// Bytes by class.
    pub classes: ByClass,
    /// Bytes of all classes at the same moment. Peak memory is less than the sum of the classes' peaks, which come at different times.
    pub together: u64,
}

impl Index<Class> for Bytes {
    type Output = u64;
    fn index(&self, class: Class) -> &u64 {
        &self.classes[class]
    }
}

/// Bytes that `owner` holds now; 0 where [`crate::Counting`] is not the program's allocator.
pub fn current(owner: usize) -> Bytes {
    read(owner, |counter| &counter.now)
}

/// The most bytes that `owner` has held at once since [`reset_peaks`].
pub fn peaks(owner: usize) -> Bytes {
    read(owner, |counter| &counter.most)
}

/// Restarts the peaks of `owner` from what it holds now.
pub fn reset_peaks(owner: usize) {
    let Owner { classes, together } = &OWNED[owner.min(NOBODY)];
    classes.iter().for_each(Counter::reset);
    together.reset();
}

fn read(owner: usize, of: fn(&Counter) -> &AtomicU64) -> Bytes {
    let Owner { classes, together } = &OWNED[owner.min(NOBODY)];
    let read = |counter| of(counter).load(Ordering::Relaxed);
    let classes = ByClass::new(|class| read(&classes[class as usize]));
    Bytes { classes, together: read(together) }
}

/// An account, that is an owner and a class, for which a block is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Account(usize);

impl Account {
    /// The account of what this thread allocates now.
    pub(crate) fn here() -> Account {
        Account(OWNER.get() * CLASSES + class() as usize)
    }
    /// The account of this account's owner for another class.
    pub(crate) fn of_class(self, class: Class) -> Account {
        Account(self.0 / CLASSES * CLASSES + class as usize)
    }
    pub(crate) fn from_number(number: usize) -> Account {
        Account(number)
    }
    pub(crate) fn number(self) -> usize {
        self.0
    }
    fn owner(self) -> &'static Owner {
        &OWNED[self.0 / CLASSES]
    }
    fn counter(self) -> &'static Counter {
        &self.owner().classes[self.0 % CLASSES]
    }
    pub(crate) fn gain(self, bytes: usize) {
        self.counter().gain(bytes as u64);
        self.owner().together.gain(bytes as u64);
    }
    pub(crate) fn lose(self, bytes: usize) {
        self.counter().lose(bytes as u64);
        self.owner().together.lose(bytes as u64);
    }
    /// Moves bytes to another account of the same owner.
    pub(crate) fn hand_over(self, to: Account, bytes: usize) {
        self.counter().lose(bytes as u64);
        to.counter().gain(bytes as u64);
    }
}
