//! What a case can be, column by column: strategies with their exchanges and shapes, layouts, masks, heads, lengths.

use annulus_sequence::{Heads, Layout, Region, Route, Rule, Strategy};

/// The most ranks.
pub(crate) const RANKS: usize = 8;
/// The number of batch rows, which masks can tell apart.
pub(crate) const BATCH: usize = 2;

/// Every strategy with every exchange, shape and group that so many ranks and heads leave, runnable or not.
pub(crate) fn strategies(world: usize, heads: Heads) -> Vec<Strategy> {
    let mut all = Strategy::variants(world, heads);
    all.push(Strategy::Striped { width: 3 });
    all
}

/// A strategy by name, with its exchange, whatever its numbers.
pub(crate) fn name(strategy: Strategy) -> String {
    match strategy {
        Strategy::Megatron { exchange } => format!("megatron {}", exchange.name()),
        _ => strategy.name().to_owned(),
    }
}

/// The strategies that run, with each backward route.
pub(crate) fn ways(world: usize, heads: Heads) -> Vec<(Strategy, Route)> {
    let mut all = strategies(world, heads);
    all.retain(|strategy| strategy.check(world, heads).is_ok());
    let ways = |strategy: Strategy| strategy.routes().iter().map(move |back| (strategy, *back));
    all.into_iter().flat_map(ways).collect()
}

pub(crate) const LAYOUTS: [Layout; 6] = [
    Layout::Contiguous,
    Layout::Striped { width: 1 },
    Layout::Striped { width: 3 },
    Layout::Zigzag,
    Layout::Balanced { width: 1 },
    Layout::Balanced { width: 5 },
];

/// Multi-head, grouped, and one KV head for all: some that line up with few numbers of ranks, some with all.
pub(crate) fn heads(world: usize) -> [Heads; 6] {
    let of = |query, key_value| Heads { query, key_value };
    [of(4, 4), of(12, 4), of(3, 1), of(world, world), of(2 * world, world), of(world, 1)]
}

/// The number of positions, and the weights of the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Length {
    /// As many for every rank, in two equal halves.
    Even,
    /// A prime.
    Uneven,
    /// A prime, by weights.
    Weighted,
    /// A prime, more than a kernel takes at once.
    Long,
    /// Fewer than most numbers of ranks.
    Few,
}

impl Length {
    pub(crate) const ALL: [Length; 5] =
        [Length::Even, Length::Uneven, Length::Weighted, Length::Long, Length::Few];

    pub(crate) fn tokens(self, world: usize) -> usize {
        match self {
            Length::Even => 40_usize.next_multiple_of(2 * world),
            Length::Uneven | Length::Weighted => 37,
            Length::Long => 101,
            Length::Few => 3,
        }
    }
    pub(crate) fn weights(self, world: usize) -> Vec<usize> {
        let weigh = |rank| if self == Length::Weighted { [3, 1, 2, 0, 5][rank % 5] } else { 1 };
        (0..world).map(weigh).collect()
    }
}

/// A mask: rules, documents by batch row, and whether schedules do not know these.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) rules: Vec<Rule>,
    pub(crate) documents: Vec<Vec<usize>>,
    pub(crate) packed: bool,
}

/// Every kind of rule alone and combined; what batch rows tell apart; rows that see nothing.
pub(crate) fn masks() -> Vec<Seen> {
    use Rule::{
        Causal, Dilated, Fixed, Global, KeyPadding, Prefix, Regions, Sinks, Strided, Window,
    };
    let ends = || KeyPadding(vec![0, 29]);
    let plain = [
        vec![],
        vec![Causal],
        vec![Causal, Window(0)],
        vec![Causal, Window(1)],
        vec![Causal, Window(9)],
        vec![Causal, Window(1000)],
        vec![Window(7)],
        vec![Prefix(11)],
        vec![ends()],
        vec![Causal, ends()],
        vec![Causal, Window(6), Sinks(3)],
        vec![Causal, Window(6), Global(vec![2..3, 9..11, 20..22])],
        vec![Window(3), Global(vec![0..2, 12..14, 25..26])],
        vec![Causal, Dilated { window: 4, dilation: 3 }],
        vec![Dilated { window: 3, dilation: 5 }, Sinks(2), ends()],
        vec![
            Causal,
            Dilated { window: 6, dilation: 2 },
            Strided { stride: 3 },
            Global(vec![7..8, 20..21]),
        ],
        vec![Causal, Strided { stride: 5 }],
        vec![Strided { stride: 4 }, Sinks(1)],
        vec![Strided { stride: 3 }, Strided { stride: 4 }],
        vec![Causal, Fixed { block: 7, columns: 2 }],
        vec![Fixed { block: 5, columns: 1 }, Window(9), Sinks(2)],
        vec![Prefix(5), Window(8), Sinks(2), ends()],
        vec![Regions(staircase())],
        vec![Causal, Regions(staircase()), Sinks(2), ends()],
    ];
    let seen = |rules| Seen { rules, documents: Vec::new(), packed: false };
    let mut all: Vec<Seen> = plain.into_iter().map(seen).collect();

    let alike = || vec![vec![5, 1, 1, 20, 9]];
    let by_row = || vec![vec![5, 1, 20, 9], vec![17, 13]];
    let packed = [
        (vec![], alike(), false),
        (vec![Causal], vec![vec![1; 120]], false),
        (vec![Causal], by_row(), false),
        (vec![Causal], by_row(), true),
        (vec![Prefix(4)], by_row(), false),
        (vec![Causal, Window(6), Sinks(3)], by_row(), false),
        (vec![Causal, Window(6), Sinks(3)], alike(), true),
        (vec![Window(4), Global(vec![6..8, 30..31]), ends()], by_row(), false),
        (
            vec![Causal, Strided { stride: 3 }, Window(9), Global(vec![1..2, 33..34])],
            alike(),
            false,
        ),
        (vec![Causal, Dilated { window: 3, dilation: 4 }, Sinks(1)], by_row(), true),
        (vec![Causal, Fixed { block: 6, columns: 1 }, ends()], by_row(), true),
    ];
    let documents = packed.map(|(rules, documents, packed)| Seen { rules, documents, packed });
    all.extend(documents);
    all
}

/// Blocks of nine queries that see their own block, every second one causal, and the block
/// two before.
fn staircase() -> Vec<Region> {
    let block = |number: usize| number * 9..number * 9 + 9;
    let of_block = |number: usize| {
        let own = Region {
            queries: block(number),
            keys: block(number),
            causal: number.is_multiple_of(2),
        };
        let before = number.checked_sub(2).map(block);
        let before = before.map(|keys| Region { queries: block(number), keys, causal: false });
        [own].into_iter().chain(before)
    };
    (0..14).flat_map(of_block).collect()
}
