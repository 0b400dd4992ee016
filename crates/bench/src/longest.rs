//! Finds the longest sequence for which a step succeeds: `step --longest`.
//!
//! Every trial is this program again, so that none inherits the memory of another; with no input, `--serve` takes one step.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::arguments::{self, word};
use crate::record::{Record, print};
use crate::session::Verdict;
use crate::subject::{Fields, fields};

/// Prints a line for every trial, and one with the result.
pub(crate) fn run(arguments: &arguments::Step, nearest: usize) -> Result<Verdict> {
    let mut record = Record::open(arguments.common.record.as_deref())?;
    let start = (arguments.tokens[0] / nearest).max(1) * nearest;
    let (mut most, mut why) = (Fields::new(), Value::Null);
    let longest = search(start, nearest, |tokens| {
        let (fits, line) = trial(arguments, tokens)?;
        print(&line);
        if fits {
            most = line;
        } else {
            why = line["why"].clone();
        }
        Ok(fits)
    })?;
    if longest == 0 {
        bail!("not even {nearest} tokens: {}", why.as_str().unwrap_or_default());
    }
    let mut line = most;
    line.extend(fields(json!({ "longest": longest, "nearest": nearest, "beyond": why })));
    record.conclude(&line)?;
    Ok(Verdict::Fine)
}

/// The largest number that `fits`, a multiple of `nearest`, if none fits above one that does not; 0 if none does. `start` is tried
/// first, then doubled; then the gap is halved.
fn search(
    start: usize,
    nearest: usize,
    mut fits: impl FnMut(usize) -> Result<bool>,
) -> Result<usize> {
    let (mut largest, mut too_large, mut next) = (0, None, start);
    loop {
        if fits(next)? {
            largest = next;
        } else {
            too_large = Some(next);
        }
        next = match too_large {
            None => 2 * largest,
            Some(above) => largest + (above - largest) / 2 / nearest * nearest,
        };
        if next == largest {
            return Ok(largest);
        }
    }
}

/// Whether a step over `tokens` positions succeeds, and the fields that describe it.
fn trial(arguments: &arguments::Step, tokens: usize) -> Result<(bool, Fields)> {
    let mut command = Command::new(std::env::current_exe()?);
    let start = Instant::now();
    let output = command.args(words(arguments, tokens)).stdin(Stdio::null()).output();
    let output = output.context("cannot start a trial")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let ready = text.lines().find_map(|line| match serde_json::from_str(line) {
        Ok(Value::Object(fields)) if fields.contains_key("ready") => Some(fields),
        _ => None,
    });
    let fits = output.status.success() && ready.is_some();
    let mut line = ready.filter(|_| fits).unwrap_or_default();
    line.remove("ready");
    // Including the time for setting up.
    let seconds = start.elapsed().as_secs_f64();
    let found = json!({ "bench": "longest", "tokens": tokens, "fits": fits, "trial_s": seconds });
    line.extend(fields(found));
    if !fits {
        let said = String::from_utf8_lossy(&output.stderr);
        let why = said.lines().find_map(|line| line.strip_prefix("error: "));
        let why = why.map_or_else(|| output.status.to_string(), str::to_owned);
        line.insert("why".into(), Value::from(why));
    }
    Ok((fits, line))
}

/// The command line of one step over `tokens` positions.
fn words(arguments: &arguments::Step, tokens: usize) -> Vec<String> {
    let arguments::Step { model, recompute, offload, threads, ranks, strategy, .. } = arguments;
    let mut words = vec!["step".to_owned(), "--serve".to_owned()];
    let values = [
        ("--tokens", tokens.to_string()),
        ("--model", word(&model.size)),
        ("--layers", model.layers().to_string()),
        ("--dtype", word(&model.dtype)),
        ("--device", model.device.word()),
        ("--recompute", recompute.word().to_owned()),
        ("--offload", offload.word().to_owned()),
        ("--threads", threads.to_string()),
        ("--ranks", ranks.to_string()),
        ("--strategy", strategy.name().to_owned()),
    ];
    words.extend(values.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]));
    words.extend(model.deterministic.then(|| "--deterministic".to_owned()));
    words.extend(model.planned_chunks.then(|| "--planned-chunks".to_owned()));
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Command;

    fn step(words: &[String]) -> arguments::Step {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let Command::Step(step) = Command::of(&words) else { panic!("no step") };
        step
    }

    #[test]
    fn the_longest_is_found_from_either_side() -> Result<()> {
        for (start, most) in [(64, 200), (64, 64), (256, 200), (256, 9), (256, 7), (8, 1000)] {
            let mut tried = Vec::new();
            let found = search(start, 8, |tokens| {
                tried.push(tokens);
                Ok(tokens <= most)
            })?;
            assert_eq!(found, most / 8 * 8, "from {start}: {tried:?}");
            assert!(tried.len() <= 15 && tried.iter().all(|tokens| tokens % 8 == 0), "{tried:?}");
        }
        Ok(())
    }

    #[test]
    fn a_trial_is_the_same_step() {
        let typed = "step --longest 8k --tokens 64k --model 1b --layers 3 --dtype bf16 --device cuda:1 --recompute layer --offload both \
                     --threads 3 --ranks 2 --strategy ring --deterministic --planned-chunks";
        let typed: Vec<String> = typed.split_whitespace().map(str::to_owned).collect();
        let whole = step(&typed);
        let mut one = step(&words(&whole, 8192));
        assert!(one.common.serve && one.longest.is_none());
        one.common.serve = false;
        (one.tokens, one.longest) = (whole.tokens.clone(), whole.longest);
        assert_eq!(format!("{one:?}"), format!("{whole:?}"));
    }
}
