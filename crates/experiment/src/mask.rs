//! The mask: its keys under `attention`, the mask that they mean together, and the rules between them.

use std::ops::Range;

use annulus_architecture::Shape;
use annulus_sequence::{Mask, Rule};
use annulus_yaml::Absent::{Is, Means};
use annulus_yaml::Kind::{Ranges, SizesOr, Tokens, Word};
use annulus_yaml::{Problem, Scalar, Typed, list, section, words};

use crate::data::MOST_TOKENS;
use crate::unused::unused;
use crate::{Attention, Experiment, ModelSource};

section! {
    /// The keys of `attention` that describe the mask.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Masking {
        mask: MaskKind = Word(MaskKind::WORDS), Is("causal"), "full or causal";
        prefix: Option<usize> = Tokens(1, MOST_TOKENS), Means("no prefix"),
            "first keys of a document that every query of it sees, as far as `window` and `pattern` let it (prefix LM)";
        documents: Option<DocumentBounds> = SizesOr(MOST_TOKENS, &[BY_DATA]), Means("a sequence is one"),
            "lengths of the documents packed into every sequence, or `data`: a query sees only its own document";
        padding: Option<usize> = Tokens(1, MOST_TOKENS), Means("no padding"),
            "the first position that is padding";
        window: Option<usize> = Tokens(1, MOST_TOKENS), Means("no window"),
            "sliding window: the last keys a query sees, itself included; with `mask: full`, on either side";
        dilation: Option<usize> = Tokens(2, MOST_TOKENS), Means("1"),
            "distance between the keys of a window: 2 sees every second key of twice the window (Longformer)";
        pattern: Option<Pattern> = Word(Pattern::WORDS), Means("no pattern"),
            "sparse pattern of Sparse Transformers";
        stride: Option<usize> = Tokens(1, MOST_TOKENS), Means("none; required by `pattern`"),
            "stride of a strided pattern, or block length of a fixed one";
        columns: Option<usize> = Tokens(1, MOST_TOKENS), Means("1"),
            "for `pattern: fixed`: last keys of every block that all later queries see";
        sinks: Option<usize> = Tokens(1, MOST_TOKENS), Means("no sinks"),
            "first keys of a document that stay visible under a window or pattern (attention sinks)";
        global: Option<Vec<Range<usize>>> = Ranges(MOST_TOKENS), Means("no global positions"),
            "positions that see all and are seen by all, whatever the window or pattern";
    }
}

/// The key `mask`: the base mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskKind {
    /// Queries see every key.
    Full,
    /// Queries see keys at or before their own position.
    Causal,
}

words!(MaskKind { Full = "full", Causal = "causal" });

/// The key `pattern`: a sparse pattern within the mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Queries see keys at distances below the stride, and at multiples of it.
    Strided,
    /// Queries see keys of their own block, and the last ones of every block.
    Fixed,
}

words!(Pattern { Strided = "strided", Fixed = "fixed" });

/// The key `documents`: where a sequence's documents begin and end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DocumentBounds {
    /// The lengths of the documents, equal in every sequence.
    Lengths(Vec<usize>),
    /// `documents: data`: documents end where the data says.
    ByData,
}

/// The word of `documents` that leaves the ends of documents to the data.
const BY_DATA: &str = "data";

impl Scalar for DocumentBounds {
    fn from_typed(typed: &Typed) -> Option<DocumentBounds> {
        match typed {
            Typed::Text(_) => Some(DocumentBounds::ByData),
            lengths => Vec::from_typed(lengths).map(DocumentBounds::Lengths),
        }
    }

    fn text(&self) -> String {
        match self {
            DocumentBounds::ByData => String::from(BY_DATA),
            DocumentBounds::Lengths(lengths) => list(lengths.iter().map(usize::to_string)),
        }
    }
}

impl Masking {
    /// The rule of the keys near a query: the window; `None`: there is none.
    pub fn near(&self) -> Option<Rule> {
        self.window.map(|window| match self.dilation {
            None => Rule::Window(window),
            Some(dilation) => Rule::Dilated { window, dilation },
        })
    }
}

/// The mask of every sequence, in layers whose window is `near`. Documents that only the data knows are not in it.
pub fn mask_of(attention: &Masking, near: Option<Rule>) -> Mask {
    let mask = match (attention.mask, attention.prefix) {
        (MaskKind::Full, _) => Mask::full(),
        (MaskKind::Causal, None) => Mask::causal(),
        (MaskKind::Causal, Some(prefix)) => Mask::full().and(Rule::Prefix(prefix)),
    };
    let documents = match &attention.documents {
        Some(DocumentBounds::Lengths(lengths)) => Some(Rule::documents(lengths)),
        Some(DocumentBounds::ByData) | None => None,
    };
    let pattern = attention.pattern.zip(attention.stride).map(|(pattern, stride)| match pattern {
        Pattern::Strided => Rule::Strided { stride },
        Pattern::Fixed => Rule::Fixed { block: stride, columns: attention.columns.unwrap_or(1) },
    });
    // Sinks and global tokens undo hiding: nothing to undo without a window or pattern.
    let hides = near.is_some() || pattern.is_some();
    let rules = [
        documents,
        attention.padding.map(|padding| Rule::KeyPadding(vec![padding])),
        near,
        pattern,
        attention.sinks.filter(|_| hides).map(Rule::Sinks),
        attention.global.clone().filter(|_| hides).map(Rule::Global),
    ];
    rules.into_iter().flatten().fold(mask, Mask::and)
}

/// Mask keys that mean nothing without another key, as far as the file says. A model that it names may have a window: see [`shown_anyway`].
pub(crate) fn alone(experiment: &Experiment) -> Vec<Problem> {
    let attention = &experiment.attention.masking;
    let causal = attention.mask == MaskKind::Causal;
    let fixed = attention.pattern == Some(Pattern::Fixed);
    let cases = [
        ("prefix", attention.prefix.is_some() && !causal, "all see all without `mask: causal`"),
        (
            "dilation",
            attention.dilation.is_some() && attention.window.is_none(),
            "there is no `window`",
        ),
        (
            "stride",
            attention.stride.is_some() && attention.pattern.is_none(),
            "there is no `pattern`",
        ),
        ("columns", attention.columns.is_some() && !fixed, "there is no `pattern: fixed`"),
    ];
    let wrong = cases.into_iter().filter(|(_, wrong, _)| *wrong);
    let mut problems: Vec<Problem> =
        wrong.map(|(key, _, why)| idle(experiment, key, why)).collect();
    if let ModelSource::Inline(model) = &experiment.model.source {
        problems.extend(shown_anyway(experiment, model));
    }
    if let (Some(pattern), None) = (attention.pattern, attention.stride) {
        let message = format!("`pattern: {}` needs a `stride`", pattern.word());
        let hint = "add `stride:` under `attention:`, about the root of `data.tokens`";
        problems.push(experiment.places.problem("attention.pattern", message).hint(hint));
    }
    problems
}

/// The problem of a mask key that nothing reads, and `why`.
fn idle(experiment: &Experiment, key: &str, why: &str) -> Problem {
    unused(experiment, &format!("attention.{key}"), why).hint(format!("remove `{key}`"))
}

/// Keys that undo hiding, where neither the experiment nor a window of its `model` hides a key.
pub(crate) fn shown_anyway(experiment: &Experiment, model: &Shape) -> Vec<Problem> {
    let Attention { masking, sliding, .. } = &experiment.attention;
    let written = masking.window.is_some() || sliding.is_some() || masking.pattern.is_some();
    if written || (0..model.num_hidden_layers).any(|layer| model.window_of(layer).is_some()) {
        return Vec::new();
    }
    let keys = [("sinks", masking.sinks.is_some()), ("global", masking.global.is_some())];
    let set = keys.into_iter().filter(|(_, is_set)| *is_set);
    set.map(|(key, _)| idle(experiment, key, "no `window` and no `pattern` hides a key")).collect()
}

/// Numbers that do not fit the sequence, or each other.
pub(crate) fn numbers(experiment: &Experiment) -> Vec<Problem> {
    let (attention, places) = (&experiment.attention.masking, &experiment.places);
    let tokens = experiment.data.tokens;
    let mut problems = Vec::new();
    let mut problem = |key: &str, message: String, hint: String| {
        problems.push(places.problem(key, message).hint(hint));
    };
    if let Some(DocumentBounds::Lengths(lengths)) = &attention.documents {
        let all = lengths.iter().fold(0, |sum: usize, length| sum.saturating_add(*length));
        if all != tokens {
            let message = format!(
                "`attention.documents` add up to {all} tokens, but sequences have {tokens}"
            );
            problem("attention.documents", message, fitting_documents(lengths, tokens));
        }
    }
    if let Some(padding) = attention.padding.filter(|padding| *padding > tokens) {
        let message =
            format!("`attention.padding` is {padding}, but sequences have {tokens} tokens");
        problem("attention.padding", message, format!("at most {tokens}, or remove it"));
    }
    let global = attention.global.iter().flatten().find(|range| range.end > tokens);
    if let Some(range) = global {
        let message = format!(
            "`attention.global` names position {}, but sequences have {tokens} tokens",
            range.end - 1
        );
        problem("attention.global", message, format!("positions are 0 to {}", tokens - 1));
    }
    match (attention.stride, attention.columns) {
        (Some(stride), Some(columns)) if columns > stride => {
            let message = format!("{columns} columns in blocks of {stride}");
            problem("attention.columns", message, format!("at most {stride}"));
        }
        _ => {}
    }
    problems
}

/// The hint with document lengths that fill a sequence, made from `lengths`, which do not.
fn fitting_documents(lengths: &[usize], tokens: usize) -> String {
    let but_last: usize = lengths.iter().rev().skip(1).sum();
    match tokens.checked_sub(but_last) {
        Some(last) if last > 0 && !lengths.is_empty() => {
            let all = but_last + lengths.last().unwrap_or(&0);
            match tokens.checked_sub(all) {
                Some(left) => format!("add a document of {left} tokens"),
                None => format!("make the last document {last} tokens long"),
            }
        }
        _ => format!("lengths that add up to {tokens}"),
    }
}

/// Refuses `documents: data` for a format without documents.
pub(crate) fn by_data(experiment: &Experiment) -> Vec<Problem> {
    let other = experiment.data.formats().find(|format| !format.is_text());
    let by_data = experiment.attention.masking.documents == Some(DocumentBounds::ByData);
    let Some(format) = other.filter(|_| by_data) else { return Vec::new() };
    let message = format!("`format: {}` does not say where documents end", format.word());
    let problem = experiment.places.problem("attention.documents", message);
    vec![problem.hint("list their lengths, or read `text`, `jsonl` or `chat`")]
}

/// Checks `mesh.weights`: one weight per rank of a sequence, and at least one above 0.
pub(crate) fn weights(experiment: &Experiment) -> Vec<Problem> {
    let Some(weights) = &experiment.mesh.weights else { return Vec::new() };
    let (found, wanted) = (weights.len(), experiment.mesh.sequence);
    let problem = |message: String, hint: String| {
        vec![experiment.places.problem("mesh.weights", message).hint(hint)]
    };
    if found != wanted {
        let ranks = if wanted == 1 { "rank shares" } else { "ranks share" };
        let message = format!("{found} weights, but {wanted} {ranks} a sequence");
        return problem(message, String::from("one number for each of `mesh.sequence`"));
    }
    if weights.iter().all(|weight| *weight == 0) {
        return problem(String::from("all `mesh.weights` are 0"), String::from("1 at least once"));
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use annulus_architecture::parse_config;

    use crate::{Resolved, parse};

    /// Only when the config.json of a folder is read is it known whether there is something to undo.
    #[test]
    fn sinks_and_global_positions_are_for_the_windows_of_a_model_too() {
        let text = "name: x\nmodel: { path: mistral, weights: random }\n\
                    attention: { sinks: 4, global: [0] }\ndata: { tokens: 64 }\n\
                    optimizer: { learning_rate: 0.1 }\nschedule: { steps: 1 }\n";
        let experiment = parse("x.yaml", text, &[]).unwrap();
        let resolved = |window: &str| {
            let config = format!(
                r#"{{ "model_type": "mistral", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
                "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 256, "sliding_window": {window} }}"#
            );
            let model = parse_config("config.json", &config).unwrap();
            Resolved::new(experiment.clone(), model, Some(256))
        };
        let found = resolved("16").unwrap().experiment.attention.masking;
        assert_eq!((found.window, found.sinks), (Some(16), Some(4)));
        let problems = resolved("null").unwrap_err().to_string();
        for key in ["sinks", "global"] {
            assert!(problems.contains(&format!("`attention.{key}` has no effect")), "{problems}");
        }
    }
}
