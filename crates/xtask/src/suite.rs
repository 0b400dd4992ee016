//! Runs every test program of the workspace, one after the other, as cargo does, but also prints what tests skip, and repeats failures
//! at the end. Two at a time would take as long, since tests keep the cores busy, and deadlines would be missed.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::tool;

/// How many lines of a failed test are repeated.
const SHOWN: usize = 12;

/// A test program, and the folder of its package, in which cargo runs tests.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    folder: PathBuf,
    file: PathBuf,
}

/// Runs all test programs that `command`, a call of cargo, builds, even if some fail.
///
/// # Errors
/// The tests that failed, with the beginning of each failure.
pub(crate) fn run(command: Command) -> Result<()> {
    let messages = tool::messages(command)?;
    let mut failed = Vec::new();
    for program in messages.iter().filter_map(program) {
        failed.extend(program.run()?);
    }
    if !failed.is_empty() {
        bail!("{} test programs failed\n{}", failed.len(), failed.join("\n"));
    }
    Ok(())
}

/// The test program in a message of cargo.
fn program(message: &Value) -> Option<Program> {
    if message["profile"]["test"] != true {
        return None;
    }
    let file = PathBuf::from(message["executable"].as_str()?);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    Some(Program { folder, file })
}

impl Program {
    /// Runs it, and prints how many tests passed and what they skipped. If it fails, prints all its output and returns the failures.
    fn run(&self) -> Result<Option<String>> {
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
        let failed = || format!("{}: {status}\n{}", self.shown(), failures(&stdout));
        Ok((!status.success()).then(failed))
    }

    /// The name that is printed, such as `crates/ops all`.
    fn shown(&self) -> String {
        let folder = self.folder.strip_prefix(crate::root()).unwrap_or(&self.folder);
        let name = self.file.file_name().unwrap_or_default().to_string_lossy();
        let name = name.rsplit_once('-').map_or(&*name, |(name, _)| name);
        format!("{} {name}", folder.display())
    }
}

/// The result of a program's tests, and the lines that say what was skipped.
fn summary(stdout: &str) -> String {
    let skipped = |line: &&str| line.to_lowercase().starts_with("skipped");
    let result =
        stdout.lines().find_map(|line| line.strip_prefix("test result: ")).unwrap_or("no result");
    std::iter::once(result).chain(stdout.lines().filter(skipped)).collect::<Vec<_>>().join("\n  ")
}

/// The first lines of every failure.
fn failures(stdout: &str) -> String {
    let failures = stdout.split_once("\nfailures:\n").map_or("", |(_, failures)| failures);
    let own = |section: &str| {
        let (name, said) = section.split_once(" stdout ----\n")?;
        let said = said
            .lines()
            .skip_while(|line| !line.contains("panicked at") && !line.starts_with("Error: "));
        let said = said.take_while(|line| *line != "stack backtrace:").take(SHOWN);
        Some(std::iter::once(name).chain(said).collect::<Vec<_>>().join("\n    "))
    };
    failures.split("\n---- ").filter_map(own).collect::<Vec<_>>().join("\n")
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
    fn programs_of_tests_are_run() {
        let messages = [message("crates/data", true), message("crates/cli", false)];
        let found: Vec<_> = messages.iter().filter_map(program).collect();
        let file = PathBuf::from("/w/target/debug/deps/crates/data-0a");
        assert_eq!(found, [Program { folder: PathBuf::from("/w/crates/data"), file }]);
        assert_eq!(program(&json!({"reason": "build-finished", "success": true})), None);
    }

    #[test]
    fn what_was_skipped_is_said() {
        let stdout = "\nrunning 1 test\ntest a ... ok\n\nsuccesses:\n\n---- a stdout ----\nSKIPPED: no GPU\n\ntest result: ok. 1 passed; 0 failed\n";
        assert_eq!(summary(stdout), "ok. 1 passed; 0 failed\n  SKIPPED: no GPU");
    }

    #[test]
    fn what_failed_is_said_from_where_it_failed() {
        let stdout = "\nrunning 2 tests\ntest a ... FAILED\ntest b ... ok\n\nsuccesses:\n\n---- b stdout ----\nfine\n\nfailures:\n\n\
                      ---- a stdout ----\nbefore\nthread 'a' panicked at a.rs:1:2:\nnot 3\nstack backtrace:\n   0: main\n\n\nfailures:\n    a\n";
        assert_eq!(failures(stdout), "a\n    thread 'a' panicked at a.rs:1:2:\n    not 3");
    }
}
