//! `annulus reproduce`: runs a finished run again from its folder, and compares the two bit for bit.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use annulus_comm::World;
use annulus_experiment::{Override, value_text};
use annulus_text::count;
use annulus_train::{
    Exit, FINISHED, Logged, Manifest, PREEMPTED, Reproduced, RunOptions, Unlike, comparable,
    is_before_manifest, reproduced,
};
use clap::Args;
use serde_json::json;

use crate::again::{
    DIFFER, OriginalRun, because, beside, changed, is_over, refuse_output, refuse_used,
};
use crate::console::Console;
use crate::failure::Failure;
use crate::processes::JobError;
use crate::train::{Job, Train};
use crate::values::replacement;
use crate::{Done, again, bisect, judged, print};

#[derive(Args, Debug)]
pub(crate) struct Reproduce {
    /// The folder of a finished run
    run: PathBuf,
    /// The folder of the new run, not inside RUN [default: RUN-reproduced]
    #[arg(long, alias = "output")]
    out: Option<PathBuf>,
    /// Keys to replace, as in `data.path=moved`; a warning names those that change what is computed
    #[arg(value_name = "KEY=VALUE", value_parser = replacement)]
    replacements: Vec<Override>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The run that is reproduced, and where.
struct Ready {
    original: OriginalRun,
    train: Train,
    output: PathBuf,
    /// Replaced keys that change what is computed, each as a sentence.
    changed: Vec<String>,
}

pub(crate) fn run(arguments: &Reproduce) -> Done {
    let ready = || arguments.ready();
    let lead = |ready: &Ready, stop, world: &World| arguments.lead(ready, stop, world);
    again::computed(&arguments.run, ready, lead, &|options| options)
}

impl Reproduce {
    /// Checks the run and the arguments before anything is computed.
    fn ready(&self) -> Result<Ready, Failure> {
        let original = OriginalRun::read(&self.run, None)?;
        finished(&original.logged)?;
        refuse_output(&self.replacements)?;
        let output = beside(&self.run, self.out.as_deref(), "reproduced")?;
        if !goes_on(&output, &self.run)? {
            refuse_used(&output, |name| is_before_manifest(&output, name))?;
        }
        let there = comparable(&original.logged)?;
        if there.last.is_none() {
            print::warn(format!("`{}` has no checkpoint to compare", self.run.display()));
        }
        let train = original.train(&output, &self.replacements, true)?;
        let mut changed = changed(&original.logged, &self.replacements)?;
        changed.extend(there.rewritten);
        for key in &changed {
            print::warn(format!("{key}: {DIFFER}"));
        }
        Ok(Ready { original, train, output, changed })
    }

    fn lead(&self, ready: &Ready, stop: Arc<AtomicBool>, world: &World) -> Result<u8, JobError> {
        let Ready { original, train, output, changed } = ready;
        let job = Job { arguments: train, stop, world };
        let rerun = original.again.clone();
        let more = |options| RunOptions { rerun: Some(rerun.clone()), ..options };
        let (_, outcome) = job.steps(&more, Console::default)?;
        if !is_over(outcome.ending, outcome.step, "resumes from there") {
            return Ok(Exit::Preempted.code());
        }
        let found = reproduced(&self.run, output)?;
        let mut reasons = original.reasons(output)?;
        reasons.extend(changed.iter().cloned());
        let differs = found.differs();
        let value =
            || json!({"equal": !differs, "output": output, "reasons": reasons, "found": found});
        print::either(self.json, value, || text(&found, &reasons))?;
        Ok(judged(!differs))
    }
}

/// Refuses an unfinished run, which has no final state to compare with.
fn finished(logged: &Logged) -> Result<(), Failure> {
    let (run, ending) = (logged.folder.display(), logged.ending());
    if ending == Some(FINISHED) {
        return Ok(());
    }
    let how = match ending {
        Some(PREEMPTED) => "it was stopped by a signal",
        Some(failed) => failed.lines().next().unwrap_or_default(),
        None => "it is running, or was killed",
    };
    let hint = format!(
        "let it finish (`annulus train {run}` resumes it), or compute one step again: `annulus replay {run} --step N`"
    );
    Err(Failure::usage(format!("`{run}` is not finished: {how}"), hint))
}

/// Whether `output` holds an unfinished reproduction of this run.
fn goes_on(output: &Path, run: &Path) -> Result<bool, Failure> {
    let there = Manifest::open(output)?;
    // A path has many spellings.
    let is_run = |path: &Path| {
        path == run
            || path.canonicalize().is_ok_and(|real| run.canonicalize().is_ok_and(|run| real == run))
    };
    Ok(there.is_some_and(|there| {
        let ending = there.attempts.last().and_then(|last| last.ending.as_deref());
        there.reproduces.as_deref().is_some_and(is_run) && ending != Some(FINISHED)
    }))
}

/// The result as text, with the reasons why bits may differ.
fn text(found: &Reproduced, reasons: &[String]) -> String {
    let head = match (found.first(), reasons.is_empty()) {
        (None, _) => format!("equal to the bit: {}", compared(found)),
        (Some(step), true) => format!("differs, first at step {step}"),
        (Some(step), false) => {
            format!(
                "differs, first at step {step}; this is possible, since it was not computed in the same way"
            )
        }
    };
    let mut lines = vec![head];
    if found.differs() {
        lines.extend(differing(found, reasons.is_empty()));
    }
    lines.join("\n") + &because(reasons)
}

/// The differences as lines; if both runs were computed alike, with what they tell of the cause.
fn differing(found: &Reproduced, alike: bool) -> Vec<String> {
    let mut lines = vec![format!("compared: {}", compared(found))];
    lines.extend(found.value.as_ref().map(value));
    let hashes = found.hashes.as_ref().and_then(|found| Some((found, found.first.as_ref()?)));
    lines.extend(hashes.map(|(found, first)| {
        let table = || bisect::table(found.alike, first).trim_end().to_owned();
        format!("hashes {}", if alike { bisect::text(found) } else { table() })
    }));
    let weights = found.weights.as_ref().filter(|found| !found.differing.is_empty());
    lines.extend(weights.map(|found| {
        let (many, all) = (found.differing.len(), found.tensors);
        let named = bisect::named(&found.differing);
        format!("{many} of {all} tensors of step-{} differ: {named}", found.step)
    }));
    lines.extend(only_said(found).filter(|_| alike).map(str::to_owned));
    lines
}

/// A line for a logged value that differs.
pub(crate) fn value(Unlike { step, tag, was, is }: &Unlike) -> String {
    let [was, is] = [was, is].map(|value| value.map(|value| value.to_string()));
    let [was, is] = [&was, &is].map(|value| value_text(value.as_deref()));
    format!("`{tag}` of step {step} was {was}, is {is}")
}

/// What could be compared: logged losses, hashes and weights.
fn compared(found: &Reproduced) -> String {
    let Reproduced { logged, of, hashes, weights, .. } = found;
    let steps = count(*of, "logged step");
    let steps = match (logged, of) {
        (logged, of) if logged == of => format!("losses of {steps}"),
        _ => format!("losses of {logged} of {steps}"),
    };
    let hashes = hashes.as_ref().map_or_else(
        || "no hashes".to_owned(),
        |found| format!("hashes after {}", count(found.steps, "step")),
    );
    let weights = weights.as_ref().map_or_else(
        || "no checkpoint".to_owned(),
        |found| format!("{} tensors of step-{}", found.tensors, found.step),
    );
    format!("{steps}, {hashes}, {weights}")
}

/// A remark if final weights are equal although logs or hashes differ: then the files were changed.
fn only_said(found: &Reproduced) -> Option<&'static str> {
    let weights = found.weights.as_ref()?.differing.is_empty();
    let hashes = found.hashes.as_ref().is_some_and(|found| found.first.is_some());
    let text =
        "The weights at the end are equal: the run's files were changed, not what it computed.";
    (weights && (found.value.is_some() || hashes)).then_some(text)
}
