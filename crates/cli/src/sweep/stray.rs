//! Runs in a sweep's folder that were trained with other values than the sweep has for them: folders are named after values, and may have
//! been moved, or been written by an earlier version that gave two values one name.

use std::path::Path;

use annulus_experiment::{
    Experiment, KeyDifference, ModelSource, Override, Varying, parse, varying,
};

use super::bases::Bases;

/// The value of a key that this machine settled for itself.
const AUTO: &str = "auto";
/// The key that may name a run, which means one of its checkpoints.
const MODEL: &str = "model.path";

/// The first of a sweep's `keys` of which the run of `own` has another value than the sweep, with both values. `None`: there is none, as far
/// as this version can read what the sweep says. `bases`: the checkpoints that its runs begin with.
pub(crate) fn stray(
    own: &Experiment,
    keys: &[String],
    values: &[String],
    bases: &Bases,
) -> Option<String> {
    let text = own.to_yaml();
    let mut said = keys.iter().zip(values);
    let other = said.find_map(|(key, value)| other(own, &text, key, value, bases));
    let begun = || {
        let (was, is) = bases.unlike(own)?;
        let [was, is] = [was, is].map(|path| Some(path.display().to_string()));
        Some(KeyDifference { key: MODEL.to_owned(), was, is })
    };
    other.or_else(begun).map(|one| one.to_string())
}

/// The key, `swept` or one below it, of which the run of `own`, as `text`, has another value than `swept: said` gives it, with both values.
fn other(
    own: &Experiment,
    text: &str,
    swept: &str,
    said: &str,
    bases: &Bases,
) -> Option<KeyDifference> {
    let value = Override { key: swept.to_owned(), value: said.to_owned() };
    let Ok(with) = parse("sweep.json", text, &[value]) else {
        // The run's own value would not contradict its other keys.
        let lines = own.identity().into_iter().chain(own.split_lines());
        let (key, was) = lines.into_iter().find(|(key, _)| key == swept)?;
        return (was != said && !is_settled(swept, &was, said, bases)).then(|| KeyDifference {
            key,
            was: Some(was),
            is: Some(said.to_owned()),
        });
    };
    varying(&[own.clone(), with]).into_iter().find_map(|Varying { key, values, .. }| {
        let [was, is] = <[Option<String>; 2]>::try_from(values).ok()?;
        let is_other = match (&was, &is) {
            (Some(was), Some(is)) => !is_settled(&key, was, is, bases),
            // Of a section, what the sweep leaves out may have been settled.
            _ => key == swept,
        };
        let is_swept = key == swept || key.starts_with(&format!("{swept}."));
        (is_swept && is_other).then_some(KeyDifference { key, was, is })
    })
}

/// Whether a run's value `was` is what the sweep's value `is` was settled to: a run's checkpoint, a model of the hub at a commit.
fn is_settled(key: &str, was: &str, is: &str, bases: &Bases) -> bool {
    let [was, is] = [was, is].map(|value| value.trim_matches('"'));
    let of_hub = ModelSource::is_of_hub(was) && was.split('@').next() == is.split('@').next();
    match key {
        MODEL if !of_hub => {
            let [was, is] = [was, is].map(Path::new);
            // Sweeps of earlier versions do not say which checkpoint it is.
            bases.says(was, is).unwrap_or_else(|| was.starts_with(is))
        }
        MODEL => true,
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
        let none = Bases::default();
        let of =
            |key: &str, value: &str| stray(&own, &[key.to_owned()], &[value.to_owned()], &none);
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

    #[test]
    fn a_run_that_began_with_another_checkpoint_than_the_sweep_is_a_stray() {
        let own = parse("own.yaml", OWN, &[]).expect("it is right");
        for (step, keys, is_stray) in [
            ("base/step-20", &["model.path"][..], false),
            ("base/step-10", &["model.path"], true),
            ("base/step-20", &[], false),
            ("base/step-10", &[], true),
        ] {
            let bases = Bases::of(&serde_json::json!({ "bases": { "base": step } }));
            let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
            let found = stray(&own, &keys, &["base".to_owned()], &bases);
            assert_eq!(found.is_some(), is_stray, "{step}: {found:?}");
            let names_it = |said: String| said.starts_with("`model.path` was `base/step-20` and");
            assert!(found.is_none_or(names_it), "{step}");
        }
    }
}
