//! `cargo xtask emulate`: tests the CUDA kernels on the CPU, or, by mutation testing, their tests.
//!
//! `kernels/mutants.txt` lists bugs to plant. Each is planted alone into a copy of the sources, the copy is compiled, and the tests
//! that it concerns must fail with every seed.

use std::collections::{BTreeSet, VecDeque};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
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
    /// Whether tests in the emulator can find it.
    seen: bool,
    from: String,
    to: String,
}

fn mutants(only: &str) -> Result<()> {
    let list = root().join("kernels/mutants.txt");
    let text = std::fs::read_to_string(&list).context("kernels/mutants.txt")?;
    let all = read(&text)?;
    let tests = test_program()?;
    let chosen: Vec<&Mutant> = all.iter().filter(|mutant| mutant.what.contains(only)).collect();
    let unchanged = |mutant: &&Mutant| (mutant.kernels.clone(), mutant.tests());
    let unchanged: BTreeSet<_> = chosen.iter().map(unchanged).collect();
    on_all_cores(unchanged, |folder, (kernels, own)| {
        let right = Mutant { kernels, ..Mutant::default() };
        if right.fails(folder, &tests, own)? {
            bail!("the tests of {} fail without a planted bug", right.kernels);
        }
        Ok(())
    })?;
    let missed = Mutex::new(Vec::new());
    on_all_cores(chosen.iter().copied(), |folder, mutant| {
        let found = mutant.fails(folder, &tests, mutant.tests());
        let found = found.with_context(|| mutant.what.clone())?;
        tool::say(&format!("{:<60} {}", mutant.what, mutant.said(found)));
        if !found && mutant.seen {
            missed.lock().push(&*mutant.what);
        }
        Ok(())
    })?;
    let missed = missed.into_inner();
    if !missed.is_empty() {
        let (count, all) = (missed.len(), chosen.len());
        bail!("{count} of {all} planted bugs were missed: {}", missed.join("; "));
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

/// Parses the list: `= FILE | KERNELS | WHAT [| unseen]`, then the original lines, each after `- `, and the planted ones, each after
/// `+ `; `#` starts a comment.
fn read(text: &str) -> Result<Vec<Mutant>> {
    let mut all: Vec<Mutant> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        if let Some(header) = line.strip_prefix("= ") {
            let words: Vec<&str> = header.split('|').map(str::trim).collect();
            let [file, kernels, what, rest @ ..] = &*words else {
                bail!("kernels/mutants.txt: `{line}`, wanted `= FILE | KERNELS | WHAT`");
            };
            let [file, kernels, what] = [file, kernels, what].map(|word| (*word).to_owned());
            let (from, to) = (String::new(), String::new());
            all.push(Mutant { file, kernels, what, seen: rest != ["unseen"], from, to });
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
            file if file.starts_with("attention/") => &["attention::", "--skip", "strict::"],
            _ => &["attention::", "strict::", "operators::"],
        }
    }

    /// What is printed of it.
    const fn said(&self, found: bool) -> &'static str {
        match (found, self.seen) {
            (true, true) => "found",
            (false, false) => "not found, as expected",
            (true, false) => "found, though marked `unseen`",
            (false, true) => "MISSED",
        }
    }

    /// Whether the tests `own` fail with it for every seed; it is compiled in `folder`.
    fn fails(&self, folder: &Path, tests: &Path, own: &[&str]) -> Result<bool> {
        let Some(library) = self.compiled(folder)? else { return Ok(true) };
        for seed in SEEDS {
            let mut command = Command::new(tests);
            command.args(own).env("ANNULUS_EMULATOR", &library);
            command.env("ANNULUS_KERNELS_ONLY", &self.kernels).env("ANNULUS_KERNELS_SEED", seed);
            if !failed(command)? {
                return Ok(false);
            }
        }
        Ok(true)
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
        let status = Command::new(compiler)
            .args(["-std=c++17", "-O1", "-shared", "-fPIC", "-pthread", "-w", "-o"])
            .arg(&library)
            .arg(kernels.join("emulate.cpp"))
            .stderr(Stdio::null())
            .status()?;
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
        assert_eq!((&*all[0].from, &*all[0].to, all[0].seen), ("wait<0>();", "", true));
        assert_eq!((&*all[1].file, &*all[1].kernels, all[1].seen), ("c.h", "sm90", false));
        assert!(read("- x").is_err() && read("= a | b").is_err());
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
