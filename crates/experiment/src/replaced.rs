//! What goes with the split of a run when another strategy replaces its own: a resolved file writes every default out.

use annulus_yaml::{Document, Override, Value};

use crate::SLIDING;

/// The keys beside a strategy that belong to it.
const OF_STRATEGY: [&str; 4] = ["exchange", "shape", "groups", "backward"];
/// The layers whose split a resolved file always writes.
const ATTENTION: &str = "attention";

/// `overrides` for `text`, a run's resolved file. Where they name another strategy, the keys that belonged to the one before are taken out
/// first: nobody wrote them, and another strategy refuses them.
pub fn replacing(text: &str, overrides: &[Override]) -> Vec<Override> {
    let Ok(document) = Document::parse("", text, &[]) else { return overrides.to_vec() };
    let word = |key: &str| match &document.root.find(key)?.value {
        Value::Scalar { text, .. } => Some(text.as_str()),
        _ => None,
    };
    let is_given = |key: &str| overrides.iter().any(|given| given.key == key);
    let changes = |section: &str| {
        let key = format!("{section}.strategy");
        let given = overrides.iter().rfind(|given| given.key == key);
        given.is_some_and(|given| word(&key) != Some(given.value.as_str()))
    };
    let own = |section: &str| OF_STRATEGY.map(|key| format!("{section}.{key}"));
    let mut gone: Vec<String> = Vec::new();
    let (whole, sliding) = (format!("{ATTENTION}.strategy"), format!("{SLIDING}.strategy"));
    let alike = word(&whole) == word(&sliding);
    if changes(ATTENTION) {
        gone.extend(own(ATTENTION));
        // With a layout, stripes are the layout's.
        if word("attention.layout").is_none() {
            gone.push(format!("{ATTENTION}.stripe"));
        }
    }
    // Layers that slide follow the others, unless they were split in another way.
    if changes(SLIDING) || (changes(ATTENTION) && alike) {
        gone.extend(own(SLIDING).into_iter().chain([sliding]));
    }
    gone.retain(|key| document.root.find(key).is_some() && !is_given(key));
    let gone = gone.into_iter().map(|key| Override { key, value: String::from("null") });
    gone.chain(overrides.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    const RUN: &str = "name: run\nmodel: { hidden_size: 8, intermediate_size: 8, num_hidden_layers: 2, \
        num_attention_heads: 4 }\ndata: { tokens: 64, batch: 1 }\noptimizer: { learning_rate: 1e-3 }\n\
        schedule: { steps: 1 }\nmesh: { sequence: 4 }\n";

    /// The resolved file of a run with `attention`, with `arguments` in place of its values.
    fn with(attention: &str, arguments: &[&str]) -> Result<String, String> {
        let text = format!("{RUN}attention: {attention}\n");
        let resolved = parse("run.yaml", &text, &[]).expect("a run").to_yaml();
        let given: Vec<_> = arguments.iter().filter_map(|given| Override::split(given)).collect();
        let read = parse("experiment.yaml", &resolved, &replacing(&resolved, &given));
        let lines = read.map_err(|problems| problems.to_string())?.split_lines();
        let shown = lines.iter().filter(|(key, _)| key.starts_with("attention."));
        let shown: Vec<String> = shown.map(|(key, value)| format!("{key}={value}")).collect();
        Ok(shown.join(" ") + " ")
    }

    #[test]
    fn another_strategy_comes_without_the_keys_of_the_one_before() {
        for (attention, arguments) in [
            ("{ strategy: striped, stripe: 4 }", &["attention.strategy=ring"][..]),
            (
                "{ strategy: megatron, exchange: a2a+p2p, shape: [2, 2] }",
                &["attention.strategy=striped"],
            ),
            ("{ strategy: all-gather, groups: 2 }", &["attention.strategy=ulysses"]),
            ("{ strategy: li-ring, backward: travelling }", &["attention.strategy=all-gather"]),
            ("{ strategy: striped, stripe: 4 }", &["attention.strategy=local", "mesh.sequence=1"]),
            (
                "{ strategy: usp, shape: [2, 2], sliding: { layers: [1], window: 8 } }",
                &["attention.strategy=ring"],
            ),
            (
                "{ strategy: ring, sliding: { layers: [1], window: 8, strategy: usp, shape: [2, 2] } }",
                &["attention.sliding.strategy=halo"],
            ),
        ] {
            with(attention, arguments).unwrap_or_else(|said| panic!("{attention}: {said}"));
        }
    }

    #[test]
    fn what_belongs_to_no_strategy_or_is_given_stays() {
        let same = with("{ strategy: striped, stripe: 4 }", &["attention.strategy=striped"]);
        assert!(same.expect("the same").contains("attention.stripe=4 "));
        let given = &["attention.strategy=striped", "attention.stripe=2"];
        let given = with("{ strategy: all-gather, groups: 2 }", given).expect("stripes");
        assert!(given.contains("attention.stripe=2 "), "{given}");
        let layout = "{ strategy: megatron, layout: striped, stripe: 4 }";
        let layout = with(layout, &["attention.strategy=ring"]).expect("a layout");
        assert!(layout.contains("attention.stripe=4 "), "{layout}");
        let sliding = "{ strategy: striped, sliding: { layers: [1], window: 8, strategy: halo } }";
        let sliding = with(sliding, &["attention.strategy=ring"]).expect("two strategies");
        assert!(sliding.contains("attention.sliding.strategy=halo "), "{sliding}");
    }
}
