//! Mixtures of texts by weight: the same sequences on any number of ranks and after a resume; and errors of mixtures.

use std::fs;

use annulus_tests::run;
use annulus_tests::runs::{Place, losses};
use serde_json::Value;

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

/// Three sources in three formats, five, three and two parts of ten.
const MIXTURE: &str = "data.path=[{ path: text.txt, weight: 5 }, { path: lines.jsonl, format: jsonl, column: body, weight: 3 }, { path: '*.more', weight: 2 }]";

fn place() -> Place {
    let place = Place::new(ANNULUS);
    let line = |n: usize| format!("{{\"body\": \"line {n} of {}\"}}\n", n * n);
    place.write("lines.jsonl", &(0..200).map(line).collect::<String>());
    for (name, word) in [("a.more", "more and "), ("b.more", "yet more, ")] {
        place.write(name, &word.repeat(200));
    }
    place
}

#[test]
fn a_mixture_is_the_same_after_a_resume_and_on_any_number_of_ranks() {
    let place = place();
    let steps = "schedule.steps=8";
    place.train("whole", &[MIXTURE, steps]).ended(0);
    let whole = losses(&place.path("whole"));
    // Stopped, resumed: the same bits.
    place.train("halves", &[MIXTURE, steps, "schedule.stop=3"]).ended(0);
    // Each source has a loss of its own; two, one and one sequences are held out.
    let log = fs::read_to_string(place.path("whole/metrics.jsonl")).expect("a log");
    let last: Value = serde_json::from_str(log.lines().last().expect("a line")).expect("JSON");
    let tags = ["text", "lines", "source-3"].map(|name| format!("evaluate/loss/{name}"));
    let of_sources = tags.map(|tag| last[&tag].as_f64().expect(&tag));
    let mean = std::iter::zip(of_sources, [0.5, 0.25, 0.25]).map(|(loss, share)| loss * share);
    let (all, mean) = (last["evaluate/loss"].as_f64().expect("it"), mean.sum::<f64>());
    assert!((all - mean).abs() < 1e-6 * mean && of_sources[0] != of_sources[1], "{log}");
    // Another weight is other data.
    let other = MIXTURE.replace("weight: 2", "weight: 4");
    let refused = place.train("halves", &[&other, steps]);
    assert!(refused.ended(4).stderr.contains("with other weights"), "{}", refused.stderr);
    place.train("halves", &[MIXTURE, steps]).ended(0);
    assert_eq!(losses(&place.path("halves")), whole);
    let weights =
        |run: &str| fs::read(place.path(run).join("step-8/model.safetensors")).expect("weights");
    assert_eq!(weights("halves"), weights("whole"));
    // On other ranks: the same sequences, so the same losses but for the order of sums.
    for ranks in [1, 2, 4] {
        let output = format!("ranks-{ranks}");
        let sequence = format!("mesh.sequence={ranks}");
        place.train(&output, &[MIXTURE, steps, &sequence]).ended(0);
        for (here, there) in losses(&place.path(&output)).iter().zip(&whole) {
            assert!((here - there).abs() < 1e-5 * there.abs(), "{here} and {there}");
        }
    }
    let compared = run(ANNULUS, &place.path(""), &["compare", "whole", "halves"]);
    let compared = &compared.ended(0).stdout;
    assert!(
        compared.contains("evaluate/loss/lines") && !compared.contains("left out"),
        "{compared}"
    );
    // The resolved file has it all, on one line, and trains to the same bits.
    let resolved = fs::read_to_string(place.path("whole/experiment.yaml")).expect("a file");
    assert!(
        resolved.contains("{ path: lines.jsonl, weight: 3.0, format: jsonl, column: body }"),
        "{resolved}"
    );
    run(ANNULUS, &place.path(""), &["train", "whole/experiment.yaml", "output=again"]).ended(0);
    assert_eq!(losses(&place.path("again")), whole);
}

#[test]
fn evaluate_reads_what_was_held_out_of_every_text() {
    let place = place();
    place.train("run", &[MIXTURE, "schedule.steps=2", "data.evaluate=10"]).ended(0);
    let evaluate = |run_: &str, words: &[&str]| {
        let ran = run(ANNULUS, &place.path(""), &[&["evaluate", run_, "--json"], words].concat());
        let found: Value = serde_json::from_str(&ran.ended(0).stdout).expect("JSON");
        found["perplexity"].clone()
    };
    let all = evaluate("run", &["evaluation.windows=10", "--out", "all"]);
    let losses = |of: &Value| -> Vec<f64> {
        let all = of["lengths"][0]["by_window"].as_array().expect("losses");
        all.iter().map(|loss| loss.as_f64().expect("a loss")).collect()
    };
    // Windows are shared by weight, and a text's are those of a training on it alone that holds as much of it out.
    let by_text = |of: &Value, key: &str| -> Vec<Value> {
        of["texts"].as_array().expect("texts").iter().map(|text| text[key].clone()).collect()
    };
    assert_eq!(by_text(&all, "path"), ["text.txt", "lines.jsonl", "*.more"]);
    assert_eq!(by_text(&all, "windows"), [5, 3, 2]);
    let mut before = 0;
    for (number, path, more) in [
        (5, "text.txt", &[][..]),
        (3, "lines.jsonl", &["data.format=jsonl", "data.column=body"][..]),
        (2, "'*.more'", &[][..]),
    ] {
        let words = [format!("data.path={path}"), format!("evaluation.windows={number}")];
        let words: Vec<&str> =
            words.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let alone = evaluate("run", &[&words[..], &["--out", "alone"]].concat());
        assert_eq!(losses(&alone), losses(&all)[before..before + number], "{path}");
        assert_eq!(alone["texts"], Value::Null, "one text has no lines of its own");
        before += number;
    }
    let table = run(ANNULUS, &place.path(""), &["evaluate", "run", "evaluation.windows=10"]);
    assert!(table.ended(0).stdout.contains("in 3 windows of `lines.jsonl`"), "{}", table.stdout);
    // A text that is too short is not left out.
    let long = ["evaluate", "run", "evaluation.lengths=[3900]", "evaluation.targets=16"];
    let said = run(ANNULUS, &place.path(""), &long).ended(2).stderr.clone();
    assert!(said.contains("`lines.jsonl`: the text has"), "{said}");
}

#[test]
fn what_is_wrong_with_a_mixture_is_said_at_its_path() {
    let place = place();
    let check = |path: &str, code: i32| {
        let ran = run(
            ANNULUS,
            &place.path(""),
            &["check", "experiment.yaml", &format!("data.path={path}")],
        );
        ran.ended(code).stderr.clone()
    };
    for (path, wanted) in [
        ("[]", "`data.path` must be a path, or a list"),
        ("[{ weight: 2 }]", "`data.path.0.path` is missing"),
        (
            "[text.txt, { path: a.more, weight: 0 }]",
            "`data.path.1.weight` must be a number above 0",
        ),
        (
            "[text.txt, { path: a.more, weight: 1e-4 }]",
            "`a.more` is read less than once in a thousand sequences",
        ),
        ("[text.txt, lines.jsonl]", "ends in `.jsonl`, but its `format` is `text`"),
        ("[text.txt, { path: a.more, format: recall }]", "`data.path.1.format` must be one of"),
        ("[text.txt, { path: a.more, wieght: 2 }]", "did you mean `weight`?"),
    ] {
        let said = check(path, 2);
        assert!(said.contains(wanted), "{path}: {said}");
    }
    let missing = check("[text.txt, nowhere.txt]", 3);
    assert!(missing.contains("`nowhere.txt`"), "{missing}");
    place.write("short.txt", "too short");
    let short = check("[text.txt, short.txt]", 3);
    let wanted = "`short.txt`: the text has 9 tokens, but";
    assert!(short.contains(wanted), "{short}");
}
