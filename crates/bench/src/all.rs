//! Every comparison that is promised, one after the other: `all`.
//!
//! Each is a command of this program, run as one, so that none inherits the memory or the threads of
//! another; `--list` prints them.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::arguments;
use crate::record::{print, quoted};
use crate::session::Verdict;
use crate::subject::Fields;

/// Times a peer's time that a split step may take.
const COST: f64 = 1.08;
/// Share of a full attention that a causal one may take.
const CAUSAL: f64 = 0.56;
/// Share of the processor's peak that is wanted.
const OF_PEAK: f64 = 0.80;

/// A command of this program, and what must come of it.
#[derive(Clone, Debug)]
struct Comparison {
    name: String,
    words: Vec<String>,
    at_least: Option<f64>,
}

/// Runs what is asked for, and prints what came of it.
pub(crate) fn run(arguments: &arguments::All) -> Result<Verdict> {
    let all = comparisons(arguments);
    let chosen: Vec<_> = all.into_iter().filter(|one| one.name.contains(&arguments.only)).collect();
    if chosen.is_empty() {
        bail!("no comparison's name contains `{}`; `--list` prints them", arguments.only);
    }
    let mut missed = Vec::new();
    let mut lines = Vec::new();
    for comparison in &chosen {
        if arguments.list {
            print(&comparison.listed());
            continue;
        }
        let line = comparison.run()?;
        if line["met"] == json!(false) {
            missed.push(comparison.name.as_str());
        }
        lines.push(line);
    }
    lines.iter().for_each(print);
    if missed.is_empty() {
        return Ok(Verdict::Fine);
    }
    Ok(Verdict::Missed(format!("{} of {}: {}", missed.len(), chosen.len(), missed.join(", "))))
}

impl Comparison {
    fn listed(&self) -> Fields {
        let words: Vec<String> = self.words.iter().map(|word| quoted(word)).collect();
        let mut fields = Fields::new();
        fields.insert("comparison".into(), json!(self.name));
        fields.insert("command".into(), json!(format!("cargo xtask bench {}", words.join(" "))));
        fields
    }

    /// Runs it, hands on what it prints, and keeps the last line.
    fn run(&self) -> Result<Fields> {
        print(&self.listed());
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.args(&self.words).stdout(Stdio::piped()).spawn()?;
        let mut last = Fields::new();
        let output = child.stdout.take().context("a child without output")?;
        for line in BufReader::new(output).lines() {
            if let Ok(Value::Object(fields)) = serde_json::from_str(&line?) {
                print(&fields);
                last = fields;
            }
        }
        let status = child.wait()?;
        let mut line = Fields::new();
        line.insert("comparison".into(), json!(self.name));
        for key in ["ratio", "low", "high", "pairs", "of_peak", "uneven", "from_plan"] {
            line.extend(last.get(key).map(|value| (key.to_owned(), value.clone())));
        }
        line.insert("wanted".into(), json!(self.at_least));
        line.insert("met".into(), json!(status.success()));
        Ok(line)
    }
}

/// All of them. Counts are words as one types them.
fn comparisons(arguments: &arguments::All) -> Vec<Comparison> {
    let mut all = attention(arguments);
    all.extend(kernel(arguments));
    all.extend(steps(arguments));
    all.extend(rings(arguments));
    let memory = ["memory", "--flat", "0.03", "--planned", "0.10"].map(str::to_owned);
    all.push(Comparison { name: "memory".into(), words: memory.to_vec(), at_least: None });
    if let Some(record) = &arguments.record {
        for comparison in &mut all {
            comparison.words.extend(["--record".to_owned(), record.clone()]);
        }
    }
    all
}

/// A comparison in pairs; `words` with spaces between.
fn pairs(
    arguments: &arguments::All,
    name: String,
    words: &str,
    against: Option<String>,
    at_least: Option<f64>,
) -> Comparison {
    let mut words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    words.extend(["--pairs".to_owned(), arguments.pairs.to_string()]);
    words.extend(against.into_iter().flat_map(|command| ["--against".to_owned(), command]));
    words.extend(
        at_least.into_iter().flat_map(|least| ["--at-least".to_owned(), least.to_string()]),
    );
    Comparison { name, words, at_least }
}

/// A peer's script with its arguments, to be served.
fn peer(arguments: &arguments::All, script: &str, words: &str) -> String {
    let script = arguments.peers.join(script);
    let [python, script] = [&arguments.python, &script].map(|path| quoted(&path.to_string_lossy()));
    format!("{python} {script} {words} --threads {} --serve", annulus_machine::cores())
}

/// The kernel against PyTorch's.
fn attention(arguments: &arguments::All) -> Vec<Comparison> {
    let mut all = Vec::new();
    for (dtype, groups, pass, mask, least) in wanted_of_attention() {
        for dim in [64, 128] {
            for tokens in [4096, 8192, 16384] {
                let words = format!(
                    "attention --tokens {tokens} --head-dim {dim} --kv-heads {groups} \
                     --mask {mask} --dtype {dtype} --pass {pass}"
                );
                let mode = if pass == "both" { "fwdbwd" } else { "fwd" };
                let theirs = format!(
                    "--n {tokens} --d {dim} --hkv {groups} --mask {mask} --dtype {dtype} --mode {mode}"
                );
                let theirs = peer(arguments, "bench_sdpa.py", &theirs);
                let name = format!("sdpa/{dtype}/{mask}/{pass}/kv{groups}/d{dim}/{tokens}");
                all.push(pairs(arguments, name, &words, Some(theirs), Some(least)));
            }
        }
    }
    all
}

/// The kernel against the processor's peak, and causal against full.
fn kernel(arguments: &arguments::All) -> Vec<Comparison> {
    let mut all = Vec::new();
    for (pass, mask) in
        [("forward", "full"), ("forward", "causal"), ("both", "full"), ("both", "causal")]
    {
        for (dim, tokens) in [(64, 4096), (64, 16384), (128, 4096), (128, 16384)] {
            let words = format!(
                "attention --tokens {tokens} --head-dim {dim} --mask {mask} --pass {pass} --samples {} --at-least {OF_PEAK}",
                arguments.pairs
            );
            let words = words.split_whitespace().map(str::to_owned).collect();
            let name = format!("peak/{mask}/{pass}/d{dim}/{tokens}");
            all.push(Comparison { name, words, at_least: Some(OF_PEAK) });
        }
    }
    for pass in ["forward", "both"] {
        let words = format!("attention --tokens 16k --pass {pass}");
        let own = std::env::current_exe().unwrap_or_default();
        let full = format!("{} {words} --mask full --serve", quoted(&own.to_string_lossy()));
        let name = format!("causal-to-full/{pass}");
        all.push(pairs(arguments, name, &words, Some(full), Some(1.0 / CAUSAL)));
    }
    all
}

/// dtype, key/value heads, pass, mask, and how many times PyTorch's speed.
fn wanted_of_attention() -> Vec<(&'static str, usize, &'static str, &'static str, f64)> {
    let mut all = Vec::new();
    for groups in [8, 2] {
        all.push(("f32", groups, "forward", "causal", 2.3));
        all.push(("f32", groups, "forward", "full", 2.1));
        all.push(("f32", groups, "both", "causal", 2.1));
        all.push(("f32", groups, "both", "full", 2.1));
    }
    for mask in ["causal", "full"] {
        all.push(("bf16", 8, "forward", mask, 1.8));
        all.push(("bf16", 8, "both", mask, 1.5));
    }
    all
}

/// The training step against transformers and against JAX.
fn steps(arguments: &arguments::All) -> Vec<Comparison> {
    let mut all = Vec::new();
    for (tokens, transformers, jax) in [(4096, 1.6, 4.0), (16384, 1.9, 8.0)] {
        for (recompute, checkpoint) in [("none", ""), ("layer", "--ckpt")] {
            let words = format!("step --tokens {tokens} --recompute {recompute}");
            let python = quoted(&arguments.python.to_string_lossy());
            let against = format!("{words} --against-transformers --python {python}");
            let name = format!("step/transformers/{recompute}/{tokens}");
            all.push(pairs(arguments, name, &against, None, Some(transformers)));
            let theirs = format!("--impl jax --seq {tokens} {checkpoint}");
            let theirs = peer(arguments, "bench_train.py", &theirs);
            let name = format!("step/jax/{recompute}/{tokens}");
            all.push(pairs(arguments, name, &words, Some(theirs), Some(jax)));
        }
    }
    all
}

/// Split attention against other packages, and strategies against each other.
fn rings(arguments: &arguments::All) -> Vec<Comparison> {
    let mut all = Vec::new();
    let words = "ring --tokens 16k --ranks 4 --strategy striped --pass both";
    let theirs = peer(arguments, "bench_jax_ring.py", "--p 4 --n 16384 --mode fwdbwd");
    all.push(pairs(arguments, "ring/jax/16384".into(), words, Some(theirs), Some(4.0)));
    for (strategy, package) in [("ring", "lucid-ring"), ("striped", "lucid-striped")] {
        let words = format!("ring --tokens 4k --ranks 4 --strategy {strategy} --pass both");
        let theirs = format!("--impl {package} --p 4 --n 4096 --mode fwdbwd");
        let theirs = peer(arguments, "bench_torch_dist.py", &theirs);
        let name = format!("ring/{package}/4096");
        all.push(pairs(arguments, name, &words, Some(theirs), Some(8.0)));
    }
    for ranks in [2, 4, 8] {
        for strategy in ["striped", "megatron", "ring"] {
            let words =
                format!("ring --part step --tokens 16k --ranks {ranks} --strategy {strategy}");
            // With more ranks than cores there is something to see, but nothing was promised.
            let least = (ranks < 8).then_some(1.0 / COST);
            let name = format!("split-step/{strategy}/{ranks}");
            all.push(pairs(arguments, name, &words, None, least));
        }
    }
    let (ranks, least) = if annulus_machine::cores() >= 4 { (4, 1.5) } else { (2, 1.3) };
    for strategy in ["striped", "megatron"] {
        let words = format!(
            "ring --tokens 32k --ranks {ranks} --strategy {strategy} --threads {ranks} --apart"
        );
        let name = format!("balance/{strategy}/{ranks}");
        all.push(pairs(arguments, name, &words, None, Some(least)));
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use clap::Parser;

    use super::*;
    use crate::arguments::Arguments;

    #[test]
    fn every_comparison_has_a_name_of_its_own_and_can_be_typed() -> Result<()> {
        let arguments = arguments::All {
            peers: PathBuf::from("the peers"),
            python: PathBuf::from("venv/bin/python"),
            only: String::new(),
            list: true,
            pairs: 3,
            record: Some("noted".to_owned()),
        };
        let all = comparisons(&arguments);
        for comparison in &all {
            let words = ["bench".to_owned()].into_iter().chain(comparison.words.clone());
            Arguments::try_parse_from(words).with_context(|| comparison.name.clone())?;
        }
        let names: BTreeSet<&str> = all.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names.len(), all.len());
        let listed = all[0].listed()["command"].to_string();
        assert!(
            listed.contains("venv/bin/python '\\\\''the peers/bench_sdpa.py'\\\\'' --n 4096"),
            "{listed}"
        );
        Ok(())
    }
}
