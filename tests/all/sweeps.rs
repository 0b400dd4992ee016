//! Sweeps: checked before anything runs, and at their end the same table, however often they are killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use annulus_data::{Records, train_tokenizer};
use annulus_tests::runs::{Place, last_saved, losses, metrics};
use annulus_tests::{Ran, run};
use serde_json::Value;

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(300);
const GLANCE: Duration = Duration::from_millis(1);
/// The last step of every run.
const STEPS: u64 = 20;

/// Eight runs of some tenths of a second.
const GRID: &str = "
sweep:
  keys:
    attention.strategy: [ring, striped]
    data.tokens: [24, 48]
  seeds: 2
  at_once: 2
";
const NAMES: [&str; 8] = [
    "strategy=ring,tokens=24,seed=3",
    "strategy=ring,tokens=24,seed=4",
    "strategy=ring,tokens=48,seed=3",
    "strategy=ring,tokens=48,seed=4",
    "strategy=striped,tokens=24,seed=3",
    "strategy=striped,tokens=24,seed=4",
    "strategy=striped,tokens=48,seed=3",
    "strategy=striped,tokens=48,seed=4",
];

/// A folder with a `sweep.yaml`: the tiny experiment, and `section`.
fn place(section: &str) -> Place {
    let place = Place::new(ANNULUS);
    let tiny = fs::read_to_string(place.path("experiment.yaml")).unwrap();
    place.write("sweep.yaml", &(tiny + section));
    place
}

fn annulus(place: &Place, arguments: &[&str]) -> Ran {
    run(ANNULUS, &place.path(""), arguments)
}

fn sweep(place: &Place, arguments: &[&str]) -> Ran {
    annulus(place, &[&["sweep", "sweep.yaml"], arguments].concat())
}

fn start(place: &Place) -> Child {
    let mut command = Command::new(ANNULUS);
    command.args(["sweep", "sweep.yaml", "--no-times"]).current_dir(place.path(""));
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program starts")
}

/// Every start of a run, by its manifest.
fn attempts(run: &Path) -> Vec<Value> {
    let text = fs::read_to_string(run.join("manifest.json")).unwrap_or_default();
    let manifest: Option<Value> = serde_json::from_str(&text).ok();
    manifest.and_then(|manifest| manifest["attempts"].as_array().cloned()).unwrap_or_default()
}

fn is_finished(run: &Path) -> bool {
    attempts(run).last().is_some_and(|last| last["ending"] == "finished")
}

/// Waits until `finished` runs of a live sweep are finished and another one has saved some of its steps: that one.
fn wait_for(child: &mut Child, folder: &Path, finished: usize) -> PathBuf {
    let began = Instant::now();
    let runs = NAMES.map(|name| folder.join(name));
    loop {
        assert!(child.try_wait().unwrap().is_none(), "the sweep ended by itself");
        assert!(began.elapsed() < PATIENCE, "nothing happens");
        let half = |run: &&PathBuf| (1..STEPS / 2).contains(&last_saved(run));
        if runs.iter().filter(|run| is_finished(run)).count() >= finished
            && let Some(run) = runs.iter().find(half)
        {
            return run.clone();
        }
        sleep(GLANCE);
    }
}

/// `kill -9`, without the time that a program takes to start: a run has few steps left.
fn kill(process: u32) {
    // SAFETY: the process is one that the test started. It may have ended by itself meanwhile.
    unsafe { libc::kill(process as i32, libc::SIGKILL) };
}

#[test]
fn a_sweep_that_is_killed_twice_ends_with_the_same_table() {
    let place = place(GRID);
    let calm = sweep(&place, &["output=calm", "--no-times"]);
    calm.ended(0);
    assert!(
        calm.stdout.lines().nth(1).unwrap().starts_with("ring      24      2"),
        "{}",
        calm.stdout
    );
    assert!(
        calm.stdout.lines().nth(4).unwrap().starts_with("striped   48      2"),
        "{}",
        calm.stdout
    );

    let folder = place.path("run");
    // Killed with all its runs; then alone, so that those that it leaves save and end by themselves.
    let mut child = start(&place);
    let first = wait_for(&mut child, &folder, 1);
    for process in place.processes() {
        kill(process);
    }
    child.wait().unwrap();
    assert!(!is_finished(&first), "{}", first.display());
    let before: Vec<PathBuf> =
        NAMES.map(|name| folder.join(name)).into_iter().filter(|run| is_finished(run)).collect();
    assert!(!before.is_empty());
    let mut child = start(&place);
    let second = wait_for(&mut child, &folder, 4);
    child.kill().unwrap();
    child.wait().unwrap();

    let ended = sweep(&place, &["--no-times"]);
    ended.ended(0);
    assert_eq!(ended.stdout, calm.stdout);
    assert!(ended.stderr.contains("of them finished before; 2 at once"), "{}", ended.stderr);
    for run in &before {
        assert_eq!(attempts(run).len(), 1, "{} was run again", run.display());
    }
    for run in [&first, &second] {
        let resumed =
            |attempt: &Value| attempt["resumed_from"].as_u64().is_some_and(|step| step > 0);
        assert!(attempts(run).iter().any(resumed), "{} began anew", run.display());
    }
    // The folder says the same later, in every form; times are what differs.
    for form in ["--json", "--markdown", "--csv"] {
        let of = |folder| {
            annulus(&place, &["table", folder, form, "--no-times"]).ended(0).stdout.clone()
        };
        assert_eq!(of("run"), of("calm"), "{form}");
    }
    assert_eq!(annulus(&place, &["table", "run", "--no-times"]).ended(0).stdout, calm.stdout);
    let with_times = annulus(&place, &["table", "run"]).ended(0).stdout.clone();
    assert!(with_times.contains("tokens/s") && !calm.stdout.contains("tokens/s"), "{with_times}");
}

#[test]
fn runs_go_on_where_the_step_to_stop_behind_was_moved() {
    let place = place("\nsweep: { keys: { data.tokens: [24] } }\n");
    let run = place.path("run/tokens=24,seed=3");
    for stop in [4, 8] {
        sweep(&place, &[&format!("schedule.stop={stop}")]).ended(0);
        assert_eq!(last_saved(&run), stop);
    }
    assert_eq!(attempts(&run).len(), 2);
    assert!(sweep(&place, &["schedule.stop=6"]).ended(0).stderr.contains("finished before"));
}

#[test]
fn a_run_that_fails_is_named_and_ends_no_other() {
    let place = place(
        "\nsweep: { keys: { optimizer.learning_rate: [1e-2, 1e30] }, seeds: 2, at_once: 2 }\n",
    );
    let ran = sweep(&place, &["--csv"]);
    ran.ended(15);
    for seed in [3, 4] {
        let name = format!("learning_rate=1e30,seed={seed}");
        let said =
            format!("failed: run `{name}`: exit code 11, a loss, gradient or logit is not finite");
        assert!(ran.stderr.contains(&said), "{}", ran.stderr);
        assert!(
            fs::read_to_string(place.path(&format!("run/{name}.log"))).unwrap().contains("error: ")
        );
    }
    assert!(ran.stderr.contains("2 of 4 runs failed"), "{}", ran.stderr);
    let rows: Vec<Vec<&str>> = ran.stdout.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(rows[1][..3], ["1e-2", "2", "2"]);
    assert_eq!(rows[2][..4], ["1e30", "2", "0", ""]);
    let mean = ["3", "4"].map(|seed| {
        *losses(&place.path(&format!("run/learning_rate=1e-2,seed={seed}"))).last().unwrap()
    });
    assert_eq!(rows[1][3].parse::<f64>().unwrap(), f64::midpoint(mean[0], mean[1]));
    // Those alone are tried again.
    let again = sweep(&place, &[]);
    assert!(again.ended(15).stderr.contains("2 of them finished before"), "{}", again.stderr);
    assert_eq!(attempts(&place.path("run/learning_rate=1e-2,seed=3")).len(), 1);
}

/// Sections of which something is wrong with a run or with all: the exit code, and what is said.
const WRONG: &[(i32, &str, &[&str])] = &[
    (
        2,
        "sweep: { keys: { attention.strategy: [ring, rnig], data.tokens: [24, 48] } }",
        &["found `rnig`, in run `strategy=rnig,tokens=24` and one more", "did you mean `ring`?"],
    ),
    (
        2,
        "sweep: { keys: { data.tokns: [24, 48] } }",
        &["unknown key `tokns` in `data`, in all runs of the sweep", "did you mean `tokens`?"],
    ),
    (
        2,
        "sweep: { keys: { data.tokens: 24 } }",
        &["found `24`", "a list stands in brackets: `data.tokens: [24]`"],
    ),
    (2, "sweep: { keys: { data: { tokens: [24] } } }", &["write `data.tokens: […]`"]),
    (
        2,
        "sweep: { keys: { seed: [1, 2] } }",
        &["`seed` cannot be a key of a sweep", "`sweep.seeds`"],
    ),
    (
        2,
        "sweep: { keys: { data.tokens: [1k, 1024] } }",
        &["`tokens=1k,seed=3` and `tokens=1024,seed=3` are the same run"],
    ),
    (
        2,
        "sweep: { keys: { data.tokens: [24] }, rows: [{ data.tokens: 48 }] }",
        &["is in `sweep.keys` and in `sweep.rows`"],
    ),
    (
        2,
        "sweep: { rows: [{ data.tokens: 24 }, { data.batch: 1 }] }",
        &["all of the same dotted keys, found row 2 without `data.tokens`"],
    ),
    (
        2,
        "sweep: { keys: { data.tokens: [24, 48] }, seeds: 501 }",
        &["`sweep` makes 1002 runs", "list fewer values"],
    ),
    (
        2,
        "sweep: { seeds: 2, at_once: 0 }",
        &["`sweep.at_once` must be a whole number from 1 to 1000, or `auto`"],
    ),
    // What only a plan or the data know.
    (3, "sweep: { keys: { data.tokens: [24, 24k] } }", &["tokens", "in run `tokens=24k,seed=3`"]),
    (
        5,
        "sweep: { keys: { memory.budget: [1G, 1k] } }",
        &["`memory.budget`", "in run `budget=1k,seed=3`"],
    ),
];

#[test]
fn what_is_wrong_with_any_run_is_said_before_one_begins() {
    for (code, section, wanted) in WRONG {
        let place = place(&format!("\n{section}\n"));
        for command in ["sweep", "check"] {
            let ran = annulus(&place, &[command, "sweep.yaml"]);
            ran.ended(*code);
            for words in *wanted {
                assert!(ran.stderr.contains(words), "{command}, {words}: {}", ran.stderr);
            }
            let has_place = *code != 2 || ran.stderr.contains(" --> sweep.yaml:18:");
            assert!(has_place, "{}", ran.stderr);
        }
        assert!(!place.path("run").exists(), "{section}");
    }
}

#[test]
fn models_of_a_sweep_read_with_their_own_tokenizers() {
    let place = place("");
    for (name, vocabulary) in [("one", 280), ("other", 300)] {
        let (input, out) = ([place.path("text.txt")], place.path("tokenizer.json"));
        train_tokenizer(&input, Records::Text, vocabulary, &out).expect("a tokenizer");
        let short = ["data.tokenizer=tokenizer.json", "schedule.steps=2"];
        place.train(name, &short).ended(0);
    }
    let tiny = fs::read_to_string(place.path("experiment.yaml")).unwrap();
    let (before, after) = tiny.split_once("model:").unwrap();
    let after = &after[after.find("data:").unwrap()..];
    let keys = "sweep: { keys: { model.path: [one/step-2, other/step-2] } }";
    place.write("sweep.yaml", &format!("{before}model: {{ path: one/step-2 }}\n{after}\n{keys}\n"));
    sweep(&place, &["schedule.steps=2"]).ended(0);
}

#[test]
fn files_with_and_without_a_sweep_name_each_other_s_command() {
    let place = place(GRID);
    for command in ["train", "plan", "prove", "trace", "verify"] {
        let ran = annulus(&place, &[command, "sweep.yaml"]);
        assert!(
            ran.ended(2).stderr.contains("`annulus sweep sweep.yaml` runs them"),
            "{}",
            ran.stderr
        );
    }
    let ran = annulus(&place, &["sweep", "experiment.yaml"]);
    assert!(
        ran.ended(2).stderr.contains("`annulus train experiment.yaml` runs it"),
        "{}",
        ran.stderr
    );
    let listed = annulus(&place, &["check", "sweep.yaml"]).ended(0).stdout.clone();
    assert!(listed.starts_with("tiny: ok; a sweep of 8 runs, 2 at once"), "{listed}");
    for name in ["strategy=ring,tokens=24,seed=3", "strategy=striped,tokens=48,seed=3"] {
        assert!(listed.contains(name), "{listed}");
    }
}

#[test]
fn the_command_line_replaces_lists_and_a_changed_file_is_refused_by_its_key() {
    let place = place(GRID);
    let small =
        ["attention.strategy=ring", "data.tokens=[24]", "sweep.seeds=1", "schedule.steps=4"];
    let ran = sweep(&place, &small);
    assert!(ran.ended(0).stderr.contains("sweep tiny: 1 run in `run`"), "{}", ran.stderr);
    let name = NAMES[0];
    assert_eq!(metrics(&place.path("run").join(name)).len(), 4);
    let changed = sweep(&place, &[&small[..], &["optimizer.weight_decay=0.5"]].concat());
    let said = format!(
        "run `{name}` already exists, but its `optimizer.weight_decay` was `0.1` and is `0.5`"
    );
    assert!(changed.ended(4).stderr.contains(&said), "{}", changed.stderr);
    // Another learning-rate curve is refused by the checkpoint, before anything is written.
    let file = place.path("run").join(format!("{name}.yaml"));
    let given = fs::read_to_string(&file).expect("the run's file");
    let longer = ["schedule.decay=cosine", "schedule.steps=8"];
    let longer = sweep(&place, &[&small[..3], &longer].concat());
    let said = format!("run `{name}` already exists, but its `schedule.");
    let hint = "set another `name` or `output`";
    let stderr = &longer.ended(4).stderr;
    assert!(stderr.contains(&said) && stderr.contains(hint), "{stderr}");
    assert_eq!(fs::read_to_string(&file).expect("the run's file"), given);
    // What grows keeps what there is.
    let grown = sweep(&place, &[&small[..3], &["schedule.steps=4", "sweep.seeds=2"]].concat());
    assert!(
        grown.ended(0).stderr.contains("2 runs in `run`, 1 of them finished before"),
        "{}",
        grown.stderr
    );
}

#[test]
fn rows_of_values_that_belong_together_are_runs() {
    let section =
        "sweep: { rows: [{ data.tokens: 24, data.batch: 4 }, { data.tokens: 48, data.batch: 2 }] }";
    let place = place(&format!("\n{section}\n"));
    let ran = sweep(&place, &["schedule.steps=2", "--markdown", "--no-times"]);
    let rows: Vec<&str> = ran.ended(0).stdout.lines().skip(2).take(2).collect();
    assert!(
        rows[0].starts_with("| 24 | 4 | 1 |") && rows[1].starts_with("| 48 | 2 | 1 |"),
        "{}",
        ran.stdout
    );
}

#[test]
fn runs_that_differ_in_their_seed_are_a_row_of_a_table() {
    let place = Place::new(ANNULUS);
    let few = ["schedule.steps=4", "every.evaluate=0"];
    for (folder, seed, rate) in
        [("a", 1, "1e-2"), ("b", 1, "2e-2"), ("c", 2, "1e-2"), ("d", 2, "2e-2")]
    {
        let own = [
            format!("seed={seed}"),
            format!("optimizer.learning_rate={rate}"),
            format!("name={folder}"),
        ];
        place.train(folder, &[&few[..], &own.each_ref().map(String::as_str)].concat()).ended(0);
    }
    place.train("e", &["schedule.steps=4", "schedule.stop=2", "seed=3"]).ended(0);
    let all = ["table", "a", "b", "c", "d", "--json"];
    let found = annulus(&place, &all).ended(0).json().remove(0);
    assert_eq!(found["keys"], serde_json::json!(["optimizer.learning_rate"]));
    let [slow, fast] = found["rows"].as_array().unwrap().as_slice() else { panic!("{found}") };
    assert_eq!(
        (&slow["values"][0], &slow["seeds"]),
        (&Value::from("0.01"), &serde_json::json!([1, 2]))
    );
    let last = |run: &str| *losses(&place.path(run)).last().unwrap();
    let mean = f64::midpoint(last("b"), last("d"));
    assert!((fast["train_loss"]["mean"].as_f64().unwrap() - mean).abs() < 1e-12);
    // Of two values the deviation is their distance by √2, and the error half of the distance.
    let half = 12.706_204_736 * (last("b") - last("d")).abs() / 2.0;
    assert!((fast["train_loss"]["half"].as_f64().unwrap() - half).abs() < 1e-6);
    let against = if found["best"] == 0 { fast } else { slow };
    assert_eq!(against["against_best"]["test"], "paired");
    // Other seeds cannot be paired, a repeated run says nothing new, and what failed is no run.
    let repeated = annulus(&place, &["table", "a", "c", "b", "b"]);
    let Ran { stdout, stderr, .. } = repeated.ended(0);
    assert!(stdout.contains("0.02           1 "), "{stdout}");
    assert!(stderr.contains("has the file and seed of"), "{stderr}");
    assert!(
        annulus(&place, &["table", "a", "nothing"]).ended(2).stderr.contains("not a run's folder")
    );
}
