//! The command line of the attack, and going through the cases.

use std::process::ExitCode;

use super::report::{Failure, Report, Row};
use super::scene::Scene;
use super::{Case, Deed, FAMILIES};

/// Which cases are wanted.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// Families, or beginnings of cases' names; none: all.
    pub(super) names: Vec<String>,
    /// Only the few of every test run.
    pub(super) short: bool,
    /// Repeated ones as often as they say, not once.
    pub(super) long: bool,
    /// What random moments are drawn from.
    pub(super) seed: u64,
}

impl Wanted {
    fn is(&self, family: &str, case: &Case) -> bool {
        let named = |name: &String| name == family || case.name.starts_with(name.as_str());
        (self.names.is_empty() || self.names.iter().any(named)) && (case.is_short || !self.short)
    }
}

/// `annulus-attack PROGRAM [FAMILY|CASE …] [--long] [--seed N] [--out FILE]`.
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a program's output")]
pub fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let Some(program) = words.next() else {
        eprintln!("usage: annulus-attack PROGRAM [FAMILY|CASE …] [--long] [--seed N] [--out FILE]");
        return ExitCode::FAILURE;
    };
    let (mut wanted, mut out) = (Wanted::default(), None);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--long" => wanted.long = true,
            "--short" => wanted.short = true,
            "--seed" => wanted.seed = words.next().and_then(|seed| seed.parse().ok()).unwrap_or(0),
            "--out" => out = words.next(),
            _ => wanted.names.push(word),
        }
    }
    // It lives as long as this program.
    let report = attack(program.leak(), &wanted, &mut |line| eprintln!("{line}"));
    print!("{report}");
    if report.rows.iter().all(|row| row.cases == 0) {
        eprintln!("error: no case and no family begins with `{}`", wanted.names.join("`, `"));
    }
    if let Some(out) = out
        && let Err(error) = std::fs::write(&out, report.to_string())
    {
        eprintln!("error: `{out}` cannot be written: {error}");
        return ExitCode::FAILURE;
    }
    if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Tries the cases that are wanted, and says each.
pub(super) fn attack(program: &'static str, wanted: &Wanted, say: &mut dyn FnMut(&str)) -> Report {
    let original = Scene::original(program);
    let mut report = Report::default();
    for (family, tables) in FAMILIES {
        let mut row = Row { family, ..Row::default() };
        let cases = tables.iter().flat_map(|table| table.iter());
        for case in cases.filter(|case| wanted.is(family, case)) {
            let failure = tried(&wanted.of(case), program, &original, &mut row);
            say(&format!("{} {}", if failure.is_some() { "FAILED" } else { "passed" }, case.name));
            report.failures.extend(failure);
        }
        if row.cases > 0 {
            report.rows.push(row);
        }
    }
    report
}

impl Wanted {
    /// `case` as often as is wanted.
    fn of(&self, case: &Case) -> Case {
        match case.deed {
            Deed::Repeated(_, deed) if !self.long => {
                Case { deed: Deed::Repeated(1, deed), ..*case }
            }
            _ => *case,
        }
    }
}

fn tried(case: &Case, program: &'static str, original: &Scene, row: &mut Row) -> Option<Failure> {
    let scene = original.copy();
    let answer = case.attack(program, &scene);
    let script = case.script();
    let cases = if let Deed::Repeated(times, _) = case.deed { times } else { 1 };
    row.cases += cases;
    row.slowest = row.slowest.max(answer.took);
    row.memory = row.memory.max(answer.memory);
    if answer.wrong.is_empty() {
        return None;
    }
    row.failed += if script.is_empty() { answer.wrong.len() as u64 } else { 1 };
    let (said, wrong) = (answer.text(), answer.wrong);
    let folder = (!script.is_empty()).then(|| scene.keep());
    Some(Failure { case: case.name.to_owned(), wrong, script, folder, said })
}
