//! Which kernels are taken where.

use super::*;

/// Those that every type has: all gradients at once is for types that tensor cores take.
const PASSES: [Pass; 3] = [Pass::Forward, Pass::Keys, Pass::Queries];

fn on(architecture: u32) -> GpuCapability {
    GpuCapability { architecture, shared: 227 << 10 }
}

#[test]
fn every_line_of_the_list_is_read() {
    let whole = |kernel: &Kernel| kernel.threads.is_multiple_of(32) && kernel.query_block > 0;
    assert!(KERNELS.iter().all(whole));
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        for pass in PASSES {
            let found = kernel(pass, dtype, 64, on(80), None).expect("a kernel for heads of 64");
            assert!(found.task.is_some_and(|(_, generation)| generation < Generation::Sm90));
        }
        for (step, order) in [("prepare", "rows"), ("finish", "rows")] {
            assert!(between(step, order, dtype).is_ok());
        }
    }
    assert!(between("prepare", "rows", DType::U8).is_err());
    for kernel in KERNELS.iter().filter(|kernel| kernel.task.is_some()) {
        assert!(between("finish_queries", kernel.order_of_queries(), DType::F32).is_ok());
    }
}

#[test]
fn the_fastest_that_runs_is_taken() {
    let highest = |pass, on, highest| {
        let found = kernel(pass, DType::BF16, 128, on, highest);
        found.and_then(|found| found.task).map(|(_, generation)| generation)
    };
    let generation = |pass, on| highest(pass, on, None);
    assert_eq!(generation(Pass::Forward, on(70)), None);
    assert_eq!(generation(Pass::Forward, on(80)), Some(Generation::Sm80));
    assert_eq!(generation(Pass::Forward, on(90)), Some(Generation::Sm90));
    // Of those that no GPU has run only where it is asked for.
    assert_eq!(generation(Pass::Forward, on(100)), Some(Generation::Sm80));
    for pass in [Pass::Forward, Pass::Backward, Pass::InTurn] {
        let asked = |architecture| highest(pass, on(architecture), Some(Generation::Sm100));
        let wanted = [Generation::Sm90, Generation::Sm100, Generation::Sm100].map(Some);
        assert_eq!([90, 100, 103].map(asked), wanted);
    }
}

/// Architectures, and KiB of shared memory of a block of threads there (CUDA C++ programming guide, "Technical specifications
/// per compute capability").
const CARDS: [(u32, u32); 10] = [
    (80, 163),
    (86, 99),
    (87, 163),
    (89, 99),
    (90, 227),
    (100, 227),
    (103, 227),
    (110, 227),
    (120, 99),
    (121, 99),
];

/// Every card with every pass, type of 16 bits and head dimension that tensor cores take.
fn cases() -> impl Iterator<Item = (GpuCapability, Pass, DType, usize)> {
    let passes = [Pass::Forward, Pass::Backward, Pass::Keys, Pass::Queries];
    CARDS.into_iter().flat_map(move |(architecture, kibibytes)| {
        let on = GpuCapability { architecture, shared: kibibytes << 10 };
        let of = move |pass| (1..=32).map(move |eights| (pass, 8 * eights));
        let typed =
            move |(pass, dim)| [DType::BF16, DType::F16].map(|dtype| (on, pass, dtype, dim));
        passes.into_iter().flat_map(of).flat_map(typed)
    })
}

#[test]
fn no_card_takes_plain_loops_for_heads_of_16_bits() {
    for (on, pass, dtype, dim) in cases() {
        // As where weights are left out.
        for highest in [None, Some(Generation::Sm80)] {
            let found = kernel(pass, dtype, dim, on, highest);
            let generation = found.and_then(|found| found.task).map(|(_, its)| its);
            assert!(generation >= Some(Generation::Sm80), "{on:?} {pass:?} {dtype:?} {dim}");
        }
    }
}

#[test]
fn of_kernels_that_fit_the_one_with_the_largest_blocks_is_taken() {
    for (on, pass, dtype, dim) in cases() {
        let taken = kernel(pass, dtype, dim, on, None).expect("a kernel");
        let alike = |other: &&Kernel| {
            (other.task, other.dtype, other.dim) == (taken.task, taken.dtype, taken.dim)
        };
        for other in KERNELS.iter().filter(alike).filter(|other| *other != taken) {
            let smaller = other.query_block * other.key_block < taken.query_block * taken.key_block;
            assert!(other.shared > on.shared || smaller, "{} before {}", taken.name, other.name);
            assert_ne!(other.shared, taken.shared, "{} or {}", taken.name, other.name);
        }
    }
    let name = |pass, shared| {
        let on = GpuCapability { architecture: 86, shared };
        kernel(pass, DType::BF16, 256, on, None).map(|found| &*found.name)
    };
    assert_eq!(name(Pass::Forward, 99 << 10), Some("attention_forward_sm80_bf16_d256_64x32"));
    assert_eq!(name(Pass::Forward, 163 << 10), Some("attention_forward_sm80_bf16_d256_128x64"));
    assert_eq!(name(Pass::Keys, 99 << 10), Some("attention_backward_keys_sm80_bf16_d256_32x32"));
    assert_eq!(name(Pass::Keys, 163 << 10), Some("attention_backward_keys_sm80_bf16_d256_64x64"));
}

#[test]
fn heads_of_other_dimensions_take_the_next_kernel() {
    let found = |pass, dim| {
        kernel(pass, DType::BF16, dim, on(90), None).map(|found| (found.task, found.dim))
    };
    let sm90 = |pass| Some((pass, Generation::Sm90));
    assert_eq!(found(Pass::Forward, 48), Some((sm90(Pass::Forward), 64)));
    assert_eq!(found(Pass::Keys, 72), Some((sm90(Pass::Keys), 80)));
    assert_eq!(found(Pass::Queries, 112), Some((sm90(Pass::Queries), 128)));
    assert_eq!(found(Pass::Forward, 192), Some((sm90(Pass::Forward), 256)));
    assert_eq!(found(Pass::Keys, 160), Some((sm90(Pass::Keys), 256)));
    // Rows that are no multiple of 16 bytes.
    let plain = Some((Pass::Forward, Generation::Reference));
    assert_eq!(found(Pass::Forward, 36), Some((plain, 0)));
}
