//! Commands that answer a question: what they print, that it is readable on a terminal of 80 columns, and what they say
//! instead of an answer.

use std::fs;
use std::path::Path;

use annulus_tests::runs::Place;
use annulus_tests::{Ran, root, run, tensors};
use serde_json::Value;

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

fn annulus(place: &Place, arguments: &[&str]) -> Ran {
    run(ANNULUS, &place.path(""), arguments)
}

fn example(name: &str) -> String {
    root().join("experiments").join(name).display().to_string()
}

/// Trained a little.
fn trained(place: &Place) {
    place.train("run", &["schedule.steps=4", "trace.steps=[2]"]).ended(0);
}

#[track_caller]
fn fits_a_terminal(text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{} columns: {line}", line.chars().count());
    }
}

#[test]
fn answers_fit_80_columns() {
    let place = Place::new(ANNULUS);
    trained(&place);
    let cluster = example("clusters/h100.yaml");
    let asked: [&[&str]; 13] = [
        &["plan", "--compare"],
        &["plan", "experiment.yaml"],
        &["plan", "experiment.yaml", "attention.strategy=auto"],
        &[
            "plan",
            "experiment.yaml",
            "mesh.sequence=8",
            "data.tokens=64",
            "attention.strategy=ring",
        ],
        &["plan", "experiment.yaml", "--cluster", &cluster],
        &["layout", "striped", "--ranks", "8", "--tokens", "1M", "--hops"],
        &["layout", "usp", "--ranks", "12", "--tokens", "48", "--hops", "--all"],
        &["trace", "experiment.yaml"],
        &["trace", "experiment.yaml", "mesh.sequence=4", "attention.strategy=ulysses"],
        &["trace", "run"],
        &["verify", "experiment.yaml", "--ranks", "3"],
        &["evaluate", "run", "evaluation.path=text.txt", "evaluation.lengths=[16, 32, 48]"],
        &["doctor"],
    ];
    for words in asked {
        fits_a_terminal(&annulus(&place, words).ended(0).stdout);
    }
    let auto = place.train("auto", &["schedule.steps=2", "attention.strategy=auto"]);
    fits_a_terminal(&auto.ended(0).stdout);
    fits_a_terminal(&auto.stderr);
}

#[test]
fn a_plan_has_sizes_that_people_read_and_json_bytes() {
    let place = Place::new(ANNULUS);
    let long = ["data.tokens=48k", "attention.strategy=striped"];
    place.write("text.txt", &"text ".repeat(1 << 17));
    let text = annulus(&place, &[&["plan", "experiment.yaml"], &long[..]].concat());
    let sent = text.ended(0).stdout.split("sent per step").nth(1).expect("bytes").to_owned();
    let row = sent.lines().nth(1).expect("a row");
    assert_eq!(row.matches("iB").count(), 3, "{row}");
    // A row of stripes says which rank holds which of the first positions.
    assert!(text.stdout.contains("rank 1   ·█··█··█"), "{}", text.stdout);
    let json = annulus(&place, &[&["plan", "experiment.yaml", "--json"], &long[..]].concat());
    assert!(json.ended(0).json()[0]["ranks"][0]["bytes"]["forward"].is_u64());
    let cluster = example("clusters/h100.yaml");
    let beside = annulus(&place, &["plan", "experiment.yaml", "--cluster", &cluster]);
    let beside = beside.ended(0).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    // What is taken stands first: its memory is of three quarters of 80 GB, and what it takes for that.
    let (answer, _) = beside.split_once("strategy step").expect("a table");
    assert!(answer.contains("on the fullest device, of 55.9 GiB that it may take"), "{beside}");
    assert!(answer.contains("with parallel.state=replicated memory.recompute=none"), "{beside}");
    let bound = ["plan", "experiment.yaml", "memory.budget=100k", "--cluster", &cluster];
    let bound = annulus(&place, &bound);
    assert!(bound.ended(5).stdout.contains("more than the 100.0 KiB"), "{}", bound.stdout);
}

#[test]
fn auto_shows_the_best_five_and_the_manifest_has_all() {
    let place = Place::new(ANNULUS);
    let ran = place.train("run", &["attention.strategy=auto", "schedule.steps=2"]);
    let said = &ran.ended(0).stderr;
    let (table, _) =
        said.split_once(" others: under `choice` in the run's manifest.json").expect("more");
    let rows = table.split("peak memory\n").nth(1).expect("a table").lines().count();
    // One more where the strategy that is taken is none of the fastest.
    assert!([5 + 1, 6 + 1].contains(&rows), "{said}");
    assert!(said.contains("auto takes `"), "{said}");
    assert!(said.contains("links    memory of this machine"), "{said}");
    // That run keeps its strategy; another may choose.
    let plan = ["plan", "experiment.yaml", "attention.strategy=auto"];
    let kept = annulus(&place, &[&plan[..], &["output=run"]].concat());
    assert!(!kept.ended(0).stdout.contains("times as long: "), "{}", kept.stdout);
    let plan = annulus(&place, &[&plan[..], &["output=another"]].concat());
    assert!(plan.ended(0).stdout.matches(" times as long: ").count() > 8, "{}", plan.stdout);
}

/// By the width of a wide letter of their size.
#[test]
fn the_captions_of_pictures_are_within_them() {
    let place = Place::new(ANNULUS);
    let cluster = example("clusters/h100.yaml");
    annulus(&place, &["plan", "experiment.yaml", "--cluster", &cluster, "--svg", "plan.svg"])
        .ended(0);
    annulus(&place, &["layout", "ring", "--layout", "zigzag", "--svg", "layout.svg"]).ended(0);
    for (name, letter) in [("plan.svg", 8.0), ("layout.svg", 9.0)] {
        let svg = fs::read_to_string(place.path(name)).expect("a picture");
        let number = |text: &str, key: &str| -> f64 {
            let value = text.split(&format!(" {key}=\"")).nth(1).expect("an attribute");
            value.split('"').next().expect("its end").parse().expect("a number")
        };
        let width = number(&svg, "width");
        for text in svg.split("<text").skip(1).filter(|text| text.contains("\"start\"")) {
            let words = text.split('>').nth(1).and_then(|rest| rest.split('<').next());
            let letters = words.expect("words").chars().count() as f64;
            let end = number(text, "x") + letters * letter;
            assert!(end <= width, "{name}: {text} ends at {end} of {width}");
        }
    }
    let zigzag = annulus(&place, &["layout", "zigzag"]);
    assert!(zigzag.ended(2).stderr.contains("--layout zigzag"), "{}", zigzag.stderr);
}

#[test]
fn strategies_begin_with_what_does_not_go_together() {
    let place = Place::new(ANNULUS);
    let said = annulus(&place, &["strategies"]).ended(0).stdout.clone();
    let (first, tables) = said.split_once("\n| mask ").expect("tables");
    assert!(first.starts_with("All combinations are supported except these:\n"), "{first}");
    assert!(first.lines().count() < 24 && first.contains("zigzag, balanced: not with `striped`"));
    assert!(tables.contains("| **no**"), "{tables}");
    fits_a_terminal(first);
}

#[test]
fn score_and_attend_say_what_they_found() {
    let place = Place::new(ANNULUS);
    trained(&place);
    annulus(&place, &["export", "run", "--out", "model"]).ended(0);
    let ids: Vec<i64> = (0..32).collect();
    let ids = candle_core::Tensor::from_vec(ids, (2, 16), &candle_core::Device::Cpu);
    let ids = [("input_ids", ids.expect("ids"))];
    safetensors::serialize_to_file(ids, None, &place.path("ids.safetensors")).expect("written");
    let words = ["score", "--model", "model", "--tokens", "ids.safetensors", "--out", "scored"];
    let said = annulus(&place, &words).ended(0).stdout.clone();
    let loss = tensors(&place.path("scored"))["loss"][0];
    let shown = said.split_whitespace().nth(1).and_then(|word| word.parse::<f64>().ok());
    assert!(said.starts_with("loss ") && shown.is_some_and(|shown| (shown - loss).abs() < 1e-5));
    assert!(said.contains("over 30 targets, perplexity ") && said.contains("[2, 16, "), "{said}");
    let case = root().join("tests/fixtures/attention/documents.safetensors");
    let case = case.to_str().expect("a path");
    let said =
        annulus(&place, &["attend", "--case", case, "--out", "found"]).ended(0).stdout.clone();
    let out = &tensors(&place.path("found"))["out"];
    let most = out.iter().fold(0.0_f64, |most, value| most.max(value.abs()));
    assert!(said.starts_with("largest values: ") && said.contains(&format!("out {most:.4}")));
}

#[test]
fn an_evaluation_says_what_it_replaces_and_what_a_text_lacks() {
    let place = Place::new(ANNULUS);
    trained(&place);
    let asked = ["evaluate", "run", "evaluation.path=text.txt"];
    let evaluate = |more: &[&str]| annulus(&place, &[&asked[..], more].concat());
    let first = evaluate(&["evaluation.lengths=[16, 48]"]);
    assert!(!first.ended(0).stderr.contains("replaces"), "{}", first.stderr);
    assert!(place.path("run/evaluation/loss-by-length.svg").exists());
    let second = evaluate(&["evaluation.lengths=[48]"]);
    assert!(second.ended(0).stderr.contains("`--out FOLDER` keeps both"), "{}", second.stderr);
    assert!(!place.path("run/evaluation/loss-by-length.svg").exists(), "one length is no curve");
    evaluate(&["--out", "kept"]).ended(0);
    let long = evaluate(&["evaluation.lengths=[1M]", "evaluation.windows=2"]);
    let said = &long.ended(2).stderr;
    let most = said.split("`evaluation.lengths` to at most ").nth(1).expect("a way out");
    let most = most.split(',').next().expect("a number");
    assert!(said.contains("1048576 and a last target for the first"), "{said}");
    let lengths = format!("evaluation.lengths=[{most}]");
    let found = |lengths: &str| annulus(&place, &["check", "experiment.yaml", lengths]);
    found(&lengths).ended(0);
}

#[test]
fn data_are_shown_from_the_beginning_alone() {
    let place = Place::new(ANNULUS);
    let line = "one line of many, all of them alike\n";
    place.write("long.txt", &line.repeat(60_000));
    let shown = annulus(&place, &["data", "show", "long.txt", "--tokens", "4"]);
    assert!(
        shown.ended(0).stdout.starts_with("the first 256.0 KiB of 2.1 MiB:\n"),
        "{}",
        shown.stdout
    );
    assert_eq!(shown.stdout.lines().count(), 3 + 4, "{}", shown.stdout);
    // What is wrong is said of the file itself.
    fs::write(place.path("wrong.txt"), [line.repeat(60_000).as_bytes(), b"\xff\n"].concat())
        .expect("written");
    annulus(&place, &["data", "show", "wrong.txt", "--tokens", "4"]).ended(0);
    fs::write(place.path("wrong.txt"), [b"\xff\n", line.repeat(60_000).as_bytes()].concat())
        .expect("written");
    let wrong = annulus(&place, &["data", "show", "wrong.txt"]);
    assert!(
        wrong.ended(3).stderr.contains("`wrong.txt` is not UTF-8 at byte 0"),
        "{}",
        wrong.stderr
    );
}

#[test]
fn doctor_knows_memory_disk_and_the_hub_s_cache() {
    let place = Place::new(ANNULUS);
    let found = annulus(&place, &["doctor", "--json"]).ended(0).json().remove(0);
    for key in ["processor", "memory", "disk", "hub's cache"] {
        assert!(found[key].as_str().is_some_and(|text| !text.is_empty()), "{key}: {found}");
    }
}

#[test]
fn many_shards_are_said_in_short_and_hops_have_a_time_axis() {
    let place = Place::new(ANNULUS);
    trained(&place);
    let said = annulus(&place, &["export", "run", "--out", "model", "--shard", "4000B"]);
    let said = &said.ended(0).stderr;
    assert!(said.contains("model-00001-of-000") && said.lines().count() < 6, "{said}");
    fits_a_terminal(said);
    annulus(&place, &["trace", "experiment.yaml", "--svg", "hops.svg"]).ended(0);
    let svg = fs::read_to_string(place.path("hops.svg")).expect("a picture");
    assert_eq!(svg.matches(" ms</text>").count(), 2 + 2, "a title and an axis for each pass");
}

#[test]
fn verify_says_at_once_what_it_does() {
    let place = Place::new(ANNULUS);
    let ran = annulus(&place, &["verify", "experiment.yaml", "--ranks", "2"]);
    let said = &ran.ended(0).stderr;
    assert!(said.starts_with("dense attention first, then 21 ways to split 48 tokens"), "{said}");
}

#[test]
fn a_bigram_s_entropy_is_of_bytes() {
    let place = Place::new(ANNULUS);
    place.train("bytes", &["schedule.steps=4"]).ended(0);
    let tokenizer = ["tokenizer", "train", "text.txt", "--vocab", "300", "--out", "words.json"];
    annulus(&place, &tokenizer).ended(0);
    let words = ["schedule.steps=4", "data.tokenizer=words.json", "data.tokens=24"];
    place.train("words", &words).ended(0);
    let has = |run: &str| {
        let read = fs::read_to_string(place.path(run).join("metrics.jsonl")).expect("metrics");
        let lines = read.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        lines.filter(|line| line.get("evaluate/bigram_entropy").is_some()).count()
    };
    assert!(has("bytes") > 0);
    assert_eq!(has("words"), 0);
}

/// A mistake, and what must be in the answer: what, where, the way out.
#[test]
fn mistakes_are_answered_with_a_way_out() {
    let place = Place::new(ANNULUS);
    fs::create_dir(place.path("runs")).expect("a folder");
    let cases: [(&[&str], &str); 15] = [
        (&["check", "experiment.yaml", "data.tokens=64kb"], "`64k` is 65536 tokens"),
        (&["check", "experiment.yaml", "data.tokens=64KiB"], "`64k` is 65536 tokens"),
        (&["check", "experiment.yaml", "data.tokens=0.1k"], "102.4 tokens: 102 are a whole number"),
        (&["check", "experiment.yaml", "memory.budget=80gbs"], "did you mean `80GB`?"),
        (&["check", "experiment.yaml", "mesh.deadline=5mins"], "did you mean `5min`?"),
        (&["check", "experiment.yaml", "mesh.deadline=2 hours"], "did you mean `2h`?"),
        (&["check", "experiment.yaml", "model.dtype=bfloat16"], "did you mean `bf16`?"),
        (&["check", "experiment.yaml", "model.dtype=float32"], "did you mean `f32`?"),
        (&["check", "experiment.yaml", "data.path=*.txt"], "in quotes"),
        (&["check", "runs"], "or a run's folder"),
        (&["train", "experiment.yaml", "--lr", "3e-4"], "`optimizer.learning_rate=VALUE`"),
        (&["train", "experiment.yaml", "--batch-size", "4"], "`data.batch=VALUE`"),
        (&["generate", "runs", "Once upon"], "`--prompt TEXT`"),
        (&["check", "experiment.yaml", "extend={ rope: yarn, tokens: 96 }"], "add it to `model`"),
        (&["layout", "balanced"], "--layout balanced"),
    ];
    for (words, wanted) in cases {
        let ran = annulus(&place, words);
        assert!(ran.ended(2).stderr.contains(wanted), "{words:?}: {}", ran.stderr);
    }
    let wide = annulus(&place, &["check", "experiment.yaml", "attention.window=8k"]);
    assert!(wide.ended(0).stderr.contains("hides nothing in sequences of 48 tokens"));
    assert!(!Path::new(&place.path("run")).exists());
}

/// Links stay, and what they lead to is written: a file, or the output of a shell.
#[cfg(unix)]
#[test]
fn what_a_link_leads_to_is_written_and_the_link_stays() {
    use std::os::unix::fs::symlink;
    let place = Place::new(ANNULUS);
    trained(&place);
    let write = |name: &str| -> std::process::Command {
        let mut command = std::process::Command::new(ANNULUS);
        command.current_dir(place.path(""));
        command.args(["export-metrics", "run", "--out", name]);
        command
    };
    // What the shell wrote before stays, and what is printed later comes behind.
    symlink("/proc/self/fd/1", place.path("page")).expect("a link");
    fs::write(place.path("all"), "before\n").expect("a file");
    let all = fs::File::options().append(true).open(place.path("all")).expect("a file");
    let mut report = std::process::Command::new(ANNULUS);
    report.current_dir(place.path("")).args(["report", "run", "--out", "page"]).stdout(all);
    assert!(report.status().expect("it starts").success());
    let all = fs::read_to_string(place.path("all")).expect("text");
    assert!(all.starts_with("before\n<!DOCTYPE html>") && all.contains("</html>"), "{all:.80}");
    for (link, leads_to, read) in [("out", "/proc/self/fd/1", "shown"), ("link", "file", "file")] {
        symlink(leads_to, place.path(link)).expect("a link");
        fs::write(place.path(read), "").expect("a file");
        let shown = fs::File::create(place.path("shown")).expect("a file");
        assert!(write(link).stdout(shown).status().expect("it starts").success());
        assert!(place.path(link).is_symlink(), "{link}");
        let written = fs::read_to_string(place.path(read)).expect("text");
        assert!(written.contains("train/loss"), "{link}: {written}");
    }
    // A reader that takes only the beginning, such as `head`, is no error.
    let (reader, pipe) = std::io::pipe().expect("a pipe");
    drop(reader);
    let ended = write("/dev/stdout").stdout(pipe).output().expect("it starts");
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
}
