//! From the logits of a token to its loss and their gradients, as vector code.

use pulp::{Simd, WithSimd};

use crate::exp::exp;
use crate::sums::{fold_lanes, sum_lanes};

/// The loss of one token; its logits become their gradients: softmax, less 1 at the target.
pub(super) struct Turn<'a> {
    pub(super) logits: &'a mut [f32],
    pub(super) target: usize,
}

impl WithSimd for Turn<'_> {
    type Output = f64;
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f64 {
        let Turn { logits, target } = self;
        let higher = |a, b| if b > a { b } else { a };
        let highest = fold_lanes([logits], f32::NEG_INFINITY, |a, [b]| higher(a, b), higher);
        let shifted = f64::from(logits[target]) - f64::from(highest);
        for logit in &mut *logits {
            *logit = exp(*logit - highest);
        }
        let sum = sum_lanes([logits], |sum, [x]| sum + x);
        for probability in &mut *logits {
            *probability /= sum;
        }
        logits[target] -= 1.0;
        f64::from(sum).ln() - shifted
    }
}
