//! Text that a run was trained on is told where another run, or an evaluation, takes it for new.

use std::fs;
use std::os::unix::fs::symlink;

use annulus_tests::runs::Place;

use crate::evaluate::{ASKED, evaluate};

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

/// Of a pattern or a folder that was trained on, every file was.
#[test]
fn a_file_of_what_was_trained_on_is_known() {
    let place = Place::new(ANNULUS);
    let text = fs::read_to_string(place.path("text.txt")).expect("a text");
    for folder in ["texts", "both"] {
        fs::create_dir(place.path(folder)).expect("a folder");
    }
    for name in ["texts/a.txt", "texts/b.txt", "other.txt", "both/c.txt"] {
        place.write(name, &text);
    }
    symlink("../texts/a.txt", place.path("both/a.txt")).expect("a link");
    place.train("folder", &["data.path=texts", "schedule.steps=2"]).ended(0);
    place.train("pattern", &["data.path='texts/*.txt'", "schedule.steps=2"]).ended(0);
    let leave = "was trained on: leave `evaluation.path` out";
    for (read, wanted) in [
        ("texts/a.txt", format!("`texts/a.txt` {leave}")),
        ("texts", format!("`texts` {leave}")),
        ("both", format!("`both/a.txt`, which is in `both`, {leave}")),
        ("other.txt", "reading `other.txt`".to_owned()),
    ] {
        let path = format!("evaluation.path={read}");
        for subject in ["folder", "pattern"] {
            let ran = evaluate(&place, &[&[subject, &path], &ASKED[1..]].concat());
            assert!(ran.ended(0).stderr.contains(&wanted), "{subject}: {}", ran.stderr);
        }
    }
}

/// The keys of a run that begins with the weights of another.
const MODEL: [&str; 2] = ["model=null", "model.path=base"];

/// What a run was trained on says nothing of new text when another run, which begins with its weights, holds it out.
#[test]
fn text_that_the_beginning_was_trained_on_is_not_held_out_without_a_word() {
    const WARNED: &str = "may have been trained on text of";
    let place = Place::new(ANNULUS);
    place.train("base", &["data.evaluate=1", "schedule.steps=2"]).ended(0);
    for (output, keys, is_warned) in [
        ("same", &["data.evaluate=1"][..], false),
        ("more", &["data.evaluate=3"], true),
        ("longer", &["data.evaluate=1", "data.tokens=96", "model.allow_longer=true"], true),
    ] {
        for (way, begin) in [("fork", ["--from", "base"]), ("model", MODEL)] {
            let output = format!("{output}-{way}");
            let keys = [&begin, keys, &["schedule.steps=3"]].concat();
            let said = place.train(&output, &keys).ended(0).stderr.clone();
            assert_eq!(said.contains(WARNED), is_warned, "{output}: {said}");
        }
    }
}

/// A run knows what its weights were trained on before the run that it begins with, too.
#[test]
fn text_of_the_run_before_the_last_is_not_held_out_without_a_word() {
    let place = Place::new(ANNULUS);
    let text = fs::read_to_string(place.path("text.txt")).expect("a text");
    place.write("other.txt", &text.chars().rev().collect::<String>());
    place.train("base", &["data.evaluate=1", "schedule.steps=2"]).ended(0);
    let between = [&MODEL[..], &["data.path=other.txt", "schedule.steps=2"]].concat();
    place.train("between", &between).ended(0);
    let more = ["data.evaluate=3", "schedule.steps=3"];
    for (output, begin) in [
        ("fork", &["--from", "between", MODEL[0], MODEL[1]][..]),
        ("model", &["model=null", "model.path=between"]),
    ] {
        let said = place.train(output, &[begin, &more].concat()).ended(0).stderr.clone();
        assert!(said.contains("may have been trained on text of"), "{output}: {said}");
        assert!(said.contains("`base/step-2`"), "{output}: {said}");
    }
}
