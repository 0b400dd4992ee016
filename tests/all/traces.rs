//! What moves when, asked of the whole program: as it is planned, as it was measured, and both beside
//! each other.

use std::fs;

use annulus_tests::runs::Place;
use annulus_tests::{root, run};

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

fn cluster() -> String {
    root().join("experiments/clusters/h100.yaml").display().to_string()
}

#[test]
fn what_is_planned_is_listed_drawn_and_written() {
    let place = Place::new(ANNULUS);
    let cluster = cluster();
    let asked =
        ["trace", "experiment.yaml", "--cluster", &cluster, "mesh.sequence=3", "data.tokens=48k"];
    let text = run(ANNULUS, &place.path(""), &asked);
    insta::assert_snapshot!(text.ended(0).stdout);

    let written =
        [&asked[..], &["--layer", "1", "--json", "--svg", "hops.svg", "--out", "plan.json"]];
    let shown = run(ANNULUS, &place.path(""), &written.concat()).ended(0).json().remove(0);
    let moves = shown["moves"].as_array().expect("spans");
    assert!(moves.iter().all(|span| span["span"]["layer"] == 1) && !moves.is_empty());
    let svg = fs::read_to_string(place.path("hops.svg")).expect("written");
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    // What was written is read like a trace that was measured.
    let asked = ["trace", "plan.json", "--json"];
    let again = run(ANNULUS, &place.path(""), &asked).ended(0).json().remove(0);
    assert_eq!(again["measured"]["shares"], shown["planned"]["shares"]);
    assert!(!place.path("run").exists(), "nothing was trained");
}

#[test]
fn a_measured_step_stands_beside_its_plan() {
    let place = Place::new(ANNULUS);
    place.train("run", &["trace.steps=[2, 3]", "schedule.stop=3"]).ended(0);
    let cluster = cluster();
    let asked = ["trace", "run", "--cluster", &cluster];
    let ran = run(ANNULUS, &place.path(""), &asked);
    let text = &ran.ended(0).stdout;
    assert!(text.starts_with("tiny, striped, step 3: measured\n"), "{text}");
    for wanted in ["forward rank 2", "backward layer 1", "[planned]"] {
        assert!(text.contains(wanted), "{text}");
    }
    assert!(ran.stderr.contains("the last of 2 traces"), "{}", ran.stderr);

    let asked = ["trace", "run/trace-2.json", "--cluster", &cluster, "--json", "--svg", "hops.svg"];
    let shown = run(ANNULUS, &place.path(""), &asked).ended(0).json().remove(0);
    assert_eq!(shown["step"], 2);
    let shares = |of: &str| shown[of]["shares"].as_array().expect("shares").clone();
    let (measured, planned) = (shares("measured"), shares("planned"));
    // Two layers, two passes, three ranks: the same bytes in each.
    assert_eq!((measured.len(), planned.len()), (12, 12));
    for (measured, planned) in measured.iter().zip(&planned) {
        for key in ["layer", "pass", "rank", "bytes"] {
            assert_eq!(measured[key], planned[key], "{key}");
        }
        let overlap = measured["overlap"].as_f64().expect("something moved");
        assert!((0.0..=1.0).contains(&overlap), "{measured}");
        assert!(measured["computing"].as_f64().is_some_and(|seconds| seconds > 0.0));
    }
    assert!(place.path("hops.svg").is_file());

    // Another attempt on other ranks leaves the old trace, but not its plan.
    place.train("run", &["schedule.stop=4", "mesh.sequence=2"]).ended(0);
    let ran = run(ANNULUS, &place.path(""), &["trace", "run"]);
    assert!(
        ran.ended(0).stderr.contains("the run's folder now has tiny, striped on 2 ranks"),
        "{ran:?}"
    );
}

#[test]
fn what_is_no_trace_is_said() {
    let place = Place::new(ANNULUS);
    place.write("other.json", "{\"traceEvents\": []}");
    fs::create_dir(place.path("empty")).expect("a folder");
    for (code, wanted, arguments) in [
        (2, "cannot be read", &["trace", "nothing.yaml"][..]),
        (3, "cannot read `nothing.json`", &["trace", "nothing.json"]),
        (3, "holds no `trace-STEP.json`", &["trace", "empty"]),
        (3, "not a trace that this program wrote", &["trace", "other.json"]),
        (2, "`seed` replaces a value", &["trace", "other.json", "seed=2"]),
        (2, "there is no layer 2", &["trace", "experiment.yaml", "--layer", "2"]),
        (2, "step 21, beyond the last, 20", &["check", "experiment.yaml", "trace.steps=[21]"]),
    ] {
        let ran = run(ANNULUS, &place.path(""), arguments);
        ran.ended(code);
        assert!(ran.stderr.contains(wanted) && ran.stderr.contains("hint: "), "{}", ran.stderr);
    }
}
