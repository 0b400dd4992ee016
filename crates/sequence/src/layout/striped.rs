//! Stripes, round after round, of widths in proportion to the ranks' weights.

use super::balanced::FINE;
use super::shares;
use crate::positions::common_divisor;
use crate::{Positions, Run};

/// The fewest rounds of stripes in a sequence, as far as it is long enough for them.
const ROUNDS: usize = 8;
/// Weights up to this make rounds that are short enough for any sequence.
const SMALL: usize = 8;
/// How many lengths of a round are tried.
const TRIED: usize = 64;

/// Stripes, round after round; a rank with twice the weight takes stripes of twice the width. Where weights without a common divisor make
/// rounds so long that the last ranks get too little of the sequence, smaller weights near them take their place.
pub(super) fn striped(tokens: usize, weights: &[usize], width: usize) -> Vec<Positions> {
    // Only the ratio of weights counts: of larger ones, 32 bits are left, so that quotients of [`FINE`] tell shards apart.
    let largest = weights.iter().copied().max().unwrap_or(1);
    let excess = largest.checked_ilog2().unwrap_or(0).saturating_sub(31);
    let weights: &[usize] = &weights.iter().map(|weight| weight >> excess).collect::<Vec<_>>();
    let unit = weights.iter().copied().reduce(common_divisor).unwrap_or(1);
    let units: Vec<usize> = weights.iter().map(|weight| weight / unit).collect();
    let most = tokens / ROUNDS.saturating_mul(width);
    let exact = stripes(tokens, &units, width);
    if units.iter().sum::<usize>() <= most || units.iter().all(|units| *units <= SMALL) {
        return exact;
    }
    let shorter = (most.saturating_sub(TRIED).max(1)..=most)
        .map(|units| stripes(tokens, &shares(units, weights), width));
    let most_for_its_weight = |shards: &Vec<Positions>| {
        let held = shards.iter().map(|shard| shard.tokens() as u128).zip(weights);
        held.map(|(held, weight)| held * FINE / (*weight as u128).max(1)).max()
    };
    // The first of several that are as good: the exact one, then the shortest round.
    let best = std::iter::once(exact).chain(shorter).min_by_key(most_for_its_weight);
    best.unwrap_or_default()
}

/// Stripes of so many widths for each rank, round after round. Widths that no `usize` holds end where the sequence does.
fn stripes(tokens: usize, units: &[usize], width: usize) -> Vec<Positions> {
    // A round may be longer than any sequence: what lies past the end is cut off before it is narrowed.
    let within = |end: u128| end.min(tokens as u128) as usize;
    let widths = || units.iter().map(|units| *units as u128 * width as u128);
    let round: u128 = widths().sum();
    let (step, len) = (within(round), (tokens as u128).div_ceil(round) as usize);
    let mut past = 0;
    let stripes = |width: u128| {
        let start = within(past);
        past += width;
        let width = within(past) - start;
        let run = (width > 0).then_some(Run { start, step, len, width });
        Positions::new(run.into_iter().collect()).within(0..tokens)
    };
    widths().map(stripes).collect()
}

#[cfg(test)]
mod tests {
    use crate::{Layout, Mask, Positions};

    #[test]
    fn stripes_follow_weights_without_a_common_divisor() {
        let held = |tokens, weights: &[usize], width| -> Vec<usize> {
            let layout = Layout::Striped { width };
            let shards = layout.shard_weighted(&Mask::causal(), tokens, weights).unwrap();
            shards.iter().map(Positions::tokens).collect()
        };
        for (tokens, weights, width) in [
            (1000, &[1000, 999, 998][..], 1),
            (1680, &[100, 99], 16),
            (4096, &[301, 0, 157, 89, 211], 4),
            (100_000, &[65_536, 65_535, 32_767], 16),
        ] {
            let (held, all) = (held(tokens, weights, width), weights.iter().sum::<usize>());
            for (held, weight) in held.iter().zip(weights) {
                let wanted = (tokens * weight) as f64 / all as f64;
                assert!((*held as f64 - wanted).abs() <= 0.03 * wanted, "{weights:?}: {held:?}");
            }
        }
        // Only the ratio of weights counts, however large they are: every position has one owner.
        let most = usize::MAX;
        for weights in [&[most, most - 1][..], &[most / 2 + 1, most, 5], &[7, most]] {
            for (tokens, width) in [(12, 5), (1000, 1), (4096, 16)] {
                let held: usize = held(tokens, weights, width).iter().sum();
                assert_eq!(held, tokens, "{weights:?} {width}");
            }
        }
        assert_eq!(held(4096, &[most, most - 1], 16), [2048, 2048]);
        // A round of the exact weights is kept where it is short, or several fit.
        assert_eq!(held(16, &[2, 1, 1, 1], 1), [7, 3, 3, 3]);
        assert_eq!(held(8 * 199 + 100, &[100, 99], 1), [900, 792]);
    }
}
