//! Every test program of the workspace, two at a time: cargo runs one after the other, and the half of each that waits (for processes,
//! deadlines, its last test) leaves cores idle.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::tool;

/// How many run at a time.
const LANES: usize = 2;

/// Packages whose tests take longest.
const LONGEST: [&str; 4] = ["tests", "crates/attention", "crates/ops", "crates/train"];

/// A program of tests, and the folder of its package, where cargo would run it.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    folder: PathBuf,
    file: PathBuf,
}

/// Runs the test programs that `command`, of cargo, builds; all of them, whichever fail.
///
/// # Errors
/// When one failed.
pub(crate) fn run(command: Command) -> Result<()> {
    let programs = in_order(tool::messages(command)?.iter().filter_map(program));
    let left = Mutex::new(programs.iter());
    let next = || left.lock().ok()?.next();
    let lane = || {
        let mut failed = Vec::new();
        while let Some(program) = next() {
            if !program.passes()? {
                failed.push(program.shown());
            }
        }
        Ok(failed)
    };
    let lanes: Vec<Result<Vec<String>>> = thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(lane)).collect();
        let joined =
            lanes.into_iter().map(|lane| lane.join().unwrap_or_else(|_| bail!("panicked")));
        joined.collect()
    });
    let failed = lanes.into_iter().collect::<Result<Vec<_>>>()?.concat();
    if !failed.is_empty() {
        bail!("{} of {} test programs failed: {}", failed.len(), programs.len(), failed.join(", "));
    }
    Ok(())
}

/// The test program that a message of cargo's names.
fn program(message: &Value) -> Option<Program> {
    if message["profile"]["test"] != true {
        return None;
    }
    let file = PathBuf::from(message["executable"].as_str()?);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    Some(Program { folder, file })
}

/// The longest first.
fn in_order(programs: impl Iterator<Item = Program>) -> Vec<Program> {
    let mut programs: Vec<Program> = programs.collect();
    let rank = |program: &Program| {
        let own = LONGEST.iter().position(|folder| program.folder.ends_with(folder));
        own.unwrap_or(LONGEST.len())
    };
    programs.sort_by_key(rank);
    programs
}

impl Program {
    /// Runs it, and prints all it says where it fails; else how many tests passed, and what they skipped.
    fn passes(&self) -> Result<bool> {
        tool::say(&format!("{}: begins", self.shown()));
        let start = Instant::now();
        let Output { status, stdout, stderr } = Command::new(&self.file)
            .arg("--show-output")
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .output()
            .with_context(|| format!("cannot start `{}`", self.file.display()))?;
        let [stdout, stderr] =
            [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let said = if status.success() { summary(&stdout) } else { format!("{stdout}{stderr}") };
        let took = start.elapsed().as_secs_f64();
        tool::say(&format!("{} ({took:.1} s): {}", self.shown(), said.trim_end()));
        Ok(status.success())
    }

    /// As `crates/ops all`.
    fn shown(&self) -> String {
        let folder = self.folder.strip_prefix(crate::root()).unwrap_or(&self.folder);
        let name = self.file.file_name().unwrap_or_default().to_string_lossy();
        let name = name.rsplit_once('-').map_or(&*name, |(name, _)| name);
        format!("{} {name}", folder.display())
    }
}

/// What came of the tests of a program, and lines of theirs that say what was skipped.
fn summary(stdout: &str) -> String {
    let skipped = |line: &&str| line.to_lowercase().starts_with("skipped");
    let result =
        stdout.lines().find_map(|line| line.strip_prefix("test result: ")).unwrap_or("no result");
    std::iter::once(result).chain(stdout.lines().filter(skipped)).collect::<Vec<_>>().join("\n  ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(folder: &str, is_test: bool) -> Value {
        json!({
            "reason": "compiler-artifact", "manifest_path": format!("/w/{folder}/Cargo.toml"),
            "profile": {"test": is_test}, "executable": format!("/w/target/debug/deps/{folder}-0a"),
        })
    }

    #[test]
    fn programs_of_tests_are_run_and_the_longest_come_first() {
        let messages =
            [message("crates/data", true), message("crates/cli", false), message("tests", true)];
        let found = in_order(messages.iter().filter_map(program));
        let folders: Vec<_> = found.iter().map(|program| program.folder.as_path()).collect();
        assert_eq!(folders, [Path::new("/w/tests"), Path::new("/w/crates/data")]);
        assert_eq!(program(&json!({"reason": "build-finished", "success": true})), None);
    }

    #[test]
    fn what_was_skipped_is_said() {
        let stdout = "\nrunning 1 test\ntest a ... ok\n\nsuccesses:\n\n---- a stdout ----\nSKIPPED: no GPU\n\ntest result: ok. 1 passed; 0 failed\n";
        assert_eq!(summary(stdout), "ok. 1 passed; 0 failed\n  SKIPPED: no GPU");
    }
}
