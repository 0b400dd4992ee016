//! In which order sm90 works on blocks of rows: in narrow sections of heads, since blocks at work then read the same rows, and in
//! each the longest first. The last section is wide enough that its short blocks fill what is left idle.

use super::super::arguments::Reach;

/// What a block costs besides what it visits, in visits: its own rows are brought, its sums stored.
const OWN: usize = 1;

/// How many times the longest block the last section keeps every multiprocessor busy.
const LAST: usize = 2;

/// The order, as the kernel's `Items` reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Order {
    /// Numbers of blocks, the longest first: for all batch rows, or for each; in backward for every tile (of every batch row).
    pub(super) lists: Vec<Vec<i32>>,
    /// Heads of a section.
    pub(super) heads: usize,
    /// Of the last one.
    pub(super) last: usize,
}

impl Order {
    /// Of the blocks of `all` heads, counted over batch rows and tiles, that stay while others are visited. `visits`: of every
    /// list, how many each block visits, which `group` heads share.
    pub(super) fn new(
        visits: &[Vec<usize>],
        group: usize,
        all: usize,
        multiprocessors: usize,
    ) -> Order {
        let longest_first = |visits: &Vec<usize>| {
            let mut blocks: Vec<i32> = (0..visits.len() as i32).collect();
            blocks.sort_by_key(|block| std::cmp::Reverse(visits[*block as usize]));
            blocks
        };
        let costs = || visits.iter().flatten().filter(|visits| **visits > 0);
        let [longest, shortest] =
            [costs().max(), costs().min()].map(|cost| cost.map_or(0, |cost| cost + OWN));
        let of_head =
            (costs().map(|visits| visits + OWN).sum::<usize>() / visits.len().max(1)).max(1);
        // Where all are as long, their order does not matter.
        let wanted = if longest == shortest {
            group
        } else {
            (LAST * longest * multiprocessors).div_ceil(of_head)
        };
        let before = all.saturating_sub(wanted.max(group)) / group * group;
        Order {
            lists: visits.iter().map(longest_first).collect(),
            heads: group,
            last: all - before,
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
    use annulus_sequence::{Layout, Mask, Positions, Rule, Visibility};

    use super::*;

    /// Multiprocessors: of an H20, A100, PCIe H100, H100, L40S or RTX 6000 Ada, B200 and their like.
    const WIDTHS: [usize; 7] = [78, 108, 114, 132, 142, 160, 188];
    /// Positions of a rank in a ring.
    const RANKS: usize = 4;

    /// Rows and columns of blocks: of forward for heads of 64, 128 and 256, and of backward, the keys' too, where rows are keys.
    const BLOCKS: [(usize, usize); 5] = [(192, 128), (128, 176), (128, 80), (128, 128), (128, 64)];

    /// What is seen: whole sequences, and hops of a ring.
    fn scenes(tokens: usize) -> Vec<(&'static str, Visibility)> {
        let whole = |mask: Mask| {
            let all = Positions::all(tokens);
            Visibility::new(&mask, &all, &all)
        };
        // Of very unlike lengths: half, a quarter, and so on.
        let lengths: Vec<usize> = (1..8).map(|index| tokens >> index).collect();
        let hop = |layout: Layout, queries: usize, keys: usize| {
            let shards = layout.shard(RANKS * tokens, RANKS).unwrap();
            Visibility::new(&Mask::causal(), &shards[queries], &shards[keys])
        };
        vec![
            ("full", whole(Mask::full())),
            ("causal", whole(Mask::causal())),
            ("window", whole(Mask::causal().and(Rule::Window(2000)))),
            ("documents", whole(Mask::causal().and(Rule::documents(&lengths)))),
            ("striped", hop(Layout::Striped { width: 1 }, 2, 1)),
            ("half of the keys", hop(Layout::Zigzag, 2, 1)),
            ("half of the queries", hop(Layout::Zigzag, 1, 2)),
            ("own of zigzag", hop(Layout::Zigzag, 1, 1)),
        ]
    }

    /// The items in the order in which the kernel's `Items::at` numbers them: what each costs.
    fn costs(order: &Order, visits: &[usize], heads: usize) -> Vec<usize> {
        let mut costs = Vec::new();
        let mut section = |width: usize| {
            for block in &order.lists[0] {
                costs.extend(std::iter::repeat_n(visits[*block as usize], width));
            }
        };
        (0..heads - order.last).step_by(order.heads).for_each(|_| section(order.heads));
        section(order.last);
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

    /// What no order can do better than: the longest block has to be done by one, and of `k * width + 1` blocks somebody does
    /// `k + 1`.
    fn best(costs: &[usize], width: usize) -> f64 {
        let mut sorted = costs.to_vec();
        sorted.sort_unstable_by_key(|cost| std::cmp::Reverse(*cost));
        let whole = sorted.iter().step_by(width).enumerate().map(|(k, cost)| (k + 1) * cost);
        let sum = costs.iter().sum::<usize>();
        let least = whole.max().unwrap_or(0).max(sum.div_ceil(width)).max(1);
        sum as f64 / (width * least) as f64
    }

    /// The least share, of what is possible, with so many blocks for each multiprocessor: a few cannot be shared out evenly.
    fn bar(blocks: usize) -> f64 {
        if blocks < 6 { 0.89 } else { 0.95 }
    }

    /// The lowest share of all heads and multiprocessors, with so many blocks for each and more, and where.
    fn worst(visits: &[Vec<usize>], many: bool) -> (f64, usize, usize) {
        let mut worst = (1.0, 0, 0);
        for heads in [8, 16, 24, 32, 40] {
            for width in WIDTHS {
                let costs = costs(&Order::new(visits, 4, heads, width), &visits[0], heads);
                let blocks = costs.iter().filter(|cost| **cost > 0).count() / width;
                let found = efficiency(&costs, width) / best(&costs, width);
                if (bar(blocks) > bar(0)) == many && found < worst.0 {
                    worst = (found, heads, width);
                }
            }
        }
        worst
    }

    #[test]
    fn no_multiprocessor_is_idle_long() {
        println!("{:>6} {:<20} {:<10} few blocks each, many", "tokens", "what is seen", "blocks");
        for tokens in [4 << 10, 8 << 10, 16 << 10, 32 << 10] {
            for (name, seen) in scenes(tokens) {
                for (rows, columns) in BLOCKS {
                    let reaches = [vec![Reach::of_blocks(&seen.queries, rows)]];
                    let visits = visits_of_queries(&reaches, columns);
                    let found = [false, true].map(|many| worst(&visits, many));
                    let blocks = format!("{rows} x {columns}");
                    println!("{tokens:>6} {name:<20} {blocks:<10} {found:.3?}");
                    for ((share, heads, width), bar) in found.into_iter().zip([bar(0), bar(6)]) {
                        let what = format!("{tokens} {name} {blocks}, {heads} heads on {width}");
                        assert!(share >= bar, "{what}: {share:.3}, wanted {bar}");
                    }
                }
            }
        }
    }
}
