//! Runs checks as a list of steps. After a failed step the others still run, and a table at the end has the time of each.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::tool;

/// The name of a step, and the function that runs it.
pub(crate) type Step = (&'static str, fn() -> Result<()>);

struct Done {
    name: &'static str,
    took: Duration,
    result: Result<()>,
}

impl Done {
    /// The step's name and error, which are repeated at the end.
    fn failure(&self) -> Option<String> {
        self.result.as_ref().err().map(|error| format!("{}: {error:#}", self.name))
    }
}

/// Runs all `steps` in order, prints the time of each, and fails if one failed.
pub(crate) fn run(steps: &[Step]) -> Result<()> {
    let done: Vec<Done> = steps.iter().map(timed).collect();
    tool::say(&table(&done));
    let failed: Vec<_> = done.iter().filter_map(Done::failure).collect();
    if !failed.is_empty() {
        bail!("{} of {} steps failed\n{}", failed.len(), done.len(), failed.join("\n"));
    }
    Ok(())
}

fn timed(&(name, step): &Step) -> Done {
    tool::say(&format!("== {name}"));
    let start = Instant::now();
    let result = step();
    if let Err(error) = &result {
        tool::say(&format!("error: {error:#}"));
    }
    Done { name, took: start.elapsed(), result }
}

fn table(done: &[Done]) -> String {
    let mut table = String::from("\n     time  step\n");
    let mut line = |took: Duration, what: &str| {
        let (seconds, tenths) = (took.as_secs(), took.subsec_millis() / 100);
        let (minutes, seconds) = (seconds / 60, seconds % 60);
        let _ = writeln!(table, "{minutes:>3}m{seconds:02}.{tenths}s  {what}");
    };
    for Done { name, took, result } in done {
        let failed = if result.is_err() { "  FAILED" } else { "" };
        line(*took, &format!("{name}{failed}"));
    }
    let processor = annulus_machine::processor().unwrap_or_else(|| "unknown".into());
    let vector = annulus_machine::Instructions::detect().word();
    let all = format!("in all; {} cores, {vector}, {processor}", annulus_machine::cores());
    line(done.iter().map(|step| step.took).sum(), &all);
    table
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use anyhow::bail;

    #[test]
    fn a_step_that_fails_hides_none_after_it() {
        static RUN: AtomicUsize = AtomicUsize::new(0);
        let counted = || {
            RUN.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        let steps: &[super::Step] =
            &[("one", counted), ("two", || bail!("no")), ("three", counted)];
        let error = super::run(steps).expect_err("the second fails");
        assert_eq!(error.to_string(), "1 of 3 steps failed\ntwo: no");
        assert_eq!(RUN.load(Ordering::Relaxed), 2);
    }
}
