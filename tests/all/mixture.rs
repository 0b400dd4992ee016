//! Mixtures of texts by weight: the same sequences on any number of ranks and after a resume; and errors of mixtures.

use std::fs;

use annulus_tests::run;
use annulus_tests::runs::{Place, losses};

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
    // Another weight is other data.
    let other = MIXTURE.replace("weight: 2", "weight: 4");
    let refused = place.train("halves", &[&other, steps]);
    assert!(refused.ended(4).stderr.contains("fingerprint"), "{}", refused.stderr);
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
    let ran = run(ANNULUS, &place.path(""), &["evaluate", "whole"]);
    let wanted = "`evaluate` cannot read the held-out part of a mixture\nhint: give a text: `evaluation.path=TEXT`";
    assert!(ran.ended(2).stderr.contains(wanted), "{}", ran.stderr);
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
    let wanted = "`short.txt`: the text has 9 tokens, of which 97 are to be held out";
    assert!(short.contains(wanted), "{short}");
}
