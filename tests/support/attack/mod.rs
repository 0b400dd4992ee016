//! Hostile cases by family, each a row: a shell script whose last command is the program, what it must end with and say, and what
//! must be true afterwards.
//!
//! Of every case more is asked than its row says: no signal, no panic, no control characters, little memory, an end in time, a
//! folder of others' files beside it untouched, and their content nowhere else.

mod answer;
mod command;
mod disturbed;
mod faults;
mod files;
mod network;
mod others;
pub(crate) mod parts;
mod report;
mod resources;
mod results;
mod scene;
mod templates;
mod terminal;
mod tokenizers;

pub use command::main;
pub use report::Report;

use answer::Answer;
use scene::Scene;

/// Bytes that bad input may take.
const MEMORY: u64 = 300 << 20;
/// Seconds that a case may take.
const SECONDS: u64 = 20;

/// One hostile case.
#[derive(Clone, Copy)]
pub struct Case {
    name: &'static str,
    /// The script's beginning.
    given: &'static str,
    /// What `$t` is in it.
    variable: &'static str,
    deed: Deed,
    /// The exit codes that are right.
    ends: &'static [i32],
    /// What standard output or standard error must have.
    says: &'static [&'static str],
    /// Shell, in the same folder, that ends with 0 where all is well afterwards.
    then: &'static str,
    seconds: u64,
    memory: u64,
    /// Whether it is one of the few that every test run tries.
    is_short: bool,
}

/// What is done.
#[derive(Clone, Copy)]
enum Deed {
    /// Files that a shell cannot write, then a shell script; `annulus` in it is the program, and replaces the shell.
    Script(fn(&Scene), &'static str),
    /// So many times, with another seed each, what panics where it fails.
    Repeated(u64, fn(&'static str, u64)),
}

/// A family's name and cases.
pub type Family = (&'static str, &'static [&'static [Case]]);

/// All cases.
const FAMILIES: [Family; 7] = [
    ("files", &[files::CASES]),
    ("results", &[results::CASES]),
    ("others", &[others::CASES, templates::CASES, tokenizers::CASES]),
    ("faults", &[faults::CASES, disturbed::CASES]),
    ("resources", &[resources::CASES]),
    ("terminal", &[terminal::CASES]),
    ("network", &[network::CASES]),
];

const fn case(
    name: &'static str,
    script: &'static str,
    ends: &'static [i32],
    says: &'static [&'static str],
) -> Case {
    let deed = Deed::Script(|_| (), script);
    Case {
        name,
        given: "",
        variable: "",
        deed,
        ends,
        says,
        then: "",
        seconds: SECONDS,
        memory: MEMORY,
        is_short: false,
    }
}

const fn repeated(name: &'static str, times: u64, deed: fn(&'static str, u64)) -> Case {
    Case { deed: Deed::Repeated(times, deed), seconds: u64::MAX, ..case(name, "", &[], &[]) }
}

impl Case {
    /// This case, which starts with files that a shell cannot write.
    const fn made(self, make: fn(&Scene)) -> Case {
        let Deed::Script(_, script) = self.deed else { return self };
        Case { deed: Deed::Script(make, script), ..self }
    }

    /// This case with `given` at the beginning of its script.
    const fn given(self, given: &'static str) -> Case {
        Case { given, ..self }
    }

    /// This case with `$t` defined in its script, a value without `'`.
    const fn variable(self, variable: &'static str) -> Case {
        Case { variable, ..self }
    }

    /// This case with more that must be true at its end.
    const fn then(self, then: &'static str) -> Case {
        Case { then, ..self }
    }

    /// This case with another time limit.
    const fn within(self, seconds: u64) -> Case {
        Case { seconds, ..self }
    }

    /// This case, included in every test run.
    const fn short(self) -> Case {
        Case { is_short: true, ..self }
    }

    /// The whole script; empty where there is none.
    fn script(&self) -> String {
        let Deed::Script(_, script) = self.deed else { return String::new() };
        let variable = match self.variable {
            "" => String::new(),
            text => format!("t='{text}'"),
        };
        let parts = [&variable, self.given, script];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
    }

    /// Fails with everything that is wrong.
    fn attack(&self, program: &'static str, scene: &Scene) -> Answer {
        match self.deed {
            Deed::Script(make, _) => make(scene),
            Deed::Repeated(times, deed) => return Answer::of_repeated(times, |n| deed(program, n)),
        }
        let mut answer = scene.shell(&self.script(), self.seconds);
        answer.hold_to_rules(scene, self.memory);
        if !answer.code.is_some_and(|code| self.ends.contains(&code)) {
            let found = answer.code.map_or("a signal".to_owned(), |code| code.to_string());
            answer.wrong(format!("ended with {found}, expected {:?}", self.ends));
        }
        let missing: Vec<_> = self.says.iter().filter(|word| !answer.said(word)).collect();
        for word in missing {
            answer.wrong(format!("does not say `{word}`"));
        }
        if !self.then.is_empty() {
            scene.write("../stdout", &answer.stdout);
            scene.write("../stderr", &answer.stderr);
            let after = scene.shell(self.then, SECONDS);
            if after.code != Some(0) {
                answer.wrong(format!("afterwards `{}` fails: {}", self.then, after.text()));
            }
        }
        answer
    }
}

/// Tries the cases that every test run tries. Fails with a table and every failure's reproduction.
///
/// # Panics
/// When a case fails.
pub fn short(program: &'static str) {
    let wanted = command::Wanted { short: true, ..command::Wanted::default() };
    let report = command::attack(program, &wanted, &mut |_| ());
    assert!(report.is_clean(), "{report}");
}
