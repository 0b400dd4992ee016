//! The keys of `attention:`.

use super::Absent::{Is, Means, Required};
use super::Kind::{Count, Counts, Lengths, Ranges, Real, Section, Tokens, Truth, Word};
use super::{Absent, Interval, Key, MOST_LAYERS, MOST_TOKENS, key};
use crate::attention::{AUTOMATIC, BACKWARD};
use crate::{Dealt, Element, Kernel, MaskKind, Pattern};

/// The strategy that is chosen.
pub(crate) const AUTO: &str = "auto";
/// It, and the words of [`annulus_sequence::Strategy`].
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

/// The words of [`annulus_sequence::Exchange`].
const EXCHANGES: &[&str] = &["p2p", "all-gather", "a2a", "a2a+p2p"];

pub(super) const ATTENTION: &[Key] = &[
    key(
        "strategy",
        Word(STRATEGIES),
        Means("local, on one rank"),
        "how a sequence is split over ranks; auto: the fastest that fits",
    ),
    key(
        "exchange",
        Word(EXCHANGES),
        Means("p2p"),
        "how megatron brings queries and keys together: a ring, gathered, heads for positions, both",
    ),
    key(
        "shape",
        Counts(1, 1 << 8),
        Means("what heads and ranks suggest"),
        "two numbers whose product is `mesh.sequence`. usp, megatron with a2a+p2p: ranks that exchange \
         heads, and rings of such; double-ring: nodes, and ranks of a node",
    ),
    key(
        "groups",
        Count(1, 1 << 12),
        Means("1"),
        "groups of key/value heads that all-gather takes one after another: fewer are held at once",
    ),
    key(
        "layout",
        Word(Dealt::WORDS),
        Means("the strategy's own"),
        "who holds which positions; every strategy but striped takes every layout",
    ),
    key(
        "stripe",
        Tokens(1, MOST_TOKENS),
        Means("1, and for balanced blocks a sixteenth of a rank's share"),
        "neighbouring positions that stay together, of stripes and of balanced blocks",
    ),
    key(
        "backward",
        Word(BACKWARD),
        Is(AUTOMATIC),
        "what travels backward: keys and values, against the forward ring or all the way round, or \
         queries; auto: what sends the fewest bytes",
    ),
    key("mask", Word(MaskKind::WORDS), Is("causal"), "which keys a query sees"),
    key(
        "prefix",
        Tokens(1, MOST_TOKENS),
        Means("no prefix"),
        "first keys of a document that every query of it sees, beside those before it",
    ),
    key(
        "documents",
        Lengths(MOST_TOKENS),
        Means("a sequence is one"),
        "lengths of the documents packed into every sequence, or `data`: a query sees its own",
    ),
    key(
        "padding",
        Tokens(1, MOST_TOKENS),
        Means("no padding"),
        "the first position that is padding: nobody sees keys from there on",
    ),
    key(
        "window",
        Tokens(1, MOST_TOKENS),
        Means("no window"),
        "keys a query sees at most, itself included; without `mask: causal`, on either side",
    ),
    key(
        "pattern",
        Word(Pattern::WORDS),
        Means("no pattern"),
        "of Sparse Transformers: keys near and every `stride` away, or of the block and its last columns",
    ),
    key(
        "stride",
        Tokens(1, MOST_TOKENS),
        Means("none; required by `pattern`"),
        "how far apart the keys of a strided pattern are, how long the blocks of a fixed one",
    ),
    key(
        "columns",
        Tokens(1, MOST_TOKENS),
        Means("1"),
        "last keys of every block that everybody sees; for `pattern: fixed`",
    ),
    key(
        "sinks",
        Tokens(1, MOST_TOKENS),
        Means("no sinks"),
        "first keys of a document that neither window nor pattern hides",
    ),
    key(
        "global",
        Ranges(MOST_TOKENS),
        Means("no global positions"),
        "positions that see all, and all see, whatever the window and the pattern",
    ),
    key("kernel", Word(Kernel::WORDS), Is("fused"), "blockwise, or plain loops in f64"),
    key(
        "deterministic",
        Truth,
        Is("true"),
        "the same bits every time; false: a faster backward on a GPU, with atomic additions",
    ),
    key(
        "dropout",
        Real(Interval::ZeroToBelowOne),
        Is("0.0"),
        "share of the weights that are left out while training; which ones depends on no rank",
    ),
    key(
        "wire",
        Section(&[WIRE]),
        Means("values as the model computes, gradients in f32"),
        "the types of what travels between ranks",
    ),
    key(
        "sliding",
        Section(&[SLIDING]),
        Means("all layers are alike"),
        "layers that see a window, and how those are split; what is not written is as in the others, \
         and who holds which positions is the same in all",
    ),
];

const SLIDING: &[Key] = &[
    key("layers", Ranges(MOST_LAYERS - 1), Required, "which layers, from 0"),
    key(
        "window",
        Tokens(1, MOST_TOKENS),
        Required,
        "keys a query sees there at most, itself included",
    ),
    key(
        "strategy",
        Word(STRATEGIES),
        Means("the other layers'"),
        "how a sequence is split there; auto: the fastest that fits",
    ),
    key("exchange", Word(EXCHANGES), OTHERS, "as in `attention`"),
    key("shape", Counts(1, 1 << 8), OTHERS, "as in `attention`"),
    key("groups", Count(1, 1 << 12), OTHERS, "as in `attention`"),
    key(
        "backward",
        Word(BACKWARD),
        Means("the other layers', where the strategy is theirs, else auto"),
        "as in `attention`",
    ),
];
const OTHERS: Absent = Means("the other layers', where the strategy is theirs");

const WIRE: &[Key] = &[
    key("query", Word(Element::WORDS), VALUES, "queries, and the gradient of their output"),
    key("key_value", Word(Element::WORDS), VALUES, "keys and values"),
    key("output", Word(Element::WORDS), VALUES, "outputs"),
    key("query_gradient", Word(Element::WORDS), SUMS, "gradients of queries"),
    key("gradient", Word(Element::WORDS), SUMS, "gradients of keys and values"),
];
const VALUES: Absent = Means("model.dtype; what is narrower is rounded so on any number of ranks");
const SUMS: Absent = Means("f32; what is narrower is rounded at every move");

#[cfg(test)]
mod tests {
    use annulus_sequence::{Exchange, Return, Strategy};

    use super::{AUTO, BACKWARD, EXCHANGES, STRATEGIES};
    use crate::return_word;

    #[test]
    fn words_are_those_there_are() {
        assert_eq!(STRATEGIES[0], AUTO);
        assert_eq!(STRATEGIES[1..], Strategy::ALL.map(Strategy::name));
        assert_eq!(EXCHANGES, Exchange::ALL.map(Exchange::name));
        assert!(Return::ALL.iter().all(|how| BACKWARD.contains(&return_word(*how))));
    }
}
