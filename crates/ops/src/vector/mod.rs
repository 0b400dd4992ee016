//! The vector instructions that attention and matrix products need.
//!
//! A machine is a token that exists only where the processor has its instructions, so that using them is sound. Its panel is always
//! [`PANEL`] floats, in as many registers as it takes, and everything above is written once for all machines. Code is compiled with a
//! machine's instructions only inside [`Machine::call`], hence `inline(always)` on all that runs there.
#![expect(
    clippy::inline_always,
    reason = "inlined, code is compiled for the caller's instructions"
)]

#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
pub(crate) mod product;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) use annulus_machine::Instructions;
pub(crate) use annulus_machine::blocks::PANEL;
use candle_core::{Error, Result};
use product::Product;
use pulp::Arch;

/// Code that runs with a machine's instructions.
pub(crate) trait Leaf {
    /// Runs the code; must be `inline(always)`, as all that it calls.
    fn run<M: Machine>(self, machine: M);
}

/// Code written for every machine, which runs leaves itself.
pub(crate) trait Choice {
    type Output;
    fn with<M: Machine>(self, machine: M) -> Self::Output;
}

/// A set of vector instructions.
pub(crate) trait Machine: Copy + Send + Sync {
    /// The number of values in a unit, the 32 bits that a product takes from each factor: one f32, or two bf16 whose products are added.
    const UNIT: usize;
    /// A vector of sixteen floats.
    type Panel: Copy;

    /// Runs `leaf` with these instructions.
    fn call<L: Leaf>(self, leaf: L);
    /// The product in micro-tiles that fill this machine's registers.
    fn multiply(self, product: &mut Product<'_>);

    /// A panel of sixteen equal floats.
    fn splat(self, value: f32) -> Self::Panel;
    /// Loads sixteen floats from memory.
    fn load(self, from: &[f32; PANEL]) -> Self::Panel;
    /// Stores sixteen floats to memory.
    fn store(self, panel: Self::Panel, to: &mut [f32; PANEL]);
    /// The sum `a + b`.
    fn add(self, a: Self::Panel, b: Self::Panel) -> Self::Panel;
    /// The difference `a - b`.
    fn subtract(self, a: Self::Panel, b: Self::Panel) -> Self::Panel;
    /// The product `a b`.
    fn multiplied(self, a: Self::Panel, b: Self::Panel) -> Self::Panel;
    /// The sum `a b + c`, rounded once where the machine can.
    fn multiply_add(self, a: Self::Panel, b: Self::Panel, c: Self::Panel) -> Self::Panel;
    /// The larger of two floats; `b` where either is NaN.
    fn larger(self, a: Self::Panel, b: Self::Panel) -> Self::Panel;
    /// Selects `value`, but 0 where `x < limit`.
    fn zero_below(self, limit: f32, x: Self::Panel, value: Self::Panel) -> Self::Panel;
    /// The power of two whose biased exponent is in the lowest bits.
    fn exponent(self, bits: Self::Panel) -> Self::Panel;
    /// The larger, as integers, of the bits of `a` without signs and the bits of `b`: ordered by absolute value, NaN the largest.
    #[inline(always)]
    fn magnitudes(self, a: Self::Panel, b: Self::Panel) -> Self::Panel {
        let (mut left, mut right) = ([0.0; PANEL], [0.0; PANEL]);
        self.store(a, &mut left);
        self.store(b, &mut right);
        for (a, b) in left.iter_mut().zip(right) {
            *a = f32::from_bits((a.to_bits() & !(1 << 31)).max(b.to_bits()));
        }
        self.load(&left)
    }
    /// The largest of the panel's bits, as integers.
    #[inline(always)]
    fn most_bits(self, panel: Self::Panel) -> u32 {
        let mut floats = [0.0_f32; PANEL];
        self.store(panel, &mut floats);
        let mut bits = floats.map(f32::to_bits);
        let mut width = PANEL / 2;
        while width > 0 {
            for index in 0..width {
                bits[index] = bits[index].max(bits[index + width]);
            }
            width /= 2;
        }
        bits[0]
    }
    /// Adds `a - b`, as integers of their bits, to `to`.
    #[inline(always)]
    fn add_bits(self, a: Self::Panel, b: Self::Panel, to: &mut [u32; PANEL]) {
        let (mut left, mut right) = ([0.0_f32; PANEL], [0.0_f32; PANEL]);
        self.store(a, &mut left);
        self.store(b, &mut right);
        for (to, (a, b)) in to.iter_mut().zip(left.into_iter().zip(right)) {
            *to = to.wrapping_add(a.to_bits().wrapping_sub(b.to_bits()));
        }
    }
    /// Adds `a b` over the values of each unit to `c`.
    fn dot(self, a: Self::Panel, b: Self::Panel, c: Self::Panel) -> Self::Panel {
        self.multiply_add(a, b, c)
    }
    /// Units of the values of two panels, `first` in the lower halves.
    fn units(self, first: Self::Panel, second: Self::Panel) -> Self::Panel;
    /// Units of neighbouring values in two consecutive panels.
    fn neighbours(self, low: Self::Panel, high: Self::Panel) -> Self::Panel;

    /// The largest of the panel's floats; any where one is NaN.
    #[inline(always)]
    fn highest(self, panel: Self::Panel) -> f32 {
        across(self, panel, |a, b| if a > b { a } else { b })
    }
    /// The sum of the panel's floats, halves added to halves.
    #[inline(always)]
    fn total(self, panel: Self::Panel) -> f32 {
        across(self, panel, |a, b| a + b)
    }

    /// The power `2^x`, to one unit in the last place for x < 128, 0 below 2^-126, NaN for NaN.
    ///
    /// x = n + f with n whole and |f| <= 1/2, where the polynomial (relative minimax) is off by 2.6e-9.
    #[inline(always)]
    fn exp2(self, x: Self::Panel) -> Self::Panel {
        let rounded = self.add(x, self.splat(ROUND));
        let fraction = self.subtract(x, self.subtract(rounded, self.splat(ROUND)));
        let mut series = self.splat(EXP2[0]);
        for &term in &EXP2[1..] {
            series = self.multiply_add(series, fraction, self.splat(term));
        }
        self.zero_below(LOWEST, x, self.multiplied(series, self.exponent(rounded)))
    }
}

/// Combines all floats of a panel by `both`, halves with halves.
#[inline(always)]
fn across<M: Machine>(machine: M, panel: M::Panel, both: impl Fn(f32, f32) -> f32) -> f32 {
    let mut floats = [0.0; PANEL];
    machine.store(panel, &mut floats);
    let mut width = PANEL / 2;
    while width > 0 {
        for index in 0..width {
            floats[index] = both(floats[index], floats[index + width]);
        }
        width /= 2;
    }
    floats[0]
}

/// The exponent below which there is no normal number.
const LOWEST: f32 = -126.0;
/// Added to x, it rounds to an integer n and leaves n + 127 in the lowest bits: 1.5 * 2^23 + 127.
const ROUND: f32 = 12_583_039.0;
/// Coefficients of 2^f for |f| <= 1/2, highest power first.
const EXP2: [f32; 7] = [
    1.559_467_7e-4,
    1.340_664_3e-3,
    9.617_693e-3,
    5.550_310_4e-2,
    2.402_265_2e-1,
    6.931_472_4e-1,
    1.0,
];

/// Instructions as machines.
pub(crate) trait Dispatch: Copy {
    /// Refuses instructions that the processor lacks.
    fn check(self) -> Result<()>;
    /// Runs `choice` on the machine for factors of 16 bits (`narrow`) or 32. Instructions must have been checked.
    fn with<C: Choice>(self, narrow: bool, choice: C) -> C::Output;
}

impl Dispatch for Instructions {
    fn check(self) -> Result<()> {
        match machine(self) {
            Some(_) => Ok(()),
            None => Err(Error::Msg(format!("this processor has no {}", self.word()))),
        }
    }

    fn with<C: Choice>(self, narrow: bool, choice: C) -> C::Output {
        let wide =
            if self == Instructions::Avx512Bf16 && !narrow { Instructions::Avx512 } else { self };
        match machine(wide) {
            #[cfg(target_arch = "x86_64")]
            Some(Found::Avx512Bf16(machine)) => choice.with(machine),
            #[cfg(target_arch = "x86_64")]
            Some(Found::Avx512(machine)) => choice.with(machine),
            #[cfg(target_arch = "x86_64")]
            Some(Found::Avx2(machine)) => choice.with(machine),
            #[cfg(target_arch = "aarch64")]
            Some(Found::Neon(machine)) => choice.with(machine),
            Some(Found::Portable(machine)) => choice.with(machine),
            None => choice.with(portable::Portable),
        }
    }
}

fn machine(instructions: Instructions) -> Option<Found> {
    match instructions {
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512Bf16 => x86::Avx512Bf16::detect().map(Found::Avx512Bf16),
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512 => x86::Avx512::detect().map(Found::Avx512),
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2 => x86::Avx2::detect().map(Found::Avx2),
        #[cfg(target_arch = "aarch64")]
        Instructions::Neon => neon::Neon::detect().map(Found::Neon),
        Instructions::Portable => Some(Found::Portable(portable::Portable)),
        _ => None,
    }
}

/// Prefetches `count` floats from `first` on, which will be read soon. A hint: they need not exist.
#[inline(always)]
pub(crate) fn prefetch(floats: &[f32], first: usize, count: usize) {
    #[cfg(target_arch = "x86_64")]
    x86::prefetch(floats.get(first..floats.len().min(first + count)).unwrap_or_default());
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (floats, first, count);
}

/// The instructions for which loops are compiled that use none by name.
#[cfg(target_arch = "x86_64")]
pub(crate) fn arch(instructions: Instructions) -> Arch {
    use pulp::x86::{V3, V4};
    let narrower = || V3::try_new().map(Arch::V3);
    let wide = match instructions {
        Instructions::Avx512Bf16 | Instructions::Avx512 => {
            V4::try_new().map(Arch::V4).or_else(narrower)
        }
        Instructions::Avx2 => narrower(),
        Instructions::Neon | Instructions::Portable => None,
    };
    wide.unwrap_or(Arch::Scalar)
}

/// The instructions for which loops are compiled that use none by name.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn arch(instructions: Instructions) -> Arch {
    if instructions == Instructions::Portable { Arch::Scalar } else { Arch::new() }
}

/// A machine whose instructions the processor has.
enum Found {
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16(x86::Avx512Bf16),
    #[cfg(target_arch = "x86_64")]
    Avx512(x86::Avx512),
    #[cfg(target_arch = "x86_64")]
    Avx2(x86::Avx2),
    #[cfg(target_arch = "aarch64")]
    Neon(neon::Neon),
    Portable(portable::Portable),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes `2^x` for a list of floats.
    struct Exp2<'a>(&'a mut [[f32; PANEL]]);

    impl Leaf for Exp2<'_> {
        #[inline(always)]
        fn run<M: Machine>(self, machine: M) {
            for panel in self.0 {
                let result = machine.exp2(machine.load(panel));
                machine.store(result, panel);
            }
        }
    }

    impl Choice for Exp2<'_> {
        type Output = ();
        fn with<M: Machine>(self, machine: M) {
            machine.call(self);
        }
    }

    #[test]
    fn powers_of_two_agree_with_f64_on_every_machine() {
        for instructions in Instructions::tested() {
            let mut x = -125.9_f32;
            while x < 127.5 {
                let mut panel = [[x; PANEL]];
                instructions.with(false, Exp2(&mut panel));
                let exact = f64::from(x).exp2();
                let error = (f64::from(panel[0][7]) - exact).abs() / exact;
                assert!(error < 1.7e-7, "{instructions:?}: 2^{x} is off by {error:e}");
                x += 7.3e-3;
            }
        }
    }

    #[test]
    fn ends_are_exact_on_every_machine() {
        for instructions in Instructions::tested() {
            let mut panel = [[0.0; PANEL]];
            panel[0][..5].copy_from_slice(&[
                f32::NEG_INFINITY,
                f32::MIN,
                -151.0,
                f32::NAN,
                -f32::NAN,
            ]);
            instructions.with(false, Exp2(&mut panel));
            assert_eq!(panel[0][..3], [0.0; 3], "{instructions:?}");
            assert!(panel[0][3].is_nan() && panel[0][4].is_nan(), "{instructions:?}");
            assert_eq!(panel[0][5..], [1.0; 11], "{instructions:?}");
        }
    }
}
