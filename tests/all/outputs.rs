//! What commands write does not destroy what they read, and what they say of folders without what they need.

use std::fs;

use annulus_tests::runs::{Place, checkpoints, contents, flip};
use annulus_tests::{Ran, run};
use candle_core::{Device, Tensor};

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

fn annulus(place: &Place, words: &str) -> Ran {
    run(ANNULUS, &place.path(""), &words.split(' ').collect::<Vec<_>>())
}

#[test]
fn no_command_writes_over_what_it_reads_nor_over_a_run() {
    let place = Place::new(ANNULUS);
    place.train("run", &["schedule.steps=2", "trace.steps=[2]"]).ended(0);
    let ids = Tensor::arange(0i64, 32, &Device::Cpu).and_then(|ids| ids.reshape((2, 16)));
    let ids = [("input_ids", ids.expect("ids"))];
    safetensors::serialize_to_file(ids, None, &place.path("ids.safetensors")).expect("written");
    let before = contents(&place.path(""));
    let score = "score --model run/step-2 --tokens ids.safetensors";
    for (words, said) in [
        (score, "run/step-2/model.safetensors"),
        (score, "run/step-2/optimizer.safetensors"),
        (score, "ids.safetensors"),
        ("export-metrics run", "run/metrics.jsonl"),
        ("report run", "run/experiment.yaml"),
        ("trace experiment.yaml", "experiment.yaml"),
        ("trace run", "run/trace-2.json"),
    ] {
        let ran = annulus(&place, &format!("{words} --out {said}"));
        let wanted = format!("`{said}` is ");
        let stderr = &ran.ended(2).stderr;
        assert!(stderr.contains(&wanted) && stderr.contains("hint: give another"), "{stderr}");
    }
    assert_eq!(contents(&place.path("")), before);
    place.copy("run", "other");
    let before = contents(&place.path(""));
    for picture in ["run/metrics.jsonl", "other/step-2/model.safetensors"] {
        let ran = annulus(&place, &format!("compare run other --png {picture}"));
        assert!(ran.ended(2).stderr.contains("hint: give another path"), "{}", ran.stderr);
    }
    assert_eq!(contents(&place.path("")), before);
    // Twice: what a command itself has written is replaced.
    for _ in 0..2 {
        annulus(&place, "report run --out run/report.html").ended(0);
        annulus(&place, &format!("{score} --out run/step-2/scores.safetensors")).ended(0);
    }
}

#[test]
fn a_folder_of_runs_is_told_by_runs_that_are_in_it() {
    let place = Place::new(ANNULUS);
    place.train("runs/b", &["schedule.steps=2"]).ended(0);
    let one = annulus(&place, "report runs");
    assert!(one.ended(2).stderr.contains("hint: it contains a run: name it, as in `runs/b`"));
    place.copy("runs/b", "runs/a");
    fs::create_dir_all(place.path("runs/cache")).expect("a folder");
    let both = annulus(&place, "report runs");
    let said = "hint: it contains 2 runs: name them, as in `runs/a runs/b`";
    assert!(both.ended(2).stderr.contains(said), "{}", both.stderr);
    annulus(&place, "report runs/a runs/b").ended(0);
}

#[test]
fn a_run_is_told_to_have_saved_nothing_or_what_is_used_of_it() {
    let place = Place::new(ANNULUS);
    place.train("run", &["schedule.steps=4", "every.checkpoint=2", "keep=2"]).ended(0);
    assert_eq!(checkpoints(&place.path("run")), [2, 4]);
    flip(&place.path("run/step-4/model.safetensors"));
    let generated = annulus(&place, "generate run --prompt a --tokens 2");
    let said = &generated.ended(0).stderr;
    assert!(said.contains("; using `step-2`") && !said.contains("resuming"), "{said}");
    for step in ["step-2", "step-4"] {
        fs::remove_dir_all(place.path("run").join(step)).expect("removed");
    }
    fs::remove_file(place.path("run/LATEST")).expect("removed");
    for words in ["evaluate run", "generate run --prompt a"] {
        let ran = annulus(&place, words);
        let said =
            "`run` has no checkpoint\nhint: it has saved nothing yet: `annulus train` goes on";
        assert!(ran.ended(4).stderr.contains(said), "{}", ran.stderr);
    }
}
