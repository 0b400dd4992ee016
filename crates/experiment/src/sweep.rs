//! The section `sweep`: one file that means many runs, every combination of values for some keys, each with several seeds.
//!
//! A run of a sweep is the file with its values set where their keys stand, read as any other file. Values keep their places in the sweep,
//! so that a mistake is shown in the list that it came from.

use std::path::PathBuf;

use annulus_yaml::Absent::{Is, Means, Required};
use annulus_yaml::Kind::{Count, CountOr, Lists as OfLists, Rows as OfRows, Section};
use annulus_yaml::{
    Document, Entry, Lists, Node, Override, Places, Problem, Problems, Reading, Report, Rows,
    Scalar, Typed, Value, join, section, text,
};

use crate::Experiment;
use crate::sweep_names::names;
use crate::written::{Written, read};

/// The name of the section `sweep`.
pub(crate) const SECTION: &str = "sweep";
/// The most runs of one sweep: more are a mistake, or several sweeps.
const MOST_RUNS: usize = 1000;
/// The most mistakes that are shown.
const MOST_SHOWN: usize = 50;
/// The word of `at_once` for as many runs as cores and memory allow.
const AUTO: &str = "auto";
/// Keys that a sweep sets itself, and the hint for a file that lists them.
const OWN: [(&str, &str); 4] = [
    (
        "seed",
        "set `sweep.seeds`: every run is repeated with so many seeds, from the file's `seed` on",
    ),
    ("output", "set `output` of the file: every run has a folder of its own in it"),
    ("name", "leave it out: runs are named after their values"),
    (SECTION, "a sweep has no sweeps in it"),
];

section! {
    /// The section `sweep` as it is written.
    #[derive(Clone, Debug, PartialEq)]
    pub struct SweepKeys {
        keys: Option<Lists> = OfLists, Means("none"),
            "lists of values for keys of this file, by dotted names: every combination is a run, and the last key changes fastest";
        rows: Option<Rows> = OfRows, Means("none"),
            "values that belong together: each row is combined with every combination of `keys`, and changes faster than they";
        seeds: u64 = Count(1, 1000), Is("1"),
            "how many seeds every combination is run with: `seed` of the file and those that follow";
        at_once: AtOnce = CountOr(1, MOST_RUNS as u64, &[AUTO]), Is("auto"),
            "runs at the same time, each on cores of its own; auto: as many as have a core for each of their ranks and fit into memory together, and one on a GPU";
    }
}

section! {
    /// A file of which only the section `sweep` is read.
    pub struct Swept {
        sweep: SweepKeys = Section(SweepKeys::KEYS), Required, "many runs of this file";
    }
}

/// The key `at_once`: how many runs go on at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtOnce {
    /// As many runs as cores and memory allow.
    Auto,
    /// This many runs.
    Runs(usize),
}

impl Scalar for AtOnce {
    fn from_typed(typed: &Typed) -> Option<AtOnce> {
        match typed {
            Typed::Count(runs) => usize::try_from(*runs).ok().map(AtOnce::Runs),
            Typed::Text(word) if word == AUTO => Some(AtOnce::Auto),
            _ => None,
        }
    }

    fn text(&self) -> String {
        match self {
            AtOnce::Auto => AUTO.to_owned(),
            AtOnce::Runs(runs) => runs.to_string(),
        }
    }
}

/// A file that means many runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    /// The file's `name`.
    pub name: String,
    /// The folder that contains the runs' folders: the file's `output`.
    pub output: PathBuf,
    /// How many runs go on at the same time.
    pub at_once: AtOnce,
    /// The keys whose values differ, by dotted names, in the order in which they were written.
    pub keys: Vec<String>,
    /// The runs in the order of the grid: seeds change fastest, then the last key.
    pub runs: Vec<SweptRun>,
    /// Where the sweep was written.
    pub places: Places,
}

/// One run of a sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct SweptRun {
    /// The run's name, which is also its folder's: `strategy=ring,tokens=1k,seed=0`.
    pub name: String,
    /// The number of its combination of values, from 0; runs that differ only in the seed share it.
    pub point: usize,
    /// The values of [`Sweep::keys`], as written.
    pub values: Vec<String>,
    /// The experiment of this run.
    pub experiment: Experiment,
}

/// The sweep of a file whose runs are all valid; `None`: the file is one run. Errors call the file `name`. An override of a key that the
/// sweep lists replaces the list.
///
/// # Errors
/// Every mistake in the file and in its runs, each with the first run that has it.
pub fn parse_sweep(
    name: &str,
    text: &str,
    overrides: &[Override],
) -> Result<Option<Sweep>, Problems> {
    let mut document = Document::parse(name, text, overrides)?;
    let Some(entry) = document.take(SECTION) else { return Ok(None) };
    if !document.report.is_empty() {
        return Err(document.report.finish());
    }
    let mut own = document.with(&[]);
    own.root.value = Value::Mapping(vec![entry]);
    let Reading { section, places, report } = own.section::<Swept>("an experiment");
    let Some(Swept { sweep }) = section.filter(|_| report.is_empty()) else {
        return Err(report.finish());
    };
    let axes = Axes::of(&sweep, &document, overrides)?;
    let points = axes.points(sweep.seeds, &places)?;
    let parsed: Vec<_> =
        points.iter().map(|point| read(document.with(&point.iter().collect::<Vec<_>>()))).collect();
    let names = names(&axes.keys, &points);
    let experiments = all_right(parsed, &names)?;
    let runs = seeded(&experiments, &names, &points, sweep.seeds, &places)?;
    refuse_twins(&runs, &places)?;
    let Some(first) = experiments.first() else { return Ok(None) };
    let (name, output) = (first.name.clone(), first.output.clone());
    Ok(Some(Sweep { name, output, at_once: sweep.at_once, keys: axes.keys, runs, places }))
}

/// The message and hint that a file with a sweep is not one run.
pub(crate) fn not_one_run(file: &str) -> (String, Option<String>) {
    let message = "`sweep` makes this file many runs, and this command is for one";
    let hint = format!(
        "`annulus check {file}` checks them all, `annulus sweep {file}` runs them; for one of them take its own file from the \
         sweep's folder, or leave `sweep` out"
    );
    (message.to_owned(), Some(hint))
}

/// Reports keys that there are not, of which one of the values is null: what null takes out is read nowhere else.
fn refuse_unknown_nulls<'a>(entries: impl Iterator<Item = &'a Entry>, report: &mut Report) {
    let keys = <Written as annulus_yaml::Section>::KEYS;
    let is_null = |value: &Node| value.value == Value::Nothing;
    let has_null = |entry: &&Entry| match &entry.value.value {
        Value::Sequence(items) => items.iter().any(is_null),
        _ => is_null(&entry.value),
    };
    for Entry { key, key_span, .. } in entries.filter(has_null) {
        if annulus_yaml::absent(keys, key).is_none() {
            let near = annulus_yaml::explain(keys, key).err().unwrap_or_default();
            let hint = near.first().map(|near| format!("did you mean `{near}`?"));
            report.at(*key_span, || (format!("unknown key `{key}`"), hint));
        }
    }
}

/// The axes of a sweep's grid; a run has one choice of each.
struct Axes {
    /// The keys of all axes.
    keys: Vec<String>,
    /// Axes of choices, each a value for one key, or a row of values for several.
    all: Vec<Vec<Vec<Entry>>>,
}

impl Axes {
    fn of(
        sweep: &SweepKeys,
        document: &Document,
        overrides: &[Override],
    ) -> Result<Axes, Problems> {
        let given = |key: &str| overrides.iter().any(|given| given.key == key);
        let of_list = |entry: &Entry| {
            let other = document.root.find(&entry.key).filter(|_| given(&entry.key));
            let value = |value: &Node| vec![Entry { value: value.clone(), ..entry.clone() }];
            match &other.unwrap_or(&entry.value).value {
                Value::Sequence(items) => items.iter().map(value).collect(),
                _ => other.map(value).into_iter().collect::<Vec<_>>(),
            }
        };
        let lists = sweep.keys.iter().flat_map(|lists| &lists.0);
        let rows = sweep.rows.as_ref().map_or(&[][..], |rows| &rows.0);
        let of_rows = rows.first().into_iter().flatten();
        let mut report = document.with(&[]).report;
        let mut keys: Vec<String> = Vec::new();
        for Entry { key, key_span, .. } in lists.clone().chain(of_rows.clone()) {
            let own = OWN.iter().find(|(own, _)| own == key || key.starts_with(&join(own, "")));
            if let Some((_, hint)) = own {
                let message = format!("`{key}` cannot be a key of a sweep");
                report.at(*key_span, || (message, Some((*hint).to_owned())));
            } else if keys.contains(key) {
                let message = format!("`{key}` is in `sweep.keys` and in `sweep.rows`");
                report.at(*key_span, || (message, Some(String::from("keep one of them"))));
            }
            keys.push(key.clone());
        }
        refuse_unknown_nulls(lists.clone().chain(rows.iter().flatten()), &mut report);
        for Entry { key, key_span, .. } in of_rows.filter(|entry| given(&entry.key)) {
            let message = format!("`{key}` is on the command line, but every row has its own");
            let hint = String::from("give other rows: `sweep.rows=[{ … }, …]`");
            report.at(*key_span, || (message, Some(hint)));
        }
        let rows = Some(rows.to_vec()).filter(|rows| !rows.is_empty());
        let all = lists.map(of_list).chain(rows).collect();
        if report.is_empty() { Ok(Axes { keys, all }) } else { Err(report.finish()) }
    }

    /// Every combination of choices, the last axis changing fastest.
    fn points(&self, seeds: u64, places: &Places) -> Result<Vec<Vec<Entry>>, Problem> {
        let count = self.all.iter().map(Vec::len).fold(seeds as usize, usize::saturating_mul);
        if !(1..=MOST_RUNS).contains(&count) {
            let message = format!("`sweep` makes {count} runs, expected 1 to {MOST_RUNS}");
            let hint = "list fewer values, or set fewer `seeds`; none of the lists may be empty";
            return Err(places.problem(SECTION, message).hint(hint));
        }
        let mut points = vec![Vec::new()];
        for axis in &self.all {
            let with = |point: &Vec<Entry>| {
                axis.iter().map(|choice| [&point[..], choice].concat()).collect::<Vec<_>>()
            };
            points = points.iter().flat_map(with).collect();
        }
        Ok(points)
    }
}

/// The experiments of all combinations, or every mistake once, with the first run that has it unless all have it.
fn all_right(
    parsed: Vec<Result<Experiment, Problems>>,
    names: &[String],
) -> Result<Vec<Experiment>, Problems> {
    let mut found: Vec<(Problem, Vec<&str>)> = Vec::new();
    let mut right = Vec::new();
    for (one, name) in parsed.into_iter().zip(names) {
        match one {
            Ok(experiment) => right.push(experiment),
            Err(problems) => gather(&mut found, problems, name),
        }
    }
    if found.is_empty() { Ok(right) } else { Err(told(found, names.len())) }
}

/// Adds a run's mistakes to those of other runs.
fn gather<'a>(found: &mut Vec<(Problem, Vec<&'a str>)>, problems: Problems, name: &'a str) {
    for problem in problems.0 {
        if let Some((_, runs)) = found.iter_mut().find(|(known, _)| *known == problem) {
            runs.push(name);
        } else if found.len() < MOST_SHOWN {
            found.push((problem, vec![name]));
        }
    }
}

/// Mistakes whose messages name the runs that have them.
fn told(found: Vec<(Problem, Vec<&str>)>, all: usize) -> Problems {
    let one = |(mut problem, runs): (Problem, Vec<&str>)| {
        let more = match runs.len() - 1 {
            _ if runs.len() == all && all > 1 => String::from("all runs of the sweep"),
            0 => format!("run `{}`", runs[0]),
            1 => format!("run `{}` and one more", runs[0]),
            others => format!("run `{}` and {others} more", runs[0]),
        };
        problem.message = format!("{}, in {more}", problem.message);
        problem
    };
    Problems(found.into_iter().map(one).collect())
}

impl Sweep {
    /// The problems of several runs as one: each mistake once, with the first run that has it.
    pub fn problems(found: Vec<(Problems, &SweptRun)>, all: usize) -> Problems {
        let mut gathered = Vec::new();
        for (problems, run) in found {
            gather(&mut gathered, problems, &run.name);
        }
        told(gathered, all)
    }
}

/// The runs of every combination with every seed.
fn seeded(
    experiments: &[Experiment],
    names: &[String],
    points: &[Vec<Entry>],
    seeds: u64,
    places: &Places,
) -> Result<Vec<SweptRun>, Problem> {
    let mut runs = Vec::new();
    for (point, experiment) in experiments.iter().enumerate() {
        for number in 0..seeds {
            let seed = experiment.seed.checked_add(number).ok_or_else(|| {
                let message = format!("no {seeds} seeds follow on `seed: {}`", experiment.seed);
                places.problem("sweep.seeds", message).hint("set a smaller `seed`")
            })?;
            let name = if names[point].is_empty() {
                format!("seed={seed}")
            } else {
                format!("{},seed={seed}", names[point])
            };
            let output = experiment.output.join(&name);
            let values = points[point].iter().map(|entry| text(&entry.value)).collect();
            let experiment = Experiment { seed, output, ..experiment.clone() };
            runs.push(SweptRun { name, point, values, experiment });
        }
    }
    Ok(runs)
}

/// Refuses runs that mean the same: a value can be written in two ways, such as `1k` and `1024`.
fn refuse_twins(runs: &[SweptRun], places: &Places) -> Result<(), Problem> {
    let means = |run: &SweptRun| {
        let output = PathBuf::new();
        Experiment { output, ..run.experiment.clone() }
    };
    let meanings: Vec<Experiment> = runs.iter().map(means).collect();
    for (index, one) in meanings.iter().enumerate() {
        if let Some(twin) = meanings[..index].iter().position(|other| other == one) {
            let (first, second) = (&runs[twin].name, &runs[index].name);
            let message = format!("`{first}` and `{second}` are the same run");
            let hint = "keep one of the values that mean the same";
            return Err(places.problem(SECTION, message).hint(hint));
        }
    }
    Ok(())
}
