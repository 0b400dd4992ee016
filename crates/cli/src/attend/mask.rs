//! Parses the name of a mask: its rules, joined by `+`, all of which must show a key.

use std::collections::BTreeSet;

use annulus_experiment::Problem;
use annulus_sequence::{Documents, Mask, Positions, Rule, WrongMask};
use candle_core::Tensor;

use super::case::{whole_numbers, wrong};

/// Larger than any position.
const MOST: usize = 1 << 41;

/// The tensors of a file that a mask may use.
pub(super) struct Given<'a> {
    pub(super) batch: usize,
    pub(super) queries: &'a Positions,
    pub(super) keys: &'a Positions,
    /// The id of the document that each position is in: [S] or [B, S].
    pub(super) documents: Option<Tensor>,
    /// The first position that is padding: [1] or [B].
    pub(super) padding: Option<Tensor>,
}

/// The mask of a name such as `causal`, `causal+window:7`, `prefix:13+documents` or `full`.
pub(super) fn mask_of(name: &str, given: &Given<'_>) -> Result<Mask, Problem> {
    let mask = name.split('+').try_fold(Mask::full(), |mask, part| {
        let rule = rule_of(part, given)?;
        Ok(rule.into_iter().fold(mask, Mask::and))
    })?;
    idle(mask.rules()).map_or(Ok(mask), Err)
}

/// The error of a rule that changes nothing beside the others: its writer expects another mask.
fn idle(rules: &[Rule]) -> Option<Problem> {
    let is_causal = rules.contains(&Rule::Causal);
    let hides = |rule: &Rule| {
        use Rule::{Dilated, Fixed, Regions, Strided, Window};
        matches!(rule, Window(_) | Dilated { .. } | Strided { .. } | Fixed { .. } | Regions(_))
    };
    let is_sparse = rules.iter().any(hides);
    rules.iter().find_map(|rule| match rule {
        Rule::Prefix(_) if is_causal => Some(wrong(
            format!("`{rule}` changes nothing beside `causal`: both must show a key"),
            format!("write `{rule}` in place of `causal`: behind the prefix it is causal"),
        )),
        Rule::Sinks(_) | Rule::Global(_) if !is_sparse => Some(wrong(
            format!("`{rule}` changes nothing: no other rule hides what it would show"),
            "add `window:N` or a sparse pattern, or leave it out",
        )),
        _ => None,
    })
}

/// The rule of one part of a name; `None` for `full`.
fn rule_of(part: &str, given: &Given<'_>) -> Result<Option<Rule>, Problem> {
    match part {
        "documents" => documents(given).map(Some),
        "padding" => padding(given).map(Some),
        part => Rule::from_word(part).map_err(|WrongMask { message, hint }| {
            // Two more rules are defined by tensors of the file.
            let words = format!("{}, documents, padding", Mask::WORDS);
            wrong(message, hint.replace(Mask::WORDS, &words))
        }),
    }
}

fn documents(given: &Given<'_>) -> Result<Rule, Problem> {
    let tokens = given.queries.tokens();
    let whole = Positions::all(tokens);
    let hint = format!(
        "`doc_ids` is I64 [{tokens}] or [{}, {tokens}]: the document that each position is in",
        given.batch
    );
    let Some(ids) = &given.documents else {
        return Err(wrong("the mask has `documents`, but there is no tensor `doc_ids`", hint));
    };
    if [given.queries, given.keys].iter().any(|positions| **positions != whole) {
        let text = "the mask has `documents`, but `q_pos` and `k_pos` are not one whole sequence";
        return Err(wrong(text, "documents are those of positions 0 .. S, all of them"));
    }
    let ids = whole_numbers("doc_ids", ids, &hint)?;
    if ids.len() != tokens && ids.len() != given.batch * tokens {
        let text = format!("`doc_ids` has {} elements, expected {tokens}", ids.len());
        return Err(wrong(text, hint));
    }
    let rows = ids.chunks(tokens).map(lengths);
    Ok(Rule::Documents(rows.collect::<Result<_, _>>()?))
}

/// The documents of one sequence, each of which must be contiguous.
fn lengths(ids: &[i64]) -> Result<Documents, Problem> {
    let runs: Vec<&[i64]> = ids.chunk_by(|a, b| a == b).collect();
    let mut seen = BTreeSet::new();
    let firsts = runs.iter().filter_map(|run| run.first());
    if let Some(document) = firsts.into_iter().find(|id| !seen.insert(**id)) {
        let text = format!("`doc_ids` has document {document} in two places");
        return Err(wrong(text, "documents lie one after the other: give each an id of its own"));
    }
    Ok(Documents::of_lengths(&runs.iter().map(|run| run.len()).collect::<Vec<_>>()))
}

fn padding(given: &Given<'_>) -> Result<Rule, Problem> {
    let hint = format!(
        "`padding` is I64 [{}]: for each batch row the first position that is padding; or write `padding:N`",
        given.batch
    );
    let Some(padding) = &given.padding else {
        return Err(wrong("the mask has `padding`, but there is no tensor `padding`", hint));
    };
    let ends = whole_numbers("padding", padding, &hint)?;
    if ends.len() != 1 && ends.len() != given.batch {
        let text = format!("`padding` has {} elements, expected {}", ends.len(), given.batch);
        return Err(wrong(text, hint));
    }
    let end = |end: i64| {
        let text = format!("`padding` has position {end}, expected 0 to {}", MOST - 1);
        let end = usize::try_from(end).ok().filter(|end| *end < MOST);
        end.ok_or_else(|| wrong(text, hint.clone()))
    };
    Ok(Rule::KeyPadding(ends.into_iter().map(end).collect::<Result<_, _>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_without_effect_are_refused_with_what_has_it() {
        let positions = Positions::all(8);
        let (queries, keys) = (&positions, &positions);
        let given = Given { batch: 1, queries, keys, documents: None, padding: None };
        let said = |name| mask_of(name, &given).map_err(|problem| problem.to_string());
        for name in ["causal", "full", "prefix:3", "causal+window:2+sinks:1", "fixed:4:1+global:0"]
        {
            assert!(said(name).is_ok(), "{name}");
        }
        let prefix = said("causal+prefix:3").unwrap_err();
        assert!(prefix.contains("`prefix:3` changes nothing beside `causal`"), "{prefix}");
        for name in ["causal+sinks:1", "padding:5+sinks:1", "causal+global:0"] {
            assert!(said(name).unwrap_err().contains("changes nothing: no other rule"), "{name}");
        }
    }
}
