//! The processor's peak speed, for comparison with measured ones: threads that only multiply and add in registers.
//!
//! Sixteen independent sums hide the latency of the units; nothing touches memory.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The time that every thread works for one measurement.
const BURST: Duration = Duration::from_millis(15);
/// How many measurements a peak is the best of: other programs on the machine only ever slow down.
static BURSTS: AtomicUsize = AtomicUsize::new(12);
/// Rounds between two looks at the clock.
const ROUNDS: u32 = 4096;
/// The number of independent sums.
const SUMS: usize = 16;

/// From now on, a peak in this process is that of a single measurement, which other programs may make too low: for tests, which start
/// hundreds of trainings, each with a peak of its own.
pub fn measure_once() {
    BURSTS.store(1, Ordering::Relaxed);
}

/// An arithmetic unit of the processor.
#[derive(Clone, Copy, Debug)]
pub struct Unit {
    /// The name of the unit.
    pub name: &'static str,
    /// Operations per sum and round (multiply and add: two).
    operations: u32,
    /// Runs [`ROUNDS`] rounds of [`SUMS`] sums, on a processor that has the unit.
    rounds: unsafe fn(),
}

impl Unit {
    /// The widest unit for f32 that this processor has.
    pub fn f32() -> Unit {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                return Unit { name: "AVX-512 FMA", operations: 32, rounds: x86::avx512 };
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Unit { name: "AVX2 FMA", operations: 16, rounds: x86::avx2 };
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            return Unit { name: "NEON FMA", operations: 8, rounds: neon };
        }
        Unit { name: "portable", operations: 2 * LANES as u32, rounds: portable }
    }

    /// The unit for dot products of bf16, if the processor has one.
    pub fn bf16() -> Option<Unit> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512bf16") {
            return Some(Unit { name: "AVX512-BF16 dot", operations: 64, rounds: x86::bf16 });
        }
        None
    }

    /// The peak of `threads` threads together, in 1e9 operations per second: the best of several measurements, which take some 200 ms.
    pub fn peak(self, threads: usize) -> f64 {
        (0..BURSTS.load(Ordering::Relaxed)).map(|_| self.measure(threads)).fold(0.0, f64::max)
    }

    /// Measures the speed of `threads` threads together at this moment, in 1e9 operations per second: takes some 15 ms.
    pub fn measure(self, threads: usize) -> f64 {
        let start = Barrier::new(threads);
        let work = || {
            start.wait();
            let begin = Instant::now();
            let mut rounds = 0u32;
            while begin.elapsed() < BURST {
                // SAFETY: a unit is chosen only where the processor has it.
                unsafe { (self.rounds)() };
                rounds += 1;
            }
            Worked { begin, end: Instant::now(), rounds }
        };
        let all: Vec<Worked> = thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        together(&all) * f64::from(ROUNDS * self.operations) * SUMS as f64 / 1e9
    }
}

/// What one thread has done in a measurement.
#[derive(Clone, Copy, Debug)]
struct Worked {
    begin: Instant,
    end: Instant,
    /// How often it ran all rounds.
    rounds: u32,
}

/// How often a second threads have run all rounds together, from the first one's begin to the last one's end: the speeds of threads that
/// took turns on a core do not add up.
fn together(all: &[Worked]) -> f64 {
    let begin = all.iter().map(|one| one.begin).min();
    let end = all.iter().map(|one| one.end).max();
    let time = begin.zip(end).map_or(Duration::ZERO, |(begin, end)| end - begin);
    let rounds: f64 = all.iter().map(|one| f64::from(one.rounds)).sum();
    if time.is_zero() { 0.0 } else { rounds / time.as_secs_f64() }
}

/// Neighbours that a compiler may put into one register.
const LANES: usize = 4;

/// What the compiler makes of a multiplication and an addition, rounded twice.
fn portable() {
    let (factor, term) = (black_box(0.999_f32), black_box(1e-3_f32));
    let mut sums = black_box([[1.0_f32; LANES]; SUMS]);
    for _ in 0..ROUNDS {
        for sum in sums.as_flattened_mut() {
            *sum = *sum * factor + term;
        }
    }
    black_box(sums);
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
fn neon() {
    use std::arch::aarch64::{vdupq_n_f32, vfmaq_f32};
    let (factor, term) = (vdupq_n_f32(black_box(0.999)), vdupq_n_f32(black_box(1e-3)));
    let mut sums = black_box([factor; SUMS]);
    for _ in 0..ROUNDS {
        for sum in &mut sums {
            *sum = vfmaq_f32(term, *sum, factor);
        }
    }
    black_box(sums);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        _mm256_fmadd_ps, _mm256_set1_ps, _mm512_cvtne2ps_pbh, _mm512_dpbf16_ps, _mm512_fmadd_ps,
        _mm512_set1_ps,
    };
    use std::hint::black_box;

    use super::{ROUNDS, SUMS};

    /// Sums of the narrower unit, whose sixteen registers also hold factor and term.
    const FEWER: usize = SUMS - 4;

    #[target_feature(enable = "avx512f")]
    pub(super) fn avx512() {
        let factor = _mm512_set1_ps(black_box(0.999));
        let term = _mm512_set1_ps(black_box(1e-3));
        let mut sums = [factor; SUMS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, factor, term);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn avx2() {
        let factor = _mm256_set1_ps(black_box(0.999));
        let term = _mm256_set1_ps(black_box(1e-3));
        let mut sums = [factor; FEWER];
        // As many sums in total as the other units compute.
        for _ in 0..ROUNDS as usize * SUMS / FEWER {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, factor, term);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) fn bf16() {
        let ones = _mm512_set1_ps(black_box(1e-3));
        let pairs = _mm512_cvtne2ps_pbh(ones, ones);
        let mut sums = [ones; SUMS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm512_dpbf16_ps(*sum, pairs, pairs);
            }
        }
        black_box(sums);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_of_this_processor_runs_on_any_number_of_threads() {
        let portable = Unit { name: "portable", operations: 2 * LANES as u32, rounds: portable };
        for unit in [Unit::f32(), portable].into_iter().chain(Unit::bf16()) {
            for threads in [1, 3] {
                let speed = unit.measure(threads);
                assert!(speed.is_finite() && speed > 0.0, "{}: {speed}", unit.name);
            }
        }
    }

    #[test]
    fn threads_that_take_turns_are_no_faster_than_one() {
        let begin = Instant::now();
        let after = |millis: u64| begin + Duration::from_millis(millis);
        let worked = |from, to| Worked { begin: after(from), end: after(to), rounds: 15 };
        let alone = together(&[worked(0, 15)]);
        assert!((alone - 1000.0).abs() < 1e-9, "{alone}");
        let beside = together(&[worked(0, 15), worked(0, 15)]);
        assert!((beside / alone - 2.0).abs() < 1e-9, "{beside}");
        let in_turn = together(&[worked(0, 15), worked(15, 30)]);
        assert!((in_turn / alone - 1.0).abs() < 1e-9, "{in_turn}");
        assert!(together(&[]).abs() < 1e-9);
    }
}
