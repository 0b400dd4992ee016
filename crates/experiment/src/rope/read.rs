//! `rope_parameters` (transformers 5), or `rope_scaling` beside `rope_theta` (4), or both: a file may
//! say it for both, as ours do, and then must say the same twice.

use super::parameters::{Parameters, takes};
use crate::Problem;
use crate::rope::{Rope, WORDS};
use crate::source::Places;
use crate::table::ROPE;
use crate::values::Values;

/// The sections, the one that is preferred first.
const SECTIONS: [&str; 2] = ["rope_parameters", "rope_scaling"];
/// Written beside the sections, too: the first as version 4 has it, the second as Phi-3 does.
const BESIDE: [&str; 2] = ["rope_theta", "original_max_position_embeddings"];

/// The rotary embedding of the model whose keys stand under `prefix`, and whose
/// `max_position_embeddings` is `longest`.
///
/// # Errors
/// All that contradicts, is missing, or means nothing where it stands.
pub(crate) fn read(
    values: &Values,
    prefix: &str,
    places: &Places,
    longest: Option<usize>,
) -> Result<Rope, Vec<Problem>> {
    let sections = SECTIONS.map(|section| format!("{prefix}{section}."));
    let [first, second] = &sections;
    let everywhere = [first.clone(), second.clone(), prefix.to_owned()];
    let kind = kind(values, &sections);
    let mut problems = disagreements(values, &everywhere, places);
    problems.extend(strays(values, &sections, kind, places));
    let own = takes(kind).contains(&BESIDE[1]);
    let searched = if own { &everywhere[..] } else { &sections[..] };
    let theta = everywhere.iter().find_map(|at| values.real(&format!("{at}rope_theta")));
    let found = Parameters::read(values, searched).scaling(kind, longest);
    let refused =
        |key: &str| everywhere.iter().any(|at| values.refused.contains(&format!("{at}{key}")));
    match found {
        Ok(scaling) if problems.is_empty() => {
            return Ok(Rope { theta: theta.unwrap_or(Rope::THETA), scaling });
        }
        Err(key) if !refused(key) => {
            let section = sections.iter().find(|at| places.contains(at.trim_end_matches('.')));
            let section = section.unwrap_or(first);
            let message = format!("`{section}{key}` is missing beside `rope_type: {kind}`");
            problems.push(places.problem(&format!("{section}{key}"), message));
        }
        _ => {}
    }
    Err(problems)
}

/// The word of `rope_type`, or of `type`.
fn kind<'a>(values: &'a Values, sections: &[String; 2]) -> &'a str {
    let paths =
        sections.iter().flat_map(|at| ["rope_type", "type"].map(|key| format!("{at}{key}")));
    let paths: Vec<String> = paths.collect();
    paths.iter().find_map(|path| values.text(path)).unwrap_or(WORDS[0])
}

/// What is said twice, and not the same.
fn disagreements(values: &Values, everywhere: &[String; 3], places: &Places) -> Vec<Problem> {
    let mut problems = Vec::new();
    for key in ROPE {
        let names: &[&str] = match key.name {
            "type" => continue,
            "rope_type" => &["rope_type", "type"],
            ref name => std::slice::from_ref(name),
        };
        // Beside the sections stand other keys under the names of some of theirs.
        let at = if BESIDE.contains(&key.name) { &everywhere[..] } else { &everywhere[..2] };
        let paths = at.iter().flat_map(|at| names.iter().map(move |name| format!("{at}{name}")));
        let mut written = paths.filter_map(|path| Some((values.typed.get(&path)?.clone(), path)));
        let Some((first, first_path)) = written.next() else { continue };
        problems.extend(written.filter(|(value, _)| *value != first).map(|(value, path)| {
            let message = format!("`{path}` is {value}, but `{first_path}` is {first}");
            places.problem(&path, message)
        }));
    }
    problems
}

/// What means nothing beside the kind.
fn strays(values: &Values, sections: &[String; 2], kind: &str, places: &Places) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (section, key) in sections.iter().flat_map(|at| ROPE.iter().map(move |key| (at, key.name)))
    {
        let path = format!("{section}{key}");
        if !values.typed.contains_key(&path) {
            continue;
        }
        let message = match key {
            "rope_type" | "type" | "rope_theta" => continue,
            "partial_rotary_factor" if values.real(&path) == Some(1.0) => continue,
            "partial_rotary_factor" => format!("`{path}` is not 1: whole heads are turned here"),
            key if takes(kind).contains(&key) => continue,
            _ => format!("`{path}` means nothing beside `rope_type: {kind}`"),
        };
        problems.push(places.problem(&path, message));
    }
    problems
}
