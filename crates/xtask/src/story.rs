//! `cargo xtask story extend`: an end-to-end example of context extension. Trains a small model at 1k tokens, extends it to 8k, and
//! evaluates both on a book that was not trained on.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use annulus_figure::{Axis, Curves, Point, Series};
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use serde_json::Value;

use crate::{root, tool};

/// The books that are trained on, and the held-out one.
const BOOKS: [&str; 3] = ["anna-karenina.txt", "middlemarch.txt", "war-and-peace.txt"];
const HELD_OUT: &str = "moby-dick.txt";
/// The size of the vocabulary.
const VOCABULARY: &str = "1024";
/// The evaluated lengths: the first is that of the training, the last that of the extension.
const LENGTHS: [u64; 4] = [1024, 2048, 4096, 8192];
const SHORT: u64 = LENGTHS[0];
const LONG: u64 = LENGTHS[LENGTHS.len() - 1];
/// By how many nats the loss at `LONG` tokens must exceed that at `SHORT`, at least, before the extension.
const DEGRADATION: f64 = 0.5;
/// By how many standard errors the loss at `LONG` tokens must be below that at `SHORT`, at least, after the extension.
const STANDARD_ERRORS: f64 = 2.0;

#[derive(Subcommand)]
pub(crate) enum Story {
    /// Trains on three books at 1k tokens, extends to 8k over four ranks, and evaluates on a fourth book
    Extend(Extend),
}

#[derive(Args)]
pub(crate) struct Extend {
    /// A folder with anna-karenina.txt, middlemarch.txt, war-and-peace.txt and moby-dick.txt (Project Gutenberg 1399, 145, 2600 and 2701)
    #[arg(long)]
    books: PathBuf,
    /// The folder of runs and results; finished parts are not repeated
    #[arg(long, default_value = "target/story/extend")]
    out: PathBuf,
    /// Number of windows of the fourth book; the loss is that of the last 512 tokens of each
    #[arg(long, default_value_t = 128)]
    windows: usize,
    /// Write the results to `experiments/results/extension`
    #[arg(long)]
    record: bool,
}

/// Trains, extends and evaluates; fails if the extension does not help as it should.
pub(crate) fn run(Story::Extend(arguments): &Story) -> Result<()> {
    let start = Instant::now();
    tool::cargo(&["build", "--release", "--package", "annulus-cli"])?;
    let example = Example::new(arguments)?;
    example.pretrain()?;
    example.extend()?;
    let found = example.evaluate()?;
    report(&found, start)?;
    if arguments.record {
        record(&found)?;
    }
    judge(&found)
}

/// The arguments, the program and the folder.
struct Example<'a> {
    arguments: &'a Extend,
    annulus: PathBuf,
    out: PathBuf,
}

/// The evaluations on the fourth book before and after the extension.
struct Found {
    before: Value,
    after: Value,
}

impl<'a> Example<'a> {
    fn new(arguments: &'a Extend) -> Result<Example<'a>> {
        for book in BOOKS.iter().chain([&HELD_OUT]) {
            let path = arguments.books.join(book);
            ensure!(path.is_file(), "`{}` is not there: see `--books`", path.display());
        }
        let out = root().join(&arguments.out);
        fs::create_dir_all(out.join("books"))?;
        for book in BOOKS {
            let (from, to) = (arguments.books.join(book), out.join("books").join(book));
            if !to.exists() {
                fs::copy(&from, &to).with_context(|| from.display().to_string())?;
            }
        }
        Ok(Example { arguments, annulus: tool::program("release", "annulus")?, out })
    }

    fn annulus(&self, words: &[&str]) -> Result<()> {
        tool::run(&self.annulus, words)
    }
    fn path(&self, name: &str) -> String {
        self.out.join(name).display().to_string()
    }
    /// `KEY=PATH` for a path below the folder.
    fn set(&self, key: &str, name: &str) -> String {
        format!("{key}={}", self.path(name))
    }

    /// Trains a tokenizer, then a model at 1k tokens, and exports it as a Hugging Face folder.
    fn pretrain(&self) -> Result<()> {
        let (books, tokenizer) = (self.path("books"), self.path("tokenizer.json"));
        if !Path::new(&tokenizer).exists() {
            let words = ["tokenizer", "train", &books, "--vocab", VOCABULARY, "--out", &tokenizer];
            self.annulus(&words)?;
        }
        self.train("pretrain-small", "pretrained", &[])?;
        let (run, model) = (self.path("pretrained"), self.path("model"));
        if !Path::new(&model).exists() {
            self.annulus(&["export", &run, "--out", &model])?;
        }
        Ok(())
    }

    /// Continues from the exported model at 8k tokens with YaRN, on four ranks.
    fn extend(&self) -> Result<()> {
        let longer = [format!("extend.tokens={LONG}"), format!("data.tokens={LONG}")];
        let [extended, tokens] = longer.each_ref().map(String::as_str);
        let model = self.set("model.path", "model");
        self.train("extend-yarn", "extended", &[&model, extended, tokens])
    }

    fn train(&self, experiment: &str, run: &str, changes: &[&str]) -> Result<()> {
        let experiment = format!("experiments/{experiment}.yaml");
        let (books, tokenizer) =
            (self.set("data.path", "books"), self.set("data.tokenizer", "tokenizer.json"));
        let output = self.set("output", run);
        let words = [&["train", &experiment, &books, &tokenizer, &output], changes].concat();
        self.annulus(&words)
    }

    /// Evaluates both models on the same tokens of the fourth book, with contexts of different lengths before them.
    fn evaluate(&self) -> Result<Found> {
        let [before, after] = ["pretrained", "extended"].map(|run| self.evaluation(run));
        Ok(Found { before: before?, after: after? })
    }
    fn evaluation(&self, run: &str) -> Result<Value> {
        let book = self.arguments.books.canonicalize()?.join(HELD_OUT);
        let out = format!("{run}-asked");
        self.annulus(&[
            "evaluate",
            &self.path(run),
            &format!("evaluation.path={}", book.display()),
            &format!("evaluation.lengths={LENGTHS:?}"),
            "evaluation.targets=512",
            &format!("evaluation.windows={}", self.arguments.windows),
            "--out",
            &self.path(&out),
        ])?;
        let text = fs::read_to_string(self.out.join(out).join("perplexity.json"))?;
        Ok(serde_json::from_str(&text)?)
    }
}

/// A number in the evaluation of a model at a length.
fn number(evaluation: &Value, tokens: u64, pointer: &str) -> Result<f64> {
    let lengths = evaluation["lengths"].as_array().context("no `lengths` in an evaluation")?;
    let length = lengths.iter().find(|length| length["tokens"] == tokens);
    let found = length.and_then(|length| length.pointer(pointer)).and_then(Value::as_f64);
    found.with_context(|| format!("no `{pointer}` at {tokens} tokens"))
}

fn report(found: &Found, start: Instant) -> Result<()> {
    tool::say("| tokens read | before | after | after, against 1k |");
    tool::say("| --- | --- | --- | --- |");
    for tokens in LENGTHS {
        let [before, after] =
            [&found.before, &found.after].map(|found| number(found, tokens, "/loss/mean"));
        let against = if tokens == SHORT {
            "–".to_owned()
        } else {
            let [mean, error] = ["mean", "standard_error"]
                .map(|what| number(&found.after, tokens, &format!("/difference/loss/{what}")));
            format!("{:+.4} ± {:.4}", mean?, error?)
        };
        tool::say(&format!("| {tokens} | {:.4} | {:.4} | {against} |", before?, after?));
    }
    tool::say(&format!("{:.0} minutes", start.elapsed().as_secs_f64() / 60.0));
    Ok(())
}

/// Checks that a longer context breaks the model before the extension, and helps it afterwards.
fn judge(found: &Found) -> Result<()> {
    let lost = number(&found.before, LONG, "/difference/loss/mean")?;
    let [gained, error] = ["mean", "standard_error"]
        .map(|what| number(&found.after, LONG, &format!("/difference/loss/{what}")));
    let (gained, error) = (-gained?, error?);
    if !(lost >= DEGRADATION) {
        bail!(
            "before the extension, {LONG} tokens have {lost:.3} nats more loss than {SHORT}; at least {DEGRADATION} were expected"
        );
    }
    if !(gained > STANDARD_ERRORS * error) {
        bail!(
            "after the extension, {LONG} tokens have {gained:.4} nats less loss than {SHORT}; more than {STANDARD_ERRORS} times {error:.4} were expected"
        );
    }
    Ok(())
}

/// Writes the evaluations, and the figure of the README.
fn record(found: &Found) -> Result<()> {
    let folder = root().join("experiments/results/extension");
    fs::create_dir_all(&folder)?;
    let mut series = Vec::new();
    for (name, evaluation) in [("before", &found.before), ("after", &found.after)] {
        // Paths must not depend on the machine.
        let text = serde_json::to_string_pretty(evaluation)?;
        let text = text.replace(&format!("{}/", root().display()), "");
        fs::write(folder.join(format!("{name}.json")), text + "\n")?;
        let mut points = Vec::new();
        for tokens in LENGTHS {
            let y = number(evaluation, tokens, "/loss/mean")?;
            let error = number(evaluation, tokens, "/loss/standard_error")?;
            points.push(Point { x: tokens as f64, y, error });
        }
        series.push(Series { name: format!("{name} the extension"), points, ..Series::default() });
    }
    let curves = Curves {
        title: "a book that was not trained on".to_owned(),
        x: Axis::logarithmic("tokens read"),
        y: Axis::plain("loss in nats, with standard errors"),
        series,
    };
    fs::write(folder.join("loss-by-length.svg"), curves.picture().to_svg())?;
    Ok(())
}
