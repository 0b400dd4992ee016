//! `cargo xtask attack`: builds the program and tries hostile cases on it.

use std::ffi::OsString;

use anyhow::Result;
use clap::Args;

use crate::{fuzz, tool};

#[derive(Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct Arguments {
    /// Families (files, results, others, faults, resources, terminal, network), or prefixes of cases' names; with --fuzz: readers [default: all]
    names: Vec<String>,
    /// Repeat accidents twenty times or more each, instead of once
    #[arg(long)]
    long: bool,
    /// Try the few cases of every test run only
    #[arg(long)]
    short: bool,
    /// Fuzz the readers instead of running the program
    #[arg(long)]
    fuzz: bool,
    /// Number of inputs for each reader
    #[arg(long, default_value_t = 1_000_000)]
    runs: u64,
    /// Seed of random moments
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Also write the table to this file
    #[arg(long)]
    out: Option<std::path::PathBuf>,
    /// Try a debug build instead of a release build
    #[arg(long)]
    dev: bool,
}

/// Builds the program and the hostile cases, and fails if a case does.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if arguments.fuzz {
        let Arguments { names, runs, seed, out, .. } = arguments;
        return fuzz::run(names, *runs, *seed, out.as_deref());
    }
    let profile: &[&str] = if arguments.dev { &[] } else { &["--release"] };
    tool::cargo(&[&["build", "--package", "annulus-cli"], profile].concat())?;
    let features =
        ["--package", "annulus-tests", "--features", "attack", "--bin", "annulus-attack"];
    tool::cargo(&[&["build"], &features[..]].concat())?;
    let folder = if arguments.dev { "debug" } else { "release" };
    let mut words = vec![OsString::from(tool::program(folder, "annulus")?)];
    words.extend(arguments.names.iter().map(OsString::from));
    let flags = [("--long", arguments.long), ("--short", arguments.short)];
    words.extend(flags.iter().filter(|(_, set)| *set).map(|(flag, _)| OsString::from(flag)));
    words.extend(["--seed".into(), arguments.seed.to_string().into()]);
    if let Some(out) = &arguments.out {
        words.extend(["--out".into(), out.into()]);
    }
    tool::run(tool::program("debug", "annulus-attack")?, &words)
}
