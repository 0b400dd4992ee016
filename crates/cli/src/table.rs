//! `annulus table`: prints many runs as one table.

mod cells;
mod written;

use std::path::PathBuf;

use annulus_evaluation::{Group, Table, groups, of_other_data, repeated, table};
use annulus_train::{RunSummary, run_summary};
use clap::Args;

use crate::failure::Failure;
use crate::sweep::record::{self, Groups, Recorded};
use crate::{Done, print as printed};

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// The folder of a sweep, or folders of runs and sweeps
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    #[command(flatten)]
    options: TableOptions,
}

/// How a table is printed.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct TableOptions {
    #[command(flatten)]
    format: TableFormat,
    /// Leave out tokens per second, the only column that changes where a run was interrupted
    #[arg(long)]
    no_times: bool,
}

/// The format, which is text in columns unless one of these is given.
#[derive(Args, Clone, Copy, Debug)]
struct TableFormat {
    /// Print the table as JSON, with the values of all seeds
    #[arg(long, group = "form")]
    json: bool,
    /// Print the table as Markdown
    #[arg(long, group = "form")]
    markdown: bool,
    /// Print the table as comma-separated values
    #[arg(long, group = "form")]
    csv: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Done {
    let rows = match arguments.runs.as_slice() {
        [only] => record::read(only),
        _ => None,
    };
    let rows = match rows {
        Some(Recorded { groups, strays }) => {
            for (run, other) in &strays {
                note_stray(run, other);
            }
            groups
        }
        None => of_runs(&arguments.runs)?,
    };
    print(rows, arguments.options)?;
    Ok(0)
}

/// Says that a run is no run of the sweep in whose folder it is.
fn note_stray(run: &RunSummary, other: &str) {
    let folder = run.folder.display();
    printed::say(&format!(
        "note: `{folder}` is not what `sweep.json` says: its {other}; it is left out"
    ));
}

/// The rows of the table of several folders: runs grouped by the keys that differ. Of a sweep's folder, the runs that have begun.
fn of_runs(folders: &[PathBuf]) -> Result<Groups, Failure> {
    let mut runs: Vec<RunSummary> = Vec::new();
    for folder in folders {
        match record::read(folder) {
            // Here a run counts with its own values, wherever it is.
            Some(Recorded { groups: (_, rows), strays }) => {
                runs.extend(rows.into_iter().flat_map(|(_, runs)| runs).flatten());
                runs.extend(strays.into_iter().map(|(run, _)| run));
            }
            None => runs.push(run_summary(folder)?),
        }
    }
    Ok(groups(runs))
}

/// Prints the table of these rows, and notes which runs are left out.
pub(crate) fn print((keys, rows): Groups, options: TableOptions) -> Result<(), Failure> {
    note_unfinished(&rows);
    for [first, again] in repeated(&rows) {
        let [first_loss, loss] = [first, again].map(|run| (run.train_loss, run.evaluation_loss));
        let differs = if loss == first_loss { "" } else { ", with other losses" };
        let [first, again] = [first, again].map(|run| run.folder.display().to_string());
        printed::say(&format!(
            "note: `{again}` has the file and seed of `{first}`{differs}, and is left out"
        ));
    }
    if let Some([first, other]) = of_other_data(&rows) {
        let [first, other] = [first, other].map(|run| run.folder.display());
        printed::warn(format!(
            "`{first}` and `{other}` name the same `data`, which was changed between them: do not compare their losses"
        ));
    }
    let found = table(keys, &rows, !options.no_times);
    printed::line(&text(&found, options.format)?)
}

fn note_unfinished(rows: &[Group]) {
    let all: usize = rows.iter().map(|(_, runs)| runs.len()).sum();
    let begun = || rows.iter().flat_map(|(_, runs)| runs).flatten();
    let unfinished: Vec<String> = begun()
        .filter(|run| !run.is_finished)
        .map(|run| run.folder.display().to_string())
        .collect();
    if let Some(first) = unfinished.first() {
        printed::say(&match unfinished.len() {
            1 => format!("note: `{first}` is not finished, and is left out"),
            more => format!(
                "note: {more} of {all} runs, the first of them `{first}`, are not finished, and are left out"
            ),
        });
    }
}

fn text(found: &Table, format: TableFormat) -> Result<String, Failure> {
    if format.json {
        return serde_json::to_string(found).map_err(|error| Failure::internal(error.to_string()));
    }
    Ok(match (format.markdown, format.csv) {
        (true, _) => written::markdown(found),
        (_, true) => written::csv(found),
        _ => written::text(found),
    })
}
