//! `annulus evaluate`: evaluates a model on long sequences.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use annulus_comm::World;
use annulus_evaluation::{
    ConversationLoss, Conversations, Evaluated, FOLDER, Files, Mean, Perplexity, RESULTS, Reads,
    Subject, TaskResults, TextLoss, TrainedFiles, conversations, kept_in, perplexity, tasks,
};
use annulus_experiment::{EvaluationTask, Experiment, Override};
use annulus_files::Pending;
use annulus_plan::PACKED_TOGETHER;
use annulus_text::{count, stacked};
use annulus_train::{Exit, TrainError};
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
    let losses = plan.experiment.asked().contains(&EvaluationTask::Perplexity);
    let reads = losses.then(|| subject.reads()).transpose()?.unwrap_or_default();
    // Results that cannot be written are lost, and may have taken hours.
    let open = || ResultsFolder::open(arguments.out.as_deref(), &plan.experiment.output);
    let out = processes::shared(world, || leads.then(open).transpose())?;
    if let Some(out) = &out {
        processes::announce(world);
        say_what_is_replaced(&plan.experiment, reads, subject.step, &out.path);
        say_what_is_read(&subject, reads);
        warn_of_length(&subject);
    }
    let meter = Meter::new(Unit::Number);
    let told = |what: &str, done, total| match total {
        _ if !leads => {}
        0 => print::say(what),
        _ => meter.show(what, done as u64, total as u64),
    };
    let found = Evaluated {
        perplexity: reads.texts.then(|| perplexity(&subject, &told)).transpose()?,
        conversations: reads.conversations.then(|| conversations(&subject, &told)).transpose()?,
        tasks: tasks(&subject, &told)?,
    };
    meter.finish();
    // Every process has the same results; process 0 writes them.
    Ok(out.map_or(Ok(0), |out| show(arguments, &out.path, subject.step, &found))?)
}

/// Writes and prints the results; prints them, too, where they cannot be written.
fn show(arguments: &Evaluate, out: &Path, step: u64, found: &Evaluated) -> Done {
    let files = written(out, step, found);
    let Evaluated { perplexity, conversations, tasks } = found;
    let value =
        || json!({ "perplexity": perplexity, "conversations": conversations, "tasks": tasks });
    let tables = || {
        let losses = perplexity.iter().map(table).chain(conversations.iter().map(of_assistant));
        losses.chain(tasks.iter().map(shares))
    };
    print::either(arguments.json, value, || tables().collect::<Vec<_>>().join("\n\n"))?;
    for path in &files?.written {
        print::say(&format!("  {}", path.display()));
    }
    Ok(0)
}

fn written(out: &Path, step: u64, found: &Evaluated) -> Result<Files, TrainError> {
    let mut files = Files::create(out, step)?;
    if let Some(found) = &found.perplexity {
        files.perplexity(found)?;
    }
    if let Some(found) = &found.conversations {
        files.conversations(found)?;
    }
    if let Some(found) = &found.tasks {
        files.tasks(found)?;
    }
    Ok(files)
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
fn say_what_is_read(subject: &Subject, reads: Reads) {
    let experiment = &subject.plan.experiment;
    // Tasks make their own texts.
    if !reads.texts && !reads.conversations {
        return;
    }
    match (&experiment.evaluation.path, trained_in(subject)) {
        (_, Some(trained)) => print::warn(format!(
            "{trained} trained on: leave `evaluation.path` out to read what was held out of `data.path`"
        )),
        (Some(path), None) => {
            let what = if reads.conversations { "the conversations in " } else { "" };
            print::say(&format!("reading {what}`{}`", path.display()));
        }
        (None, None) if experiment.data.path.is_empty() => {}
        (None, None) => print::say("reading the held-out part of `data.path`"),
    }
    if reads.conversations && experiment.attention.masking.documents.is_none() {
        print::warn(PACKED_TOGETHER);
    }
}

/// What of `evaluation.path` a run trained the weights on, and that it was; `None`: nothing.
fn trained_in(subject: &Subject) -> Option<String> {
    let TrainedFiles { files, is_all } = subject.trained_files();
    let first = files.first()?.display();
    let path = subject.plan.experiment.evaluation.path.as_ref()?.display();
    Some(match files.len() - 1 {
        _ if is_all => format!("`{path}` was"),
        0 => format!("`{first}`, which is in `{path}`, was"),
        more => format!("`{first}` and {more} more of `{path}` were", more = count(more, "file")),
    })
}

/// Says beforehand which earlier results will be replaced or moved.
fn say_what_is_replaced(experiment: &Experiment, reads: Reads, step: u64, out: &Path) {
    let asks = experiment.asked().iter().any(|one| *one != EvaluationTask::Perplexity);
    if let Some(kept) = kept_in(out, step) {
        print::say(&format!("note: the results of another step move to `{}`", kept.display()));
        return;
    }
    let written = RESULTS
        .iter()
        .zip([reads.texts, reads.conversations, asks])
        .filter(|(_, is_written)| *is_written);
    if let Some((earlier, _)) = written.into_iter().find(|(name, _)| out.join(name).is_file()) {
        let earlier = out.join(earlier);
        let earlier = earlier.display();
        print::say(&format!(
            "note: the results will replace `{earlier}`; `--out FOLDER` keeps both"
        ));
    }
}

/// A folder that results can be written to. Dropped, the folders that were made for them are removed if there are none.
struct ResultsFolder {
    path: PathBuf,
    /// The folders that were made, the innermost first.
    made: Vec<PathBuf>,
}

impl ResultsFolder {
    /// Makes sure that results can be written to `out` or, if that is not given, to the folder of evaluations in a run's folder `output`.
    fn open(out: Option<&Path>, output: &Path) -> Result<ResultsFolder, Failure> {
        let path = out.map_or_else(|| output.join(FOLDER), Path::to_owned);
        let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let made = path.ancestors().take_while(is_missing).map(Path::to_owned).collect();
        let results = ResultsFolder { path, made };
        // A run's evaluations must lie in its folder and not behind a link.
        let made = match out {
            Some(out) => fs::create_dir_all(out),
            None => fs::create_dir_all(output)
                .and_then(|()| annulus_files::subfolder(output, FOLDER).map(drop)),
        };
        made.and_then(|()| results.try_to_write()).map_err(|error| {
            let message = format!("cannot write to `{}`: {error}", results.path.display());
            let hint = String::from("give another folder: `--out DIR`");
            Failure::new(Exit::Checkpoint, message, Some(hint))
        })?;
        Ok(results)
    }

    /// Writes a file of a byte that never gets a name, which a full disk has no room for.
    fn try_to_write(&self) -> io::Result<()> {
        let mut file = Pending::create(&self.path.join("tried"))?;
        file.write_all(b" ").and_then(|()| file.flush())
    }
}

impl Drop for ResultsFolder {
    fn drop(&mut self) {
        for folder in &self.made {
            // A folder that holds something stays.
            let _ = fs::remove_dir(folder);
        }
    }
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
    let of_text = |TextLoss { path, windows, loss }: &TextLoss| {
        of_several(*loss, &count(*windows, "window"), path)
    };
    lines.extend(found.texts.iter().map(of_text));
    lines.join("\n")
}

/// A table of the loss of what the assistant says, by length.
fn of_assistant(found: &Conversations) -> String {
    let mut lines = vec![
        "the assistant's tokens of conversations, ± standard error".to_owned(),
        format!(
            "{:>9} {:>9} {:>9} {:>11} {:>9} {:>13} {:>13}",
            "tokens", "loss", "±", "perplexity", "targets", "conversations", "right answers"
        ),
    ];
    for length in &found.lengths {
        let (loss, error) = (length.loss.mean, length.loss.shown_error());
        let right = length.right.map(|right| format!("{}/{}", right.right, right.of));
        let right = right.unwrap_or_else(|| "–".to_owned());
        lines.push(format!(
            "{:>9} {loss:>9.4} {error:>9} {:>11.3} {:>9} {:>13} {right:>13}",
            length.tokens, length.perplexity, length.targets, length.conversations
        ));
    }
    let with_others = found.lengths.iter().filter(|length| length.not_whole > 0);
    lines.extend(with_others.map(|length| {
        let answers = count(length.not_whole, "answer");
        format!(
            "not scored: {answers} not whole in {} tokens; what is there counts in the loss",
            length.tokens
        )
    }));
    let sources = found.lengths.last().map_or(&[][..], |longest| &longest.sources);
    let of_source = |ConversationLoss { path, conversations, loss, .. }: &ConversationLoss| {
        of_several(*loss, &count(*conversations, "conversation"), path)
    };
    lines.extend(sources.iter().map(of_source));
    lines.join("\n")
}

/// A line of the loss in one text of several.
fn of_several(loss: Mean, parts: &str, path: &Path) -> String {
    let (mean, error) = (loss.mean, loss.shown_error());
    format!("          {mean:.4} ± {error} in {parts} of `{}`", path.display())
}
