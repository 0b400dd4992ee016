//! `annulus evaluate`: evaluates a model on long sequences.

use std::path::{Path, PathBuf};

use annulus_comm::World;
use annulus_evaluation::{
    FOLDER, Files, Perplexity, RESULTS, Subject, TaskResults, TextLoss, kept_in, perplexity, tasks,
};
use annulus_experiment::{EvaluationTask, Experiment, Format, Override};
use annulus_text::{count, stacked};
use annulus_train::Exit;
use clap::Args;
use serde_json::json;

use crate::Done;
use crate::console::{Meter, Unit};
use crate::failure::Failure;
use crate::print;
use crate::processes::{self, JobError};
use crate::subject::subject;
use crate::values::replacement;

#[derive(Args, Debug)]
pub(crate) struct Evaluate {
    /// A run's folder, a `step-N` in it, a Hugging Face folder or `hf://owner/name`, or an experiment
    path: PathBuf,
    /// Keys to replace, as in `evaluation.lengths=[1k,8k]`
    #[arg(value_name = "KEY=VALUE", value_parser = replacement)]
    replacements: Vec<Override>,
    /// Folder for the results [default: `evaluation` in the run's folder]
    #[arg(long, alias = "output", value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Verify texts and token caches by their hashes, even if they look unchanged
    #[arg(long)]
    verify_cache: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Evaluate) -> Done {
    let world = processes::join()?;
    Ok(processes::finish(&world, evaluate(arguments, &world)))
}

fn evaluate(arguments: &Evaluate, world: &World) -> Result<u8, JobError> {
    let Evaluate { path, replacements, verify_cache, .. } = arguments;
    let mut subject = subject(path, replacements, *verify_cache, world)?;
    subject.verify_cache = *verify_cache;
    let (plan, leads) = (&subject.plan, world.process() == 0);
    if leads {
        processes::announce(world);
        let wanted = arguments.out.clone();
        let out = wanted.unwrap_or_else(|| plan.experiment.output.join(FOLDER));
        say_what_is_replaced(&plan.experiment, subject.step, &out);
        say_what_is_read(&subject);
        warn_of_length(&subject);
    }
    let meter = Meter::new(Unit::Number);
    let told = |what: &str, done, total| match total {
        _ if !leads => {}
        0 => print::say(what),
        _ => meter.show(what, done as u64, total as u64),
    };
    let reads = plan.experiment.asked().contains(&EvaluationTask::Perplexity);
    let read = reads.then(|| perplexity(&subject, &told)).transpose()?;
    let asked = tasks(&subject, &told)?;
    meter.finish();
    // Every process has the same results; process 0 writes them.
    Ok(if leads { written(arguments, &subject, read.as_ref(), asked.as_ref())? } else { 0 })
}

/// Writes and prints the results.
fn written(
    arguments: &Evaluate,
    subject: &Subject,
    read: Option<&Perplexity>,
    asked: Option<&TaskResults>,
) -> Done {
    let out = match &arguments.out {
        Some(out) => out.clone(),
        None => own_folder(&subject.plan.experiment.output)?,
    };
    let mut files = Files::create(&out, subject.step)?;
    if let Some(found) = read {
        files.perplexity(found)?;
    }
    if let Some(found) = asked {
        files.tasks(found)?;
    }
    let value = || json!({ "perplexity": read, "tasks": asked });
    let tables = || read.into_iter().map(table).chain(asked.map(shares));
    print::either(arguments.json, value, || tables().collect::<Vec<_>>().join("\n\n"))?;
    for path in &files.written {
        print::say(&format!("  {}", path.display()));
    }
    Ok(0)
}

/// Warns if sequences are longer than the model was trained for.
fn warn_of_length(subject: &Subject) {
    let lengths = subject.plan.experiment.evaluated_lengths();
    let longest = subject.trained_for().unwrap_or(usize::MAX);
    if let Some(tokens) = lengths.last().filter(|tokens| **tokens > longest) {
        print::warn(format!(
            "{tokens} tokens are more than the {longest} that the model was trained for"
        ));
    }
}

/// Says which text is read, and warns if a run trained the weights on it.
fn say_what_is_read(subject: &Subject) {
    let experiment = &subject.plan.experiment;
    // Tasks make their own texts.
    if !experiment.asked().contains(&EvaluationTask::Perplexity) {
        return;
    }
    let trained = |path: &Path| {
        let data = subject.trained_on()?;
        let source = data.path.iter().find(|source| source.path == path)?;
        Some(source.format.unwrap_or(data.format))
    };
    match &experiment.evaluation.path {
        Some(path) if trained(path) == Some(Format::Chat) => print::warn(format!(
            "`{}` was trained on, as chats: `evaluation.path` takes a plain text; the loss of the chats that were held out is {}`evaluate/loss`, which training logs",
            path.display(),
            if subject.trained_on().is_some_and(|data| data.path.len() > 1) {
                "part of "
            } else {
                ""
            }
        )),
        Some(path) if trained(path).is_some() => print::warn(format!(
            "`{}` was trained on: leave `evaluation.path` out to read what was held out of `data.path`",
            path.display()
        )),
        Some(path) => print::say(&format!("reading `{}`", path.display())),
        None if experiment.data.path.is_empty() => {}
        None => {
            let all = left_out(experiment);
            print::say(&format!("reading the held-out part of `data.path`{all}"));
        }
    }
}

/// What is not read beside texts.
fn left_out(experiment: &Experiment) -> &'static str {
    let chats = experiment.data.formats().filter(|format| *format == Format::Chat).count();
    if (1..experiment.data.formats().count()).contains(&chats) {
        ", but for its conversations"
    } else {
        ""
    }
}

/// Says beforehand which earlier results will be replaced or moved.
fn say_what_is_replaced(experiment: &Experiment, step: u64, out: &Path) {
    let asked = experiment.asked();
    let [reads, asks] = [true, false].map(|is_perplexity| {
        asked.iter().any(|one| (*one == EvaluationTask::Perplexity) == is_perplexity)
    });
    if let Some(kept) = kept_in(out, step) {
        print::say(&format!("note: the results of another step move to `{}`", kept.display()));
        return;
    }
    let written = RESULTS.iter().zip([reads, asks]).filter(|(_, is_written)| *is_written);
    if let Some((earlier, _)) = written.into_iter().find(|(name, _)| out.join(name).is_file()) {
        let earlier = out.join(earlier);
        let earlier = earlier.display();
        print::say(&format!(
            "note: the results will replace `{earlier}`; `--out FOLDER` keeps both"
        ));
    }
}

/// The folder of a run's evaluations, which must lie in the run's folder and not behind a link.
fn own_folder(output: &Path) -> Result<PathBuf, Failure> {
    let made =
        std::fs::create_dir_all(output).and_then(|()| annulus_files::subfolder(output, FOLDER));
    made.map_err(|error| {
        let path = output.join(FOLDER);
        let message = format!("cannot write to `{}`: {error}", path.display());
        Failure::new(Exit::Checkpoint, message, Some("give another folder: `--out DIR`".to_owned()))
    })
}

/// A table of correct answers by task and length.
fn shares(found: &TaskResults) -> String {
    let lengths = found.lengths();
    let head = lengths.iter().map(ToString::to_string);
    let mut rows =
        vec![std::iter::once("right answers".to_owned()).chain(head).collect::<Vec<_>>()];
    for task in found.tasks() {
        let share = |&tokens: &usize| {
            let share = found.at(task, tokens);
            format!("{}/{}", share.right, share.of)
        };
        rows.push(std::iter::once(task.to_owned()).chain(lengths.iter().map(share)).collect());
    }
    stacked(&rows).trim_end().to_owned()
}

/// A table of the loss by length, with differences between lengths.
fn table(found: &Perplexity) -> String {
    let Perplexity { windows, targets, .. } = found;
    let mut lines = vec![
        format!("the last {targets} tokens of {windows} windows, ± standard error"),
        format!("{:>9} {:>9} {:>9} {:>11}  against", "tokens", "loss", "±", "perplexity"),
    ];
    for length in &found.lengths {
        let (loss, error) = (length.loss.mean, length.loss.shown_error());
        let difference = length.difference.map_or_else(String::new, |difference| {
            let (by, error) = (difference.loss.mean, difference.loss.shown_error());
            format!("{:>7} {by:+.4} ± {error}", difference.against)
        });
        let line = format!(
            "{:>9} {loss:>9.4} {error:>9} {:>11.3}  {difference}",
            length.tokens, length.perplexity
        );
        lines.push(line.trim_end().to_owned());
    }
    lines.extend(found.texts.iter().map(of_text));
    lines.join("\n")
}

/// A line of the loss in one text of several.
fn of_text(TextLoss { path, windows, loss }: &TextLoss) -> String {
    let windows = count(*windows, "window");
    format!(
        "          {:.4} ± {} in {windows} of `{}`",
        loss.mean,
        loss.shown_error(),
        path.display()
    )
}
