//! What the program says of itself: keys, exit codes, manual, completions, examples; and a run's numbers as a table.

use std::collections::BTreeSet;

use annulus_tests::runs::{Place, losses};
use annulus_tests::{Ran, run};

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

fn annulus(place: &Place, arguments: &[&str]) -> Ran {
    run(ANNULUS, &place.path(""), arguments)
}

#[test]
fn keys_and_exit_codes_are_explained() {
    let place = Place::new(ANNULUS);
    let explain = |what: &str| annulus(&place, &["explain", what]);
    let key = explain("memory.budget").ended(0).stdout.clone();
    assert!(key.starts_with("memory.budget\n  meaning  ") && key.contains("80GB"), "{key}");
    let every = explain("tokens").ended(0).stdout.clone();
    for path in ["data.tokens", "extend.tokens", "stages.NAME.tokens"] {
        assert!(every.contains(&format!("{path}\n")), "{every}");
    }
    explain("stages.short.tokens").ended(0);
    let section = explain("every").ended(0).stdout.clone();
    assert!(section.contains("\n    checkpoint "), "{section}");
    assert!(explain("atention.strategy").ended(2).stderr.contains("`attention.strategy`"));
    // A word of plans; one that is a key and a word of the glossary is explained as both.
    let megatron = explain("megatron").ended(0).stdout.clone();
    assert!(megatron.starts_with("megatron: one of `attention.strategy`\n"), "{megatron}");
    assert!(explain("hop").ended(0).stdout.starts_with("hop\n  means  "));
    let layout = explain("layout").ended(0).stdout.clone();
    assert!(layout.contains("attention.layout\n") && layout.contains("\nlayout\n  means  "));
    // A value of a key, and names that other trainers have for keys.
    let value = explain("zero3").ended(0).stdout.clone();
    assert!(value.starts_with("`zero3` is a value of\n\nparallel.state\n"), "{value}");
    for (theirs, own) in [
        ("context_parallel_size", "mesh.sequence"),
        ("TP", "mesh.tensor"),
        ("train_steps", "schedule.steps"),
    ] {
        let explained = explain(theirs).ended(0).stdout.clone();
        let theirs = theirs.to_lowercase();
        assert!(
            explained.starts_with(&format!("`{theirs}` means `{own}`\n\n{own}\n")),
            "{explained}"
        );
    }
    let epochs = explain("epochs").ended(0).stdout.clone();
    assert!(
        epochs.starts_with("`epochs` means `schedule.steps`; `schedule.steps` counts steps: "),
        "{epochs}"
    );
    for (written, meant) in [("YaRN", "yarn"), ("NCCL", "nccl"), ("LoRA", "lora")] {
        assert_eq!(explain(written).ended(0).stdout, explain(meant).ended(0).stdout);
    }
    // Of several words each is explained, if all are known.
    let both = annulus(&place, &["explain", "hop", "uneven"]).ended(0).stdout.clone();
    let uneven = explain("uneven").ended(0).stdout.clone();
    assert_eq!(both, format!("{}\n{uneven}", explain("hop").ended(0).stdout));
    let unknown = annulus(&place, &["explain", "hop", "unevven"]);
    assert!(unknown.ended(2).stderr.contains("`hop unevven` is not a key"), "{}", unknown.stderr);
    assert!(explain("megatorn").ended(2).stderr.contains("`megatron`"));
    assert!(explain("75").ended(0).stdout.contains("the same command"));
    assert!(explain("74").ended(2).stderr.contains("75"));
}

/// Every command, with those below it.
fn commands(place: &Place) -> Vec<Vec<String>> {
    let help = annulus(place, &["--help"]).ended(0).stdout.clone();
    let listed =
        help.split("Commands:\n").nth(1).expect("commands").split("\n\n").next().expect("a list");
    let names = listed.lines().filter_map(|line| line.split_whitespace().next());
    let names = names.filter(|name| *name != "help");
    names.map(|name| vec![name.to_owned()]).collect()
}

#[test]
fn every_command_has_examples_that_it_reads() {
    let place = Place::new(ANNULUS);
    let all = commands(&place);
    assert!(all.len() >= 20, "{all:?}");
    for command in all {
        let words: Vec<&str> = command.iter().map(String::as_str).chain(["--help"]).collect();
        let help = annulus(&place, &words).ended(0).stdout.clone();
        let examples =
            help.split("Examples:\n").nth(1).unwrap_or_else(|| panic!("{words:?}: {help}"));
        for line in examples.lines().map(str::trim).filter(|line| line.starts_with("annulus ")) {
            // What the shell would do with the rest of the line is not ours.
            let line = line.split(" > ").next().expect("a command");
            for command in line.split(" && ") {
                let mut typed: Vec<&str> =
                    command.split(" #").next().expect("words").split_whitespace().collect();
                typed.remove(0);
                if typed[0] == "launch" {
                    // What follows is a command of its own.
                    typed.retain(|word| !["launch", "-n", "2", "--restarts", "3"].contains(word));
                }
                // An argument that is none would be answered before `--help`.
                let ran = annulus(&place, &[&typed[..], &["--help"]].concat());
                assert_eq!(ran.code, Some(0), "{command}: {}", ran.stderr);
            }
        }
    }
}

#[test]
fn help_lists_the_exit_codes_and_manual_and_completions_the_commands() {
    let place = Place::new(ANNULUS);
    let help = annulus(&place, &["--help"]).ended(0).stdout.clone();
    assert!(help.contains("Exit codes:") && help.contains("75"), "{help}");
    let manual = annulus(&place, &["man"]).ended(0).stdout.clone();
    let scripts = ["bash", "zsh", "fish"]
        .map(|shell| annulus(&place, &["completions", shell]).ended(0).stdout.clone());
    for command in commands(&place) {
        let name = &command[0];
        assert!(
            manual.contains(name.as_str()) || manual.contains(&name.replace('-', "\\-")),
            "{name}"
        );
        assert!(scripts.iter().all(|script| script.contains(name.as_str())), "{name}");
    }
}

#[test]
fn a_run_s_numbers_are_a_table() {
    let place = Place::new(ANNULUS);
    place.train("run", &["schedule.steps=5", "every={ log: 1, evaluate: 5 }"]).ended(0);
    let table = annulus(&place, &["export-metrics", "run"]).ended(0).stdout.clone();
    let mut rows = table.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = rows.next().expect("a head");
    assert_eq!(head.iter().collect::<BTreeSet<_>>().len(), head.len(), "{head:?}");
    let column = head.iter().position(|tag| *tag == "train/loss").expect("the loss");
    let rows: Vec<_> = rows.collect();
    assert!(rows.iter().all(|row| row.len() == head.len()), "{table}");
    let found: Vec<f64> = rows.iter().map(|row| row[column].parse().expect("a number")).collect();
    assert_eq!(found, losses(&place.path("run")));
    annulus(&place, &["export-metrics", "run", "--out", "run.csv"]).ended(0);
    assert_eq!(std::fs::read_to_string(place.path("run.csv")).expect("a table"), table);
    let none = annulus(&place, &["export-metrics", "."]);
    assert!(none.ended(2).stderr.contains("not a run's folder"), "{}", none.stderr);
    // A source is named after its file.
    let metrics = place.path("run/metrics.jsonl");
    let text = std::fs::read_to_string(&metrics).expect("metrics");
    place.write("run/metrics.jsonl", &text.replace("train/loss", r#"evaluate/loss/a, \"b\""#));
    let table = annulus(&place, &["export-metrics", "run"]).ended(0).stdout.clone();
    assert!(table.contains(r#","evaluate/loss/a, ""b""","#), "{table}");
}
