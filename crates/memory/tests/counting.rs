//! The counting allocator: every boundary between small and large blocks, and the account that is charged. Alone in its process, whose
//! allocator it is.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use annulus_memory::{
    Class, Confined, Counting, LARGE, Limits, confine, current, enter, on_behalf_of, peaks,
    recharge, reset_peaks, scope,
};

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
    assert_eq!(current(11).together, 1 << 20);
    on(12, move || drop(block));
    assert_eq!((current(11).together, current(12).together), (0, 0));
    assert_eq!(peaks(11).together, 1 << 20);
    reset_peaks(11);
    assert_eq!(peaks(11).together, 0);
}

#[test]
fn what_is_made_for_another_is_counted_to_it_and_what_comes_after_is_not() {
    on(13, || {
        let for_another = on_behalf_of(14, Class::KeyValue, || vec![0_u8; LARGE]);
        let own = vec![0_u8; 2 * LARGE];
        assert_eq!(current(14)[Class::KeyValue], LARGE as u64);
        assert_eq!(current(13)[Class::Activations], 2 * LARGE as u64);
        drop((for_another, own));
    });
    assert_eq!((current(13).together, current(14).together), (0, 0));
}

#[test]
fn a_block_is_counted_to_the_class_in_whose_scope_it_was_asked_for() {
    on(41, || {
        let before = vec![0_u8; LARGE];
        let outer = scope(Class::Weights);
        let weights = vec![0_u8; 2 * LARGE];
        {
            let _inner = scope(Class::KeyValue);
            drop(vec![0_u8; 8 * LARGE]);
        }
        let more = vec![0_u8; 4 * LARGE];
        drop(outer);
        let after = vec![0_u8; 16 * LARGE];
        let (now, most, size) = (current(41), peaks(41), LARGE as u64);
        assert_eq!((now[Class::Activations], now[Class::Weights]), (17 * size, 6 * size));
        assert_eq!((now[Class::KeyValue], most[Class::KeyValue]), (0, 8 * size));
        assert_eq!(most.together, 23 * size);
        drop((before, weights, more, after));
    });
    assert_eq!(current(41), annulus_memory::Bytes::default());
}

#[test]
fn a_block_may_be_charged_to_another_class_while_it_lives() {
    on(51, || {
        let blocks = [vec![0_u8; LARGE - 1], vec![0_u8; 3 * LARGE]];
        for class in [Class::Workspace, Class::Activations, Class::Gradients, Class::Gradients] {
            for block in &blocks {
                let layout = Layout::array::<u8>(block.capacity()).unwrap();
                // SAFETY: the layout is that of the vector's block, and the vector lives.
                unsafe { recharge(block.as_ptr(), layout, class) };
            }
            let now = current(51);
            assert_eq!((now[class], now.together), (3 * LARGE as u64, 3 * LARGE as u64));
        }
        let grown = {
            let mut block = blocks.into_iter().nth(1).unwrap();
            block.resize(9 * LARGE, 0);
            block
        };
        assert_eq!(current(51)[Class::Gradients], grown.capacity() as u64);
        drop(grown);
        assert_eq!(current(51).together, 0);
    });
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
                    assert_eq!(current(21).together, counted, "{size} aligned to {align}");
                }
                ALLOCATOR.dealloc(block, layout);
            }
        }
        assert_eq!(current(21).together, 0);
        assert_eq!(peaks(21).together, 100_000);
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
        assert_eq!(current(31).together, 0);
    });
}

/// Limits with more time than anything here takes on a busy machine.
const LIMITS: Limits = Limits { bytes: 1 << 20, time: Duration::from_secs(60), stack: 1 << 20 };

#[test]
fn a_confined_thread_gives_its_result_and_reuses_what_it_frees() {
    let work = || (0..1000).map(|_| vec![0_u8; 1 << 19].len()).sum::<usize>();
    assert_eq!(confine(LIMITS, work).unwrap(), 1000 << 19);
    // More often than there are places.
    assert!((0..200).all(|number| confine(LIMITS, move || number).unwrap() == number));
}

#[test]
fn a_confined_thread_gets_no_more_memory_than_its_share() {
    let one = confine(LIMITS, || vec![0_u8; 1 << 40].len());
    assert!(matches!(one, Err(Confined::Memory)));
    confine(LIMITS, || (0..1_000_000).for_each(|_| drop(Box::new([0_u8; 64])))).unwrap();
    let kept = confine(LIMITS, || (0..1_000_000).map(|_| Box::new([0_u8; 64])).collect::<Vec<_>>());
    assert!(matches!(kept, Err(Confined::Memory)));
}

#[test]
fn a_confined_thread_that_took_too_long_gives_its_place_back_when_it_ends() {
    let limits = Limits { time: Duration::from_millis(10), ..LIMITS };
    // More often than there are places.
    for _ in 0..100 {
        let (_end, ended) = mpsc::channel::<()>();
        let slow = confine(limits, move || ended.recv());
        assert!(matches!(slow, Err(Confined::Time)), "{slow:?}");
    }
}

#[test]
fn a_confined_thread_ends_in_time_and_its_panic_is_told() {
    let limits = Limits { time: Duration::from_millis(500), ..LIMITS };
    let slow = confine(limits, || thread::sleep(Duration::from_secs(30)));
    assert!(matches!(slow, Err(Confined::Time)));
    assert!(matches!(
        confine(LIMITS, || panic!("as hostile code does")),
        Err::<(), _>(Confined::Panic)
    ));
}
