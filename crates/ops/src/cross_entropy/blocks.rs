//! Groups the tokens that count by strict blocks, whose rows are added up together where sums are order-free.

use std::ops::Range;

use crate::order_free::to_grid;

/// A token's index, and its target.
type Counted = (usize, usize);

/// Groups of tokens whose logits are computed together: of `chunk` tokens, or of whole blocks, at least one.
pub(super) fn chunks(counted: &[Counted], chunk: usize, block: Option<usize>) -> Vec<&[Counted]> {
    let Some(block) = block else { return counted.chunks(chunk).collect() };
    let tokens = (chunk / block).max(1) * block;
    counted.chunk_by(|(a, _), (b, _)| a / tokens == b / tokens).collect()
}

/// The range of each block's tokens among these.
pub(super) fn blocks(counted: &[Counted], block: usize) -> Vec<Range<usize>> {
    let mut start = 0;
    let next = |of_block: &[Counted]| {
        start += of_block.len();
        start - of_block.len()..start
    };
    counted.chunk_by(|(a, _), (b, _)| a / block == b / block).map(next).collect()
}

/// The sum of the tokens' losses; with blocks, each block's is rounded so that they add up exactly.
pub(super) fn total(counted: &[Counted], losses: &[f64], block: Option<usize>) -> f64 {
    let Some(block) = block else { return losses.iter().sum() };
    let of_block = |block: Range<usize>| to_grid(losses[block].iter().sum());
    blocks(counted, block).into_iter().map(of_block).sum()
}

/// The rows of `data` that `counted` names, in order.
pub(super) fn rows_at<'a>(
    data: &'a mut [f32],
    width: usize,
    counted: &[Counted],
) -> Vec<&'a mut [f32]> {
    let mut rows = data.chunks_exact_mut(width.max(1));
    let mut next = 0;
    let of = |&(index, _): &Counted| {
        let row = rows.nth(index - next);
        next = index + 1;
        row
    };
    counted.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_told_apart_by_block_and_chunk() {
        let counted = [(0, 7), (3, 1), (17, 2), (40, 2), (41, 0)];
        assert_eq!(blocks(&counted, 16), [0..2, 2..3, 3..5]);
        let of = |chunk, block| {
            chunks(&counted, chunk, block).iter().map(|c| c.len()).collect::<Vec<_>>()
        };
        assert_eq!(
            [of(2, None), of(2, Some(16)), of(33, Some(16))],
            [vec![2, 2, 1], vec![2, 1, 2], vec![3, 2]]
        );
        let losses = [0.1, 0.2, 0.3, 0.4, 0.5];
        let grid = f64::from(1 << 20);
        assert_eq!(total(&counted, &losses, None), 1.5);
        assert_eq!((total(&counted, &losses, Some(16)) * grid).fract(), 0.0);
    }
}
