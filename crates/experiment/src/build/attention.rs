//! `attention:` from typed values.

use annulus_sequence::{Exchange, Part, Strategy, Wire};

use crate::table::AUTO;
use crate::values::Values;
use crate::wire::wire_key;
use crate::{
    Attention, Contradiction, Dealt, Element, Kernel, MaskKind, Packed, Pattern, Places, Problem,
    Sliding, Wording, return_from_word,
};

/// The section of all layers, and that of those that see a window.
const ALL: &str = "attention";
const SLIDING: &str = "attention.sliding";

/// What a section says of how a sequence is split.
#[derive(Clone, Copy)]
struct Words<'a> {
    /// Without a strategy it is `local`, which a later check refuses on more than one rank.
    words: Wording<'a>,
    /// Whether the strategy is `auto`.
    automatic: bool,
}

/// The words of a section.
fn words<'a>(values: &Values, section: &str, shape: Option<&'a [usize]>) -> Option<Words<'a>> {
    let key = |name: &str| format!("{section}.{name}");
    let (strategy, layout, exchange) = (key("strategy"), key("layout"), key("exchange"));
    let strategy = values.optional(&strategy, Values::text)?;
    let automatic = strategy == Some(AUTO);
    let strategy = strategy.filter(|_| !automatic);
    let layout = values.optional(&layout, Values::text)?;
    // Borrowed from the table, which outlives the file.
    let layout = layout.and_then(|word| Dealt::WORDS.iter().copied().find(|known| *known == word));
    let exchange = values.optional(&exchange, Values::text)?;
    let words = Wording {
        strategy: strategy.map_or(Some(Strategy::Local), Strategy::from_name)?,
        exchange: exchange.and_then(Exchange::from_name),
        shape,
        groups: values.optional(&key("groups"), Values::size)?,
        layout,
        stripe: values.optional(&key("stripe"), Values::size)?,
    };
    Some(Words { words, automatic })
}

/// The words of the sliding layers: without a strategy, the others' where they say nothing.
fn sliding_words<'a>(
    values: &Values,
    shape: Option<&'a [usize]>,
    others: Words<'a>,
) -> Option<Words<'a>> {
    let own = words(values, SLIDING, shape)?;
    if names_strategy(values) {
        return Some(own);
    }
    let Words { words, automatic } = others;
    let words = Wording {
        strategy: words.strategy,
        exchange: own.words.exchange.or(words.exchange),
        shape: own.words.shape.or(words.shape),
        groups: own.words.groups.or(words.groups),
        ..own.words
    };
    Some(Words { words, automatic })
}

/// Whether the sliding layers have a strategy of their own.
fn names_strategy(values: &Values) -> bool {
    values.typed.contains_key("attention.sliding.strategy")
}

/// Words that do not go together.
pub(crate) fn contradictions(values: &Values, places: &Places) -> Vec<Problem> {
    let shape = values.sizes("attention.shape");
    let Some(all) = words(values, ALL, shape.as_deref()) else { return Vec::new() };
    let problems = contradicting(all, ALL, places);
    if !problems.is_empty() || !values.spans.contains_key(SLIDING) {
        return problems;
    }
    let shape = values.sizes("attention.sliding.shape");
    let sliding = sliding_words(values, shape.as_deref(), all);
    sliding.map_or_else(Vec::new, |sliding| contradicting(sliding, SLIDING, places))
}

fn contradicting(
    Words { words, automatic }: Words,
    section: &str,
    places: &Places,
) -> Vec<Problem> {
    let problem = |key: &str, message: String, hint: &str| {
        places.problem(&format!("{section}.{key}"), message).hint(hint)
    };
    if !automatic {
        let refused = words
            .settled()
            .err()
            .map(|Contradiction { key, message, hint }| problem(key, message, &hint));
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
        written.then(|| problem(key, message, "drop it, or name the strategy"))
    };
    chosen.into_iter().filter_map(problem).collect()
}

impl Words<'_> {
    /// The strategy and the layout; open, or refused by [`contradictions`], as far as they are known.
    fn meant(self) -> (Strategy, Option<Dealt>) {
        let Words { words, automatic } = self;
        match words.settled() {
            Ok(settled) if !automatic => settled,
            _ => {
                let layout = words.layout.and_then(|word| Dealt::from_word(word, words.stripe));
                (words.strategy, layout)
            }
        }
    }
}

pub(super) fn attention(values: &Values) -> Option<Attention> {
    let shape = values.optional("attention.shape", Values::sizes)?;
    let words = words(values, ALL, shape.as_deref())?;
    let (strategy, layout) = words.meant();
    let backward = values.text("attention.backward")?;
    let pattern = values.optional("attention.pattern", Values::text)?;
    let all = Attention {
        strategy,
        automatic: words.automatic,
        layout,
        backward: return_from_word(backward),
        mask: values.word("attention.mask", MaskKind::from_word)?,
        prefix: values.optional("attention.prefix", Values::size)?,
        documents: values.optional("attention.documents", packed)?,
        padding: values.optional("attention.padding", Values::size)?,
        window: values.optional("attention.window", Values::size)?,
        pattern: pattern.and_then(Pattern::from_word),
        stride: values.optional("attention.stride", Values::size)?,
        columns: values.optional("attention.columns", Values::size)?,
        sinks: values.optional("attention.sinks", Values::size)?,
        global: values.optional("attention.global", Values::ranges)?,
        kernel: values.word("attention.kernel", Kernel::from_word)?,
        deterministic: values.truth("attention.deterministic")?,
        wire: wire(values)?,
        dropout: values.real("attention.dropout")?,
        sliding: None,
    };
    if !values.spans.contains_key(SLIDING) {
        return Some(all);
    }
    let sliding = sliding(values, words, &all)?;
    Some(Attention { sliding: Some(sliding), ..all })
}

fn sliding(values: &Values, others: Words<'_>, all: &Attention) -> Option<Sliding> {
    let shape = values.optional("attention.sliding.shape", Values::sizes)?;
    let words = sliding_words(values, shape.as_deref(), others)?;
    // Stripes are as wide as all layers' are.
    let strategy = match (words.meant().0, all.strategy, all.layout) {
        (Strategy::Striped { .. }, Strategy::Striped { width }, _)
        | (Strategy::Striped { .. }, _, Some(Dealt::Striped { width })) => {
            Strategy::Striped { width }
        }
        (strategy, ..) => strategy,
    };
    let backward = values.optional("attention.sliding.backward", Values::text)?;
    let inherited = || all.backward.filter(|_| !names_strategy(values));
    Some(Sliding {
        layers: values.ranges("attention.sliding.layers")?,
        window: values.size("attention.sliding.window")?,
        strategy,
        automatic: words.automatic,
        backward: backward.map_or_else(inherited, return_from_word),
    })
}

fn wire(values: &Values) -> Option<Wire<Option<Element>>> {
    let of = |part| {
        let key = format!("attention.wire.{}", wire_key(part));
        let word = values.optional(&key, Values::text)?;
        Some(word.and_then(Element::from_word))
    };
    Some(Wire {
        query: of(Part::Query)?,
        key_value: of(Part::KeyValue)?,
        output: of(Part::Output)?,
        query_gradient: of(Part::QueryGradient)?,
        gradient: of(Part::Gradient)?,
    })
}

/// A word is the only one there is.
fn packed(values: &Values, key: &str) -> Option<Packed> {
    let by_data = values.text(key).map(|_| Packed::ByData);
    by_data.or_else(|| values.sizes(key).map(Packed::Lengths))
}
