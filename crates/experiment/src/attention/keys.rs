//! The keys of `attention:`, and what they mean together.

use std::ops::Range;

use annulus_architecture::{Element, MOST_LAYERS};
use annulus_sequence::{Exchange, Strategy, Wire};
use annulus_yaml::Absent::{self, Is, Means, Required};
use annulus_yaml::Interval::ZeroToBelowOne;
use annulus_yaml::Kind::{Count, Counts, Ranges, Real, Section, Tokens, Truth, Word, WordOr};
use annulus_yaml::{Kind, Places, Problem, section};

use super::{AUTO, BACKWARD};
use crate::data::MOST_TOKENS;
use crate::{
    Attention, Contradiction, Kernel, LayoutKeys, Masking, Sliding, StrategyAsWritten,
    route_from_word, route_word,
};

/// The words of the key `strategy`: `auto`, and the names of [`Strategy`].
const STRATEGIES: &[&str] = &[
    AUTO,
    "local",
    "ring",
    "striped",
    "megatron",
    "ulysses",
    "usp",
    "double-ring",
    "all-gather",
    "broadcast",
    "halo",
    "li-ring",
];
const STRATEGY: Kind = WordOr(STRATEGIES, |text| {
    let meant = match text {
        "zigzag" => "`zigzag` is a layout: `megatron` is the strategy that uses it",
        "cp" | "context-parallel" | "context_parallel" => {
            "`ring` is the usual one, `auto` the fastest that fits"
        }
        "flash" | "flash-attention" | "flash_attention_2" | "sdpa" => {
            "every strategy uses a fused attention kernel: `local` splits nothing"
        }
        _ => return None,
    };
    Some(String::from(meant))
});
/// The words of the key `exchange`: the names of [`Exchange`].
const EXCHANGES: &[&str] = &["p2p", "all-gather", "a2a", "a2a+p2p"];

section! {
    /// The section `attention` as it is written.
    #[derive(Clone, Debug, PartialEq)]
    pub struct AttentionKeys {
        strategy: Option<String> = STRATEGY, Means("local, on one rank"),
            "how a sequence is split over ranks; auto: the fastest that fits";
        exchange: Option<String> = Word(EXCHANGES), Means("p2p"),
            "megatron's communication: a ring (p2p), all-gather, all-to-all of heads, or both (a2a+p2p)";
        shape: Option<Vec<usize>> = Counts(1, 1 << 14), Means("what heads and ranks suggest"),
            "two factors of `mesh.sequence`. usp, megatron with a2a+p2p: ranks of an all-to-all × ranks of a ring; double-ring: groups × ranks of a group, such as nodes × ranks of a node";
        groups: Option<usize> = Count(1, 1 << 12), Means("1"),
            "groups of KV heads that all-gather processes one after another, to hold less at once";
        layout: Option<String> = Word(LayoutKeys::WORDS), Means("the strategy's own"),
            "which rank holds which positions; every strategy but striped takes every layout";
        stripe: Option<usize> = Tokens(1, MOST_TOKENS),
            Means("1, and for balanced blocks a sixteenth of a rank's share"),
            "width of stripes and of balanced blocks, in positions";
        backward: String = Word(BACKWARD), Is(AUTO),
            "what is sent in backward; reversed: KV and their gradients, against the forward ring; travelling: the same, once \
             around the ring; direct: gradients straight to their owners; queries: queries and their gradients; auto: the \
             route with the fewest bytes (of equals, `direct` where gradients are sent in 16 bits, else `reversed`)";
        kernel: Kernel = Word(Kernel::WORDS), Is("fused"), "the fused block kernel, or plain loops in f64";
        deterministic: bool = Truth, Is("true"),
            "bit-reproducible backward; false: a faster one on a GPU, with atomic additions";
        dropout: f64 = Real(ZeroToBelowOne), Is("0.0"),
            "attention dropout; independent of how the sequence is split";
        wire: WireKeys = Section(WireKeys::KEYS),
            Means("values as the model computes, gradients in f32"),
            "dtypes of what ranks send";
        sliding: Option<SlidingKeys> = Section(SlidingKeys::KEYS), Means("all layers are alike"),
            "layers with a sliding window, and how these are split; keys left out are as in the other layers, and the layout is the same in all";
        ..masking: Masking;
    }
}

section! {
    /// The section `attention.sliding` as it is written.
    #[derive(Clone, Debug, PartialEq)]
    pub struct SlidingKeys {
        layers: Vec<Range<usize>> = Ranges(MOST_LAYERS - 1), Required, "which layers, from 0";
        window: usize = Tokens(1, MOST_TOKENS), Required,
            "sliding window: the last keys a query sees, itself included";
        strategy: Option<String> = STRATEGY, Means("the other layers'"),
            "how a sequence is split there; auto: the fastest that fits";
        exchange: Option<String> = Word(EXCHANGES), OTHERS, "as in `attention`";
        shape: Option<Vec<usize>> = Counts(1, 1 << 14), OTHERS, "as in `attention`";
        groups: Option<usize> = Count(1, 1 << 12), OTHERS, "as in `attention`";
        backward: Option<String> = Word(BACKWARD),
            Means("the other layers', where the strategy is theirs, else auto"), "as in `attention`";
    }
}
const OTHERS: Absent = Means("the other layers', where the strategy is theirs");

section! {
    /// The section `attention.wire`: comm dtypes.
    #[derive(Clone, Debug, PartialEq)]
    pub struct WireKeys {
        query: Option<Element> = Word(Element::WORDS), VALUES, "queries, and gradients of outputs";
        key_value: Option<Element> = Word(Element::WORDS), VALUES, "keys and values";
        output: Option<Element> = Word(Element::WORDS), VALUES, "outputs";
        query_gradient: Option<Element> = Word(Element::WORDS), SUMS, "gradients of queries";
        gradient: Option<Element> = Word(Element::WORDS), SUMS, "gradients of keys and values";
    }
}
const VALUES: Absent =
    Means("model.dtype; a narrower dtype is rounded once by the owner, also on one rank");
const SUMS: Absent = Means("f32; a narrower dtype is rounded each time it is sent");

/// How a section says that a sequence is split.
#[derive(Clone, Copy)]
struct Words<'a> {
    /// The words as written; without a strategy `local`, which a later check refuses on more than one rank.
    words: StrategyAsWritten<'a>,
    /// Whether `strategy` is `auto`.
    automatic: bool,
}

impl<'a> Words<'a> {
    /// The words of a strategy, and of the keys beside it.
    fn of(
        strategy: Option<&str>,
        exchange: Option<&str>,
        shape: Option<&'a [usize]>,
        groups: Option<usize>,
    ) -> Words<'a> {
        let automatic = strategy == Some(AUTO);
        let strategy = strategy.and_then(Strategy::from_name).unwrap_or(Strategy::Local);
        let exchange = exchange.and_then(Exchange::from_name);
        Words {
            words: StrategyAsWritten {
                exchange,
                shape,
                groups,
                ..StrategyAsWritten::bare(strategy)
            },
            automatic,
        }
    }

    /// The strategy and the layout that the words mean; of open or contradictory words, as far as they are known.
    fn meant(self) -> (Strategy, Option<LayoutKeys>) {
        let Words { words, automatic } = self;
        match words.resolve() {
            Ok(settled) if !automatic => settled,
            _ => {
                let layout =
                    words.layout.and_then(|word| LayoutKeys::from_word(word, words.stripe));
                (words.strategy, layout)
            }
        }
    }

    /// The words of `section` that contradict each other.
    fn contradictions(self, section: &str, places: &Places) -> Vec<Problem> {
        let Words { words, automatic } = self;
        let problem = |key: &str, message: String, hint: &str| {
            places.problem(&format!("{section}.{key}"), message).hint(hint)
        };
        if !automatic {
            let refused = words.resolve().err().map(|Contradiction { key, message, hint }| {
                let way_out = gone(section, key, places).unwrap_or(hint);
                problem(key, message, &way_out)
            });
            return refused.into_iter().collect();
        }
        let chosen = [
            ("exchange", words.exchange.is_some()),
            ("shape", words.shape.is_some()),
            ("groups", words.groups.is_some()),
            ("stripe", words.stripe.is_some() && words.layout.is_none()),
        ];
        let problem = |(key, written): (&str, bool)| {
            let message = format!("`strategy: auto` chooses the `{key}` too");
            written.then(|| problem(key, message, "remove it, or name the strategy"))
        };
        chosen.into_iter().filter_map(problem).collect()
    }
}

/// The way out where the command line replaced only the strategy that the file's `key` went with.
fn gone(section: &str, key: &str, places: &Places) -> Option<String> {
    let [own, strategy] = [key, "strategy"].map(|key| format!("{section}.{key}"));
    (places.to_blame(&[own.as_str(), strategy.as_str()]) == strategy)
        .then(|| format!("add `{own}=null` to the command: the file has it for another strategy"))
}

impl AttentionKeys {
    fn words(&self) -> Words<'_> {
        let (strategy, exchange) = (self.strategy.as_deref(), self.exchange.as_deref());
        let words = Words::of(strategy, exchange, self.shape.as_deref(), self.groups);
        let (layout, stripe) = (self.layout.as_deref(), self.stripe);
        Words { words: StrategyAsWritten { layout, stripe, ..words.words }, ..words }
    }

    /// The words of `attention` and `attention.sliding` that contradict each other.
    pub(crate) fn contradictions(&self, places: &Places) -> Vec<Problem> {
        let all = self.words();
        let problems = all.contradictions("attention", places);
        match &self.sliding {
            Some(sliding) if problems.is_empty() => {
                sliding.words(all).contradictions(crate::sliding::SECTION, places)
            }
            _ => problems,
        }
    }

    pub(crate) fn meant(self) -> Attention {
        let words = self.words();
        let (strategy, layout) = words.meant();
        let automatic = words.automatic;
        let backward = route_from_word(&self.backward);
        let WireKeys { query, key_value, output, query_gradient, gradient } = self.wire;
        let wire = Wire { query, key_value, output, query_gradient, gradient };
        let sliding = self.sliding.as_ref().map(|sliding| {
            let own = sliding.words(words);
            sliding.meant(own, strategy, layout, backward)
        });
        let AttentionKeys { kernel, deterministic, dropout, masking, .. } = self;
        Attention {
            strategy,
            automatic,
            layout,
            backward,
            masking,
            kernel,
            deterministic,
            wire,
            dropout,
            sliding,
        }
    }
}

impl SlidingKeys {
    /// The section's words; without a strategy of its own, the other layers' words where it has none.
    fn words<'a>(&'a self, others: Words<'a>) -> Words<'a> {
        let (strategy, exchange) = (self.strategy.as_deref(), self.exchange.as_deref());
        let own = Words::of(strategy, exchange, self.shape.as_deref(), self.groups);
        if strategy.is_some() {
            return own;
        }
        let Words { words, automatic } = others;
        let words = StrategyAsWritten {
            strategy: words.strategy,
            exchange: own.words.exchange.or(words.exchange),
            shape: own.words.shape.or(words.shape),
            groups: own.words.groups.or(words.groups),
            ..own.words
        };
        Words { words, automatic }
    }

    fn meant(
        &self,
        words: Words,
        others: Strategy,
        layout: Option<LayoutKeys>,
        backward: Option<annulus_sequence::Route>,
    ) -> Sliding {
        // Stripes are as wide as in all layers.
        let strategy = match (words.meant().0, others, layout) {
            (Strategy::Striped { .. }, Strategy::Striped { width }, _)
            | (Strategy::Striped { .. }, _, Some(LayoutKeys::Striped { width })) => {
                Strategy::Striped { width }
            }
            (strategy, ..) => strategy,
        };
        let inherited = || backward.filter(|_| self.strategy.is_none());
        Sliding {
            layers: self.layers.clone(),
            window: self.window,
            strategy,
            automatic: words.automatic,
            backward: self.backward.as_deref().map_or_else(inherited, route_from_word),
        }
    }
}

/// The keys written beside a strategy: `exchange`, `shape`, `groups`.
fn beside(strategy: Strategy) -> (Option<String>, Option<Vec<usize>>, Option<usize>) {
    let list = |shape: Option<[usize; 2]>| shape.map(|shape| shape.to_vec());
    match strategy {
        Strategy::Megatron { exchange } => {
            let shape = match exchange {
                Exchange::Both { shape } => list(shape),
                _ => None,
            };
            (Some(exchange.name().to_owned()), shape, None)
        }
        Strategy::Usp { shape } | Strategy::DoubleRing { shape } => (None, list(shape), None),
        Strategy::AllGather { groups } => (None, None, Some(groups)),
        _ => (None, None, None),
    }
}

/// The word of the key `strategy`.
fn word(strategy: Strategy, automatic: bool) -> String {
    if automatic { AUTO } else { strategy.name() }.to_owned()
}

impl Attention {
    /// The keys that mean this attention.
    pub(crate) fn keys(&self) -> AttentionKeys {
        let (exchange, shape, groups) = beside(self.strategy);
        let stripe = match self.strategy {
            Strategy::Striped { width } if !self.automatic => Some(width),
            _ => self.layout.and_then(LayoutKeys::stripe),
        };
        let Wire { query, key_value, output, query_gradient, gradient } = self.wire;
        AttentionKeys {
            strategy: Some(word(self.strategy, self.automatic)),
            exchange,
            shape,
            groups,
            layout: self.layout.map(|sharded| sharded.word().to_owned()),
            stripe,
            backward: self.backward.map_or(AUTO, route_word).to_owned(),
            kernel: self.kernel,
            deterministic: self.deterministic,
            dropout: self.dropout,
            wire: WireKeys { query, key_value, output, query_gradient, gradient },
            sliding: self.sliding.as_ref().map(Sliding::keys),
            masking: self.masking.clone(),
        }
    }
}

impl Sliding {
    fn keys(&self) -> SlidingKeys {
        let (exchange, shape, groups) = beside(self.strategy);
        SlidingKeys {
            layers: self.layers.clone(),
            window: self.window,
            strategy: Some(word(self.strategy, self.automatic)),
            exchange,
            shape,
            groups,
            backward: Some(self.backward.map_or(AUTO, route_word).to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use annulus_sequence::{Exchange, Route, Strategy};

    use super::{AUTO, BACKWARD, EXCHANGES, STRATEGIES};
    use crate::route_word;

    #[test]
    fn words_are_those_there_are() {
        assert_eq!(STRATEGIES[0], AUTO);
        assert_eq!(STRATEGIES[1..], Strategy::ALL.map(Strategy::name));
        assert_eq!(EXCHANGES, Exchange::ALL.map(Exchange::name));
        assert_eq!(BACKWARD.len(), 1 + Route::ALL.len());
        assert!(Route::ALL.iter().all(|how| BACKWARD.contains(&route_word(*how))));
    }
}
