//! Runs in a sweep's folder that were trained with other values than the sweep has for them: folders are named after values, and may have
//! been moved, or been written by an earlier version that gave two values one name.

use std::path::Path;

use annulus_experiment::{Experiment, ModelSource, Override, Varying, parse, varying};

/// The value of a key that this machine settled for itself.
const AUTO: &str = "auto";

/// The first of a sweep's `keys` of which the run of `own` has another value than the sweep, with both values. `None`: there is none, as far
/// as this version can read what the sweep says.
pub(crate) fn stray(own: &Experiment, keys: &[String], values: &[String]) -> Option<String> {
    let text = own.to_yaml();
    let mut said = keys.iter().zip(values);
    let other = said.find_map(|(key, value)| other(own, &text, key, value));
    other.map(|(key, was, is)| format!("`{key}` was `{was}` and is `{is}`"))
}

/// The key, `swept` or one below it, of which the run of `own`, as `text`, has another value than `swept: said` gives it, with both values.
fn other(
    own: &Experiment,
    text: &str,
    swept: &str,
    said: &str,
) -> Option<(String, String, String)> {
    let value = Override { key: swept.to_owned(), value: said.to_owned() };
    let Ok(with) = parse("sweep.json", text, &[value]) else {
        // The run's own value would not contradict its other keys.
        let lines = own.identity().into_iter().chain(own.split_lines());
        let (key, was) = lines.into_iter().find(|(key, _)| key == swept)?;
        return (was != said && !is_settled(swept, &was, said))
            .then(|| (key, was, said.to_owned()));
    };
    let shown = |value: Option<String>| value.unwrap_or_else(|| "nothing".to_owned());
    varying(&[own.clone(), with]).into_iter().find_map(|Varying { key, values, .. }| {
        let [was, is] = <[Option<String>; 2]>::try_from(values).ok()?;
        let is_other = match (&was, &is) {
            (Some(was), Some(is)) => !is_settled(&key, was, is),
            // Of a section, what the sweep leaves out may have been settled.
            _ => key == swept,
        };
        let is_swept = key == swept || key.starts_with(&format!("{swept}."));
        (is_swept && is_other).then(|| (key, shown(was), shown(is)))
    })
}

/// Whether a run's value `was` is what the sweep's value `is` was settled to: a run's newest checkpoint, a model of the hub at a commit.
fn is_settled(key: &str, was: &str, is: &str) -> bool {
    let [was, is] = [was, is].map(|value| value.trim_matches('"'));
    let of_hub = ModelSource::is_of_hub(was) && was.split('@').next() == is.split('@').next();
    match key {
        "model.path" => of_hub || Path::new(was).starts_with(is),
        "data.tokenizer" => of_hub,
        _ => is == AUTO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "name: small
seed: 2
model: { path: base/step-20 }
data: { path: a.txt, tokens: 1k, tokenizer: hf://owner/model@0f }
attention: { strategy: striped, stripe: 2 }
optimizer: { learning_rate: 1e-3 }
schedule: { steps: 5 }
";

    #[test]
    fn a_run_is_no_stray_by_how_its_values_are_written_or_settled() {
        let own = parse("own.yaml", OWN, &[]).expect("it is right");
        let of = |key: &str, value: &str| stray(&own, &[key.to_owned()], &[value.to_owned()]);
        for (key, value) in [
            ("data.tokens", "1024"),
            ("data.path", "[a.txt]"),
            ("optimizer.learning_rate", "0.001"),
            ("attention.strategy", "auto"),
            ("model.path", "base"),
            ("model", "{ path: base }"),
            ("data.tokenizer", "hf://owner/model"),
            ("seed", "2"),
            ("no.key", "1"),
        ] {
            assert_eq!(of(key, value), None, "{key}");
        }
        for (key, value, was) in [
            ("data.tokens", "2k", "1024"),
            ("data.path", "b.txt", "a.txt"),
            ("model.path", "bas", "base/step-20"),
            ("attention.strategy", "ring", "striped"),
            ("attention.window", "8", "nothing"),
            ("seed", "3", "2"),
        ] {
            let said = of(key, value).unwrap_or_default();
            assert!(said.starts_with(&format!("`{key}` was `{was}` and is `")), "{key}: {said}");
        }
    }
}
