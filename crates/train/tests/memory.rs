//! The counting allocator: every edge between small and large, and who is charged.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::thread;

use common::Place;

use annulus_train::memory::{Counting, LARGE, current, enter, peak, reset_peak};

#[global_allocator]
static ALLOCATOR: Counting<System> = Counting::new(System);

/// Runs `work` on a thread of rank `rank`.
fn on<T: Send>(rank: usize, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let run = scope.spawn(move || {
            enter(rank);
            work()
        });
        run.join().unwrap()
    })
}

#[test]
fn a_block_is_counted_to_its_rank_until_it_is_freed_wherever_that_is() {
    let block = on(11, || vec![0_u8; 1 << 20]);
    assert_eq!(current(11), 1 << 20);
    on(12, move || drop(block));
    assert_eq!((current(11), current(12)), (0, 0));
    assert_eq!(peak(11), 1 << 20);
    reset_peak(11);
    assert_eq!(peak(11), 0);
}

#[test]
fn growing_and_shrinking_keep_what_was_written() {
    let sizes = [10, LARGE - 1, LARGE, LARGE + 1, 4 * LARGE, 100_000, LARGE, LARGE - 1, 10];
    on(21, || {
        for align in [1, 8, 16, 64, 128, 4096] {
            let mut layout = Layout::from_size_align(10, align).unwrap();
            // SAFETY: the layout is not empty, and every block is used within its size and freed
            // with its layout.
            unsafe {
                let mut block = ALLOCATOR.alloc(layout);
                block.write_bytes(0x5a, 10);
                for size in sizes {
                    block = ALLOCATOR.realloc(block, layout, size);
                    layout = Layout::from_size_align(size, align).unwrap();
                    assert_eq!(block as usize % align, 0);
                    let shared = std::slice::from_raw_parts(block, 10);
                    assert_eq!(shared, [0x5a; 10]);
                    block.add(10).write_bytes(0xff, size - 10);
                    let counted = if size < LARGE { 0 } else { size as u64 };
                    assert_eq!(current(21), counted, "{size} aligned to {align}");
                }
                ALLOCATOR.dealloc(block, layout);
            }
        }
        assert_eq!(current(21), 0);
        assert_eq!(peak(21), 100_000);
    });
}

#[test]
fn zeroed_blocks_are_zero_and_a_block_that_cannot_be_had_is_null() {
    on(31, || {
        let layout = Layout::from_size_align(3 * LARGE, 4096).unwrap();
        // SAFETY: the layout is not empty; the block is freed with it.
        unsafe {
            let block = ALLOCATOR.alloc_zeroed(layout);
            let bytes = std::slice::from_raw_parts(block, 3 * LARGE);
            assert!(bytes.iter().all(|&byte| byte == 0));
            ALLOCATOR.dealloc(block, layout);
            let huge = Layout::from_size_align(isize::MAX as usize - 4095, 4096).unwrap();
            assert!(ALLOCATOR.alloc(huge).is_null());
        }
        assert_eq!(current(31), 0);
    });
}

#[test]
fn a_run_knows_the_peak_of_every_rank() {
    let place = Place::new();
    let split = [("mesh.sequence", "2"), ("attention.strategy", "ring"), ("schedule.stop", "2")];
    let plan = place.plan(&split);
    let outcome = place.run(&split).unwrap();
    let text = std::fs::read_to_string(outcome.folder.join("metrics.jsonl")).unwrap();
    let line: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let peaks = line["memory/peak"].as_array().unwrap();
    assert_eq!(peaks.len(), 2);
    for (peak, plan) in peaks.iter().zip(&plan.ranks) {
        // Weights, gradients and moments are there at once, whatever else is.
        let state = plan.peak.weights + plan.peak.gradients + plan.peak.optimizer;
        let peak = peak.as_u64().unwrap();
        assert!(peak > state * 9 / 10 && peak < 50 * state, "{peak} of {state}");
    }
}
