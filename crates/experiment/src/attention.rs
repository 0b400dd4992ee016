//! `attention:` as it is written: who sees whom, and how a sequence is split over ranks.

mod keys;

use std::ops::Range;

use annulus_architecture::Element;
use annulus_sequence::{Layout, Route, Strategy, Wire};
use annulus_yaml::words;

pub use keys::AttentionKeys;

use crate::Masking;

/// Blocks that every rank gets when blocks are balanced and `stripe:` is not written.
const BLOCKS: usize = 16;

/// `attention:`
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// `strategy:` with what `exchange:`, `shape:`, `groups:` and `stripe:` make of it; default `local`
    /// on one rank; required on more.
    pub strategy: Strategy,
    /// `auto` was written: `strategy` is open, and a plan cannot be made before it is chosen.
    pub automatic: bool,
    /// `layout:` and its `stripe:`; `None`: the strategy's own.
    pub layout: Option<LayoutKeys>,
    /// `auto | reversed | travelling | direct | queries`; `None`: auto, which a plan settles.
    pub backward: Option<Route>,
    /// Who sees whom.
    pub masking: Masking,
    /// `fused | reference`; default fused.
    pub kernel: Kernel,
    /// Whether backward gives the same bits every time on a GPU too, at the price of a second pass; default true.
    pub deterministic: bool,
    /// `wire: {query, key_value, output, query_gradient, gradient}`, each `f32 | bf16 | f16`; default:
    /// values in the model's dtype, gradients in f32.
    pub wire: Wire<Option<Element>>,
    /// The probability that a weight is left out while training; default 0.
    pub dropout: f64,
    /// `sliding:` layers that see a window.
    pub sliding: Option<Sliding>,
}

/// `sliding:` what differs in some layers. Who holds which positions is the same in all: the residual
/// stream stays where it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Sliding {
    /// Which layers, rising.
    pub layers: Vec<Range<usize>>,
    /// Keys a query sees there, itself included.
    pub window: usize,
    /// `strategy:` with `exchange:`, `shape:` and `groups:`; default: the other layers'.
    pub strategy: Strategy,
    /// As [`Attention::automatic`].
    pub automatic: bool,
    /// As [`Attention::backward`]; default: the other layers', where the strategy is theirs.
    pub backward: Option<Route>,
}

/// `kernel:`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Blockwise, fast.
    Fused,
    /// Plain loops, f64.
    Reference,
}

words!(Kernel { Fused = "fused", Reference = "reference" });

/// `layout:`, and the `stripe:` of those that have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutKeys {
    /// Chunks.
    Contiguous,
    /// Every so many positions in turn.
    Striped {
        /// Neighbouring positions that stay together.
        width: usize,
    },
    /// A chunk from the front and one from the back.
    Zigzag,
    /// Blocks, such that all ranks see as many keys.
    Balanced {
        /// Neighbouring positions that stay together; `None`: a sixteenth of a rank's share.
        width: Option<usize>,
    },
}

impl LayoutKeys {
    /// The words one can write.
    pub const WORDS: &'static [&'static str] = &["contiguous", "striped", "zigzag", "balanced"];

    /// The word one writes.
    pub fn word(self) -> &'static str {
        match self {
            LayoutKeys::Contiguous => "contiguous",
            LayoutKeys::Striped { .. } => "striped",
            LayoutKeys::Zigzag => "zigzag",
            LayoutKeys::Balanced { .. } => "balanced",
        }
    }

    /// What a word means, with the stripe beside it.
    pub fn from_word(word: &str, stripe: Option<usize>) -> Option<LayoutKeys> {
        Some(match word {
            "contiguous" => LayoutKeys::Contiguous,
            "striped" => LayoutKeys::Striped { width: stripe.unwrap_or(1) },
            "zigzag" => LayoutKeys::Zigzag,
            "balanced" => LayoutKeys::Balanced { width: stripe },
            _ => return None,
        })
    }

    /// A layout as one writes it.
    pub fn of(layout: Layout) -> LayoutKeys {
        match layout {
            Layout::Contiguous => LayoutKeys::Contiguous,
            Layout::Striped { width } => LayoutKeys::Striped { width },
            Layout::Zigzag => LayoutKeys::Zigzag,
            Layout::Balanced { width } => LayoutKeys::Balanced { width: Some(width) },
        }
    }

    /// The stripe that is written beside the word.
    pub fn stripe(self) -> Option<usize> {
        match self {
            LayoutKeys::Striped { width } => Some(width),
            LayoutKeys::Balanced { width } => width,
            LayoutKeys::Contiguous | LayoutKeys::Zigzag => None,
        }
    }

    /// As it shards `tokens` positions over `ranks`.
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
    /// Whether the strategy of any layer is to be chosen.
    pub fn is_open(&self) -> bool {
        self.automatic || self.sliding.as_ref().is_some_and(|sliding| sliding.automatic)
    }

    /// The same with the strategies of all layers to be chosen.
    pub fn leave_open(&mut self) {
        (self.strategy, self.automatic, self.layout, self.backward) =
            (Strategy::Local, true, None, None);
        if let Some(sliding) = &mut self.sliding {
            (sliding.strategy, sliding.automatic, sliding.backward) = (Strategy::Local, true, None);
        }
    }

    /// How positions are sharded.
    pub(crate) fn layout(&self, tokens: usize, ranks: usize) -> Layout {
        let own = || self.strategy.layout();
        self.layout.map_or_else(own, |sharded| sharded.layout(tokens, ranks))
    }
}

/// The strategy that is chosen.
pub(crate) const AUTO: &str = "auto";

/// Of `backward:`, what is chosen by what it sends.
pub(crate) const AUTOMATIC: &str = "auto";

/// The words of `backward:`.
pub(crate) const BACKWARD: &[&str] = &[AUTOMATIC, "reversed", "travelling", "direct", "queries"];

/// The word of a backward route.
pub fn route_word(how: Route) -> &'static str {
    match how {
        Route::Reversed => "reversed",
        Route::Travelling => "travelling",
        Route::Direct => "direct",
        Route::Queries => "queries",
    }
}

/// What a word means.
pub fn return_from_word(word: &str) -> Option<Route> {
    Route::ALL.into_iter().find(|how| route_word(*how) == word)
}
