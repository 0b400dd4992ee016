//! One reader under libFuzzer (`cargo xtask attack --fuzz`): the variable `ANNULUS_FUZZ` says which, `ANNULUS_FUZZ_CORPUS` where its
//! inputs go. At its end it says how long and how large its worst inputs were.
#![no_main]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::OnceCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use annulus_memory::{Counting, room_to_confine};
use annulus_tests::fuzz::{MEMORY, Place, Reader};
use mimalloc::MiMalloc;

/// Bytes that are held now, and the most since the input began.
static NOW: AtomicU64 = AtomicU64::new(0);
static MOST: AtomicU64 = AtomicU64::new(0);
/// Worst input so far: microseconds, bytes.
static SLOWEST: AtomicU64 = AtomicU64::new(0);
static LARGEST: AtomicU64 = AtomicU64::new(0);
static INPUTS: AtomicU64 = AtomicU64::new(0);

/// Counts every byte, around the allocator of the program.
struct Peak(Counting<MiMalloc>);

// SAFETY: whatever is asked for is asked of the allocator within.
unsafe impl GlobalAlloc for Peak {
    // SAFETY: the caller's promises are handed on.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: as above.
        unsafe { self.0.alloc(layout) }
    }

    // SAFETY: the caller's promises are handed on.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: as above.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    // SAFETY: the caller's promises are handed on.
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { self.0.dealloc(block, layout) }
    }

    // SAFETY: the caller's promises are handed on.
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        taken(size);
        NOW.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { self.0.realloc(block, layout, size) }
    }
}

fn taken(bytes: usize) {
    let now = NOW.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
    MOST.fetch_max(now, Ordering::Relaxed);
}

#[global_allocator]
static ALLOCATOR: Peak = Peak(Counting::new(MiMalloc));

thread_local! {
    static TARGET: OnceCell<(&'static Reader, Place)> = const { OnceCell::new() };
}

/// Writes the seeds where libFuzzer looks for them, and sees to it that the worst is told at the end.
fn begin() {
    let target = target();
    let corpus = std::env::var("ANNULUS_FUZZ_CORPUS").expect("ANNULUS_FUZZ_CORPUS is a folder");
    for (index, seed) in (target.0.seeds)(&target.1).iter().enumerate() {
        let path = std::path::Path::new(&corpus).join(format!("seed-{index}"));
        std::fs::write(path, seed).expect("the corpus can be written");
    }
    TARGET.with(|place| place.set(target).map_err(drop)).expect("once");
    // SAFETY: the function touches statics alone.
    unsafe { libc::atexit(end) };
}

fn target() -> (&'static Reader, Place) {
    let name = std::env::var("ANNULUS_FUZZ").unwrap_or_default();
    let reader = Reader::of(&name).unwrap_or_else(|| panic!("ANNULUS_FUZZ is `{name}`, no reader"));
    (reader, Place::new())
}

#[expect(clippy::print_stderr, reason = "read by xtask")]
extern "C" fn end() {
    let [inputs, slowest, largest] =
        [&INPUTS, &SLOWEST, &LARGEST].map(|number| number.load(Ordering::Relaxed));
    eprintln!("MEASURED {inputs} {slowest} {largest}");
}

fn read(bytes: &[u8]) {
    let before = NOW.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let began = Instant::now();
    // What is wrong with an input is as well as that nothing is.
    let _ = TARGET.with(|target| {
        let (reader, place) = target.get().expect("it has begun");
        (reader.read)(place, bytes)
    });
    let took = began.elapsed().as_micros() as u64;
    let most = MOST.load(Ordering::Relaxed).saturating_sub(before);
    SLOWEST.fetch_max(took, Ordering::Relaxed);
    LARGEST.fetch_max(most, Ordering::Relaxed);
    INPUTS.fetch_add(1, Ordering::Relaxed);
    assert!(most <= MEMORY, "an input took {most} bytes");
    // Libraries that were held to their share keep it: after some, a fresh process goes on.
    if room_to_confine() == 0 || NOW.load(Ordering::Relaxed) > MEMORY {
        end();
        // libFuzzer takes an exit within an input for a failure.
        // SAFETY: the function takes a number.
        unsafe { libc::_exit(0) };
    }
}

libfuzzer_sys::fuzz_target!(init: begin(), |bytes: &[u8]| read(bytes));
