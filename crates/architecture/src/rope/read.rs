//! `rope_parameters` (transformers 5), or `rope_scaling` beside `rope_theta` (4), or both: a file may
//! say it for both, as ours do, and then must say the same twice.

use annulus_yaml::{Places, Problem};

use super::parameters::{Parameters, takes, written};
use crate::rope::{Rope, WORDS};
use crate::{Beside, RopeKeys};

/// The keys of a file about its rotary embedding, and their places.
pub(crate) struct Said<'a> {
    /// The path of the sections.
    pub prefix: &'a str,
    /// `rope_parameters` and `rope_scaling`: the one that is preferred first.
    pub sections: [&'a Option<RopeKeys>; 2],
    /// Beside the sections: the first as version 4 has it, the second as Phi-3 does.
    pub beside: &'a Beside,
    /// `max_position_embeddings`
    pub longest: Option<usize>,
}

/// The path of every place, and the keys that are written there with their values.
type Places3 = [(String, Vec<(String, String)>); 3];

impl Said<'_> {
    /// The rotary embedding.
    ///
    /// # Errors
    /// Keys that contradict each other, are missing, or mean nothing in their place.
    pub(crate) fn rope(&self, places: &Places) -> Result<Rope, Vec<Problem>> {
        let kind = self.kind();
        let everywhere = self.everywhere();
        let mut problems = disagreements(&everywhere, places);
        problems.extend(self.strays(&everywhere, &kind, places));
        match self.parameters(&kind).scaling(&kind, self.longest) {
            Ok(scaling) if problems.is_empty() => {
                let own = self.sections.iter().find_map(|section| section.as_ref()?.rope_theta);
                let theta = own.or(self.beside.rope_theta).unwrap_or(Rope::THETA);
                return Ok(Rope { theta, scaling });
            }
            Err(key) => {
                let written =
                    everywhere.iter().find(|(at, _)| places.contains(at.trim_end_matches('.')));
                let (section, _) = written.unwrap_or(&everywhere[0]);
                let message = format!("`{section}{key}` is missing beside `rope_type: {kind}`");
                problems.push(places.problem(&format!("{section}{key}"), message));
            }
            Ok(_) => {}
        }
        Err(problems)
    }

    /// The word of `rope_type`, or of `type`.
    fn kind(&self) -> String {
        let word = |keys: &RopeKeys| keys.rope_type.clone().or(keys.r#type.clone());
        let written = self.sections.iter().find_map(|section| section.as_ref().and_then(word));
        written.unwrap_or_else(|| WORDS[0].to_owned())
    }

    /// The values of the first place that has them.
    fn parameters(&self, kind: &str) -> Parameters {
        let of = |section: &Option<RopeKeys>| {
            section.as_ref().map(|keys| keys.parameters.clone()).unwrap_or_default()
        };
        let [first, second] = self.sections.map(of);
        let original = self.beside.original_max_position_embeddings;
        let own = takes(kind).contains(&"original_max_position_embeddings");
        let beside = Parameters {
            original_max_position_embeddings: original.filter(|_| own),
            ..Parameters::default()
        };
        first.or(second).or(beside)
    }

    fn everywhere(&self) -> Places3 {
        let [first, second] =
            self.sections.map(|section| section.as_ref().map(written).unwrap_or_default());
        let prefix = self.prefix;
        [
            (format!("{prefix}rope_parameters."), first),
            (format!("{prefix}rope_scaling."), second),
            (prefix.to_owned(), written(self.beside)),
        ]
    }

    /// Keys that mean nothing beside the kind.
    fn strays(&self, everywhere: &Places3, kind: &str, places: &Places) -> Vec<Problem> {
        let mut problems = Vec::new();
        let sections = std::iter::zip(everywhere, self.sections);
        let keys = sections.flat_map(|((at, written), section)| {
            written.iter().map(move |(key, _)| (format!("{at}{key}"), key.as_str(), section))
        });
        for (path, key, section) in keys {
            let part = section.as_ref().and_then(|keys| keys.partial_rotary_factor);
            let message = match key {
                "rope_type" | "type" | "rope_theta" => continue,
                "partial_rotary_factor" if part == Some(1.0) => continue,
                "partial_rotary_factor" => {
                    format!("`{path}` is not 1: whole heads are turned here")
                }
                key if takes(kind).contains(&key) => continue,
                _ => format!("`{path}` means nothing beside `rope_type: {kind}`"),
            };
            problems.push(places.problem(&path, message));
        }
        problems
    }
}

/// Keys that are given twice with different values.
fn disagreements(everywhere: &Places3, places: &Places) -> Vec<Problem> {
    let same = |key: &str| if key == "type" { "rope_type" } else { key }.to_owned();
    let all = || {
        everywhere.iter().flat_map(|(at, written)| {
            written.iter().map(move |(key, value)| (same(key), format!("{at}{key}"), value))
        })
    };
    let mut problems = Vec::new();
    for (key, path, value) in all() {
        let first = all().find(|(other, ..)| *other == key);
        if let Some((_, first_path, first)) = first.filter(|(.., first)| *first != value) {
            let shown = |value: &str| match key.as_str() {
                "rope_type" => format!("`{value}`"),
                _ => value.to_owned(),
            };
            let message =
                format!("`{path}` is {}, but `{first_path}` is {}", shown(value), shown(first));
            problems.push(places.problem(&path, message));
        }
    }
    problems
}
