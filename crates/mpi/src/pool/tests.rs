//! The pool over memory of the CPU, with work whose end the test says.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;

/// A block that is counted as long as it lives.
struct Block {
    first: *mut u8,
    bytes: usize,
    alive: Arc<AtomicUsize>,
}

// SAFETY: the memory is its own.
unsafe impl Send for Block {}

impl Block {
    fn new(bytes: usize, alive: &Arc<AtomicUsize>) -> Block {
        alive.fetch_add(bytes, Ordering::SeqCst);
        let first = Box::into_raw(vec![0_u8; bytes].into_boxed_slice()).cast();
        Block { first, bytes, alive: alive.clone() }
    }
}

impl Memory for Block {
    fn place(&self) -> (*mut u8, usize) {
        (self.first, self.bytes)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.alive.fetch_sub(self.bytes, Ordering::SeqCst);
        // SAFETY: it came from a box of so many bytes.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.first, self.bytes)) });
    }
}

/// Is over once it is told; with `fails` nobody knows.
#[derive(Clone, Default)]
struct Copying {
    over: Arc<AtomicBool>,
    fails: bool,
}

impl Work for Copying {
    fn is_over(&self) -> Result<bool> {
        if self.fails {
            candle_core::bail!("the device is gone");
        }
        Ok(self.over.load(Ordering::SeqCst))
    }

    fn wait(&self) -> Result<()> {
        while !self.is_over()? {
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// A pool of a limit, with how much of its memory is alive and how often memory was made.
struct Scene {
    pool: Arc<Pool<Block, Copying>>,
    alive: Arc<AtomicUsize>,
    made: AtomicUsize,
    spared: AtomicUsize,
}

impl Scene {
    fn new(limit: usize) -> Scene {
        Scene {
            pool: Arc::new(Pool::new(limit)),
            alive: Arc::default(),
            made: AtomicUsize::new(0),
            spared: AtomicUsize::new(0),
        }
    }

    fn take(&self, bytes: usize) -> Lent<Block, Copying> {
        let made = |counter: &AtomicUsize, bytes| {
            counter.fetch_add(1, Ordering::SeqCst);
            Block::new(bytes, &self.alive)
        };
        let make = |bytes| Some(made(&self.made, bytes));
        let lent = self.pool.take(bytes, make, |bytes| made(&self.spared, bytes));
        assert!(lent.place().1 >= bytes);
        lent
    }

    /// How often memory was made for the pool, and how often beside it.
    fn counts(&self) -> (usize, usize) {
        (self.made.load(Ordering::SeqCst), self.spared.load(Ordering::SeqCst))
    }

    fn alive(&self) -> usize {
        self.alive.load(Ordering::SeqCst)
    }
}

const MIB: usize = 1 << 20;

#[test]
fn what_is_given_back_is_lent_again() {
    let scene = Scene::new(8 * MIB);
    let first = scene.take(MIB).place().0;
    for bytes in [MIB, MIB - 1, MIB - MIB / 16 + 1, MIB * 3 / 4] {
        assert_eq!(scene.take(bytes).place().0, first, "{bytes}");
    }
    assert_eq!(scene.counts(), (1, 0));
    // Much less does not take it, more cannot.
    let less = scene.take(MIB / 2);
    let more = scene.take(MIB + 1);
    assert!(less.place().0 != first && more.place().0 != first);
    assert_eq!(scene.counts(), (3, 0));
}

#[test]
fn a_step_of_the_same_messages_makes_nothing_after_the_first() {
    let scene = Scene::new(64 * MIB);
    for step in 0..10 {
        let all: Vec<_> = [1, 7 * MIB, MIB, 100_000, 7 * MIB].map(|bytes| scene.take(bytes)).into();
        drop(all);
        assert_eq!(scene.counts(), (5, 0), "step {step}");
    }
}

#[test]
fn nothing_is_made_beyond_the_limit() {
    let scene = Scene::new(4 * MIB);
    let two = [scene.take(2 * MIB), scene.take(2 * MIB)];
    let third = scene.take(2 * MIB);
    let giant = scene.take(5 * MIB);
    assert_eq!(scene.counts(), (2, 2));
    drop((third, giant));
    // What was beside the pool has ended.
    assert_eq!(scene.alive(), 4 * MIB);
    drop(two);
    assert_eq!(scene.alive(), 4 * MIB);
}

#[test]
fn other_sizes_take_the_place_of_those_that_are_not_used() {
    let scene = Scene::new(4 * MIB);
    drop([scene.take(MIB), scene.take(2 * MIB)]);
    let two = [scene.take(2 * MIB), scene.take(2 * MIB)];
    // The one of 1 MiB had to go.
    assert_eq!((scene.alive(), scene.counts()), (4 * MIB, (3, 0)));
    drop(two);
    drop(scene.take(MIB / 4));
    assert_eq!((scene.alive(), scene.counts()), (2 * MIB + MIB / 4, (4, 0)));
}

#[test]
fn memory_that_is_still_written_is_not_lent() {
    let scene = Scene::new(8 * MIB);
    let copy = Copying::default();
    let mut lent = scene.take(MIB);
    let first = lent.place().0;
    lent.is_used_by(copy.clone());
    assert!(!lent.is_ready().unwrap());
    // Given up before the copy has ended.
    drop(lent);
    let other = scene.take(MIB);
    assert_ne!(other.place().0, first);
    copy.over.store(true, Ordering::SeqCst);
    assert_eq!(scene.take(MIB).place().0, first);
    assert_eq!(scene.counts(), (2, 0));
}

#[test]
fn memory_beside_the_pool_lives_as_long_as_it_is_written() {
    let scene = Scene::new(MIB);
    let copy = Copying::default();
    let mut lent = scene.take(2 * MIB);
    lent.is_used_by(copy.clone());
    drop(lent);
    drop(scene.take(1));
    assert_eq!(scene.alive(), 2 * MIB + LEAST);
    copy.over.store(true, Ordering::SeqCst);
    drop(scene.take(1));
    assert_eq!(scene.alive(), LEAST);
}

#[test]
fn of_what_failed_the_memory_is_never_lent_again() {
    let scene = Scene::new(8 * MIB);
    let mut lent = scene.take(MIB);
    let first = lent.place().0;
    lent.is_used_by(Copying { fails: true, ..Copying::default() });
    assert!(lent.is_ready().is_err() && lent.wait().is_err());
    drop(lent);
    for _ in 0..3 {
        assert_ne!(scene.take(MIB).place().0, first);
    }
    assert_eq!(scene.alive(), 2 * MIB);
}

#[test]
fn what_work_kept_alive_goes_when_it_is_over() {
    let scene = Scene::new(MIB);
    let (copy, mut lent) = (Copying::default(), scene.take(1));
    lent.is_used_by(copy.clone());
    assert_eq!(Arc::strong_count(&copy.over), 2);
    copy.over.store(true, Ordering::SeqCst);
    lent.wait().unwrap();
    assert!(lent.is_ready().unwrap());
    assert_eq!(Arc::strong_count(&copy.over), 1);
}

#[test]
fn a_limit_is_not_used_up_by_memory_that_cannot_be_made() {
    let scene = Scene::new(MIB);
    for _ in 0..3 {
        let lent = scene.pool.take(MIB, |_| None, |bytes| Block::new(bytes, &scene.alive));
        assert_eq!(lent.place().1, MIB);
    }
    assert_eq!(scene.alive(), 0);
    drop(scene.take(MIB));
    assert_eq!(scene.counts(), (1, 0));
}

/// All copies that were begun are over.
fn end(copies: &Mutex<Vec<Copying>>) {
    for copy in copies.lock().drain(..) {
        copy.over.store(true, Ordering::SeqCst);
    }
}

#[test]
fn nothing_is_lost_and_nobody_has_what_another_has() {
    let scene = Scene::new(3 * MIB);
    let copies = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 1..=4_u8 {
            let (scene, copies) = (&scene, &copies);
            scope.spawn(move || {
                for round in 0..200_usize {
                    let mut lent = scene.take(LEAST * (1 + round % 5));
                    let (first, bytes) = lent.place();
                    // SAFETY: the memory is lent to this thread alone, which is what is held to.
                    let all = unsafe { std::slice::from_raw_parts_mut(first, bytes) };
                    all.fill(thread);
                    std::thread::yield_now();
                    assert!(all.iter().all(|byte| *byte == thread));
                    if round % 3 == 0 {
                        let copy = Copying::default();
                        lent.is_used_by(copy.clone());
                        copies.lock().push(copy);
                    }
                    if round % 7 == 0 {
                        end(copies);
                    }
                }
            });
        }
    });
    end(&copies);
    drop(scene.take(1));
    let shelf = scene.pool.shelf();
    assert!(shelf.busy.is_empty());
    let idle: usize = shelf.idle.iter().map(size).sum();
    assert_eq!((shelf.held, scene.alive()), (idle, idle));
    drop(shelf);
    let Scene { pool, alive, .. } = scene;
    drop(pool);
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

#[test]
fn sizes_are_rounded_by_an_eighth_at_most() {
    for bytes in [0, 1, LEAST, LEAST + 1, MIB - 1, MIB, MIB + 1, 9 * MIB / 8, 100_000_000] {
        let room = rounded(bytes);
        assert!(
            room >= bytes.max(LEAST) && room <= bytes.max(LEAST) * 9 / 8 + 1,
            "{bytes}: {room}"
        );
        assert_eq!(rounded(room), room);
    }
}
