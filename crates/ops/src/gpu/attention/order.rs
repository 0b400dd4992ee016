//! The order in which sm90 kernels process blocks of rows: a few heads (a section) at a time, so that concurrent blocks read the same keys,
//! and within a section the longest blocks first. The last section has more heads, so that its short blocks fill idle multiprocessors.

use super::super::arguments::{Reach, Spans};

/// The cost of a block besides its visits, in visits: loading its rows and storing its sums.
const OWN: usize = 1;

/// How many times its longest block the last section keeps every multiprocessor busy.
const LAST: usize = 2;

/// The order of blocks, as the kernel's `Items` reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Order {
    /// Indices of blocks, the longest first: for all batch rows, or for each; in backward for every tile (of every batch row).
    pub(super) lists: Vec<Vec<i32>>,
    /// The number of heads per section.
    pub(super) heads: usize,
    /// The number of heads of the last section.
    pub(super) last: usize,
}

impl Order {
    /// The order of the staying blocks of `all` heads, counted over batch rows and tiles. `visits`: by list, how many blocks each one
    /// visits, which `group` heads share.
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
        // The order does not matter where all blocks are equally long.
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

impl Order {
    /// The order of the `blocks` blocks of keys of `all` heads, counted over batch rows, that add to the gradient of queries in turn, the
    /// last block first: each section has the heads that keep every multiprocessor busy.
    pub(super) fn in_turn(blocks: usize, all: usize, multiprocessors: usize) -> Order {
        let heads = (2 * multiprocessors).div_ceil(blocks.max(1)).clamp(1, all.max(1));
        Order {
            lists: vec![(0..blocks as i32).rev().collect()],
            heads,
            last: all - all.saturating_sub(1) / heads * heads,
        }
    }
}

/// The blocks of keys that visit each block of queries, as two intervals of indices; `keys` is what each of these reaches. `None` where
/// some need more intervals.
pub(super) fn visitors(keys: &[Reach], query_block: usize, blocks: usize) -> Option<Vec<Spans>> {
    let mut all = vec![Spans { start: [0; 2], end: [0; 2] }; blocks];
    for (number, reach) in (0..).zip(keys) {
        for visited in reach.visited(query_block) {
            for spans in &mut all[visited] {
                let is_empty = |which: usize| spans.start[which] == spans.end[which];
                let which = usize::from(!is_empty(0) && (spans.end[0] != number || !is_empty(1)));
                if is_empty(which) {
                    spans.start[which] = number;
                } else if spans.end[which] != number {
                    return None;
                }
                spans.end[which] = number + 1;
            }
        }
    }
    Some(all)
}

/// What blocks of queries visit in all `tiles`, each with one list for all batch rows or one for each.
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

/// What blocks of keys visit: a list for every tile, or where batch rows have their own for every tile of every batch row; as long as the
/// longest tile's.
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

    /// Numbers of multiprocessors: of an H20, A100, PCIe H100, H100, L40S or RTX 6000 Ada, B200 and the like.
    const WIDTHS: [usize; 7] = [78, 108, 114, 132, 142, 160, 188];
    /// Ranks of a ring that share the positions.
    const RANKS: usize = 4;

    /// Rows and columns of blocks: of forward for heads of 64, 128 and 256, and of backward, the keys' too, where rows are keys.
    const BLOCKS: [(usize, usize); 5] = [(192, 128), (128, 176), (128, 80), (128, 128), (128, 64)];

    /// Visibilities to test: whole sequences, and hops of a ring.
    fn scenes(tokens: usize) -> Vec<(&'static str, Visibility)> {
        let whole = |mask: Mask| {
            let all = Positions::all(tokens);
            Visibility::new(&mask, &all, &all)
        };
        // Very different lengths: half, a quarter, and so on.
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

    /// Head and block of the items in the order of the kernel's `Items::at`.
    fn items(order: &Order, heads: usize) -> Vec<(usize, usize)> {
        let mut items = Vec::new();
        let mut section = |first: usize, width: usize| {
            for block in &order.lists[0] {
                items.extend((first..first + width).map(|head| (head, *block as usize)));
            }
        };
        let before = heads - order.last;
        (0..before).step_by(order.heads).for_each(|first| section(first, order.heads));
        section(before, order.last);
        items
    }

    /// The cost of each item.
    fn costs(order: &Order, visits: &[usize], heads: usize) -> Vec<usize> {
        let visits = items(order, heads).into_iter().map(|(_, block)| visits[block]);
        visits.map(|visits| if visits == 0 { 0 } else { visits + OWN }).collect()
    }

    /// The fraction of `width` multiprocessors' time that is work, where each takes the next item when it has finished its last.
    fn efficiency(costs: &[usize], width: usize) -> f64 {
        let mut ends = std::collections::BinaryHeap::from(vec![std::cmp::Reverse(0); width]);
        for cost in costs {
            let std::cmp::Reverse(end) = ends.pop().unwrap();
            ends.push(std::cmp::Reverse(end + cost));
        }
        let last = ends.into_iter().map(|end| end.0).max().unwrap();
        costs.iter().sum::<usize>() as f64 / (width * last.max(1)) as f64
    }

    /// A bound for any order: one multiprocessor computes the longest block, and of `k * width + 1` blocks one computes `k + 1`.
    fn best(costs: &[usize], width: usize) -> f64 {
        let mut sorted = costs.to_vec();
        sorted.sort_unstable_by_key(|cost| std::cmp::Reverse(*cost));
        let whole = sorted.iter().step_by(width).enumerate().map(|(k, cost)| (k + 1) * cost);
        let sum = costs.iter().sum::<usize>();
        let least = whole.max().unwrap_or(0).max(sum.div_ceil(width)).max(1);
        sum as f64 / (width * least) as f64
    }

    /// The least accepted fraction of what is possible, with this many blocks per multiprocessor: few blocks cannot be balanced.
    fn bar(blocks: usize) -> f64 {
        if blocks < 6 { 0.89 } else { 0.95 }
    }

    /// The lowest fraction over all heads and multiprocessors, with at least this many blocks for each, and where it is.
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

    /// Blocks of backward that take turns: queries and keys, for heads of 64 and of 80 to 128.
    const TURNS: [(usize, usize); 2] = [(128, 128), (64, 128)];
    /// The delay, in visits, from a block of keys multiplying what it adds to a block of queries until the next one may add.
    const PASSED_ON: f64 = 1.0;

    /// The fraction of `width` multiprocessors' time that is work where blocks of keys take turns; a block waits for those before it.
    fn efficiency_in_turn(reaches: &[Reach], block: usize, heads: usize, width: usize) -> f64 {
        let order = Order::in_turn(reaches.len(), heads, width);
        let mut free = vec![0.0_f64; width];
        let mut passed: std::collections::HashMap<(usize, usize), f64> =
            std::collections::HashMap::new();
        let mut work = 0;
        for (head, number) in items(&order, heads) {
            let first = free.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
            let mut now = free[first] + OWN as f64;
            work += OWN;
            for query in reaches[number].visited(block).into_iter().flatten() {
                let turn = passed.entry((head, query)).or_default();
                now = (now + 1.0).max(*turn);
                *turn = now + PASSED_ON;
                work += 1;
            }
            free[first] = now;
        }
        work as f64 / (width as f64 * free.into_iter().fold(0.0, f64::max))
    }

    #[test]
    fn blocks_that_take_turns_do_not_wait_long() {
        for tokens in [8 << 10, 16 << 10, 32 << 10] {
            for (name, seen) in scenes(tokens) {
                for (queries, keys) in TURNS {
                    let reaches = Reach::of_blocks(&seen.keys, keys);
                    for width in [114, 132] {
                        let share = efficiency_in_turn(&reaches, queries, 32, width);
                        let what = format!("{tokens} {name} {queries} x {keys} on {width}");
                        println!("{what}: {share:.3}");
                        assert!(share >= 0.85, "{what}: {share:.3}");
                    }
                }
            }
        }
    }

    #[test]
    fn visitors_are_what_blocks_of_keys_visit() {
        let mut refused = 0;
        for (name, seen) in scenes(4 << 10) {
            for (queries, keys) in TURNS {
                let reaches = Reach::of_blocks(&seen.keys, keys);
                let blocks = (4_usize << 10).div_ceil(queries);
                let Some(found) = visitors(&reaches, queries, blocks) else {
                    refused += 1;
                    continue;
                };
                for (query, spans) in found.iter().enumerate() {
                    let own: Vec<i32> =
                        (0..2).flat_map(|one| spans.start[one]..spans.end[one]).collect();
                    let visits = |reach: &Reach| {
                        reach.visited(queries).iter().any(|blocks| blocks.contains(&query))
                    };
                    let all = (0..).zip(&reaches).filter(|(_, reach)| visits(reach));
                    assert!(all.map(|(number, _)| number).eq(own), "{name}, queries {query}");
                }
            }
        }
        assert_eq!(refused, 0);
        // Every second block of keys: six intervals.
        let one = Reach { reach_start: [0; 2], reach_end: [64, 0], ..Reach::default() };
        let some: Vec<Reach> =
            (0..12).map(|number| if number % 2 == 0 { one } else { Reach::default() }).collect();
        assert_eq!(visitors(&some, 64, 1), None);
        assert!(visitors(&some[..4], 64, 1).is_some());
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
                        assert!(share >= bar, "{what}: {share:.3}, expected {bar}");
                    }
                }
            }
        }
    }
}
