//! `annulus doctor`: what this machine offers, and what is missing.

use std::env;
use std::io::{self, Read, Seek};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use annulus_comm::World;
use annulus_files::free_space;
use annulus_hub::Options;
use annulus_text::size;
use clap::Args;
use serde_json::json;

use crate::failure::Failure;
use crate::{Done, print};

#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// Initialize MPI and print its thread level; a process can do so only once, and may be ended by it
    #[arg(long, hide = true)]
    begin_mpi: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Doctor) -> Done {
    if arguments.begin_mpi {
        let level = World::thread_level().map_err(|error| Failure::usage(error.what, error.why))?;
        print::line(level)?;
        return Ok(0);
    }
    let mut lines = vec![("annulus".to_owned(), env!("CARGO_PKG_VERSION").to_owned())];
    lines.extend(annulus_train::described_machine());
    let more = [
        ("memory", memory()),
        ("disk", disk(Path::new("."))),
        ("MPI", mpi()),
        ("NCCL", nccl()),
        ("hub's cache", cache()),
    ];
    lines.extend(more.map(|(name, found)| (name.to_owned(), found)));
    let value = || lines.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    let row = |(name, found): &(String, String)| {
        annulus_text::wrapped(&format!("{name:<WIDTH$}{found}"), WIDTH)
    };
    let text = || lines.iter().map(row).collect::<Vec<_>>().join("\n");
    print::either(arguments.json, value, text)?;
    Ok(0)
}

/// The width of the column of names.
const WIDTH: usize = 14;
const UNKNOWN: &str = "unknown";

/// How much memory this process may use.
fn memory() -> String {
    let there = annulus_machine::memory();
    let said = |limit: annulus_machine::Limit| format!("{} {}", limit.by, size(limit.bytes));
    there.map_or_else(|| UNKNOWN.to_owned(), said)
}

/// The free space of a folder's disk.
fn disk(folder: &Path) -> String {
    let free = free_space(folder).map_or_else(|| UNKNOWN.to_owned(), size);
    format!("{free} free in the current folder")
}

/// The folder where models of the Hugging Face Hub are cached. The hub itself is not contacted.
fn cache() -> String {
    match Options::from_environment() {
        Ok(options) => {
            let free = free_space(&options.cache).map_or_else(|| UNKNOWN.to_owned(), size);
            let offline =
                if options.offline { "; nothing is fetched: `HF_HUB_OFFLINE`" } else { "" };
            format!("{} ({free} free){offline}; set `HF_HOME` for another", options.cache.display())
        }
        Err(error) => error.to_string(),
    }
}

/// How long MPI may take to initialize and finalize.
const BEGINNING: Duration = Duration::from_secs(10);
/// How often that is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The MPI library that would join processes here, and its thread level.
fn mpi() -> String {
    let engine = match World::engine() {
        Ok(engine) => engine,
        Err(error) => return format!("none: {}; {}", error.what, error.why),
    };
    // Some libraries end the process that initializes them instead of returning an error.
    let begun = env::current_exe().and_then(|own| {
        let mut command = Command::new(own);
        command.args(["doctor", "--begin-mpi"]);
        answer(&mut command, BEGINNING)
    });
    match begun {
        Ok(Ok(level)) => format!("{engine}, {level}"),
        Ok(Err(why)) => format!("{engine}; it does not initialize: {why}"),
        Err(error) => format!("{engine}; whether it initializes is unknown: {error}"),
    }
}

/// The NCCL library that would send tensors between GPUs of different processes.
fn nccl() -> String {
    World::nccl_here().unwrap_or_else(|error| format!("none: {}; {}", error.what, error.why))
}

/// The output of a program, or how it failed, with its error messages.
fn answer(command: &mut Command, limit: Duration) -> io::Result<Result<String, String>> {
    // Files, not pipes: processes that it leaves running would hold pipes open.
    let [mut out, mut talk] = [tempfile::tempfile()?, tempfile::tempfile()?];
    command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(talk.try_clone()?);
    let (mut child, begun) = (command.spawn()?, Instant::now());
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if begun.elapsed() > limit {
            // Fails if it has ended just now.
            let _ = child.kill();
            let _ = child.wait();
            break None;
        }
        sleep(POLL_INTERVAL);
    };
    let read = |file: &mut std::fs::File| -> io::Result<String> {
        let mut bytes = Vec::new();
        file.rewind()?;
        file.take(LONGEST).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    let (said, talked) = (read(&mut out)?, read(&mut talk)?);
    let talked: String = talked.split_whitespace().collect::<Vec<_>>().join(" ");
    // This program's own error follows the messages of a library.
    let own = talked.rfind("error: ").unwrap_or(0);
    let talked: String = talked[own..].chars().take(SHOWN).collect();
    let why = if talked.is_empty() { talked } else { format!(" ({talked})") };
    Ok(match status.map(|status| status.success()) {
        Some(true) => Ok(said),
        Some(false) => Err(format!("{}{why}", status.unwrap_or_default())),
        None => Err(format!("it took longer than {} s{why}", limit.as_secs_f32())),
    })
}

/// The most bytes of output that are read, and the most characters of error messages that are shown.
const LONGEST: u64 = 1 << 16;
const SHOWN: usize = 400;

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn asked_within(limit: Duration, script: &str) -> Result<String, String> {
        answer(Command::new("sh").args(["-c", script]), limit).expect("a shell")
    }

    /// With more time than a shell takes to start on a busy machine.
    fn asked(script: &str) -> Result<String, String> {
        asked_within(Duration::from_secs(60), script)
    }

    #[test]
    fn a_program_answers_or_its_end_is_told() {
        assert_eq!(asked("echo MPI_THREAD_FUNNELED").unwrap(), "MPI_THREAD_FUNNELED");
        let failed = asked("echo first >&2; echo no network >&2; exit 3").unwrap_err();
        assert_eq!(failed, "exit status: 3 (first no network)");
        let own =
            asked("echo a library >&2; echo error: the other family >&2; exit 2").unwrap_err();
        assert_eq!(own, "exit status: 2 (error: the other family)");
        assert!(asked("kill -9 $$").unwrap_err().contains("signal: 9"));
    }

    #[test]
    fn one_that_does_not_end_is_not_waited_for() {
        let begun = Instant::now();
        // Its child outlives it, and holds what it was given.
        let ended = asked_within(Duration::from_millis(500), "sleep 20 & wait");
        assert_eq!(ended.unwrap_err(), "it took longer than 0.5 s");
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}
