//! Files that mean many runs.

use annulus_experiment::{AtOnce, Override, Sweep, parse, parse_sweep};
use annulus_sequence::Strategy;

use crate::small::{SMALL, edited};

const GRID: &str = "
sweep:
  keys: { attention.strategy: [ring, striped], optimizer.learning_rate: [1e-3, 3e-4] }
  rows:
    - { data.tokens: 4k, data.batch: 12 }
    - { data.tokens: 16k, data.batch: 4 }
  seeds: 2
  at_once: 3
";

fn read(section: &str, overrides: &[&str]) -> Result<Sweep, String> {
    let overrides: Vec<Override> =
        overrides.iter().filter_map(|text| Override::split(text)).collect();
    let sweep = parse_sweep("small.yaml", &(SMALL.to_owned() + section), &overrides);
    Ok(sweep.map_err(|problems| problems.to_string())?.expect("it has a sweep"))
}

#[test]
fn every_combination_is_a_run_and_the_last_changes_fastest() {
    let sweep = read(GRID, &[]).unwrap();
    assert_eq!(
        sweep.keys,
        ["attention.strategy", "optimizer.learning_rate", "data.tokens", "data.batch"]
    );
    assert_eq!(
        (sweep.name.as_str(), sweep.at_once, sweep.runs.len()),
        ("small", AtOnce::Runs(3), 16)
    );
    let means: Vec<_> = sweep
        .runs
        .iter()
        .map(|run| {
            let experiment = &run.experiment;
            let striped = matches!(experiment.attention.strategy, Strategy::Striped { .. });
            (
                striped,
                experiment.optimizer.learning_rate,
                experiment.data.tokens,
                experiment.data.batch,
                experiment.seed,
            )
        })
        .collect();
    assert_eq!(means[0], (false, 1e-3, 4096, 12, 7));
    assert_eq!(means[1], (false, 1e-3, 4096, 12, 8));
    assert_eq!(means[2], (false, 1e-3, 16384, 4, 7));
    assert_eq!(means[4], (false, 3e-4, 4096, 12, 7));
    assert_eq!(means[15], (true, 3e-4, 16384, 4, 8));
    let points: Vec<usize> = sweep.runs.iter().map(|run| run.point).collect();
    assert_eq!(points, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]);
    let last = &sweep.runs[15];
    assert_eq!(last.values, ["striped", "3e-4", "16k", "4"]);
    assert_eq!(last.name, "strategy=striped,learning_rate=3e-4,tokens=16k,batch=4,seed=8");
    assert_eq!(last.experiment.output, sweep.output.join(&last.name));
}

#[test]
fn a_run_is_the_file_with_its_values() {
    let sweep = read("\nsweep: { keys: { attention.window: [1k] } }\n", &["output=here"]).unwrap();
    let [run] = sweep.runs.as_slice() else { panic!("{} runs", sweep.runs.len()) };
    let values = ["attention.window=1k", "output=here/window=1k,seed=7"];
    let values: Vec<Override> = values.into_iter().filter_map(Override::split).collect();
    assert_eq!(run.experiment, parse("small.yaml", SMALL, &values).unwrap());
    assert_eq!(parse("again.yaml", &run.experiment.to_yaml(), &[]).unwrap(), run.experiment);
    assert_eq!(parse_sweep("small.yaml", SMALL, &[]), Ok(None));
    let both = parse("small.yaml", &(SMALL.to_owned() + GRID), &[]).unwrap_err().to_string();
    assert!(
        both.contains("`sweep` makes this file many runs") && both.contains("small.yaml:33:1"),
        "{both}"
    );
    assert!(both.contains("`annulus sweep small.yaml` runs them"), "{both}");
}

#[test]
fn null_takes_a_key_out() {
    let keys =
        "\nsweep: { keys: { attention.window: [null, 1k], optimizer.weight_decay: [null] } }\n";
    let sweep = read(keys, &["optimizer.weight_decay=[null]"]).unwrap();
    let names: Vec<_> = sweep.runs.iter().map(|run| run.name.as_str()).collect();
    let rest = "weight_decay=null,seed=7";
    assert_eq!(names, [format!("window=null,{rest}"), format!("window=1k,{rest}")]);
    let windows = [None, Some(1024)];
    let wrong = read("\nsweep: { keys: { attention.windw: [null] } }\n", &[]).unwrap_err();
    assert!(wrong.contains("unknown key `attention.windw`"), "{wrong}");
    for (run, window) in sweep.runs.iter().zip(windows) {
        assert_eq!(run.experiment.attention.masking.window, window);
        assert_eq!(parse("again.yaml", &run.experiment.to_yaml(), &[]).unwrap(), run.experiment);
    }
}

#[test]
fn an_override_replaces_a_list() {
    let changed = [
        "attention.strategy=megatron",
        "optimizer.learning_rate=[1e-2, 2e-2, 3e-2]",
        "sweep.seeds=1",
    ];
    let sweep = read(GRID, &changed).unwrap();
    let rates: Vec<f64> =
        sweep.runs.iter().map(|run| run.experiment.optimizer.learning_rate).collect();
    assert_eq!(rates, [1e-2, 1e-2, 2e-2, 2e-2, 3e-2, 3e-2]);
    assert!(
        sweep
            .runs
            .iter()
            .all(|run| matches!(run.experiment.attention.strategy, Strategy::Megatron { .. }))
    );
    let refused = read(GRID, &["data.tokens=1k"]).unwrap_err();
    assert!(
        refused.contains("`data.tokens` is on the command line, but every row has its own"),
        "{refused}"
    );
    let none = read(GRID, &["attention.strategy=[]"]).unwrap_err();
    assert!(none.contains("`sweep` makes 0 runs"), "{none}");
}

#[test]
fn what_lists_and_rows_lack_is_said() {
    for (section, wanted) in [
        ("keys: {}", "found an empty mapping"),
        ("keys: { attention.window: [] }", "found an empty list"),
        ("rows: []", "found an empty list"),
        ("rows: [{}]", "found an empty row"),
        (
            "rows: [{ data.tokens: 4k }, { data.batch: 4, data.tokens: 4k }]",
            "found row 1 without `data.batch`",
        ),
        (
            "rows: [{ data.tokens: 4k, data.batch: 4 }, { data.tokens: 8k }]",
            "found row 2 without `data.batch`",
        ),
    ] {
        let found = read(&format!("\nsweep: {{ {section} }}\n"), &[]).unwrap_err();
        assert!(found.contains(wanted), "{section}: {found}");
    }
}

#[test]
fn a_run_is_called_alike_whatever_runs_are_beside_it() {
    let names = |paths: &str| -> Vec<String> {
        let section = format!("\nsweep: {{ keys: {{ data.path: {paths} }} }}\n");
        read(&section, &[]).unwrap().runs.into_iter().map(|run| run.name).collect()
    };
    let both = names("[h/x.txt, h-x.txt]");
    assert_eq!(both[1], "path=h-x.txt,seed=7");
    assert!(both[0].starts_with("path=h-x.txt-") && both[0] != both[1], "{both:?}");
    assert_eq!(names("[h-x.txt, h/x.txt]"), [both[1].clone(), both[0].clone()]);
    assert_eq!(names("[h/x.txt]"), both[..1]);
}

#[test]
fn a_mistake_stands_where_its_value_does_and_is_said_once() {
    let section =
        "\nsweep:\n  keys:\n    data.tokens: [4k, 12x]\n    schedule.warmup: [10, 2000]\n";
    let found = read(section, &[]).unwrap_err();
    assert_eq!(found.matches("error: ").count(), 2, "{found}");
    assert!(found.contains("found `12x`, in run `tokens=12x,warmup=10` and one more"), "{found}");
    assert!(found.contains("of `schedule.steps`, in run `tokens=4k,warmup=2000`"), "{found}");
    assert!(found.contains("small.yaml:35:23") && found.contains("small.yaml:36:27"), "{found}");
    // What is wrong with the file itself is wrong with all.
    let text = edited("batch: 4", "batch: none") + GRID;
    let found = parse_sweep(
        "small.yaml",
        &text,
        &["data.batch=0"].map(|text| Override::split(text).unwrap()),
    );
    assert!(found.unwrap_err().to_string().contains("every row has its own"));
    let text = edited("warmup: 20", "warmup: many") + GRID;
    let found = parse_sweep("small.yaml", &text, &[]).unwrap_err().to_string();
    assert_eq!(found.matches("error: ").count(), 1, "{found}");
    assert!(found.contains("found `many`, in all runs of the sweep"), "{found}");
    let beyond = read(GRID, &["seed=18446744073709551615"]).unwrap_err();
    assert!(beyond.contains("no 2 seeds follow on"), "{beyond}");
}
