//! In which order sm90 works on blocks of rows: longest first, so that no multiprocessor ends long after the others, and in
//! sections of heads whose rows fit the second-level cache.

use super::super::arguments::Reach;

/// What a section's heads may read in all, in bytes: about what a second-level cache of 40 to 60 MB keeps.
const CACHE: usize = 32 << 20;

/// What a block costs besides what it visits, in visits: its own rows are brought and its sums stored.
#[cfg(test)]
const OWN: usize = 1;

/// The order, as the kernel's `Items` reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Order {
    /// Numbers of blocks, the longest first: for all batch rows, or for each; in backward for every tile (of every batch row).
    pub(super) lists: Vec<Vec<i32>>,
    /// Heads of a section.
    pub(super) heads: usize,
}

impl Order {
    /// Of blocks that stay while others are visited. `visits`: of every list, how many each block visits; `bytes`: what is read
    /// for one head of what is visited, which `group` heads of what stays share.
    pub(super) fn new(visits: &[Vec<usize>], bytes: usize, group: usize) -> Order {
        let longest_first = |visits: &Vec<usize>| {
            let mut blocks: Vec<i32> = (0..visits.len() as i32).collect();
            blocks.sort_by_key(|block| std::cmp::Reverse(visits[*block as usize]));
            blocks
        };
        Order {
            lists: visits.iter().map(longest_first).collect(),
            heads: (CACHE / bytes.max(1)).max(1) * group,
        }
    }
}

/// Of blocks of queries: what they visit in all `tiles`, each with one list for all batch rows or one for each.
pub(super) fn visits_of_queries(tiles: &[Vec<Vec<Reach>>], block: usize) -> Vec<Vec<usize>> {
    let lists = tiles.iter().map(Vec::len).max().unwrap_or(0);
    let of = |list: usize| {
        let mut visits = Vec::new();
        for tile in tiles {
            let reaches = &tile[list.min(tile.len() - 1)];
            visits.resize(reaches.len(), 0);
            for (sum, reach) in visits.iter_mut().zip(reaches) {
                *sum += reach.visits(block);
            }
        }
        visits
    };
    (0..lists).map(of).collect()
}

/// Of blocks of keys: a list for every tile, or where batch rows have their own for every tile of every batch row; as long as
/// the longest tile's.
pub(super) fn visits_of_keys(tiles: &[Vec<Vec<Reach>>], block: usize) -> Vec<Vec<usize>> {
    let rows = tiles.iter().map(Vec::len).max().unwrap_or(0);
    let most = tiles.iter().flatten().map(Vec::len).max().unwrap_or(0);
    let of = |row: usize, tile: &Vec<Vec<Reach>>| {
        let mut visits: Vec<usize> =
            tile[row.min(tile.len() - 1)].iter().map(|reach| reach.visits(block)).collect();
        visits.resize(most, 0);
        visits
    };
    (0..rows).flat_map(|row| tiles.iter().map(move |tile| of(row, tile))).collect()
}
