//! The section `attention`: the mask, and how a sequence is split over ranks.

mod keys;

use std::ops::Range;

use annulus_architecture::Element;
use annulus_sequence::{Layout, Route, Strategy, Wire};
use annulus_yaml::words;

pub use keys::AttentionKeys;

use crate::Masking;

/// Blocks per rank of the layout `balanced` where `stripe` is not written.
const BLOCKS: usize = 16;

/// The section `attention`: the mask, and how attention is computed and split over ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// The strategy that `strategy`, `exchange`, `shape`, `groups` and `stripe` mean together; default `local` on one rank; required on
    /// more.
    pub strategy: Strategy,
    /// Whether `strategy: auto` was written: a strategy must be chosen before a plan can be made.
    pub automatic: bool,
    /// The keys `layout` and `stripe`; `None`: the strategy's own layout.
    pub layout: Option<LayoutKeys>,
    /// The backward route, `reversed | travelling | direct | queries`; `None`: `auto`, which the plan settles.
    pub backward: Option<Route>,
    /// The mask's keys.
    pub masking: Masking,
    /// The kernel, `fused | reference`; default fused.
    pub kernel: Kernel,
    /// Whether backward gives the same bits in every run on a GPU too, at the price of a second pass; default true.
    pub deterministic: bool,
    /// Comm dtypes, `wire: {query, key_value, output, query_gradient, gradient}`, each `f32 | bf16 | f16`; default: values in the model's
    /// dtype, gradients in f32.
    pub wire: Wire<Option<Element>>,
    /// The probability that an attention weight is dropped in training; default 0.
    pub dropout: f64,
    /// The section `attention.sliding`: layers with a sliding window; `None`: all layers are alike.
    pub sliding: Option<Sliding>,
}

/// The section `attention.sliding`: what differs in layers with a sliding window. Positions are sharded as in the other layers, since all
/// share the residual stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Sliding {
    /// Ranges of layers with a sliding window, ascending.
    pub layers: Vec<Range<usize>>,
    /// Keys that a query sees in these layers, itself included.
    pub window: usize,
    /// The strategy that `strategy`, `exchange`, `shape` and `groups` mean together; default: the other layers'.
    pub strategy: Strategy,
    /// Whether the strategy is to be chosen, as [`Attention::automatic`].
    pub automatic: bool,
    /// The backward route, as [`Attention::backward`]; default: the other layers', where the strategy is theirs.
    pub backward: Option<Route>,
}

/// The key `kernel`: what computes attention's tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Blockwise, fast kernels.
    Fused,
    /// Plain loops in f64, for comparison.
    Reference,
}

words!(Kernel { Fused = "fused", Reference = "reference" });

/// The key `layout`, with the `stripe` of layouts that have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutKeys {
    /// A chunk of neighbouring positions for each rank.
    Contiguous,
    /// Stripes of neighbouring positions, to the ranks in turn.
    Striped {
        /// Positions in a stripe.
        width: usize,
    },
    /// A chunk from the front and one from the back for each rank.
    Zigzag,
    /// Blocks, such that all ranks compute as many visible pairs.
    Balanced {
        /// Positions in a block; `None`: a sixteenth of a rank's shard.
        width: Option<usize>,
    },
}

impl LayoutKeys {
    /// The words of the key `layout`.
    pub const WORDS: &'static [&'static str] = &["contiguous", "striped", "zigzag", "balanced"];

    /// The word of this layout.
    pub fn word(self) -> &'static str {
        match self {
            LayoutKeys::Contiguous => "contiguous",
            LayoutKeys::Striped { .. } => "striped",
            LayoutKeys::Zigzag => "zigzag",
            LayoutKeys::Balanced { .. } => "balanced",
        }
    }

    /// The layout of a word, with `stripe` as its width.
    pub fn from_word(word: &str, stripe: Option<usize>) -> Option<LayoutKeys> {
        Some(match word {
            "contiguous" => LayoutKeys::Contiguous,
            "striped" => LayoutKeys::Striped { width: stripe.unwrap_or(1) },
            "zigzag" => LayoutKeys::Zigzag,
            "balanced" => LayoutKeys::Balanced { width: stripe },
            _ => return None,
        })
    }

    /// The keys that mean `layout`.
    pub fn of(layout: Layout) -> LayoutKeys {
        match layout {
            Layout::Contiguous => LayoutKeys::Contiguous,
            Layout::Striped { width } => LayoutKeys::Striped { width },
            Layout::Zigzag => LayoutKeys::Zigzag,
            Layout::Balanced { width } => LayoutKeys::Balanced { width: Some(width) },
        }
    }

    /// The width that is written as `stripe`.
    pub fn stripe(self) -> Option<usize> {
        match self {
            LayoutKeys::Striped { width } => Some(width),
            LayoutKeys::Balanced { width } => width,
            LayoutKeys::Contiguous | LayoutKeys::Zigzag => None,
        }
    }

    /// The layout that these keys mean for `tokens` positions over `ranks`.
    pub fn layout(self, tokens: usize, ranks: usize) -> Layout {
        match self {
            LayoutKeys::Contiguous => Layout::Contiguous,
            LayoutKeys::Striped { width } => Layout::Striped { width },
            LayoutKeys::Zigzag => Layout::Zigzag,
            LayoutKeys::Balanced { width } => {
                let blocks = ranks.max(1).saturating_mul(BLOCKS);
                Layout::Balanced { width: width.unwrap_or(tokens.div_ceil(blocks).max(1)) }
            }
        }
    }
}

impl Attention {
    /// Whether the strategy of any layer is still to be chosen.
    pub fn is_open(&self) -> bool {
        self.automatic || self.sliding.as_ref().is_some_and(|sliding| sliding.automatic)
    }

    /// Leaves the strategies of all layers to be chosen, as `strategy: auto` does.
    pub fn leave_open(&mut self) {
        (self.strategy, self.automatic, self.layout, self.backward) =
            (Strategy::Local, true, None, None);
        if let Some(sliding) = &mut self.sliding {
            (sliding.strategy, sliding.automatic, sliding.backward) = (Strategy::Local, true, None);
        }
    }

    /// How `tokens` positions are sharded over `ranks`.
    pub(crate) fn layout(&self, tokens: usize, ranks: usize) -> Layout {
        let own = || self.strategy.layout();
        self.layout.map_or_else(own, |sharded| sharded.layout(tokens, ranks))
    }
}

/// The word that leaves `strategy` to be chosen, and `backward` to the plan, which takes the route that sends least.
pub(crate) const AUTO: &str = "auto";

/// The words of the key `backward`.
pub(crate) const BACKWARD: &[&str] = &[
    AUTO,
    route_word(Route::Reversed),
    route_word(Route::Travelling),
    route_word(Route::Direct),
    route_word(Route::Queries),
];

/// The word of a backward route.
pub const fn route_word(how: Route) -> &'static str {
    match how {
        Route::Reversed => "reversed",
        Route::Travelling => "travelling",
        Route::Direct => "direct",
        Route::Queries => "queries",
    }
}

/// The backward route of a word; `None`: `auto`.
pub fn route_from_word(word: &str) -> Option<Route> {
    Route::ALL.into_iter().find(|how| route_word(*how) == word)
}
