//! The measuring program, run as it is typed.

mod arguments;
mod measuring;
mod peers;

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;

/// The end of a run.
struct Ended {
    code: Option<i32>,
    /// Lines of JSON on standard output.
    lines: Vec<Value>,
    messages: String,
}

/// Runs the program on words with spaces between and some that may hold spaces, with `input` to read.
fn run_with(words: &str, more: &[&str], input: &str) -> Result<Ended> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_annulus-bench"))
        .args(words.split_whitespace().chain(more.iter().copied()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    // A program that refuses its arguments reads nothing.
    let _ = child.stdin.take().context("no input")?.write_all(input.as_bytes());
    let output = child.wait_with_output()?;
    let text = String::from_utf8(output.stdout)?;
    let objects = text.lines().filter(|line| line.starts_with('{'));
    let lines = objects.map(serde_json::from_str).collect::<Result<_, _>>()?;
    let messages = String::from_utf8(output.stderr)?;
    Ok(Ended { code: output.status.code(), lines, messages })
}

fn run(words: &str) -> Result<Ended> {
    run_with(words, &[], "")
}

/// The line of one small attention, measured as `words` say.
const SMALL: &str = "attention --tokens 16 --heads 2 --head-dim 4 --threads 1";
