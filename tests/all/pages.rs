//! What the pages say can be done: every command of the README, every experiment of the repository, the reference.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use annulus_tests::runs::{Place, losses};
use annulus_tests::{Ran, root, run};

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

/// The line of the README that a test does not run: it builds this repository.
const ELSEWHERE: &str = "cargo install --locked --path crates/cli";

/// What makes a command of the README take seconds.
const SMALLER: [(&str, &[&str]); 5] = [
    (
        "annulus train experiments/quickstart.yaml",
        &[
            "schedule.steps=3",
            "schedule.warmup=1",
            "data.batch=1",
            "data.evaluate=1",
            "sample.tokens=20",
        ],
    ),
    ("annulus verify experiments/quickstart.yaml", &["model.num_hidden_layers=1"]),
    ("annulus evaluate path/to/model", &["data.evaluate=1"]),
    (
        "annulus train experiments/longer.yaml",
        &["schedule.steps=3", "schedule.warmup=1", "data.batch=1", "data.evaluate=1"],
    ),
    ("annulus check experiments/longer.yaml", &["data.batch=1", "data.evaluate=1"]),
];

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The commands in a page's blocks of `sh`.
fn commands(page: &str) -> Vec<String> {
    let blocks = page.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let lines = blocks.flat_map(str::lines).map(str::trim).filter(|line| !line.is_empty());
    lines.map(str::to_owned).collect()
}

/// A folder with what the README's commands name.
fn place() -> Place {
    let place = Place::new(ANNULUS);
    symlink(root().join("experiments"), place.path("experiments")).expect("a link");
    for folder in ["texts", "path/to"] {
        fs::create_dir_all(place.path(folder)).expect("a folder");
    }
    let sentence = |n: usize| format!("Sentence {n} is about {}. ", n * n % 97);
    let book: String = (0..9000).map(sentence).collect();
    place.write("texts/one.txt", &book);
    place.write("book.txt", &book);
    place.train("base", &["model.max_position_embeddings=2048", "schedule.steps=2"]).ended(0);
    run(ANNULUS, &place.path(""), &["export", "base", "--out", "path/to/model"]).ended(0);
    place
}

#[test]
fn every_command_of_the_readme_runs() {
    let (place, page) = (place(), text(&root().join("README.md")));
    let mut ran = 0;
    for line in commands(&page) {
        if line == ELSEWHERE {
            continue;
        }
        let smaller = SMALLER.iter().find(|(begin, _)| line.starts_with(begin));
        let (program, words) = line.split_once(' ').expect("words");
        assert_eq!(program, "annulus", "{line}");
        let words: Vec<&str> =
            words.split_whitespace().map(|word| word.trim_matches('\'')).collect();
        let all = [&words[..], smaller.map_or(&[][..], |(_, changes)| changes)].concat();
        let done: Ran = run(ANNULUS, &place.path(""), &all);
        assert_eq!(done.code, Some(0), "{line}\n{}", done.stderr);
        ran += 1;
    }
    assert!(ran >= 10, "{ran} commands");
}

#[test]
fn the_readme_is_short_and_links_to_what_is_there() {
    let page = text(&root().join("README.md"));
    assert!(page.lines().count() <= 150, "{} lines", page.lines().count());
    for link in page.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
        let is_here = link.starts_with("http") || root().join(link).exists();
        assert!(is_here, "`{link}`");
    }
}

#[test]
fn the_reference_of_commands_is_that_of_the_program() {
    let page = run(ANNULUS, &root(), &["man", "--markdown"]).ended(0).stdout.clone();
    let kept = text(&root().join("crates/cli/COMMANDS.md"));
    assert_eq!(kept, page, "write it anew: `annulus man --markdown > crates/cli/COMMANDS.md`");
}

/// What an experiment needs to be run here: what it says that it needs, small.
fn changes(name: &str) -> &'static [&'static str] {
    match name {
        // Of models that a run before makes.
        "lora" => &["model.path=path/to/model"],
        "extend-yarn" | "extend-abf" | "extend-linear" => &[
            "model.path=path/to/model",
            "extend.tokens=4k",
            "data.tokens=4k",
            "data.batch=1",
            "data.evaluate=1",
        ],
        "longer" => {
            &["model.path=path/to/model", "data.path=book.txt", "data.batch=1", "data.evaluate=1"]
        }
        "llama-3.2-1b-128k" => &[
            "model={ path: path/to/model, dtype: bf16, allow_longer: true }",
            "data={ path: book.txt, tokens: 4k, batch: 2, evaluate: 1 }",
        ],
        "llama-3-8b-1m" => &[
            "model={ hidden_size: 64, intermediate_size: 128, num_hidden_layers: 5, num_attention_heads: 8, num_key_value_heads: 8, max_position_embeddings: 1024 }",
            "extend.tokens=2k",
            "data.tokens=2k",
            "memory.offload_folder=disk",
        ],
        "million-tokens" => &["data.path=book.txt", "data.tokens=4k"],
        "scale" => &[
            "model={ hidden_size: 64, intermediate_size: 128, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1 }",
            "data={ path: book.txt, tokens: 2k }",
        ],
        "books" => &["data.tokens=4k"],
        "pretrain-small" | "recall" => &["data.batch=1", "data.evaluate=1"],
        "quickstart" => &["data.batch=1", "data.evaluate=1", "sample.tokens=20"],
        // One of its runs.
        "sweep" => &["attention.strategy=[ring]", "data.tokens=[256]", "sweep.seeds=1"],
        _ => &[],
    }
}

#[test]
fn every_experiment_is_right_and_takes_three_steps() {
    let place = place();
    symlink(root().join("crates"), place.path("crates")).expect("a link");
    let files = fs::read_dir(root().join("experiments")).expect("a folder").flatten();
    let mut names: Vec<String> = files
        .filter_map(|file| Some(file.file_name().to_str()?.strip_suffix(".yaml")?.to_owned()))
        .collect();
    names.sort();
    assert!(names.len() >= 17, "{names:?}");
    for name in names {
        let (file, output) = (format!("experiments/{name}.yaml"), format!("output=of/{name}"));
        let mut words = vec![file.as_str(), &output, "mesh.deadline=60s"];
        words.extend(changes(&name));
        words.push(match name.as_str() {
            "million-tokens" | "scale" => "schedule.steps=3",
            _ => "schedule.stop=3",
        });
        let check = [&["check"], &words[..]].concat();
        run(ANNULUS, &place.path(""), &check).ended(0);
        let (command, below) = match name.as_str() {
            "sweep" => ("sweep", "/strategy=ring,tokens=256,seed=1"),
            _ => ("train", ""),
        };
        let train = [&[command], &words[..], &["every.log=1", "every.evaluate=0"]].concat();
        let ran = run(ANNULUS, &place.path(""), &train);
        assert_eq!(ran.code, Some(0), "{name}: {}", ran.stderr);
        assert_eq!(losses(&place.path(&format!("of/{name}{below}"))).len(), 3, "{name}");
    }
}
