//! In which order sm90 works on blocks of rows: longest first, so that no multiprocessor ends long after the others, and in
//! sections of heads whose rows fit the second-level cache.

use super::super::arguments::Reach;

/// What a section's heads may read in all, in bytes: about what a second-level cache of 40 to 60 MB keeps.
const CACHE: usize = 32 << 20;

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

#[cfg(test)]
mod tests {
    use annulus_sequence::{Layout, Mask, Positions, Visibility};

    use super::*;

    /// Multiprocessors: of an H20, A100, PCIe H100, H100, L40S or RTX 6000 Ada, B200 and their like.
    const WIDTHS: [usize; 7] = [78, 108, 114, 132, 142, 160, 188];
    /// What a block costs besides what it visits, in visits: its own rows are brought, its sums stored.
    const OWN: usize = 1;
    /// Positions of a rank in a ring.
    const RANKS: usize = 4;

    /// Rows, columns and elements of a head of the kernels' blocks: forward and backward of queries, of heads of 64 and 128.
    const BLOCKS: [(usize, usize, usize); 3] = [(192, 128, 64), (128, 128, 128), (128, 80, 256)];

    /// What is seen: whole sequences, and hops of a ring.
    fn scenes(tokens: usize) -> Vec<(&'static str, Visibility)> {
        let whole = |mask: &str| {
            let all = Positions::all(tokens);
            Visibility::new(&mask.parse::<Mask>().unwrap(), &all, &all)
        };
        let hop = |layout: Layout, queries: usize, keys: usize| {
            let shards = layout.shard(RANKS * tokens, RANKS).unwrap();
            Visibility::new(&Mask::causal(), &shards[queries], &shards[keys])
        };
        vec![
            ("full", whole("full")),
            ("causal", whole("causal")),
            ("window", whole("causal+window:2000")),
            ("striped", hop(Layout::Striped { width: 1 }, 2, 1)),
            ("half of the keys", hop(Layout::Zigzag, 2, 1)),
            ("half of the queries", hop(Layout::Zigzag, 1, 2)),
            ("own of zigzag", hop(Layout::Zigzag, 1, 1)),
        ]
    }

    /// The items in the order in which the kernel's `Items::at` numbers them: what each costs.
    fn costs(order: &Order, visits: &[usize], heads: usize) -> Vec<usize> {
        let mut costs = Vec::new();
        for first in (0..heads).step_by(order.heads) {
            let width = order.heads.min(heads - first);
            for block in &order.lists[0] {
                costs.extend(std::iter::repeat_n(visits[*block as usize], width));
            }
        }
        costs.into_iter().map(|visits| if visits == 0 { 0 } else { visits + OWN }).collect()
    }

    /// The share of `width` multiprocessors' time that is work, where each takes the next item once it has done its last.
    fn efficiency(costs: &[usize], width: usize) -> f64 {
        let mut ends = std::collections::BinaryHeap::from(vec![std::cmp::Reverse(0); width]);
        for cost in costs {
            let std::cmp::Reverse(end) = ends.pop().unwrap();
            ends.push(std::cmp::Reverse(end + cost));
        }
        let last = ends.into_iter().map(|end| end.0).max().unwrap();
        costs.iter().sum::<usize>() as f64 / (width * last.max(1)) as f64
    }

    #[test]
    fn no_multiprocessor_is_idle_long() {
        for tokens in [4 << 10, 8 << 10, 32 << 10] {
            for (name, seen) in scenes(tokens) {
                for (rows, columns, dim) in BLOCKS {
                    let reaches = [vec![Reach::of_blocks(&seen.queries, rows)]];
                    let visits = visits_of_queries(&reaches, columns);
                    let order = Order::new(&visits, 4 * tokens * dim, 4);
                    for heads in [8, 16, 24, 32, 40] {
                        let costs = costs(&order, &visits[0], heads);
                        for width in WIDTHS {
                            let found = efficiency(&costs, width);
                            println!("{tokens} {name} d{dim} {heads} {width}: {found:.3}");
                        }
                    }
                }
            }
        }
    }
}
