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
use crate::subject::{Fields, fields};

/// A split step's time as a multiple of the unsplit one's, at most.
const COST: f64 = 1.08;
/// The fraction of a full attention's time that a causal one may take.
const CAUSAL: f64 = 0.56;
/// The fraction of the processor's peak that is wanted.
const OF_PEAK: f64 = 0.80;

/// A command of this program, and the bound on its result.
#[derive(Clone, Debug)]
struct Comparison {
    name: String,
    words: Vec<String>,
    at_least: Option<f64>,
}

/// Runs the chosen comparisons, and prints their results.
pub(crate) fn run(arguments: &arguments::All) -> Result<Verdict> {
    let mut chosen = comparisons(arguments);
    chosen.retain(|one| one.name.contains(&arguments.only));
    if chosen.is_empty() {
        bail!("no comparison's name contains `{}`; `--list` prints them", arguments.only);
    }
    if arguments.list {
        for comparison in &chosen {
            print(&comparison.listed());
        }
        return Ok(Verdict::Fine);
    }
    let lines = chosen.iter().map(Comparison::run).collect::<Result<Vec<_>>>()?;
    lines.iter().for_each(print);
    let missed = std::iter::zip(&chosen, lines).filter(|(_, line)| line["met"] == json!(false));
    let missed: Vec<&str> = missed.map(|(comparison, _)| comparison.name.as_str()).collect();
    if missed.is_empty() {
        return Ok(Verdict::Fine);
    }
    Ok(Verdict::Missed(format!("{} of {}: {}", missed.len(), chosen.len(), missed.join(", "))))
}

impl Comparison {
    /// A comparison with a bound; `words` with spaces between.
    fn new(name: String, words: &str, at_least: Option<f64>) -> Comparison {
        let mut words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        words.extend(
            at_least.into_iter().flat_map(|least| ["--at-least".into(), least.to_string()]),
        );
        Comparison { name, words, at_least }
    }

    fn listed(&self) -> Fields {
        let words: Vec<String> = self.words.iter().map(|word| quoted(word)).collect();
        let command = format!("cargo xtask bench {}", words.join(" "));
        fields(json!({ "comparison": self.name, "command": command }))
    }

    /// Runs the command, printing its lines; returns the last one, with the bound.
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
        let mut line = fields(json!({ "comparison": self.name }));
        for key in ["ratio", "low", "high", "pairs", "of_peak", "uneven", "from_plan"] {
            line.extend(last.get(key).map(|value| (key.to_owned(), value.clone())));
        }
        line.extend(fields(json!({ "wanted": self.at_least, "met": status.success() })));
        Ok(line)
    }
}

/// All comparisons, with words as they are typed.
fn comparisons(arguments: &arguments::All) -> Vec<Comparison> {
    let mut all = attention(arguments);
    all.extend(kernel(arguments));
    all.extend(steps(arguments));
    all.extend(rings(arguments));
    all.push(Comparison::new("memory".into(), "memory --flat 0.03 --planned 0.10", None));
    if let Some(record) = &arguments.record {
        for comparison in &mut all {
            comparison.words.extend(["--record".to_owned(), record.clone()]);
        }
    }
    all
}

impl arguments::All {
    /// A comparison in pairs; `words` with spaces between.
    fn pairs(&self, name: String, words: &str, at_least: Option<f64>) -> Comparison {
        Comparison::new(name, &format!("{words} --pairs {}", self.pairs), at_least)
    }

    /// A comparison in pairs with another program.
    fn against(&self, name: String, words: &str, command: String, at_least: f64) -> Comparison {
        let mut comparison = self.pairs(name, words, Some(at_least));
        comparison.words.extend(["--against".to_owned(), command]);
        comparison
    }

    /// A comparison in pairs with a peer's script on its arguments.
    fn peer(
        &self,
        name: String,
        words: &str,
        script: &str,
        theirs: &str,
        least: f64,
    ) -> Comparison {
        let script = self.peers.join(script);
        let [python, script] = [&self.python, &script].map(|path| quoted(&path.to_string_lossy()));
        let cores = annulus_machine::cores();
        let command = format!("{python} {script} {theirs} --threads {cores} --serve");
        self.against(name, words, command, least)
    }
}

/// Dtype, KV heads, pass, mask, and the wanted speed as a multiple of PyTorch's.
const ATTENTION: [(&str, usize, &str, &str, f64); 12] = [
    ("f32", 8, "forward", "causal", 2.3),
    ("f32", 8, "forward", "full", 2.1),
    ("f32", 8, "both", "causal", 2.1),
    ("f32", 8, "both", "full", 2.1),
    ("f32", 2, "forward", "causal", 2.3),
    ("f32", 2, "forward", "full", 2.1),
    ("f32", 2, "both", "causal", 2.1),
    ("f32", 2, "both", "full", 2.1),
    ("bf16", 8, "forward", "causal", 1.8),
    ("bf16", 8, "both", "causal", 1.5),
    ("bf16", 8, "forward", "full", 1.8),
    ("bf16", 8, "both", "full", 1.5),
];

/// Comparisons of the attention kernel with PyTorch's.
fn attention(arguments: &arguments::All) -> Vec<Comparison> {
    let mut all = Vec::new();
    for (dtype, groups, pass, mask, least) in ATTENTION {
        for (dim, tokens) in every([64, 128], [4096, 8192, 16384]) {
            let words = format!(
                "attention --tokens {tokens} --head-dim {dim} --kv-heads {groups} --mask {mask} \
                 --dtype {dtype} --pass {pass}"
            );
            let mode = if pass == "both" { "fwdbwd" } else { "fwd" };
            let theirs = format!(
                "--n {tokens} --d {dim} --hkv {groups} --mask {mask} --dtype {dtype} --mode {mode}"
            );
            let name = format!("sdpa/{dtype}/{mask}/{pass}/kv{groups}/d{dim}/{tokens}");
            all.push(arguments.peer(name, &words, "bench_sdpa.py", &theirs, least));
        }
    }
    all
}

/// Comparisons of the attention kernel with the processor's peak, and of causal with full attention.
fn kernel(arguments: &arguments::All) -> Vec<Comparison> {
    let mut all = Vec::new();
    let samples = arguments.pairs;
    for (pass, mask) in every(["forward", "both"], ["full", "causal"]) {
        for (dim, tokens) in every([64, 128], [4096, 16384]) {
            let words = format!(
                "attention --tokens {tokens} --head-dim {dim} --mask {mask} --pass {pass} --samples {samples}"
            );
            let name = format!("peak/{mask}/{pass}/d{dim}/{tokens}");
            all.push(Comparison::new(name, &words, Some(OF_PEAK)));
        }
    }
    for pass in ["forward", "both"] {
        let words = format!("attention --tokens 16k --pass {pass}");
        let own = std::env::current_exe().unwrap_or_default();
        let full = format!("{} {words} --mask full --serve", quoted(&own.to_string_lossy()));
        let name = format!("causal-to-full/{pass}");
        all.push(arguments.against(name, &words, full, 1.0 / CAUSAL));
    }
    all
}

/// Comparisons of the training step with transformers and with JAX.
fn steps(arguments: &arguments::All) -> Vec<Comparison> {
    let mut all = Vec::new();
    for (tokens, transformers, jax) in [(4096, 1.6, 4.0), (16384, 1.9, 8.0)] {
        for (recompute, checkpoint) in [("none", ""), ("layer", "--ckpt")] {
            let words = format!("step --tokens {tokens} --recompute {recompute}");
            let name = format!("step/transformers/{recompute}/{tokens}");
            let mut step = arguments.pairs(name, &words, Some(transformers));
            let python = arguments.python.to_string_lossy().into_owned();
            step.words.extend(["--against-transformers".into(), "--python".into(), python]);
            all.push(step);
            let theirs = format!("--impl jax --seq {tokens} {checkpoint}");
            let name = format!("step/jax/{recompute}/{tokens}");
            all.push(arguments.peer(name, &words, "bench_train.py", &theirs, jax));
        }
    }
    all
}

/// Comparisons of split attention with other packages, and of strategies with each other.
fn rings(arguments: &arguments::All) -> Vec<Comparison> {
    let mut all = Vec::new();
    let words = "ring --tokens 16k --ranks 4 --strategy striped --pass both";
    let theirs = "--p 4 --n 16384 --mode fwdbwd";
    all.push(arguments.peer("ring/jax/16384".into(), words, "bench_jax_ring.py", theirs, 4.0));
    for (strategy, package) in [("ring", "lucid-ring"), ("striped", "lucid-striped")] {
        let words = format!("ring --tokens 4k --ranks 4 --strategy {strategy} --pass both");
        let theirs = format!("--impl {package} --p 4 --n 4096 --mode fwdbwd");
        let name = format!("ring/{package}/4096");
        all.push(arguments.peer(name, &words, "bench_torch_dist.py", &theirs, 8.0));
    }
    for (ranks, strategy) in every([2, 4, 8], ["striped", "megatron", "ring"]) {
        let words = format!("ring --part step --tokens 16k --ranks {ranks} --strategy {strategy}");
        // With more ranks than cores there is something to see, but nothing was promised.
        let least = (ranks < 8).then_some(1.0 / COST);
        all.push(arguments.pairs(format!("split-step/{strategy}/{ranks}"), &words, least));
    }
    let (ranks, least) = if annulus_machine::cores() >= 4 { (4, 1.5) } else { (2, 1.3) };
    for strategy in ["striped", "megatron"] {
        let words = format!(
            "ring --tokens 32k --ranks {ranks} --strategy {strategy} --threads {ranks} --apart"
        );
        all.push(arguments.pairs(format!("balance/{strategy}/{ranks}"), &words, Some(least)));
    }
    all
}

/// Every pair of one of `first` and one of `second`.
fn every<A: Copy, B: Copy, const N: usize, const M: usize>(
    first: [A; N],
    second: [B; M],
) -> impl Iterator<Item = (A, B)> {
    first.into_iter().flat_map(move |a| second.into_iter().map(move |b| (a, b)))
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
