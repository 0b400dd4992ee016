//! Checks the dependencies between crates: the table here, as in `crates/README.md`, against `cargo metadata`.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use cargo_metadata::{DependencyKind, MetadataCommand, Package};

/// A crate, the crates of the workspace that it may depend on (separated by spaces), and whether it may use Candle.
struct Rule {
    name: &'static str,
    may: &'static str,
    candle: bool,
}

const fn rule(name: &'static str, candle: bool, may: &'static str) -> Rule {
    Rule { name, may, candle }
}

const RULES: &[Rule] = &[
    rule("sequence", false, "text"),
    rule("machine", false, ""),
    rule("memory", false, ""),
    rule("tensorboard", false, ""),
    rule("figure", false, "text"),
    rule("text", false, ""),
    rule("files", false, ""),
    rule("tensors", false, "files text"),
    rule("yaml", false, "files text"),
    rule("architecture", false, "yaml"),
    rule("trace", false, "figure sequence text"),
    rule("mpi", true, "machine"),
    rule("nccl", true, ""),
    rule("comm", true, "files machine memory mpi nccl"),
    rule("ops", true, "machine memory sequence"),
    rule("attention", true, "comm memory ops sequence trace"),
    rule("model", true, "architecture attention comm files machine ops sequence tensors trace"),
    rule("data", false, "files machine memory sequence tensors text"),
    rule("experiment", false, "architecture machine sequence yaml"),
    rule("plan", false, "architecture experiment machine memory sequence text yaml"),
    rule("simulate", false, "experiment figure machine memory plan sequence text trace yaml"),
    rule("hub", false, "files tensors"),
    rule(
        "train",
        true,
        "attention comm data experiment files machine memory model ops plan sequence simulate \
         tensorboard tensors text trace",
    ),
    rule("evaluation", true, "data experiment figure files model plan tensorboard train"),
    rule("report", false, "evaluation experiment figure memory plan simulate text trace train"),
    rule(
        "annulus",
        true,
        "attention comm data evaluation experiment figure hub machine model ops plan sequence simulate \
         tensorboard tensors trace train",
    ),
    rule(
        "cli",
        true,
        "attention comm data evaluation experiment figure files hub machine memory model ops plan report \
         sequence simulate tensors text trace train",
    ),
    rule(
        "bench",
        true,
        "attention comm data experiment files machine memory model mpi ops plan sequence simulate text train",
    ),
    rule("xtask", false, "figure machine"),
];

/// Crates that use only the standard library, but for what one system needs.
const STD_ONLY: &[&str] = &["machine", "memory", "sequence", "tensorboard", "text"];

/// Fails with every dependency that is not allowed.
pub(crate) fn run() -> Result<()> {
    let metadata = MetadataCommand::new().no_deps().exec()?;
    let mut wrong = Vec::new();
    for package in &metadata.packages {
        let name = package.name.strip_prefix("annulus-").unwrap_or(&package.name);
        match RULES.iter().find(|rule| rule.name == name) {
            Some(rule) => wrong.extend(breaches(rule, package)),
            None if name == "tests" => {}
            None => wrong.push(format!("`{name}` has no row in crates/xtask/src/arrows.rs")),
        }
    }
    if !wrong.is_empty() {
        bail!("dependency arrows\n  {}", wrong.join("\n  "));
    }
    Ok(())
}

fn breaches(rule: &Rule, package: &Package) -> Vec<String> {
    let normal = package.dependencies.iter().filter(|d| d.kind == DependencyKind::Normal);
    let names: BTreeSet<&str> = normal.clone().map(|found| found.name.as_str()).collect();
    let is_everywhere =
        |name: &str| normal.clone().any(|found| found.name == name && found.target.is_none());
    let mut wrong = Vec::new();
    for name in &names {
        if let Some(ours) = name.strip_prefix("annulus-") {
            if !rule.may.split(' ').any(|known| known == ours) {
                wrong.push(format!("`{}` must not depend on `{ours}`", rule.name));
            }
        } else if name.starts_with("candle") && !rule.candle {
            wrong.push(format!("`{}` must not depend on Candle (`{name}`)", rule.name));
        } else if STD_ONLY.contains(&rule.name) && is_everywhere(name) {
            wrong.push(format!("`{}` uses the standard library alone, not `{name}`", rule.name));
        }
    }
    wrong
}
