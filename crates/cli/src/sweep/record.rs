//! `sweep.json` in a sweep's folder: lists its runs in the order of the grid, for commands that read the folder later.

use std::io;
use std::path::Path;

use annulus_evaluation::Group;
use annulus_experiment::Sweep;
use annulus_train::{RunSummary, run_summary};
use serde_json::{Value, json};

use super::bases::{BASES, Bases};
use super::stray::stray;

/// The file's name.
const FILE: &str = "sweep.json";
/// The largest such file that is read, in bytes: it has names and values of up to a thousand runs.
const LARGEST: u64 = 1 << 24;

/// The keys of a table's columns, and its rows.
pub(crate) type Groups = (Vec<String>, Vec<Group>);

/// What a sweep's folder says.
pub(crate) struct Recorded {
    /// The rows of the sweep's table, with the runs that have begun.
    pub(crate) groups: Groups,
    /// Runs that are in no row, each with the value that it does not share with the sweep.
    pub(crate) strays: Vec<(RunSummary, String)>,
}

/// Writes the list of runs, whole or not at all.
pub(super) fn write(sweep: &Sweep, bases: &Bases) -> io::Result<()> {
    let run = |run: &annulus_experiment::SweptRun| json!({ "name": run.name, "point": run.point, "seed": run.experiment.seed, "values": run.values });
    let runs: Vec<Value> = sweep.runs.iter().map(run).collect();
    let mut record = json!({ "version": 1, "keys": sweep.keys, "runs": runs });
    if let Some(bases) = bases.record() {
        record[BASES] = bases;
    }
    let text = format!("{record:#}\n");
    annulus_files::write(&sweep.output.join(FILE), text.as_bytes())
}

/// The rows of a sweep's table from the results of its runs, `None` for those that do not count.
pub(super) fn groups(sweep: &Sweep, runs: Vec<Option<RunSummary>>) -> Groups {
    let mut groups: Vec<Group> = Vec::new();
    for (run, summary) in sweep.runs.iter().zip(runs) {
        add(&mut groups, run.point, &run.values, summary);
    }
    (sweep.keys.clone(), groups)
}

/// Adds a run to its row.
fn add(groups: &mut Vec<Group>, point: usize, values: &[String], summary: Option<RunSummary>) {
    if groups.len() <= point {
        groups.push((values.to_vec(), Vec::new()));
    }
    if let Some((_, runs)) = groups.last_mut() {
        runs.push(summary);
    }
}

/// The checkpoints that the runs of the sweep in `folder` begin with, as far as its list says so.
pub(super) fn bases(folder: &Path) -> Bases {
    parsed(folder).map_or_else(Bases::default, |record| Bases::of(&record))
}

fn parsed(folder: &Path) -> Option<Value> {
    let bytes = annulus_files::read(&folder.join(FILE), LARGEST).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// The rows of the table of a sweep's folder, and what has none; `None` if it is no such folder.
pub(crate) fn read(folder: &Path) -> Option<Recorded> {
    let record = parsed(folder)?;
    let bases = Bases::of(&record);
    let texts = |value: &Value| {
        let items = value.as_array()?.iter();
        items.map(|item| item.as_str().map(str::to_owned)).collect::<Option<Vec<String>>>()
    };
    let keys = texts(&record["keys"])?;
    let seeded = [&keys[..], &["seed".to_owned()]].concat();
    let (mut groups, mut strays) = (Vec::new(), Vec::new());
    for run in record["runs"].as_array()? {
        let point = usize::try_from(run["point"].as_u64()?).ok()?;
        let name =
            run["name"].as_str().filter(|name| !name.contains(['/', '\\']) && *name != "..")?;
        let values = texts(&run["values"])?;
        let said = values.iter().cloned().chain(run["seed"].as_u64().map(|seed| seed.to_string()));
        let said: Vec<String> = said.collect();
        let mut summary = run_summary(&folder.join(name)).ok();
        let other = summary.as_ref().and_then(|run| stray(&run.experiment, &seeded, &said, &bases));
        strays.extend(other.and_then(|other| Some((summary.take()?, other))));
        add(&mut groups, point, &values, summary);
    }
    Some(Recorded { groups: (keys, groups), strays })
}
