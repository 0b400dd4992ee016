//! What `reproduce` and `replay` share: they open a run's folder, select the vector instructions that the run used, find the
//! checkpoint or fork that it started from, and train from there in all processes.

use std::ffi::OsStr;
use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use annulus_comm::World;
use annulus_experiment::{Device, Override, Reproducible, is_neutral, parse, value_text, varying};
use annulus_machine::{Instructions, VECTOR};
use annulus_train::{Ending, Logged, Manifest, RESOLVED, Rerun, beginning, edited_model};

use crate::experiment_file::{ExperimentFile, replaced_path};
use crate::failure::Failure;
use crate::processes::{self, JobError};
use crate::train::{Adjust, Job, Train};
use crate::{Done, print, stop};

/// The consequence that is printed after each reason.
pub(crate) const DIFFER: &str = "bits may differ";

/// Computes the run in the folder `run` again, in this process or in several: process 0 makes `ready` and passes it to `lead`, the others
/// train beside it, with what `adjust` adds.
pub(crate) fn computed<T>(
    run: &Path,
    ready: impl FnOnce() -> Result<T, Failure>,
    lead: impl FnOnce(&T, Arc<AtomicBool>, &World) -> Result<u8, JobError>,
    adjust: Adjust<'_>,
) -> Done {
    let pinned = pin(run);
    let (stop, world) = stop::watch_and_join()?;
    let ended = if world.process() == 0 {
        let ready = prepared(&world, pinned.and_then(|()| ready()));
        ready.and_then(|ready| lead(&ready, stop, &world))
    } else {
        let nothing = Train::default();
        Job { arguments: &nothing, stop, world: &world }.follow(adjust)
    };
    Ok(processes::finish(&world, ended))
}

/// Selects the vector instructions that the run in `folder` used, unless the environment names others. Must be called first: the
/// instructions of a core are detected once.
fn pin(folder: &Path) -> Result<(), Failure> {
    let manifest = made(folder)?;
    let Some(word) = manifest.machine.vector.filter(|_| annulus_machine::asked().is_none()) else {
        return Ok(());
    };
    let has: Vec<&str> = Instructions::available().map(Instructions::word).collect();
    let Some(found) = Instructions::from_word(&word).filter(|found| found.is_available()) else {
        let (run, has) = (folder.display(), has.join(", "));
        let best = Instructions::detect().word();
        let message = format!("`{run}` was computed with {word}, and this processor has {has}");
        let hint = format!(
            "use a processor that has {word}, or set {VECTOR}={best} to compute with other instructions, whereupon bits may differ"
        );
        return Err(Failure::usage(message, hint));
    };
    if annulus_machine::settle_for(found) {
        return Ok(());
    }
    let message = format!("vector instructions were detected before {word} could be selected");
    Err(Failure::internal(message))
}

/// The manifest of a run.
fn made(folder: &Path) -> Result<Manifest, Failure> {
    Manifest::open(folder)?.ok_or_else(|| {
        let message =
            format!("`{}` has no manifest.json: it is not a run's folder", folder.display());
        Failure::usage(message, "give the `output` of an experiment that has been trained")
    })
}

/// A run that is to be computed again.
pub(crate) struct OriginalRun {
    pub(crate) logged: Logged,
    pub(crate) again: Rerun,
    /// Why bits may differ whoever computes: a device that adds in any order, and a model that was edited.
    reasons: Vec<String>,
}

impl OriginalRun {
    /// The run in the folder `run`, to be computed again up to the step `until`, or to its end.
    pub(crate) fn read(run: &Path, until: Option<u64>) -> Result<OriginalRun, Failure> {
        let (manifest, logged) = (made(run)?, Logged::read(run)?);
        let again = Rerun { run: run.to_owned(), manifest, until };
        let reasons: Vec<String> =
            of_device(&logged).into_iter().chain(edited_model(&logged)).collect();
        for reason in &reasons {
            print::warn(format!("{reason}: {DIFFER}"));
        }
        Ok(OriginalRun { logged, again, reasons })
    }

    /// The arguments of a training of the same experiment into `output`, with these keys replaced. With `from_start` it forks what the
    /// run forked; otherwise it resumes from a checkpoint that is in `output`.
    pub(crate) fn train(
        &self,
        output: &Path,
        replacements: &[Override],
        from_start: bool,
    ) -> Result<Train, Failure> {
        let Rerun { run, manifest, .. } = &self.again;
        let fork = if from_start { beginning(run, manifest)? } else { None };
        let output = replaced_path("output", output);
        let replacements = replacements.iter().cloned().chain([output]).collect();
        Ok(Train {
            file: ExperimentFile { file: run.join(RESOLVED), replacements },
            check: false,
            fresh_optimizer: fork.as_ref().is_some_and(|fork| fork.fresh_optimizer),
            from: fork.map(|fork| fork.from),
            // Data that have changed since the run must be found.
            verify_cache: true,
        })
    }

    /// Why bits may differ, from the manifests of the run and of `output`.
    pub(crate) fn reasons(&self, output: &Path) -> Result<Vec<String>, Failure> {
        let own = self.again.reasons(&made(output)?);
        Ok(own.into_iter().chain(self.reasons.iter().cloned()).collect())
    }
}

/// The reason that lies in the device: sums of a GPU may not be deterministic.
fn of_device(run: &Logged) -> Option<String> {
    let experiment = &run.experiment;
    let orders = experiment.attention.deterministic || experiment.device == Device::Cpu;
    let said = "`attention.deterministic` is `false`: a GPU adds in any order";
    (!orders).then(|| said.to_owned())
}

/// Refuses a step that the run in the folder `run`, made as `manifest` says, did not compute: a fork begins after a step of another run.
pub(crate) fn refuse_before(run: &Path, manifest: &Manifest, step: u64) -> Result<(), Failure> {
    let Some(began) = manifest.began.filter(|began| step <= *began) else { return Ok(()) };
    let message = format!("`{}` began after step {began}", run.display());
    let from = manifest.fork.as_ref().map(|fork| fork.from.display());
    let hint = from.map(|from| format!("; step {step} was computed in `{from}`"));
    Err(Failure::usage(message, format!("give a later `--step`{}", hint.unwrap_or_default())))
}

/// Refuses to replace `output`: the run is there.
pub(crate) fn refuse_output(replacements: &[Override]) -> Result<(), Failure> {
    if replacements.iter().any(|one| one.key == "output") {
        let hint = "give `--out` instead";
        return Err(Failure::usage("`output` is where the run itself is", hint));
    }
    Ok(())
}

/// The keys whose replaced value differs from the run's and changes what is computed, each as a sentence.
pub(crate) fn changed(logged: &Logged, replacements: &[Override]) -> Result<Vec<String>, Failure> {
    let name = logged.folder.display().to_string();
    let now = parse(&name, &logged.resolved, replacements)?;
    let both = [logged.experiment.clone(), now];
    let is_strict = both.iter().all(|one| one.reproducible == Reproducible::Strict);
    let all = varying(&both).into_iter();
    let computed = all.filter(|one| !is_neutral(&one.key, is_strict));
    Ok(computed
        .map(|one| {
            let [was, is] = [0, 1].map(|index| value_text(one.values[index].as_deref()));
            format!("`{}` is `{is}`, in the run `{was}`", one.key)
        })
        .collect())
}

/// `output` if it is given, else a folder next to the run's, called `RUN-called`.
///
/// # Errors
/// The run's folder does not exist, or the new folder would be inside it.
pub(crate) fn beside(run: &Path, output: Option<&Path>, called: &str) -> Result<PathBuf, Failure> {
    let real = run.canonicalize().map_err(|error| {
        Failure::usage(format!("cannot read `{}`: {error}", run.display()), "give a run's folder")
    })?;
    let named = if run.file_name().is_some() { run } else { &real };
    let name = named.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let own = || named.with_file_name(format!("{name}-{called}"));
    let folder = output.map_or_else(own, Path::to_owned);
    // A folder that does not exist yet has no canonical path: its nearest existing parent decides.
    let absolute = std::path::absolute(&folder).unwrap_or_else(|_| folder.clone());
    let there = absolute.ancestors().find_map(|above| above.canonicalize().ok());
    if there.is_some_and(|there| there.starts_with(&real)) {
        let message = format!("`{}` is in the run's folder", folder.display());
        return Err(Failure::usage(
            message,
            "give an `--out` outside of it: the run must not be changed",
        ));
    }
    Ok(folder)
}

/// Refuses a folder with anything in it but files and folders whose names say that the same command, killed before, has left them.
pub(crate) fn refuse_used(folder: &Path, is_left: impl Fn(&OsStr) -> bool) -> Result<(), Failure> {
    let is_used =
        |entry: io::Result<DirEntry>| entry.map_or(true, |one| !is_left(&one.file_name()));
    let used = fs::read_dir(folder).is_ok_and(|mut entries| entries.any(is_used));
    if !used && (folder.is_dir() || !folder.exists()) {
        return Ok(());
    }
    let message = format!("`{}` already exists and is not empty", folder.display());
    Err(Failure::usage(message, "remove it, or give another `--out`"))
}

/// What process 0 prepared; if that failed, tells the other processes to end.
fn prepared<T>(world: &World, made: Result<T, Failure>) -> Result<T, JobError> {
    if made.is_err() {
        // The error that is reported is `made`'s, not that the others could not be told.
        let _ = processes::send(world, None);
    }
    Ok(made?)
}

/// Whether a training finished; if it was stopped, prints that, and what the same command does next.
pub(crate) fn is_over(ending: Ending, step: u64, then: &str) -> bool {
    if ending == Ending::Preempted {
        print::say(&format!("stopped at step {step}; the same command {then}"));
    }
    ending != Ending::Preempted
}

/// A line for each reason why bits may differ.
pub(crate) fn because(reasons: &[String]) -> String {
    let line = |reason: &String| format!("\n{reason}: {DIFFER}");
    reasons.iter().map(line).collect()
}
