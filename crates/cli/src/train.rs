//! `annulus train`: trains an experiment, or resumes it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use annulus_comm::{World, Wrap};
use annulus_experiment::{Bound, Problem, Problems, Sample, parse, read_experiment, tags};
use annulus_memory::Class;
use annulus_plan::{Plan, RankPlan};
use annulus_text::size;
use annulus_train::{
    Ending, Exit, Fork, Manifest, Opened, Outcome, ProcessMemory, RunOptions, Silent, Sink,
    best_checkpoint, resolved_text,
};
use clap::Args;

use crate::Done;
use crate::check;
use crate::console::Console;
use crate::experiment_file::ExperimentFile;
use crate::failure::Failure;
use crate::processes::{self, JobError};
use crate::{generate, hub, print, stop};

#[derive(Args, Debug, Default)]
pub(crate) struct Train {
    #[command(flatten)]
    pub(crate) file: ExperimentFile,
    /// Assert the experiment's `expect` at the end; exit code 10 if it does not hold
    #[arg(long)]
    pub(crate) check: bool,
    /// Fork another run (its folder, or a `step-N`): weights, step count and optimizer state carry over; all but the model may differ
    #[arg(long, value_name = "RUN")]
    pub(crate) from: Option<PathBuf>,
    /// With `--from`: start with a fresh optimizer state
    #[arg(long, requires = "from")]
    pub(crate) fresh_optimizer: bool,
    /// Verify texts and token caches by their hashes, even if they look unchanged
    #[arg(long)]
    pub(crate) verify_cache: bool,
}

pub(crate) fn run(arguments: &Train, wrap: Option<Wrap>) -> Done {
    let (stop, world) = stop::watch_and_join()?;
    let world = match wrap {
        Some(wrap) => world.wrapped(wrap),
        None => world,
    };
    let job = Job { arguments, stop, world: &world };
    if world.process() > 0 {
        return Ok(processes::finish(&world, job.follow(&|options| options)));
    }
    let mut sample = None;
    let code = processes::finish(&world, job.lead(&mut sample));
    if let Some(sample) = sample {
        sample.write(code)?;
    }
    Ok(code)
}

/// A text that is still to be generated, by a finished run.
struct OwedSample {
    folder: PathBuf,
    sample: Sample,
}

impl OwedSample {
    /// Generates it in process 0, after the world has ended: the run is finished and saved, with exit code `code`. So a signal ends the
    /// program, the other processes do not wait, and a sample that fails does not fail the run.
    fn write(&self, code: u8) -> Result<(), Failure> {
        stop::end_with(code)?;
        // A signal that came before that has only been noted.
        if stop::is_requested() {
            return Ok(());
        }
        if let Err(JobError::Here(failure) | JobError::Elsewhere(failure)) =
            generate::sample(&self.folder, &self.sample)
        {
            print::warn(format!("there is no sample: {}", failure.problems));
        }
        Ok(())
    }
}

/// A training, in this process alone or in several of which this is one.
pub(crate) struct Job<'a> {
    pub(crate) arguments: &'a Train,
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) world: &'a World,
}

/// Adds to a training's options what the command line of `train` does not have.
pub(crate) type Adjust<'a> = &'a dyn Fn(RunOptions) -> RunOptions;

/// An experiment that is ready to be trained.
struct Ready {
    yaml: String,
    opened: Opened,
    plans: Vec<Plan>,
}

impl Job<'_> {
    /// Opens the experiment of the command line.
    fn ready(&self) -> Result<Ready, JobError> {
        let file = check::experiment_of_run(&self.arguments.file);
        let yaml = read_experiment(&file.file).map_err(Failure::from)?;
        let opened = check::opened_from(&file, &yaml)?;
        let ready = self.planned(yaml, opened)?;
        let first = first_phase(&ready.plans)?;
        if let Some(choice) = &first.choice {
            print::say(&choice.text);
        }
        hub::weights(&first.experiment, self.arguments.verify_cache)?;
        Ok(ready)
    }

    /// Plans an experiment, with the ranks of this machine.
    fn planned(&self, yaml: String, mut opened: Opened) -> Result<Ready, JobError> {
        processes::place(self.world, &mut opened.resolved.experiment)?;
        let plans = opened.plans_over(annulus_machine::cores(), self.world)?;
        Ok(Ready { yaml, opened, plans })
    }

    fn options(&self, yaml: String, opened: Opened) -> RunOptions {
        let Train { from, fresh_optimizer, verify_cache, .. } = self.arguments;
        let fresh_optimizer = *fresh_optimizer;
        RunOptions {
            stop: self.stop.clone(),
            world: self.world.clone(),
            fork: from.clone().map(|from| Fork { from, fresh_optimizer }),
            command: std::env::args().collect(),
            tokenizer: opened.tokenizer,
            verify_cache: *verify_cache,
            ..RunOptions::new(yaml, annulus_machine::cores())
        }
    }

    /// Receives the experiment from process 0.
    fn received(&self) -> Result<(String, Opened), JobError> {
        let yaml = processes::receive(self.world)?;
        let experiment = parse(processes::FROM_PROCESS_0, &yaml, &[]).map_err(Failure::from)?;
        Ok((yaml, annulus_train::resolve(experiment, &mut hub::description)?))
    }

    /// Trains in a process other than 0.
    pub(crate) fn follow(&self, adjust: Adjust<'_>) -> Result<u8, JobError> {
        let (mut yaml, mut opened) = self.received()?;
        if opened.resolved.experiment.attention.is_open() {
            // Process 0 chooses a strategy by the measurements of all processes, then sends the experiment again.
            annulus_train::measured(&opened.resolved, annulus_machine::cores(), self.world)?;
            (yaml, opened) = self.received()?;
        }
        let Ready { yaml, opened, plans } = self.planned(yaml, opened)?;
        let options = adjust(self.options(yaml, opened));
        let outcome = annulus_train::run_phases(&plans, options, &mut Silent)?;
        Ok(if outcome.ending == Ending::Preempted { Exit::Preempted.code() } else { 0 })
    }

    /// Trains all steps in process 0, or in the only one; `console` makes what messages for a person go to.
    pub(crate) fn steps<C: Sink + Send>(
        &self,
        adjust: Adjust<'_>,
        console: impl FnOnce() -> C,
    ) -> Result<(Vec<Plan>, Outcome), JobError> {
        let ready = self.ready();
        let text = ready.as_ref().ok().and_then(|ready| ready.plans.first()).map(resolved_text);
        // One that did not answer would be waited for once more.
        let is_heard = !ready.as_ref().is_err_and(JobError::is_of_lost_process);
        let told = if is_heard { processes::send(self.world, text.as_deref()) } else { Ok(()) };
        // The error that is reported is `ready`'s, not that the others could not be told.
        let Ready { yaml, opened, plans } = ready?;
        told?;
        processes::announce(self.world);
        let options = adjust(self.options(yaml, opened));
        let outcome = annulus_train::run_phases(&plans, options, &mut console())?;
        Ok((plans, outcome))
    }

    /// Trains in process 0, or in the only one, and prints a summary; `owed` becomes the sample of a finished run.
    fn lead(&self, owed: &mut Option<OwedSample>) -> Result<u8, JobError> {
        let (plans, outcome) = self.steps(&|options| options, Console::default)?;
        let first = first_phase(&plans)?;
        let (expect, sample) = (first.experiment.expect.clone(), first.experiment.sample.clone());
        summary(&outcome, first.experiment.keep_best)?;
        if outcome.ending == Ending::AlreadyFinished {
            // Earlier measurements may be of a different number of ranks than this plan.
            say_if_split_otherwise(&plans, &outcome)?;
        } else {
            let plan = check::phase_at(plans, outcome.step);
            memory(&plan, &outcome)?;
            resident(&plan, &outcome, self.world)?;
        }
        if outcome.ending == Ending::Preempted {
            return Ok(Exit::Preempted.code());
        }
        *owed = sample.map(|sample| OwedSample { folder: outcome.folder.clone(), sample });
        let checked = if self.arguments.check { expected(&expect, &outcome) } else { Ok(0) };
        Ok(checked?)
    }
}

fn first_phase(plans: &[Plan]) -> Result<&Plan, Failure> {
    plans.first().ok_or_else(|| Failure::internal("no phase"))
}

/// Prints how the run ended, the last metrics and the paths of files.
fn summary(outcome: &Outcome, keep_best: bool) -> Result<(), Failure> {
    let step = outcome.step;
    let ended = match outcome.ending {
        Ending::Finished => format!("finished at step {step}"),
        Ending::AlreadyFinished => format!("already finished at step {step}: nothing to do"),
        Ending::Preempted => format!("stopped at step {step}; the same command resumes from there"),
    };
    print::line(&ended)?;
    for (tag, what) in tags::RESULTS {
        if let Some(value) = outcome.last.get(tag) {
            // A run may stop between two steps that are logged or evaluated.
            let at = outcome.logged_at.get(tag).filter(|at| **at != step);
            let at = at.map_or_else(String::new, |at| format!(" (step {at})"));
            print::line(&format!("  {what:<32} {value:.4}{at}"))?;
        }
    }
    let folder = outcome.folder.display();
    print::line(&format!("  {:<32} {folder}", "run folder"))?;
    print::line(&format!("  {:<32} tensorboard --logdir {folder}", "curve"))?;
    if let Some(checkpoint) = &outcome.checkpoint {
        print::line(&format!("  {:<32} {}", "checkpoint", checkpoint.display()))?;
    }
    if let Some((best, loss)) = keep_best.then(|| best_checkpoint(&outcome.folder)).flatten() {
        let best = best.display();
        print::line(&format!("  {:<32} {best} (validation loss {loss:.4})", "best checkpoint"))?;
    }
    Ok(())
}

/// Says of a finished run how it was split, where these plans would split it otherwise: it does not show that both agree.
fn say_if_split_otherwise(plans: &[Plan], outcome: &Outcome) -> Result<(), Failure> {
    // A manifest that cannot be read does not change that the run is finished.
    let made = Manifest::open(&outcome.folder).ok().flatten();
    let how = made.zip(plans.last()).and_then(|(made, plan)| made.split_otherwise(plan));
    how.map_or(Ok(()), |how| {
        print::line(&format!(
            "that run used {how}; to train this one, set another `name=` or `output=`"
        ))
    })
}

/// Prints the fullest rank's memory by class in the last measured step, next to the plan with all cores.
fn memory(plan: &Plan, outcome: &Outcome) -> Result<(), Failure> {
    let ranks = plan.with_cores(annulus_machine::cores());
    let most = |of: &dyn Fn(&RankPlan) -> u64| size(ranks.iter().map(of).max().unwrap_or_default());
    let mut lines = Vec::new();
    for class in Class::ALL {
        let name = class.name();
        if let Some(measured) = outcome.last.get(&tags::memory_of(name)) {
            let measured = size(*measured as u64);
            let planned = most(&|rank| rank.peak_by_class[class]);
            lines.push(format!("    {name:<30} {measured:>10}   {planned:>10} planned"));
        }
    }
    if let Some(measured) = outcome.last.get(tags::MEMORY_PEAK) {
        let (measured, planned) = (size(*measured as u64), most(&|rank| rank.peak));
        lines.push(format!("    {:<30} {measured:>10}   {planned:>10} planned", "all at once"));
    }
    if !lines.is_empty() {
        print::line("  memory of the fullest rank")?;
        for line in lines {
            print::line(&line)?;
        }
    }
    Ok(())
}

/// Prints the resident memory of every process and host, next to the plan of its ranks with what it took before they began; of ranks on
/// GPUs no such plan is made.
fn resident(plan: &Plan, outcome: &Outcome, world: &World) -> Result<(), Failure> {
    let held = annulus_train::process_memory(plan, &outcome.last);
    let line = |name: &str, held: &[ProcessMemory]| {
        let resident = size(held.iter().map(|held| held.resident).sum());
        let planned: Option<u64> = held.iter().map(|held| held.planned).sum();
        let planned = planned.map(|planned| format!("   {:>10} planned", size(planned)));
        print::line(&format!("    {name:<30} {resident:>10}{}", planned.unwrap_or_default()))
    };
    match held.as_slice() {
        [] => return Ok(()),
        [only] => return line("resident, with the program", &[*only]),
        _ => print::line("  resident memory")?,
    }
    for (process, held) in held.iter().enumerate() {
        line(&format!("process {process}"), &[*held])?;
    }
    for on in world.rank_hosts(world.processes()).hosts() {
        let here: Vec<ProcessMemory> =
            on.ranks.iter().filter_map(|at| held.get(*at)).copied().collect();
        line(&format!("host {}", on.host), &here)?;
    }
    Ok(())
}

/// Checks the last metrics against `expect`.
fn expected(expect: &BTreeMap<String, Bound>, outcome: &Outcome) -> Done {
    let mut broken = Vec::new();
    for (tag, bound) in expect {
        let Some(&last) = outcome.last.get(tag) else {
            broken.push(Problem::new(format!("`{tag}` was never recorded")));
            continue;
        };
        let of_first =
            bound.of_first.zip(outcome.first.get(tag)).map(|(share, first)| share * first);
        let least = bound.min.filter(|&least| !(last >= least));
        let most = [bound.max, of_first].into_iter().flatten().find(|&most| !(last <= most));
        broken.extend(least.map(|least| {
            Problem::new(format!("`{tag}` is {last}, at least {least} was expected"))
        }));
        broken.extend(
            most.map(|most| {
                Problem::new(format!("`{tag}` is {last}, at most {most} was expected"))
            }),
        );
    }
    if broken.is_empty() {
        print::line(&format!("expectations hold: {}", expect.len()))?;
        return Ok(0);
    }
    Err(Failure { exit: Exit::Expectation, problems: Problems(broken) })
}
