//! Vector code that turns the logits of a token into its loss and their gradients.

use pulp::{Simd, WithSimd};

use crate::exp::exp;
use crate::sums::{fold_lanes, sum_lanes};

/// The loss of one token, whose logits become their gradients: softmax, less 1 at the target.
pub(super) struct TokenLoss<'a> {
    pub(super) logits: &'a mut [f32],
    pub(super) target: usize,
}

impl WithSimd for TokenLoss<'_> {
    type Output = f64;
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f64 {
        let TokenLoss { logits, target } = self;
        let target_logit = f64::from(logits[target]);
        let [highest, sum] = powers(logits);
        for probability in &mut *logits {
            *probability /= sum;
        }
        logits[target] -= 1.0;
        f64::from(sum).ln() - (target_logit - f64::from(highest))
    }
}

/// Turns logits into exp(logit − highest); returns the highest, and the sum of the powers.
#[inline(always)]
fn powers(logits: &mut [f32]) -> [f32; 2] {
    let higher = |a, b| if b > a { b } else { a };
    let highest = fold_lanes([logits], f32::NEG_INFINITY, |a, [b]| higher(a, b), higher);
    for logit in &mut *logits {
        *logit = exp(*logit - highest);
    }
    [highest, sum_lanes([logits], |sum, [x]| sum + x)]
}

/// Some logits of a token, which become exp(logit − highest): gives the highest, and the sum of what they became.
pub(super) struct Exponentials<'a>(pub(super) &'a mut [f32]);

impl WithSimd for Exponentials<'_> {
    type Output = [f32; 2];
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> [f32; 2] {
        powers(self.0)
    }
}

/// Multiplies values by a factor.
pub(super) struct Scaled<'a> {
    pub(super) powers: &'a mut [f32],
    pub(super) factor: f32,
}

impl WithSimd for Scaled<'_> {
    type Output = ();
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        self.powers.iter_mut().for_each(|power| *power *= self.factor);
    }
}
