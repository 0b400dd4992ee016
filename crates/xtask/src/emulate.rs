//! `cargo xtask emulate`: tests the CUDA kernels on the CPU, or, by mutation testing, their tests.
//!
//! `kernels/mutants.txt` lists bugs to plant. Each is planted alone into a copy of the sources, the copy is compiled, and the tests
//! that it concerns must fail with every seed. A bug that does not compile is none, unless its line says so.

use std::collections::{BTreeSet, VecDeque};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;

use anyhow::{Context, Result, bail};
use clap::Args;
use parking_lot::Mutex;

use crate::{root, tool};

/// Seeds of the order of threads; a bug must be found with each.
const SEEDS: [&str; 2] = ["0", "1"];

#[derive(Args)]
pub(crate) struct Arguments {
    /// Test all combinations of any N of attention's 10 settings (kernel, mask, layout, heads, length, launch, …)
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=10))]
    strength: u8,
    /// Plant bugs instead, and check that the tests find them
    #[arg(long)]
    mutants: bool,
    /// With `--mutants`: only those whose description contains this
    #[arg(long, default_value = "")]
    only: String,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if arguments.mutants {
        return mutants(&arguments.only);
    }
    let strength = arguments.strength.to_string();
    let words = [&TESTS[..], &["--", "--nocapture"]].concat();
    tool::cargo_with(&[("ANNULUS_KERNELS_STRENGTH", strength.as_ref())], &words)
}

const TESTS: [&str; 7] =
    ["test", "--package", "annulus-ops", "--features", "emulator", "--test", "kernels"];

/// A bug to plant; the default plants none.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Mutant {
    /// The file below `kernels/`.
    file: String,
    /// The kernels that are tested.
    kernels: String,
    /// A description of the bug.
    what: String,
    /// What is to become of it.
    wanted: Outcome,
    from: String,
    to: String,
}

/// What becomes of a planted bug.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// The tests fail with every seed.
    #[default]
    Found,
    /// Some seed's tests succeed: `unseen` in its line where the emulator cannot find it.
    Missed,
    /// It does not compile: `refused` in its line where that is how it is found.
    Refused,
}

/// Those whose description contains `only`.
fn chosen<'a>(all: &'a [Mutant], only: &str) -> Result<Vec<&'a Mutant>> {
    let chosen: Vec<&Mutant> = all.iter().filter(|mutant| mutant.what.contains(only)).collect();
    if chosen.is_empty() {
        bail!("kernels/mutants.txt: none of {} planted bugs is described by `{only}`", all.len());
    }
    Ok(chosen)
}

fn mutants(only: &str) -> Result<()> {
    let list = root().join("kernels/mutants.txt");
    let text = std::fs::read_to_string(&list).context("kernels/mutants.txt")?;
    let all = read(&text)?;
    let chosen = chosen(&all, only)?;
    let tests = test_program()?;
    let unchanged = |mutant: &&Mutant| (mutant.kernels.clone(), mutant.tests());
    let unchanged: BTreeSet<_> = chosen.iter().map(unchanged).collect();
    on_all_cores(unchanged, |folder, (kernels, own)| {
        let right = Mutant { kernels, ..Mutant::default() };
        match right.outcome(folder, &tests, own)? {
            Outcome::Missed => Ok(()),
            Outcome::Found => bail!("the tests of {} fail without a planted bug", right.kernels),
            Outcome::Refused => bail!("{} does not compile without a planted bug", right.kernels),
        }
    })?;
    let wrong = Mutex::new(Vec::new());
    on_all_cores(chosen.iter().copied(), |folder, mutant| {
        let outcome = mutant.outcome(folder, &tests, mutant.tests());
        let outcome = outcome.with_context(|| mutant.what.clone())?;
        let (said, fine) = mutant.said(outcome);
        tool::say(&format!("{:<60} {said}", mutant.what));
        if !fine {
            wrong.lock().push(format!("{} ({said})", mutant.what));
        }
        Ok(())
    })?;
    let wrong = wrong.into_inner();
    if !wrong.is_empty() {
        let (count, all) = (wrong.len(), chosen.len());
        bail!("{count} of {all} planted bugs were missed or are none: {}", wrong.join("; "));
    }
    Ok(())
}

/// Calls `run` for every item, on as many threads as there are cores, each with a folder of its own; stops at the first error.
fn on_all_cores<T: Send>(
    items: impl IntoIterator<Item = T>,
    run: impl Fn(&Path, T) -> Result<()> + Sync,
) -> Result<()> {
    let left = Mutex::new(items.into_iter().collect::<VecDeque<T>>());
    let next = || left.lock().pop_front();
    let worker = |number: usize| {
        let folder = root().join(format!("target/mutants/{number}"));
        while let Some(item) = next() {
            run(&folder, item).inspect_err(|_| left.lock().clear())?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let start = |number| scope.spawn(move || worker(number));
        let workers: Vec<_> = (0..cores).map(start).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("does not panic"))
    })
}

/// Parses the list: `= FILE | KERNELS | WHAT [| unseen | refused]`, then the original lines, each after `- `, and the planted ones, each
/// after `+ `; `#` starts a comment.
fn read(text: &str) -> Result<Vec<Mutant>> {
    let mut all: Vec<Mutant> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        if let Some(header) = line.strip_prefix("= ") {
            let words: Vec<&str> = header.split('|').map(str::trim).collect();
            let [file, kernels, what, rest @ ..] = &*words else {
                bail!("kernels/mutants.txt: `{line}`, wanted `= FILE | KERNELS | WHAT`");
            };
            let [file, kernels, what] = [file, kernels, what].map(|word| (*word).to_owned());
            let wanted = match rest {
                [] => Outcome::Found,
                ["unseen"] => Outcome::Missed,
                ["refused"] => Outcome::Refused,
                _ => {
                    bail!("kernels/mutants.txt: `{line}`, wanted `unseen` or `refused` at its end")
                }
            };
            let (from, to) = (String::new(), String::new());
            all.push(Mutant { file, kernels, what, wanted, from, to });
            continue;
        }
        let mutant = all.last_mut().context("kernels/mutants.txt: a change before its header")?;
        match line.split_at_checked(2) {
            Some(("- ", from)) => append(&mut mutant.from, from),
            Some(("+ ", to)) => append(&mut mutant.to, to),
            _ if line == "+" => {}
            _ => bail!("kernels/mutants.txt: `{line}`, wanted `- ` or `+ `"),
        }
    }
    Ok(all)
}

fn append(text: &mut String, line: &str) {
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(line);
}

impl Mutant {
    /// The tests that concern its file.
    fn tests(&self) -> &'static [&'static str] {
        match &*self.file {
            file if file.starts_with("attention/strict") => &["strict::"],
            file if file.starts_with("dropout/") => &["dropout::"],
            file if file.starts_with("attention/") => &["attention::", "--skip", "strict::"],
            file if file.starts_with("cross_entropy/") => &["operators::", "predictions::"],
            _ => &["attention::", "strict::", "operators::"],
        }
    }

    /// What is printed of it, and whether that is as it should be.
    const fn said(&self, outcome: Outcome) -> (&'static str, bool) {
        match (outcome, self.wanted) {
            (Outcome::Found, Outcome::Found) => ("found", true),
            (Outcome::Missed, Outcome::Missed) => ("not found, as expected", true),
            (Outcome::Refused, Outcome::Refused) => ("does not compile, as expected", true),
            (Outcome::Found, Outcome::Missed) => ("found, though marked `unseen`", true),
            (Outcome::Refused, _) => ("DOES NOT COMPILE", false),
            (_, Outcome::Refused) => ("COMPILES, though marked `refused`", false),
            (Outcome::Missed, Outcome::Found) => ("MISSED", false),
        }
    }

    /// What becomes of it: found if the tests `own` fail for every seed. It is compiled in `folder`.
    fn outcome(&self, folder: &Path, tests: &Path, own: &[&str]) -> Result<Outcome> {
        let Some(library) = self.compiled(folder)? else { return Ok(Outcome::Refused) };
        for seed in SEEDS {
            let mut command = Command::new(tests);
            command.args(own).env("ANNULUS_EMULATOR", &library);
            command.env("ANNULUS_KERNELS_ONLY", &self.kernels).env("ANNULUS_KERNELS_SEED", seed);
            if !failed(command)? {
                return Ok(Outcome::Missed);
            }
        }
        Ok(Outcome::Found)
    }

    /// The compiled emulator with this bug, of attention only with the kernels that its tests run; `None` if it does not compile.
    fn compiled(&self, folder: &Path) -> Result<Option<PathBuf>> {
        let kernels = folder.join("kernels");
        copy(&root().join("kernels"), &kernels)?;
        change(&kernels.join("attention/table.h"), |table| Ok(self.cut(table)))?;
        if !self.file.is_empty() {
            change(&kernels.join(&self.file), |text| self.planted(text))?;
        }
        let library = folder.join("libannulus_emulator.so");
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
        let Output { status, stderr, .. } = Command::new(compiler)
            .args(["-std=c++17", "-O1", "-shared", "-fPIC", "-pthread", "-w", "-o"])
            .arg(&library)
            .arg(kernels.join("emulate.cpp"))
            .output()?;
        if !status.success() && self.wanted != Outcome::Refused {
            let said = String::from_utf8_lossy(&stderr);
            let why = said.lines().find(|line| line.contains("error")).unwrap_or("no reason given");
            tool::say(&format!("{}: {why}", self.what));
        }
        Ok(status.success().then_some(library))
    }

    fn planted(&self, text: &str) -> Result<String> {
        if text.matches(&self.from).count() != 1 {
            bail!("`{}` is not once in kernels/{}", self.from, self.file);
        }
        Ok(text.replace(&self.from, &self.to))
    }

    /// The table of kernels, reduced to one type and head dimension if `GENERATION_TYPE_DIM` names one, which compiles in a third of the
    /// time.
    fn cut(&self, table: &str) -> String {
        let words: Vec<&str> = self.kernels.split('_').collect();
        let &[_, element, dim, ..] = &*words else { return table.to_owned() };
        let own = format!(", {element}, {dim}, ");
        let stays = |line: &&str| {
            !line.starts_with("ATTENTION(") || line.contains(&own) || line.contains(", any, ")
        };
        table.lines().filter(stays).flat_map(|line| [line, "\n"]).collect()
    }
}

/// Whether a program of tests fails; it is ended at the first failure.
fn failed(mut command: Command) -> Result<bool> {
    let mut tests = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let stdout = tests.stdout.take().context("a pipe")?;
    let mut lines = BufReader::new(stdout).split(b'\n').map_while(Result::ok);
    if lines.any(|line| line.ends_with(b"... FAILED")) {
        tests.kill()?;
    }
    Ok(!tests.wait()?.success())
}

/// Rewrites a file by `changed`.
fn change(file: &Path, changed: impl FnOnce(&str) -> Result<String>) -> Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    Ok(std::fs::write(file, changed(&text)?)?)
}

/// Copies all files below a folder.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    for path in tool::files(from)? {
        let into = to.join(path.strip_prefix(from)?);
        std::fs::create_dir_all(into.parent().unwrap_or(to))?;
        std::fs::copy(&path, &into)?;
    }
    Ok(())
}

/// Compiles the tests of the kernels.
fn test_program() -> Result<PathBuf> {
    let mut command = tool::cargo_command();
    command.args(TESTS).arg("--no-run");
    tool::built_by(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read() {
        let text = "# remark\n= a/b.h | sm80 | a wait dropped\n- wait<0>();\n+\n\n= c.h | sm90 | no fence | unseen\n- x\n+ y\n";
        let all = read(text).unwrap();
        assert_eq!(all.len(), 2);
        let first = (&*all[0].from, &*all[0].to, all[0].wanted);
        assert_eq!(first, ("wait<0>();", "", Outcome::Found));
        let second = (&*all[1].file, &*all[1].kernels, all[1].wanted);
        assert_eq!(second, ("c.h", "sm90", Outcome::Missed));
        assert!(read("- x").is_err() && read("= a | b").is_err());
        assert_eq!(read("= a | b | c | refused").unwrap()[0].wanted, Outcome::Refused);
        assert!(read("= a | b | c | unsen").is_err());
        assert_eq!(chosen(&all, "fence").unwrap(), [&all[1]]);
        let refused = chosen(&all, "fense").unwrap_err().to_string();
        assert!(refused.contains("none of 2 planted bugs"), "{refused}");
    }

    #[test]
    fn a_bug_that_does_not_compile_is_not_found() {
        let is_fine = |outcome, wanted| Mutant { wanted, ..Mutant::default() }.said(outcome).1;
        assert!(is_fine(Outcome::Found, Outcome::Found));
        assert!(is_fine(Outcome::Refused, Outcome::Refused));
        assert!(is_fine(Outcome::Found, Outcome::Missed));
        for wanted in [Outcome::Found, Outcome::Missed] {
            assert!(!is_fine(Outcome::Refused, wanted));
        }
        assert!(!is_fine(Outcome::Missed, Outcome::Found));
        assert!(!is_fine(Outcome::Missed, Outcome::Refused));
    }

    #[test]
    fn every_mistake_of_the_list_can_be_planted() {
        let text = std::fs::read_to_string(root().join("kernels/mutants.txt")).unwrap();
        for Mutant { file, from, to, what, .. } in read(&text).unwrap() {
            let source = std::fs::read_to_string(root().join("kernels").join(&file)).unwrap();
            assert_eq!(source.matches(&from).count(), 1, "{what}: `{from}` in {file}");
            assert_ne!(from, to, "{what}");
        }
    }
}
