//! The table at the end, and how to see every failure again.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// What came of all cases.
#[derive(Debug, Default)]
pub struct Report {
    pub(super) rows: Vec<Row>,
    pub(super) failures: Vec<Failure>,
}

/// A family in sum.
#[derive(Debug, Default)]
pub(super) struct Row {
    pub(super) family: &'static str,
    pub(super) cases: u64,
    pub(super) failed: u64,
    pub(super) slowest: Duration,
    pub(super) memory: u64,
}

/// A case that failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) case: String,
    pub(super) wrong: Vec<String>,
    pub(super) script: String,
    /// Where it was tried.
    pub(super) folder: Option<PathBuf>,
    pub(super) said: String,
}

impl Report {
    /// Whether something was tried, and nothing failed.
    pub fn is_clean(&self) -> bool {
        self.rows.iter().any(|row| row.cases > 0) && self.failures.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for failure in &self.failures {
            writeln!(f, "{failure}")?;
        }
        writeln!(f, "| family | cases | passed | failed | worst time | worst memory |")?;
        writeln!(f, "| --- | --- | --- | --- | --- | --- |")?;
        for Row { family, cases, failed, slowest, memory } in &self.rows {
            let (passed, seconds, memory) = (cases - failed, slowest.as_secs_f64(), memory >> 20);
            writeln!(
                f,
                "| {family} | {cases} | {passed} | {failed} | {seconds:.1} s | {memory} MB |"
            )?;
        }
        let sum = |of: fn(&Row) -> u64| self.rows.iter().map(of).sum::<u64>();
        let (cases, failed) = (sum(|row| row.cases), sum(|row| row.failed));
        writeln!(f, "| all | {cases} | {} | {failed} | | |", cases - failed)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "FAILED {}: {}", self.case, self.wrong.join("; "))?;
        if let Some(folder) = &self.folder {
            writeln!(f, "  cd {}", folder.display())?;
        }
        for line in self.script.lines().filter(|line| !line.is_empty()) {
            writeln!(f, "  {line}")?;
        }
        for line in self.said.lines().take(6) {
            let line: String = line.chars().take(200).collect();
            writeln!(f, "  > {}", line.escape_debug())?;
        }
        Ok(())
    }
}
