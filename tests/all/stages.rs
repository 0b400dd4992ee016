//! `experiments/staged.yaml`, made small: one run over longer and longer sequences, and what is asked of it on the way.

use std::fs;
use std::path::Path;

use annulus_tests::runs::Place;
use annulus_tests::{Ran, root, run};
use scraper::Html;
use serde_json::Value;

use crate::report::row;

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

const SMALL: [&str; 17] = [
    "data.path=text.txt",
    "output=run",
    "model.hidden_size=32",
    "model.intermediate_size=48",
    "model.max_position_embeddings=16",
    "schedule.warmup=1",
    "every.checkpoint=0",
    "keep=5",
    "stages.short.tokens=16",
    "stages.short.steps=3",
    "stages.middle.tokens=32",
    "stages.middle.steps=2",
    "stages.middle.extend.tokens=32",
    "stages.long.tokens=64",
    "stages.long.steps=2",
    "stages.long.extend.tokens=64",
    "expect={}",
];

fn annulus(place: &Place, words: &[&str], more: &[&str]) -> Ran {
    let file = root().join("experiments/staged.yaml").display().to_string();
    let words: Vec<&str> =
        words.iter().map(|&word| if word == "FILE" { file.as_str() } else { word }).collect();
    run(ANNULUS, &place.path(""), &[&words[..], more].concat())
}

fn rope(checkpoint: &Path) -> (u64, f64) {
    let text = fs::read_to_string(checkpoint.join("config.json")).expect("a configuration");
    let config: Value = serde_json::from_str(&text).expect("it is JSON");
    let longest = config["max_position_embeddings"].as_u64().expect("a length");
    (longest, config["rope_parameters"]["factor"].as_f64().unwrap_or(1.0))
}

#[test]
fn a_run_of_three_stages_is_planned_trained_asked_and_exported() {
    let place = Place::new(ANNULUS);
    let plan = annulus(&place, &["plan", "FILE"], &SMALL).ended(0).stdout.clone();
    for title in
        ["phase short, steps 1 to 3", "phase middle, steps 4 to 5", "phase long, steps 6 to 7"]
    {
        assert!(plan.contains(title), "{plan}");
    }
    let json = annulus(&place, &["plan", "FILE", "--json"], &SMALL).ended(0).json().remove(0);
    let steps: Vec<&Value> =
        json.as_array().expect("stages").iter().map(|one| &one["steps"]).collect();
    assert_eq!(
        steps,
        [&serde_json::json!([1, 3]), &serde_json::json!([4, 5]), &serde_json::json!([6, 7])]
    );

    let proved = annulus(&place, &["prove", "FILE", "--json"], &SMALL).ended(0).json().remove(0);
    assert_eq!(proved.as_array().map(Vec::len), Some(3), "{proved}");

    // Stopped in the middle of the second.
    let stopped = annulus(&place, &["train", "FILE", "schedule.stop=4"], &SMALL);
    assert!(stopped.ended(0).stderr.contains("phase `middle`, 32 tokens"), "{}", stopped.stderr);
    let asked = ["evaluation.windows=2", "evaluation.targets=8", "evaluation.lengths=[16, 32]"];
    let evaluate = |more: &[&str]| annulus(&place, &["evaluate", "run"], &[&asked, more].concat());
    evaluate(&[]).ended(0);
    let longer = evaluate(&["evaluation.lengths=[64]"]);
    let of_32 = "64 tokens are more than the 32 that the model was trained for";
    assert!(longer.ended(0).stderr.contains(of_32), "{}", longer.stderr);

    let whole = annulus(&place, &["train", "FILE"], &SMALL);
    assert!(whole.ended(0).stderr.contains("phase `long`, 64 tokens"), "{}", whole.stderr);
    let run_folder = place.path("run");
    let ropes = ["step-3", "step-5", "step-7"].map(|step| rope(&run_folder.join(step)));
    assert_eq!(ropes, [(16, 1.0), (32, 2.0), (64, 4.0)]);
    evaluate(&["evaluation.lengths=[16, 64]"]).ended(0);
    annulus(&place, &["export", "run", "--out", "model"], &[]).ended(0);
    assert_eq!(rope(&place.path("model")), (64, 4.0));

    let other = [&SMALL[..], &["stages.short.steps=4"]].concat();
    let other = annulus(&place, &["train", "FILE"], &other);
    assert!(other.ended(4).stderr.contains("`stages.short.steps`"), "{}", other.stderr);

    // The newest is damaged: the one before it is of another stage, whose model is shorter.
    fs::write(run_folder.join("step-7/config.json"), "{}").expect("it can be written");
    let longer = evaluate(&["evaluation.lengths=[64]"]);
    assert!(longer.ended(0).stderr.contains(of_32), "{}", longer.stderr);
    let other = evaluate(&["stages.short.steps=6"]);
    assert!(other.ended(4).stderr.contains("`stages.short.steps`"), "{}", other.stderr);
}

#[test]
fn a_run_of_stages_and_steps_of_each_are_computed_again() {
    let place = Place::new(ANNULUS);
    let none = annulus(&place, &["data", "show", "FILE", "--step", "9"], &SMALL);
    let said = "steps are counted from 1 to 7, the steps of all `stages`";
    assert!(none.ended(2).stderr.contains(said), "{}", none.stderr);
    let hashed = [&SMALL[..], &["every.hash=1", "trace.steps=[2]"]].concat();
    annulus(&place, &["train", "FILE", "schedule.stop=4"], &hashed).ended(0);
    annulus(&place, &["train", "FILE"], &hashed).ended(0);
    let said = annulus(&place, &["reproduce", "run", "--json"], &[]).ended(0).json().remove(0);
    assert!(said["found"]["hashes"]["steps"] == 7 && said["reasons"][0].is_null(), "{said}");
    annulus(&place, &["report", "run"], &[]).ended(0);
    let html = fs::read_to_string(place.path("report.html")).expect("a page");
    let of_rank = row(&Html::parse_document(&html), "ring", "forward rank 0");
    let [.., sent, planned] = of_rank[..] else { panic!("{of_rank:?}") };
    assert!(sent > 0.0 && sent == planned, "the plan is of another stage: {of_rank:?}");
    // The first step of a stage, one behind a stop, and one that a whole stage lies before.
    for (step, from) in [("4", 3), ("5", 4), ("7", 5)] {
        let words = ["replay", "run", "--step", step, "--json"];
        let said = annulus(&place, &words, &[]).ended(0).json().remove(0);
        assert!(said["from"] == from && said["found"]["hashed"] == true, "{said}");
    }
    fs::remove_dir_all(place.path("run/step-3")).unwrap();
    let words = ["replay", "run", "--step", "4", "--out", "again", "--json"];
    let said = annulus(&place, &words, &[]).ended(0).json().remove(0);
    assert!(said["from"].is_null() && said["equal"] == true, "{said}");
}
