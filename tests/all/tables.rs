//! `annulus table`: rows are told to differ only by what their runs were evaluated on alike.

use std::fs;

use annulus_tests::run;
use annulus_tests::runs::Place;
use serde_json::Value;

use crate::sweep_folders;

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

/// A folder with a `sweep.yaml` over these keys and two seeds.
fn place(keys: &str) -> Place {
    sweep_folders::place(&format!("{{ keys: {{ {keys} }}, seeds: 2 }}"))
}

/// What a run's manifest says of the text that it held out.
fn held_out(place: &Place, run: &str) -> Value {
    let text = fs::read_to_string(place.path("run").join(run).join("manifest.json")).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["held_out"].clone()
}

#[test]
fn rows_that_were_evaluated_on_other_texts_are_not_told_to_differ() {
    let place = place("data.evaluate: [2, 20]");
    let found = run(ANNULUS, &place.path(""), &["sweep", "sweep.yaml", "--no-times"]);
    let said = &found.ended(0).stdout;
    for line in said.lines().skip(1).take(2) {
        assert!(line.ends_with("  other text  -"), "{said}");
    }
    assert!(said.contains("\nother text: no other row"), "{said}");
    assert!(!said.contains("beyond seeds:"), "{said}");
    let of = |run: &str| held_out(&place, run);
    assert_eq!(of("evaluate=2,seed=3"), of("evaluate=2,seed=4"));
    assert_ne!(of("evaluate=2,seed=3"), of("evaluate=20,seed=3"));
}

#[test]
fn rows_of_several_texts_are_compared_with_the_best_of_their_own() {
    let place = place("data.tokens: [24, 48], optimizer.learning_rate: [1e-2, 1e-3]");
    let words = ["sweep", "sweep.yaml", "--no-times"];
    let found = run(ANNULUS, &place.path(""), &words);
    let said = found.ended(0).stdout.clone();
    assert!(said.contains("best row with the same held-out"), "{said}");
    assert_eq!(said.lines().filter(|line| line.contains("  best")).count(), 2, "{said}");
    let json = run(ANNULUS, &place.path(""), &["table", "run", "--json"]).ended(0).json().remove(0);
    assert!(json["best"].is_null(), "{json}");
    let rows = json["rows"].as_array().unwrap();
    let best: Vec<&Value> = rows.iter().map(|row| &row["best"]).collect();
    assert!(best[0] == best[1] && best[2] == best[3] && best[0] != best[2], "{json}");
    // Manifests of earlier versions say nothing of the text: rows are compared as ever.
    for folder in fs::read_dir(place.path("run")).unwrap() {
        let path = folder.unwrap().path().join("manifest.json");
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let mut manifest: Value = serde_json::from_str(&text).unwrap();
        manifest.as_object_mut().unwrap().remove("held_out").unwrap();
        fs::write(&path, manifest.to_string()).unwrap();
    }
    let json = run(ANNULUS, &place.path(""), &["table", "run", "--json"]).ended(0).json().remove(0);
    let best = json["best"].as_u64().expect("a row");
    let rows = json["rows"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["best"] == best), "{json}");
}
