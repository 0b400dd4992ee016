//! Which folder of a sweep is whose: values that differ in what a folder's name cannot have, and folders that were moved.

use std::fs;

use annulus_tests::runs::Place;
use annulus_tests::{Ran, run};
use serde_json::Value;

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

/// A folder with a `sweep.yaml` of runs of four steps.
pub(crate) fn place(section: &str) -> Place {
    let place = Place::new(ANNULUS);
    let tiny = fs::read_to_string(place.path("experiment.yaml")).unwrap();
    let short = tiny.replace("steps: 20", "steps: 4");
    place.write("sweep.yaml", &format!("{short}\nsweep: {section}\n"));
    place
}

fn annulus(place: &Place, words: &[&str]) -> Ran {
    run(ANNULUS, &place.path(""), words)
}

/// The values and losses of all rows of the table that a command prints as JSON.
fn rows(ran: &Ran) -> Vec<(String, f64)> {
    let row = |row: &Value| {
        let loss = row["evaluate_loss"]["mean"].as_f64().unwrap_or(f64::NAN);
        (row["values"][0].as_str().unwrap().to_owned(), loss)
    };
    ran.ended(0).json()[0]["rows"].as_array().unwrap().iter().map(row).collect()
}

#[test]
fn paths_that_look_alike_keep_their_results_in_every_order() {
    let place = place("{ keys: { data.path: [h/x.txt, h-x.txt] } }");
    fs::create_dir(place.path("h")).unwrap();
    fs::rename(place.path("text.txt"), place.path("h/x.txt")).unwrap();
    place.write("h-x.txt", &"another text ".repeat(1000));
    let of = |more: &[&str]| {
        rows(&annulus(&place, &[&["sweep", "sweep.yaml", "--json"], more].concat()))
    };
    let both = of(&[]);
    assert!(both[0].1 > both[1].1, "{both:?}");
    assert_eq!(of(&["data.path=[h-x.txt, h/x.txt]"]), [both[1].clone(), both[0].clone()]);
    assert_eq!(of(&["data.path=[h-x.txt]"]), both[1..]);
    assert_eq!(of(&["data.path=[h/x.txt]"]), both[..1]);
}

/// `model.path` names a run, which trains on between two starts of the sweep.
#[test]
fn runs_of_a_sweep_begin_with_one_checkpoint() {
    let place = place("{ keys: { optimizer.weight_decay: [0.1, 0.2] } }");
    let base = |steps: &str| {
        place.train("base", &["schedule.decay=constant", "keep=5", steps]).ended(0);
    };
    base("schedule.steps=2");
    let sweep = ["sweep", "sweep.yaml", "model={ path: base }", "--json", "--no-times"];
    annulus(&place, &[&sweep[..], &["optimizer.weight_decay=[0.1]"]].concat()).ended(0);
    base("schedule.steps=4");
    assert_eq!(rows(&annulus(&place, &sweep)).len(), 2);
    let read = |name: &str| fs::read_to_string(place.path("run").join(name)).unwrap();
    let listed: Value = serde_json::from_str(&read("sweep.json")).unwrap();
    assert_eq!(listed["bases"]["base"], "base/step-2");
    for name in ["weight_decay=0.1,seed=3", "weight_decay=0.2,seed=3"] {
        for file in [format!("{name}.yaml"), format!("{name}/experiment.yaml")] {
            let text = read(&file);
            assert!(text.contains("path: base/step-2\n"), "{file}: {text}");
        }
    }
    // One that began with another is left out.
    let own = place.path("run/weight_decay=0.2,seed=3/experiment.yaml");
    let other = fs::read_to_string(&own).unwrap().replace("base/step-2", "base/step-4");
    fs::write(own, other).unwrap();
    let table = annulus(&place, &["table", "run", "--json", "--no-times"]);
    let said = "its `model.path` was `base/step-4` and is `base/step-2`; it is left out";
    assert!(table.ended(0).stderr.contains(said), "{}", table.stderr);
}

#[test]
fn a_folder_that_was_moved_is_no_other_run_s() {
    let place = place("{ keys: { data.tokens: [24, 48], attention.strategy: [ring, striped] } }");
    let sweep = ["sweep", "sweep.yaml", "--json", "--no-times"];
    let before = rows(&annulus(&place, &sweep));
    let folder = |name: &str| place.path("run").join(name);
    for (from, to) in [
        ("tokens=24,strategy=ring,seed=3", "tokens=48,strategy=ring,seed=3"),
        ("tokens=24,strategy=striped,seed=3", "tokens=24,strategy=ring,seed=3"),
    ] {
        fs::remove_dir_all(folder(to)).or_else(|_| fs::create_dir(folder(to))).unwrap();
        fs::rename(folder(from), folder(to)).unwrap();
    }
    let table = annulus(&place, &["table", "run", "--json", "--no-times"]);
    let left: Vec<f64> = rows(&table).into_iter().map(|(_, loss)| loss).collect();
    assert!(left[0].is_nan() && left[1].is_nan() && left[2].is_nan(), "{left:?}");
    assert_eq!(left[3].to_bits(), before[3].1.to_bits());
    for said in [
        "note: `run/tokens=48,strategy=ring,seed=3` is not what `sweep.json` says: its `data.tokens` was `24` and is `48`; it is left out",
        "note: `run/tokens=24,strategy=ring,seed=3` is not what `sweep.json` says: its `attention.strategy` was `striped` and is `ring`; it",
    ] {
        assert!(table.stderr.contains(said), "{}", table.stderr);
    }
    let said = "run `tokens=24,strategy=ring,seed=3` already exists, but its `attention.strategy` was `striped` and is `ring`";
    let refused = annulus(&place, &sweep);
    assert!(refused.ended(4).stderr.contains(said), "{}", refused.stderr);
    // Beside other runs, each counts with its own values.
    let named =
        annulus(&place, &["table", "run", "run/tokens=48,strategy=striped,seed=3", "--csv"]);
    let rows: Vec<&str> = named.ended(0).stdout.lines().collect();
    assert_eq!(rows.len(), 4, "{rows:?}");
    // Nothing is tested with one seed.
    assert!(rows[1..].iter().all(|row| row.ends_with(",,,")), "{rows:?}");
}
