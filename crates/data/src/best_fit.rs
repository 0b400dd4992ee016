//! Best fit: items put into bins of equal room, the largest first, each where the least room is left for it (Ding et al. 2024, arXiv
//! 2404.10830, with whole documents).
//!
//! Takes time n log n and about 50 bytes an item. The bins depend on the sizes alone.

use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Items in bins.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Bins {
    /// The items, bin after bin, in ascending order within each.
    pub(crate) items: Vec<usize>,
    /// Where in `items` each bin begins.
    pub(crate) begins: Vec<usize>,
}

/// Puts items of `sizes`, none of which is 0 or above `room`, into bins of `room`. Of items of one size the first comes first, and of bins
/// with as much room left the older one is filled.
pub(crate) fn best_fit(sizes: &[u64], room: u64) -> Bins {
    let mut items: Vec<usize> = (0..sizes.len()).collect();
    items.sort_unstable_by_key(|&item| (Reverse(sizes[item]), item));
    // Bins by the room that is left in them.
    let mut open = BTreeSet::new();
    let (mut bins, mut bin_of) = (0, vec![0; sizes.len()]);
    for &item in &items {
        let size = sizes[item];
        let found = open.range((size, 0)..).next().copied();
        let (left, bin) = found.unwrap_or((room, bins));
        // A new bin is not among them.
        if !open.remove(&(left, bin)) {
            bins += 1;
        }
        bin_of[item] = bin;
        if left > size {
            open.insert((left - size, bin));
        }
    }
    items.sort_unstable_by_key(|&item| (bin_of[item], item));
    let is_first = |at: &usize| *at == 0 || bin_of[items[*at]] != bin_of[items[*at - 1]];
    let begins = (0..items.len()).filter(is_first).collect();
    Bins { items, begins }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Key;

    #[test]
    fn items_go_where_the_least_room_is_left() {
        // 9, 6 + 4, 5 + 5, 3 + 2.
        let bins = best_fit(&[2, 5, 3, 9, 5, 6, 4], 10);
        assert_eq!(bins.items, [3, 5, 6, 1, 4, 0, 2]);
        assert_eq!(bins.begins, [0, 1, 3, 5]);
        assert_eq!(best_fit(&[], 10), Bins { items: Vec::new(), begins: Vec::new() });
        assert_eq!(best_fit(&[10, 10], 10).begins, [0, 1]);
    }

    #[test]
    fn every_item_is_in_one_bin_and_bins_of_random_items_are_full() {
        let room = 4096;
        let mut draws = Key::new("sizes of a test", &[3]).draws();
        let sizes: Vec<u64> = (0..100_000).map(|_| 1 + draws.below(room)).collect();
        let Bins { items, begins } = best_fit(&sizes, room);
        let mut sorted = items.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..sizes.len()));
        let ends = begins.iter().skip(1).copied().chain([items.len()]);
        for (&begin, end) in begins.iter().zip(ends) {
            let bin = &items[begin..end];
            assert!(bin.is_sorted() && bin.iter().map(|&item| sizes[item]).sum::<u64>() <= room);
        }
        let least = sizes.iter().sum::<u64>().div_ceil(room) as usize;
        assert!(begins.len() <= least + least / 50, "{} bins, at least {least}", begins.len());
    }
}
