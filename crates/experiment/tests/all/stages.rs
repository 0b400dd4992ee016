//! Training phases: the experiment of each, and errors of impossible ones.

use annulus_experiment::{
    Experiment, KeyDifference, PhaseStart, Reset, Resolved, differences, parse,
};
use annulus_plan::Plan;

use crate::messages::answers;

fn read(text: &str) -> Experiment {
    parse("phase_of.yaml", text, &[]).unwrap_or_else(|problems| panic!("{problems}"))
}

#[test]
fn a_stage_is_an_experiment_that_goes_on_where_the_one_before_ended() {
    let whole = read(&small_staged());
    let parts = whole.phases();
    let sizes = |part: &Experiment| (part.data.tokens, part.data.batch, part.data.evaluate);
    assert_eq!(parts.iter().map(sizes).collect::<Vec<_>>(), [(64, 6, 2), (96, 6, 2), (256, 1, 2)]);
    // 10 steps of 384 tokens are 7 batches of 576 but for a piece; with 4 more of those 6336 tokens, 25 batches of 256.
    let places = [
        PhaseStart { steps: 0..10, tokens: 0, schedule: 0, moments: 0, batch: 0 },
        PhaseStart { steps: 10..14, tokens: 3840, schedule: 10, moments: 0, batch: 7 },
        PhaseStart { steps: 14..17, tokens: 6144, schedule: 10, moments: 14, batch: 25 },
    ];
    assert_eq!(parts.iter().map(Experiment::phase_start).collect::<Vec<_>>(), places);
    let steps: Vec<u64> = parts.iter().map(|part| part.schedule.steps).collect();
    assert_eq!(steps, [10, 7, 7], "of each one's schedule");
    let rates: Vec<f64> = parts.iter().map(|part| part.optimizer.learning_rate).collect();
    assert_eq!(rates, [1e-2, 1e-3, 1e-3], "what is not said is as before");
    let extended: Vec<_> =
        parts.iter().map(|part| part.extend.as_ref().map(|e| e.tokens)).collect();
    assert_eq!(extended, [None, Some(96), Some(256)]);
    // What is held out is the same, whatever the length.
    assert!(parts.iter().all(|part| part.held_out() == 2 * 256 + 1));
    assert_eq!(whole.stages[2].reset, [Reset::Moments], "said twice");
    assert_eq!((whole.data.tokens, whole.all_steps()), (256, 17));
}

#[test]
fn a_step_is_of_the_stage_that_ends_with_it() {
    let whole = read(&small_staged());
    let tokens = |step| whole.phase_at(step).data.tokens;
    assert_eq!([0, 10, 11, 14, 15, 17, u64::MAX].map(tokens), [64, 64, 96, 96, 256, 256, 256]);
    let plan = Resolved::read(whole.clone(), Some(257))
        .and_then(|resolved| Plan::new(&resolved))
        .unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(plan.experiment.data.tokens, 256);
    assert_eq!(plan.shape.max_position_embeddings, Some(256));
}

#[test]
fn stages_read_back_as_they_are_written() {
    let whole = read(&small_staged());
    let again = read(&whole.to_yaml());
    assert_eq!(again, whole);
    assert!(whole.phases().iter().all(|part| *part.written() == whole));
    let longer = read(&small_staged().replace("steps: 4", "steps: 5"));
    let (key, was, is) = ("stages.middle.steps".into(), Some("4".into()), Some("5".into()));
    assert_eq!(differences(&whole, &longer), [KeyDifference { key, was, is }]);
}

#[test]
fn wrong_stages() {
    let changed = |old: &str, new: &str| {
        let text = small_staged();
        assert!(text.contains(old), "{old}");
        text.replace(old, new)
    };
    let list =
        small_staged().split_once("stages:").map(|(head, _)| format!("{head}stages: [64, 128]\n"));
    let cases = [
        ("no word about what begins anew", changed(", reset: [schedule]", "")),
        ("what begins anyway", changed("steps: 10 }", "steps: 10, reset: [data] }")),
        ("what cannot begin anew", changed("reset: [schedule]", "reset: [weights]")),
        ("tokens beside them", changed("batch: 6", "batch: 6, tokens: 64")),
        ("steps beside them", changed("warmup: 2", "warmup: 2, steps: 10")),
        ("no tokens", changed("tokens: 96, steps", "steps")),
        ("no steps", changed("tokens: 64, steps: 10", "tokens: 64")),
        ("a key that stages do not have", changed("batch: 1", "micro_batch: 1")),
        ("a name with a point", changed("middle:", "2.5k:")),
        (
            "longer than its extension",
            changed("rope: linear, tokens: 256", "rope: linear, tokens: 128"),
        ),
        (
            "longer than the extension before",
            changed("    extend: { rope: linear, tokens: 256 }\n", ""),
        ),
        ("an extension by half", changed("rope: yarn, tokens: 96", "rope: yarn")),
        (
            "a batch that replicas cannot share",
            changed("data: { batch", "mesh: { data: 2 }\ndata: { batch"),
        ),
        ("a warm-up longer than a schedule", changed("warmup: 2", "warmup: 9")),
        ("a stop behind the last", changed("warmup: 2", "warmup: 2, stop: 18")),
        (
            "what all of them share, once",
            changed("optimizer:", "mesh: { sequence: 2 }\noptimizer:"),
        ),
        ("lengths in a list", list.expect("stages are there")),
        (
            "more than can be counted",
            changed("tokens: 64, steps: 10", "tokens: 1G, batch: 64, steps: 1000000000"),
        ),
        ("no stage at all", changed("stages:", "stages: {}\nother:")),
    ];
    insta::assert_snapshot!(answers(&cases, |text| parse("small.yaml", text, &[]).map(|_| ())));
}

/// Three phases, with different lengths, batches, rates and frequencies.
pub(crate) fn small_staged() -> String {
    String::from(
        "\
name: phase_of
model: { hidden_size: 32, intermediate_size: 32, num_hidden_layers: 2, num_attention_heads: 4, max_position_embeddings: 64 }
data: { batch: 6, evaluate: 2 }
optimizer: { learning_rate: 1e-2 }
schedule: { warmup: 2, decay: cosine }
stages:
  short: { tokens: 64, steps: 10 }
  middle: { tokens: 96, steps: 4, learning_rate: 1e-3, extend: { rope: yarn, tokens: 96 }, reset: [schedule] }
  long:
    tokens: 256
    steps: 3
    batch: 1
    extend: { rope: linear, tokens: 256 }
    reset: [moments, moments]
",
    )
}
