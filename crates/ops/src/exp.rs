//! The exponential of f32 as straight-line arithmetic, so that loops over it become vector
//! instructions.
//!
//! Call it in a loop inside of a `pulp::WithSimd`, which compiles the loop for the widest
//! instructions the processor has (a closure will not do: what calls it may not be inlined). Every
//! step is a correctly rounded f32 operation, the fused multiply-add included, so the bits are the
//! same on every processor.

/// Beyond these the result is 0 or infinity: 2^-125 and 2^128.
const LOWEST: f32 = -86.643;
const HIGHEST: f32 = 89.0;
/// Adding it rounds to an integer n and leaves n + 126 in the lowest bits: 1.5 * 2^23 + 126.
const ROUND: f32 = 12_583_038.0;
/// ln 2 in two parts; a product of the first with any exponent is exact.
const LN_2: (f32, f32) = (0.693_359_4, -2.121_944_4e-4);

/// `e^x` within one unit in the last place; 0 below -86.6, infinity above 88.7, NaN for NaN.
///
/// e^x = 2^n e^r with n = round(x / ln 2) and |r| <= ln 2 / 2, where the series up to r^7 / 7! is
/// off by 5e-9.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Comparisons, not `clamp`, whose x86 form needs more instructions to keep NaN.
    let inside = if x > HIGHEST { HIGHEST } else { x };
    let rounded = inside.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = n.mul_add(-LN_2.1, n.mul_add(-LN_2.0, inside));
    let series = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0]
        .into_iter()
        .fold(1.0 / 5040.0, |sum: f32, term| sum.mul_add(r, term));
    // 2^(n - 1), then 2: so that 2^128 overflows to infinity instead of into the sign.
    let power = f32::from_bits(rounded.to_bits() << 23);
    if x < LOWEST { 0.0 } else { series * power * 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_f64_to_one_unit_in_the_last_place() {
        let mut x = -86.5_f32;
        while x < 88.7 {
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(error < 1.2e-7, "exp({x}) is off by {error:e}");
            x += 1.37e-3;
        }
    }

    #[test]
    fn ends_and_fixed_points_are_exact() {
        assert_eq!(exp(0.0).to_bits(), 1.0_f32.to_bits());
        assert_eq!(exp(-0.0).to_bits(), 1.0_f32.to_bits());
        for x in [f32::NEG_INFINITY, f32::MIN, -1e9, -87.0] {
            assert_eq!(exp(x).to_bits(), 0, "exp({x})");
        }
        for x in [f32::INFINITY, f32::MAX, 1e9, 88.73] {
            assert!(exp(x).is_infinite() && exp(x) > 0.0, "exp({x}) = {}", exp(x));
        }
        assert!(exp(f32::NAN).is_nan() && exp(-f32::NAN).is_nan());
        assert!(exp(f32::from_bits(0x7f80_0001)).is_nan());
    }
}
