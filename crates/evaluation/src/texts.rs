//! The texts that an evaluation reads: the one it names, or what training held out of each of its own.

use std::path::{Path, PathBuf};
use std::slice;
use std::sync::Arc;

use annulus_data::{Cache, Progress as Reading, Records, Texts};
use annulus_experiment::{Experiment, Format, ending};
use annulus_train::{
    Result, TrainError, by_source, cache_folder, excluded, first_held_out, records_of, texts,
};

use crate::Subject;

/// A text that is read, as tokens.
#[derive(Debug)]
pub(crate) struct Text {
    /// The path in `data.path` or `evaluation.path`.
    pub(crate) path: PathBuf,
    pub(crate) cache: Arc<Cache>,
    /// The first token that may be a target: of `evaluation.path` any, of a text that was trained on the second that was held out.
    pub(crate) first: u64,
    /// Its share of the windows, relative to the other texts': the sequences that were held out of it.
    pub(crate) share: f64,
    /// Whether documents are packed whole, so that their first tokens are no targets, as in training.
    pub(crate) is_packed: bool,
}

impl Text {
    /// Opens `evaluation.path`, or all sources of the data of which something was held out.
    pub(crate) fn open_all(subject: &Subject, told: &mut dyn FnMut(Reading)) -> Result<Vec<Text>> {
        let experiment = &subject.plan.experiment;
        let column = &experiment.data.column;
        if let Some(path) = &experiment.evaluation.path {
            let records = records_in(path, experiment.data.format)?;
            let cache = cached(subject, slice::from_ref(path), records, column, told)?;
            return Ok(vec![Text {
                path: path.clone(),
                cache,
                first: 0,
                share: 1.0,
                is_packed: experiment.data.pack.is_whole(),
            }]);
        }
        // Conversations are left out.
        let readable = |(source, holder): (Experiment, Experiment)| {
            let records = read_on(source.data.format).filter(|_| holder.data.evaluate > 0)?;
            Some((source, records, holder))
        };
        let sources: Vec<_> = held_out_of(subject).into_iter().filter_map(readable).collect();
        if sources.is_empty() {
            return Err(nothing_held_out(experiment));
        }
        if let Some(by) = &subject.trained_by {
            subject.check_data(by, told)?;
        }
        let open = |(source, records, holder): &(Experiment, Records, Experiment)| {
            Text::held_out(subject, source, *records, holder, told)
        };
        sources.iter().map(open).collect()
    }

    /// The text of `source`, from what `holder` holds out of it.
    fn held_out(
        subject: &Subject,
        source: &Experiment,
        records: Records,
        holder: &Experiment,
        told: &mut dyn FnMut(Reading),
    ) -> Result<Text> {
        let inputs = texts(source)?;
        let cache = cached(subject, &inputs, records, &source.data.column, told)?;
        // The first held-out token has no context among them.
        let first = first_held_out(holder, &cache)? + 1;
        let path = path_of(source).map_or_else(PathBuf::new, Path::to_owned);
        Ok(Text {
            path,
            cache,
            first,
            share: holder.data.evaluate as f64,
            is_packed: source.data.pack.is_whole(),
        })
    }
}

/// The path of an experiment's first source.
fn path_of(experiment: &Experiment) -> Option<&Path> {
    experiment.data.path.first().map(|source| source.path.as_path())
}

/// The tokens of a text, from the cache beside the runs.
fn cached(
    subject: &Subject,
    inputs: &[PathBuf],
    records: Records,
    column: &str,
    told: &mut dyn FnMut(Reading),
) -> Result<Arc<Cache>> {
    let output = &subject.plan.experiment.output;
    let excluded = excluded(inputs, output)?;
    let tokenizer = subject.tokenizer()?;
    let texts = Texts { inputs, records, column, tokenizer, excluded: &excluded };
    Ok(Arc::new(Cache::open(&texts, &cache_folder(output), subject.verify_cache, told)?))
}

/// The sources of the data, each with the experiment that held a part of it out: what the model was trained on depends on its run, not on the
/// evaluated experiment.
fn held_out_of(subject: &Subject) -> Vec<(Experiment, Experiment)> {
    let sources = by_source(&subject.plan.experiment);
    let trained = subject.trained_by.as_ref().map_or_else(Vec::new, |by| by_source(&by.experiment));
    let same = |one: &Experiment, other: &Experiment| {
        let [one_data, other_data] = [&one.data, &other.data];
        path_of(one) == path_of(other)
            && (one_data.format, &one_data.column) == (other_data.format, &other_data.column)
    };
    // Texts that were moved are in their old order.
    let moved = |index: usize| trained.get(index).filter(|_| trained.len() == sources.len());
    let holder = |(index, source): (usize, &Experiment)| {
        let found = trained.iter().find(|trained| same(trained, source));
        let holder = found.or_else(|| moved(index)).unwrap_or(source);
        (source.clone(), holder.clone())
    };
    sources.iter().enumerate().map(holder).collect()
}

/// The records of a format that is a text to read on in.
fn read_on(format: Format) -> Option<Records> {
    records_of(format).filter(|_| format != Format::Chat)
}

/// The error of data of which nothing can be read.
fn nothing_held_out(experiment: &Experiment) -> TrainError {
    if experiment.data.formats().any(|format| read_on(format).is_some()) {
        return TrainError::configuration(
            "`data.evaluate` is 0: all of `data.path` is trained on",
            "give another text in `evaluation.path`",
        );
    }
    let format = experiment.data.formats().next().unwrap_or(experiment.data.format);
    let hint = if format == Format::Chat {
        "the loss of the chats that were held out is `evaluate/loss`, which training logs; to read another text, give a plain one: `evaluation.path=TEXT`"
    } else {
        "give a text: `evaluation.path=TEXT`"
    };
    TrainError::configuration(
        format!("data of format `{}` is not a text to read on in", format.word()),
        hint,
    )
}

/// The record format of a file: by its name, else that of the training data.
fn records_in(path: &Path, learned: Format) -> Result<Records> {
    match ending(path).as_deref() {
        Some("jsonl") => return Ok(Records::Lines),
        Some("parquet") => return Ok(Records::Rows),
        Some("txt" | "md") => return Ok(Records::Text),
        _ => {}
    }
    if learned == Format::Chat {
        return Err(TrainError::configuration(
            format!("`{}` does not say what it is made of", path.display()),
            "name a file that ends in `.txt`, `.jsonl` or `.parquet`",
        ));
    }
    Ok(records_of(learned).unwrap_or(Records::Text))
}
