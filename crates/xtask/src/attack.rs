//! Hostile cases, tried on the program that is built here.

use std::ffi::OsString;

use anyhow::Result;
use clap::Args;

use crate::{fuzz, tool};

#[derive(Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct Arguments {
    /// Families (files, results, others, faults, resources, terminal, network), or beginnings of cases' names; with --fuzz: readers; none: all
    names: Vec<String>,
    /// Accidents as often as they are to be shown, twenty times and more each; else once
    #[arg(long)]
    long: bool,
    /// The few cases that every test run tries
    #[arg(long)]
    short: bool,
    /// Readers under a fuzzer, not the program
    #[arg(long)]
    fuzz: bool,
    /// Inputs of each reader
    #[arg(long, default_value_t = 1_000_000)]
    runs: u64,
    /// What random moments are drawn from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the table is written, too
    #[arg(long)]
    out: Option<std::path::PathBuf>,
    /// The program as `cargo build` makes it, not `--release`
    #[arg(long)]
    dev: bool,
}

/// Builds the program and those who attack it; fails where a case does.
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
