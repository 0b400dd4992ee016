//! The texts that an experiment reads: files and folders, except what its own run and other runs write there.

use std::fs;
use std::path::{Component, Path, PathBuf};

use annulus_comm::flight;
use annulus_data::{DataError, Excluded, Listed, Records, apportion, is_experiment, list};
use annulus_experiment::{Experiment, Format, Problem, Problems, TextSource};
use annulus_text::count;
use glob::Pattern;

use crate::checkpoint::{LATEST, step_of};
use crate::folder::{GIVEN, HASHES, LOCK, MESSAGES, RESOLVED, lines, manifest};
use crate::setup::twice::hard_links;
use crate::{Result, TrainError};

/// File names that a run writes into its folder, besides checkpoints, traces and curves.
const MADE: [&str; 11] = [
    LOCK,
    LATEST,
    RESOLVED,
    GIVEN,
    manifest::FILE,
    lines::FILE,
    HASHES,
    MESSAGES,
    flight::FOLDER,
    "evaluation",
    "offload",
];

/// The beginning of the file names of a run's curves.
const CURVES: &str = "events.out.tfevents";

/// How many paths a note lists.
const LISTED: usize = 4;

/// The folder of token caches: beside the run folders.
pub fn cache_folder(output: &Path) -> PathBuf {
    output.parent().unwrap_or(Path::new("")).join("cache")
}

/// The texts that an experiment reads.
///
/// # Errors
/// A text that does not exist, or an experiment that names none.
pub fn texts(experiment: &Experiment) -> Result<Vec<PathBuf>> {
    if experiment.data.path.is_empty() {
        let problem = experiment.places.problem("data", "`data.path` is missing");
        let hint =
            "set it to the texts to read: a file, a folder, or a pattern such as `'books/*.txt'`";
        return Err(TrainError::Config(Problems(vec![problem.hint(hint.to_owned())])));
    }
    let sources = experiment.data.path.iter().enumerate();
    let missing = sources.filter_map(|(number, source)| not_there(experiment, number, source));
    let missing: Vec<Problem> = missing.collect();
    if !missing.is_empty() {
        return Err(TrainError::Config(Problems(missing)));
    }
    let mut texts = Vec::new();
    for source in &experiment.data.path {
        texts.extend(Matching::of(&source.path)?.texts);
    }
    Ok(texts)
}

/// The problem of source `number` that does not exist, with the line that names it.
fn not_there(experiment: &Experiment, number: usize, source: &TextSource) -> Option<Problem> {
    let path = &source.path;
    let link = fs::read_link(path).ok();
    if path.exists() || link.is_none() && is_pattern(&path.to_string_lossy()) {
        return None;
    }
    let (message, hint) = if let Some(target) = link {
        let (path, target) = (path.display(), target.display());
        let message = format!("`{path}` is a link to `{target}`, which is not there");
        (message, "restore what it leads to, or name another file or folder")
    } else {
        let message = format!("there is no file or folder `{}`", path.display());
        (
            message,
            "check the path, which is relative to the current folder; if the text has moved, set `data.path=NEW`",
        )
    };
    let key = format!("data.path.{number}.path");
    Some(experiment.places.problem(&key, message).hint(hint.to_owned()))
}

/// One experiment for every source of the data, read as that source is, with its share of the held-out text; with one source or none, the
/// experiment itself.
pub fn by_source(experiment: &Experiment) -> Vec<Experiment> {
    let data = &experiment.data;
    let weights = data.path.iter().map(TextSource::share).collect::<Vec<_>>();
    let held_out = apportion(data.evaluate as u64, &weights);
    let alone = |(source, held_out): (&TextSource, u64)| {
        let mut own = experiment.clone();
        own.data.path = vec![source.clone()];
        own.data.format = source.format.unwrap_or(data.format);
        own.data.column = source.column.clone().unwrap_or_else(|| data.column.clone());
        own.data.pack = source.pack(data);
        own.data.longer = source.longer.unwrap_or(data.longer);
        own.data.evaluate = held_out as usize;
        own
    };
    match &data.path[..] {
        [] => vec![experiment.clone()],
        sources => sources.iter().zip(held_out).map(alone).collect(),
    }
}

/// Whether a path may stand for several files.
fn is_pattern(path: &str) -> bool {
    path.contains(['*', '?', '['])
}

/// The files that match a path.
struct Matching {
    /// What is read, in name order.
    texts: Vec<PathBuf>,
    /// Experiments beside them, which are no texts; none where the pattern ends as they do, and so names them.
    experiments: Vec<PathBuf>,
}

impl Matching {
    /// The files that match a path with `*`, `?` or `[…]`; a path that exists, or has none of these, stands for itself. As in a shell, and as
    /// folders are read, hidden ones match only with a dot of their own.
    fn of(path: &Path) -> std::result::Result<Matching, DataError> {
        let text = path.to_string_lossy();
        if path.exists() || !is_pattern(&text) {
            return Ok(Matching { texts: vec![path.to_owned()], experiments: Vec::new() });
        }
        let failed = |message: String| DataError::NoMatch { path: path.to_owned(), message };
        let found = glob::glob(&text).map_err(|error| failed(error.to_string()))?;
        let dotted = text.split('/').filter(|part| part.starts_with('.'));
        let dotted: Vec<Pattern> = dotted.filter_map(|part| Pattern::new(part).ok()).collect();
        let found = found.filter(|found| {
            is_shown(found.as_ref().map_or_else(|error| error.path(), PathBuf::as_path), &dotted)
        });
        let found: Vec<PathBuf> = found
            .collect::<std::result::Result<_, _>>()
            .map_err(|error| failed(error.to_string()))?;
        let is_left_out = |path: &PathBuf| !text.ends_with(".yaml") && is_experiment(path);
        let (experiments, texts): (Vec<_>, Vec<_>) = found.into_iter().partition(is_left_out);
        if texts.is_empty() {
            return Err(failed("no file has such a name".to_owned()));
        }
        Ok(Matching { texts, experiments })
    }
}

/// Whether all hidden parts of a path match one of the parts of its pattern that begin with a dot.
fn is_shown(path: &Path, dotted: &[Pattern]) -> bool {
    let mut names = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_string_lossy()),
        _ => None,
    });
    names.all(|name| !name.starts_with('.') || dotted.iter().any(|part| part.matches(&name)))
}

/// The kind of records in texts of a format; `None`: the format has no texts.
pub fn records_of(format: Format) -> Option<Records> {
    match format {
        Format::Text => Some(Records::Text),
        Format::Jsonl => Some(Records::Lines),
        Format::Parquet => Some(Records::Rows),
        Format::Chat => Some(Records::Chats),
        Format::Batches | Format::Recall | Format::Needles => None,
    }
}

/// What in the folders of `inputs` is not data for a run with the folder `output`: that folder and its token caches. If a text lies in the
/// run's folder itself, only what the run writes there.
///
/// # Errors
/// One of `inputs` that the run itself writes.
pub fn excluded(inputs: &[PathBuf], output: &Path) -> Result<Excluded> {
    let caches = cache_folder(output);
    let own = output.canonicalize().ok();
    let (mut excluded, mut is_inside) = (Vec::new(), false);
    let mut in_caches = false;
    for input in inputs {
        let Ok(real) = input.canonicalize() else { continue };
        in_caches |= caches.canonicalize().is_ok_and(|caches| real.starts_with(caches));
        let Some(within) = own.as_ref().and_then(|own| real.strip_prefix(own).ok()) else {
            continue;
        };
        let first = within.components().next();
        if first.is_some_and(|first| is_made(&first.as_os_str().to_string_lossy())) {
            let (input, output) = (input.display(), output.display());
            return Err(TrainError::configuration(
                format!("`{input}` is not data: the run writes it into its own folder, `{output}`"),
                "name another file or folder, or set another `output`",
            ));
        }
        is_inside = true;
    }
    if is_inside {
        excluded.extend(made_in(output));
    } else {
        excluded.push(output.to_owned());
    }
    if !in_caches {
        excluded.push(caches);
    }
    Ok(Excluded::new(excluded))
}

/// Why paths are left out.
const NO_TEXTS: &str =
    "left out of the data: runs and experiments are not texts, nor is what a `CACHEDIR.TAG` marks";

/// A note about what is left out of an experiment's texts or of its evaluations, or named more than once; `None`: nothing is.
///
/// # Errors
/// Those of [`texts`] and [`excluded`], and folders that cannot be read.
pub fn left_out_of(experiment: &Experiment) -> Result<Option<String>> {
    let parts = by_source(experiment);
    let mut notes: Vec<String> = unevaluated(experiment, &parts).into_iter().collect();
    for part in parts {
        let Some(records) = records_of(part.data.format) else { continue };
        let inputs = texts(&part)?;
        notes.extend(note_on(&inputs, records, &excluded(&inputs, &part.output)?)?);
        for source in &part.data.path {
            notes.extend(named(&Matching::of(&source.path)?.experiments, NO_TEXTS));
        }
    }
    Ok((!notes.is_empty()).then(|| notes.join("; ")))
}

/// A note on the sources of a mixture of which nothing is held out, though something is of others.
fn unevaluated(experiment: &Experiment, parts: &[Experiment]) -> Option<String> {
    let held_out = experiment.data.evaluate;
    let none = parts.iter().filter(|part| held_out > 0 && part.data.evaluate == 0);
    let paths = none.flat_map(|part| &part.data.path).map(|source| source.path.clone());
    let why = format!(
        "never evaluated: the share by weight of the {} that `data.evaluate` holds out is 0 (raise it)",
        count(held_out, "sequence")
    );
    named(&paths.collect::<Vec<_>>(), &why)
}

/// A note on what of `inputs` is left out, or named more than once; `None`: nothing is.
///
/// # Errors
/// Folders that cannot be read.
pub fn note_on(
    inputs: &[PathBuf],
    records: Records,
    excluded: &Excluded,
) -> std::result::Result<Option<String>, DataError> {
    let Listed { files, left_out, repeated, others, dangling } = list(inputs, records, excluded)?;
    let counted = |paths: &[PathBuf], [one, several]: [&str; 2]| {
        let first = paths.first()?.display();
        Some(match paths.len() {
            1 => format!("`{first}` {one}"),
            count => format!("{count} {several}, such as `{first}`"),
        })
    };
    let notes = [
        named(&left_out, NO_TEXTS),
        named(&repeated, "named more than once in the data, but read once"),
        named(&hard_links(&files), "read again in the data: hard links to files that it has"),
        counted(
            &others,
            [
                "is left out of the data by its ending",
                "files of other endings are left out of the data",
            ],
        ),
        counted(
            &dangling,
            ["is a link to what is not there", "links in the data lead to what is not there"],
        ),
    ];
    Ok(notes.into_iter().flatten().reduce(|one, other| format!("{one}; {other}")))
}

/// What is said of `paths`, if there are any.
fn named(paths: &[PathBuf], what: &str) -> Option<String> {
    (!paths.is_empty()).then(|| format!("{} {what}", some_of(paths)))
}

/// The first of `paths` as text, and how many more there are.
fn some_of(paths: &[PathBuf]) -> String {
    let shown = paths.iter().take(LISTED).map(|path| format!("`{}`", path.display()));
    let shown = shown.collect::<Vec<_>>().join(", ");
    match paths.len().saturating_sub(LISTED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn made_in(output: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(output).into_iter().flatten().flatten();
    let made = entries.filter(|entry| is_made(&entry.file_name().to_string_lossy()));
    made.map(|entry| entry.path()).collect()
}

/// Whether a run writes a file or a folder of this name into its folder.
pub(crate) fn is_made(name: &str) -> bool {
    let of_step = |rest: &str| rest.bytes().all(|digit| digit.is_ascii_digit());
    let trace = name.strip_prefix("trace-").and_then(|rest| rest.strip_suffix(".json"));
    MADE.contains(&name)
        || name.starts_with(CURVES)
        || step_of(Path::new(name)).is_some()
        || trace.is_some_and(of_step)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn patterns_stand_for_no_hidden_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = |name: &str| folder.path().join(name);
        fs::create_dir(place("a[1]")).expect("a folder");
        let other = OsStr::from_bytes(b"caf\xe9.txt");
        for name in [".hidden.txt", "b.txt", "a[1]/.c.txt", "a[1]/d.txt"].map(OsStr::new) {
            fs::write(folder.path().join(name), "some text").expect("a text");
        }
        fs::write(folder.path().join(other), "named in Latin-1").expect("a text");
        let found = |pattern: &str| Matching::of(&place(pattern)).map(|found| found.texts);
        assert_eq!(found("*.txt").expect("one"), [place("b.txt")]);
        assert_eq!(found(".*.txt").expect("one"), [place(".hidden.txt")]);
        assert_eq!(found("**/*.txt").expect("two"), [place("a[1]/d.txt"), place("b.txt")]);
        assert_eq!(found("a[[]1]/*").expect("one"), [place("a[1]/d.txt")]);
        let hint = found("a[1]/*").expect_err("no such folder").hint();
        assert!(hint.is_some_and(|hint| hint.contains("`[[]`")));
    }

    /// The text of an experiment on data in `path`.
    fn text_on(output: &Path, path: &Path) -> String {
        format!(
            "name: books\noutput: {}\ndata: {{ path: '{}', tokens: 8, batch: 1 }}\nmodel: {{ hidden_size: 8, \
             intermediate_size: 8, num_hidden_layers: 1, num_attention_heads: 1 }}\n\
             optimizer: {{ learning_rate: 0.1 }}\nschedule: {{ steps: 1 }}\n",
            output.display(),
            path.display(),
        )
    }

    fn note(text: &str) -> Option<String> {
        let experiment = annulus_experiment::parse("x.yaml", text, &[]);
        left_out_of(&experiment.unwrap_or_else(|e| panic!("{e}"))).expect("it can be read")
    }

    #[test]
    fn what_a_folder_has_besides_texts_is_said_on_one_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = |name: &str| folder.path().join(name);
        let text = text_on(&place("run"), folder.path());
        for (name, text) in
            [("a.txt", "some text"), ("y.html", ""), ("x.csv", ""), ("b.yaml", &text)]
        {
            fs::write(place(name), text).expect("a file");
        }
        std::os::unix::fs::symlink("gone", place("lost.txt")).expect("a link");
        let [own, other, lost] = ["b.yaml", "x.csv", "lost.txt"].map(&place);
        let wanted = format!(
            "`{}` left out of the data: runs and experiments are not texts, nor is what a `CACHEDIR.TAG` marks; \
             2 files of other endings are left out of the data, such as `{}`; `{}` is a link to what is not there",
            own.display(),
            other.display(),
            lost.display(),
        );
        assert_eq!(note(&text), Some(wanted));
        // Of everything in a folder, too, but the experiment: files that a pattern names may end in anything.
        let found = Matching::of(&place("*")).expect("files");
        assert_eq!(found.experiments, [place("b.yaml")]);
        let said = note(&text_on(&place("run"), &place("[ab].*")));
        assert!(said.is_some_and(|said| said.contains("b.yaml")));
        assert_eq!(found.texts, ["a.txt", "lost.txt", "x.csv", "y.html"].map(place));
    }

    /// A pattern stands for folders and for what is in them.
    #[test]
    fn what_a_pattern_names_more_than_once_is_said() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = |name: &str| folder.path().join(name);
        fs::create_dir_all(place("books/a/b")).expect("folders");
        for name in ["books/a/b/x.txt", "books/a/y.txt", "books/z.txt"] {
            fs::write(place(name), "some text").expect("a text");
        }
        let note = |pattern: &str| note(&text_on(&place("run"), &place(pattern)));
        assert_eq!(note("books"), None);
        assert_eq!(note("books/*"), None);
        let [b, x, y] = ["b", "b/x.txt", "y.txt"].map(|name| place("books/a").join(name));
        let [b, x, y] = [b, x, y].map(|path| format!("`{}`", path.display()));
        let wanted = format!("{b}, {x}, {y} named more than once in the data, but read once");
        assert_eq!(note("books/**/*"), Some(wanted));
    }
}
