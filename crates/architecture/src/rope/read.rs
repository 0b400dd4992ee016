//! Reads the rotary embedding from `rope_parameters` (transformers 5), or `rope_scaling` beside `rope_theta` (4), or both: ours write both,
//! which must agree.

use annulus_yaml::{Places, Problem};

use super::parameters::{Parameters, rope_keys_of, written};
use crate::rope::{Rope, WORDS};
use crate::{RopeKeys, TopLevelKeys};

/// The keys of a file about its rotary embedding, as they are written.
pub(crate) struct RopeKeysAsWritten<'a> {
    /// The path of the sections, for messages.
    pub prefix: &'a str,
    /// The sections `rope_parameters` and `rope_scaling`, the preferred one first.
    pub sections: [&'a Option<RopeKeys>; 2],
    /// The keys beside the sections: `rope_theta` as in version 4, `original_max_position_embeddings` as in Phi-3.
    pub top_level: &'a TopLevelKeys,
    /// The key `max_position_embeddings`.
    pub longest: Option<usize>,
}

/// The path of each of the three places, with the keys and values written there.
type Places3 = [(String, Vec<(String, String)>); 3];

impl RopeKeysAsWritten<'_> {
    /// The rotary embedding that the keys mean; its base is `theta` where none of them says it.
    ///
    /// # Errors
    /// Keys that contradict each other, are missing, or mean nothing in their place.
    pub(crate) fn rope(&self, theta: f64, places: &Places) -> Result<Rope, Vec<Problem>> {
        let kind = self.kind();
        let everywhere = self.everywhere();
        let mut problems = disagreements(&everywhere, places);
        problems.extend(self.strays(&everywhere, &kind, places));
        match self.parameters(&kind).scaling(&kind, self.longest) {
            Ok(scaling) if problems.is_empty() => {
                let own = self.sections.iter().find_map(|section| section.as_ref()?.rope_theta);
                let theta = own.or(self.top_level.rope_theta).unwrap_or(theta);
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

    /// The parameters, each from the first place that has it.
    fn parameters(&self, kind: &str) -> Parameters {
        let of = |section: &Option<RopeKeys>| {
            section.as_ref().map(|keys| keys.parameters.clone()).unwrap_or_default()
        };
        let [first, second] = self.sections.map(of);
        let original = self.top_level.original_max_position_embeddings;
        let own = rope_keys_of(kind).contains(&"original_max_position_embeddings");
        let top_level = Parameters {
            original_max_position_embeddings: original.filter(|_| own),
            ..Parameters::default()
        };
        first.or(second).or(top_level)
    }

    fn everywhere(&self) -> Places3 {
        let [first, second] =
            self.sections.map(|section| section.as_ref().map(written).unwrap_or_default());
        let prefix = self.prefix;
        [
            (format!("{prefix}rope_parameters."), first),
            (format!("{prefix}rope_scaling."), second),
            (prefix.to_owned(), written(self.top_level)),
        ]
    }

    /// Problems of keys that mean nothing beside this `rope_type`.
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
                key if rope_keys_of(kind).contains(&key) => continue,
                _ => format!("`{path}` means nothing beside `rope_type: {kind}`"),
            };
            problems.push(places.problem(&path, message));
        }
        problems
    }
}

/// Problems of keys that are given twice with different values.
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
