//! How a sequence is split: the flags of every command that names a strategy, interpreted by the code that reads `attention:` in a
//! file.

use annulus_experiment::{
    Contradiction, Device, Kernel, LayoutKeys, StrategyAsWritten, route_from_word, route_word,
};
use annulus_sequence::{Exchange, Layout, Route, Strategy};
use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};

use crate::failure::Failure;
use crate::values::{device, ranks};

/// How a given sequence is split and computed.
#[derive(Args, Debug)]
pub(crate) struct SplitFlags {
    /// Context-parallel ranks
    #[arg(long, default_value_t = 1, value_parser = ranks())]
    pub(crate) ranks: usize,
    /// local, ring, striped, megatron, ulysses, usp, double-ring, all-gather, broadcast, halo or
    /// li-ring
    #[arg(long, value_parser = strategy, default_value = "local")]
    pub(crate) strategy: Strategy,
    #[command(flatten)]
    pub(crate) flags: StrategyFlags,
    /// The block kernel
    #[arg(long, value_enum, default_value_t = KernelFlag::Fused)]
    pub(crate) kernel: KernelFlag,
    /// auto, cpu, cuda, cuda:N, or several such as cuda:0-3
    #[arg(long, value_parser = device, default_value = "auto")]
    pub(crate) device: Device,
    /// Bit-reproducible backward on a GPU
    #[arg(long, action = clap::ArgAction::Set, default_value_t = true)]
    pub(crate) deterministic: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum KernelFlag {
    /// Blockwise and fast
    Fused,
    /// Plain loops
    Reference,
}

impl From<KernelFlag> for Kernel {
    fn from(flag: KernelFlag) -> Kernel {
        match flag {
            KernelFlag::Fused => Kernel::Fused,
            KernelFlag::Reference => Kernel::Reference,
        }
    }
}

/// The flags that go with a strategy.
#[derive(Args, Debug)]
pub(crate) struct StrategyFlags {
    /// Communication of `megatron`: p2p, all-gather, a2a or a2a+p2p
    #[arg(long, value_parser = exchange)]
    exchange: Option<Exchange>,
    /// For usp and megatron a2a+p2p: ranks per all-to-all, ranks per ring; for double-ring: nodes, ranks per node
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = count())]
    shape: Option<Vec<usize>>,
    /// Number of groups of KV heads that all-gather gathers one after another
    #[arg(long, value_parser = count())]
    groups: Option<usize>,
    /// contiguous, striped, zigzag or balanced [default: the strategy's own]
    #[arg(long, value_parser = layout)]
    layout: Option<&'static str>,
    /// Number of neighbouring positions in a stripe, or in a balanced block
    #[arg(long, value_parser = count())]
    stripe: Option<usize>,
    /// Backward route: `reversed`, `travelling` and `direct` send KV and their gradients (against the forward ring; once around it; gradients straight to their owner); `queries` sends queries and their gradients
    #[arg(long, value_parser = backward, default_value = "reversed")]
    backward: Route,
}

/// What a strategy and its flags mean.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResolvedStrategy {
    /// The strategy, with its parameters.
    pub(crate) strategy: Strategy,
    /// The layout of positions.
    pub(crate) layout: Layout,
    /// The backward route.
    pub(crate) backward: Route,
}

impl StrategyFlags {
    /// Resolves the flags of `strategy` for `tokens` positions on `ranks` ranks.
    pub(crate) fn resolve(
        &self,
        strategy: Strategy,
        tokens: usize,
        ranks: usize,
    ) -> Result<ResolvedStrategy, Failure> {
        let StrategyFlags { exchange, ref shape, groups, layout, stripe, backward } = *self;
        let shape = shape.as_deref();
        let wording = StrategyAsWritten { strategy, exchange, shape, groups, layout, stripe };
        let refused = |Contradiction { message, hint, .. }| Failure::usage(message, hint);
        let (strategy, layout) = wording.resolve().map_err(refused)?;
        if !strategy.routes().contains(&backward) {
            let (name, word) = (strategy.name(), route_word(backward));
            let ways = strategy.routes().iter().map(|way| route_word(*way));
            let hint = format!("leave `--backward` out, or use {}", list(ways));
            let message = format!("strategy `{name}` does not support `--backward {word}`");
            return Err(Failure::usage(message, hint));
        }
        let layout = layout
            .map_or_else(|| strategy.layout(), |sharded: LayoutKeys| sharded.layout(tokens, ranks));
        Ok(ResolvedStrategy { strategy, layout, backward })
    }
}

/// Parses a strategy's name without parameters.
pub(crate) fn strategy(word: &str) -> Result<Strategy, String> {
    let names = Strategy::ALL.map(Strategy::name);
    Strategy::from_name(word).ok_or_else(|| match layout(word) {
        Ok(layout) => {
            format!("that is a layout: name a strategy, as in `ring --layout {layout}`")
        }
        Err(_) => wanted(names),
    })
}

fn exchange(word: &str) -> Result<Exchange, String> {
    Exchange::from_name(word).ok_or_else(|| wanted(Exchange::ALL.map(Exchange::name)))
}

fn layout(word: &str) -> Result<&'static str, String> {
    let known = LayoutKeys::WORDS.iter().copied().find(|known| *known == word);
    known.ok_or_else(|| wanted(LayoutKeys::WORDS.iter().copied()))
}

fn backward(word: &str) -> Result<Route, String> {
    route_from_word(word).ok_or_else(|| wanted(Route::ALL.map(route_word)))
}

fn wanted<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    format!("expected one of {}", list(words))
}

fn list<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    words.into_iter().collect::<Vec<_>>().join(", ")
}

fn count() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1 << 20)
}
