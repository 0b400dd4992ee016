//! `annulus post-mortem`, and what `annulus launch` prints after a failure: which process ended the job, where every rank stood, and
//! which ranks waited for which.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use annulus_comm::flight::{FOLDER, RankStatus, Record, Verdict, Who, Wreck, now};
use annulus_train::{Exit, last_checkpoint, run_summary};
use clap::Args;

use crate::failure::Failure;
use crate::{Done, print};

/// How many ranks are shown besides those at fault.
const MOST: usize = 12;
/// A process of several that has been silent for so long counts as stopped.
const STILL: Duration = Duration::from_secs(2);

#[derive(Args, Debug)]
pub(crate) struct PostMortem {
    /// The run's folder, or a folder of flight records
    run: PathBuf,
}

pub(crate) fn run(arguments: &PostMortem) -> Done {
    let within = arguments.run.join(FOLDER);
    let folder = if within.is_dir() { within } else { arguments.run.clone() };
    let wreck = Wreck::read(&folder).map_err(|error| {
        let hint = format!("name a run's folder: `train` keeps flight records in its `{FOLDER}/`");
        let what = format!("cannot read flight records in `{}`: {error}", folder.display());
        Failure::usage(what, hint)
    })?;
    print::line(&told(&wreck, &wreck.verdict_so_far()))?;
    Ok(0)
}

/// Whether a run has finished all steps, of all phases.
fn is_finished(run: &Path) -> bool {
    run_summary(run).is_ok_and(|run| run.is_finished)
}

/// A description of how a job ended, in a box.
pub(crate) fn told(wreck: &Wreck, verdict: &Verdict) -> String {
    let mut lines = vec![format!("┌─ {}", title(wreck, verdict))];
    let mut say = |name: &str, texts: Vec<String>| {
        for (index, text) in texts.into_iter().enumerate() {
            let name = if index == 0 { name } else { "" };
            lines.push(format!("│ {name:<8} {text}"));
        }
    };
    let culprit = culprit(wreck, verdict);
    say("who", culprit.iter().map(|record| who(record)).collect());
    say("how", how(wreck, verdict));
    let end = wreck.records.iter().map(Record::last_word).max().unwrap_or_default();
    say("where", culprit.map(|record| places(record, end)).unwrap_or_default());
    let others = wreck
        .records
        .iter()
        .filter(|record| culprit.is_none_or(|culprit| culprit.head.process != record.head.process));
    let mut others: Vec<_> = others.flat_map(|record| places(record, end)).collect();
    let more = others.len().saturating_sub(MOST);
    others.truncate(MOST);
    others.extend((more > 0).then(|| format!("and {more} more")));
    say(if culprit.is_some() { "others" } else { "ranks" }, others);
    let unread = |(path, why): &(PathBuf, String)| format!("{}: {why}", path.display());
    say("unread", wreck.unread.iter().map(unread).collect());
    if let Some(run) = run_of(wreck) {
        say("saved", vec![saved(wreck, verdict, run)]);
        say("records", vec![run.join(FOLDER).display().to_string()]);
    }
    lines.push("└─".to_owned());
    lines.join("\n")
}

/// What is saved of a run, and what the same command makes of it.
fn saved(wreck: &Wreck, verdict: &Verdict, run: &Path) -> String {
    let running = *verdict == Verdict::Running;
    match last_checkpoint(run) {
        Some(step) if running => format!("step-{step}"),
        None if running => "nothing yet".to_owned(),
        Some(step) if is_finished(run) => format!("step-{step}, the last: the run is finished"),
        // To resume from there would come to the same value again.
        Some(step) if wreck.seen.code == Some(Exit::NotFinite.code()) => {
            format!("step-{step} (before the failure)")
        }
        Some(step) => format!("step-{step}: the same command resumes from there"),
        None => "nothing yet: the same command starts again".to_owned(),
    }
}

/// The folder of the run, if the run began.
pub(crate) fn run_of(wreck: &Wreck) -> Option<&Path> {
    let record = wreck.records.iter().find(|record| !record.head.ranks.is_empty())?;
    record.path.parent()?.parent()
}

fn culprit<'a>(wreck: &'a Wreck, verdict: &Verdict) -> Option<&'a Record> {
    match verdict {
        Verdict::Lost { process }
        | Verdict::Asked { process }
        | Verdict::Blamed { who: Who::Process(process), .. }
        | Verdict::Failed { who: Who::Process(process), .. } => wreck.process(*process),
        Verdict::Blamed { who: Who::Rank(rank), .. }
        | Verdict::Failed { who: Who::Rank(rank), .. } => wreck.of_rank(*rank),
        Verdict::Running | Verdict::Done => None,
    }
}

fn title(wreck: &Wreck, verdict: &Verdict) -> String {
    let code = wreck.seen.code.or_else(|| {
        let code = |record: &Record| u8::try_from(record.head.ending.as_ref()?.code).ok();
        // Who ends because another does has this code, too.
        let is_of_another = |code: &u8| *code == Exit::RankDied.code();
        wreck.records.iter().filter_map(code).max_by_key(|code| (!is_of_another(code), *code))
    });
    let ended = code.map_or("ended".to_owned(), |code| format!("ended with {code}"));
    let what = match verdict {
        Verdict::Lost { process } => format!("process {process} was lost"),
        Verdict::Blamed { who, .. } => format!("because of {who}"),
        Verdict::Failed { who, .. } => format!("{who} failed"),
        Verdict::Asked { process } => format!("process {process} was asked to stop"),
        Verdict::Running => return "running: nothing has ended".to_owned(),
        Verdict::Done => "all ranks had finished".to_owned(),
    };
    format!("{ended}: {what}")
}

fn who(record: &Record) -> String {
    let head = &record.head;
    let Range { start, end } = head.ranks;
    let ranks = match head.ranks.len() {
        0 => "before ranks started".to_owned(),
        1 => format!("rank {start}"),
        _ => format!("ranks {start} to {}", end - 1),
    };
    format!(
        "process {} of {} on {}, pid {}: {ranks}",
        head.process, head.processes, head.host, head.pid
    )
}

fn how(wreck: &Wreck, verdict: &Verdict) -> Vec<String> {
    match verdict {
        Verdict::Lost { .. } => {
            vec!["it hangs, was killed (SIGKILL, out of memory) or crashed (a segmentation fault), without a message".to_owned()]
        }
        Verdict::Blamed { by, why, .. } => vec![format!("{by} says: {why}")],
        Verdict::Failed { why, .. } => vec![why.clone()],
        Verdict::Asked { .. } => {
            vec!["by a signal, or by a scheduler's time limit; its steps are saved".to_owned()]
        }
        Verdict::Running => wreck.records.iter().filter_map(silence).collect(),
        Verdict::Done => Vec::new(),
    }
}

/// A line if the process has not ended but is silent: one of several processes signs its record every few milliseconds.
fn silence(record: &Record) -> Option<String> {
    let silent = Duration::from_micros(now().saturating_sub(record.last_word()));
    let stands = record.head.processes > 1 && record.head.ending.is_none() && silent > STILL;
    let (process, seconds) = (record.head.process, silent.as_secs());
    stands.then(|| format!("process {process} is stopped or hangs: silent for {seconds} s"))
}

/// Where the ranks of a process stood when the job ended, or where the process stood if it had no ranks yet.
fn places(record: &Record, end: u64) -> Vec<String> {
    if record.ranks.is_empty() {
        return vec![format!("process {}: {}", record.head.process, record.own)];
    }
    let place = |place: &RankStatus| {
        let rank = place.rank.unwrap_or_default();
        if place.left {
            return format!("rank {rank}: had finished");
        }
        let waits = place.waits.map_or(String::new(), |waits| {
            let seconds = end.saturating_sub(waits.since) as f64 / 1e6;
            format!(", waiting {seconds:.1} s for rank {}", waits.peer)
        });
        format!("rank {rank}: {place}{waits}")
    };
    record.ranks.iter().map(place).collect()
}
