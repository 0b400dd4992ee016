//! The texts that an evaluation reads: the one it names, or what training held out of each of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use annulus_data::{Cache, PackingStats, Progress as Reading, Records, Texts};
use annulus_experiment::{Experiment, Format};
use annulus_train::{
    HeldOut, Result, TrainError, by_source, cache_folder, excluded, first_held_out, records_of,
    texts,
};

use crate::answers::count_answers;
use crate::trained::numbers_in_training;
use crate::{Progress, Subject};

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

/// A source that is read, and what says which part of it.
struct ToRead {
    /// The experiment with this source alone, which says how it is read.
    source: Experiment,
    records: Records,
    /// What held a part of it out of training; `None`: all of it is read.
    holder: Option<Experiment>,
}

impl ToRead {
    /// `evaluation.path`, or all sources of the data of which something was held out.
    fn all(subject: &Subject) -> Result<Vec<ToRead>> {
        let experiment = &subject.plan.experiment;
        if let Some(path) = &experiment.evaluation.path {
            let format = experiment.evaluated_format();
            let records = records_of(format).unwrap_or(Records::Text);
            let source = experiment.reading(path.clone(), format);
            return Ok(vec![ToRead { source, records, holder: None }]);
        }
        let readable = |(source, holder): (Experiment, Experiment)| {
            let records = records_of(source.data.format).filter(|_| holder.data.evaluate > 0)?;
            Some(ToRead { source, records, holder: Some(holder) })
        };
        let all: Vec<_> = held_out_of(subject).into_iter().filter_map(readable).collect();
        if all.is_empty() { Err(nothing_held_out(experiment)) } else { Ok(all) }
    }

    /// Those that are conversations, or those that are not. Nothing may have changed since training held a part of them out.
    fn of_kind(
        subject: &Subject,
        chats: bool,
        told: &mut dyn FnMut(Reading),
    ) -> Result<Vec<ToRead>> {
        let mut all = ToRead::all(subject)?;
        all.retain(|one| (one.records == Records::Chats) == chats);
        if let Some(by) = &subject.trained_by
            && all.iter().any(|one| one.holder.is_some())
        {
            subject.check_data(by, told)?;
        }
        Ok(all)
    }

    /// Its tokens, from the cache beside the runs.
    fn cached(&self, subject: &Subject, told: &mut dyn FnMut(Reading)) -> Result<Arc<Cache>> {
        let folder = cache_folder(&subject.plan.experiment.output);
        let open = |texts: &Texts<'_>| Cache::open(texts, &folder, subject.verify_cache, told);
        let cache = self.with_texts(subject, open)??;
        if self.holder.is_none() && cache.tokens() == 0 {
            let what = if self.records == Records::Chats { "conversation" } else { "text" };
            return Err(TrainError::configuration(
                format!("there is no {what} in `{}`", self.path().display()),
                "give a file or a folder that has some in `evaluation.path`",
            ));
        }
        Ok(Arc::new(cache))
    }

    /// What `read` makes of its texts.
    fn with_texts<T>(&self, subject: &Subject, read: impl FnOnce(&Texts<'_>) -> T) -> Result<T> {
        let inputs = match &self.holder {
            Some(_) => texts(&self.source)?,
            None => path_of(&self.source).map(Path::to_owned).into_iter().collect(),
        };
        let excluded = excluded(&inputs, &subject.plan.experiment.output)?;
        let tokenizer = subject.tokenizer()?;
        let (inputs, column) = (&inputs[..], &self.source.data.column[..]);
        let texts = Texts { inputs, records: self.records, column, tokenizer, excluded: &excluded };
        Ok(read(&texts))
    }

    fn path(&self) -> PathBuf {
        path_of(&self.source).map_or_else(PathBuf::new, Path::to_owned)
    }
}

/// What an evaluation of losses reads, by the formats of its sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Texts, for [`perplexity`](crate::perplexity()).
    pub texts: bool,
    /// Conversations, for [`conversations`](crate::conversations()).
    pub conversations: bool,
}

impl Subject {
    /// What an evaluation of losses reads: `evaluation.path`, or what was held out of the data.
    ///
    /// # Errors
    /// When nothing was held out.
    pub fn reads(&self) -> Result<Reads> {
        let all = self.shared(|| ToRead::all(self))?;
        let has = |chats| all.iter().any(|one| (one.records == Records::Chats) == chats);
        Ok(Reads { texts: has(false), conversations: has(true) })
    }
}

/// A callback for what a cache of tokens reads, of one for progress.
pub(crate) fn reading(progress: Progress<'_>) -> impl FnMut(Reading) {
    move |now| match now {
        Reading::Reading { done, total } => progress("reading", done as usize, total as usize),
        Reading::Waiting { .. } => progress(&now.to_string(), 0, 0),
    }
}

impl Text {
    /// Opens the texts of `evaluation.path`, or all of the data of which something was held out.
    pub(crate) fn open_all(subject: &Subject, told: &mut dyn FnMut(Reading)) -> Result<Vec<Text>> {
        let all = ToRead::of_kind(subject, false, told)?;
        if all.is_empty() {
            return Err(TrainError::configuration(
                "only conversations are read, which have no loss by length",
                "give a text: `evaluation.path=TEXT`",
            ));
        }
        all.iter().map(|one| Text::open(subject, one, told)).collect()
    }

    fn open(subject: &Subject, one: &ToRead, told: &mut dyn FnMut(Reading)) -> Result<Text> {
        let cache = one.cached(subject, told)?;
        let (first, share) = match &one.holder {
            // The first held-out token has no context among them.
            Some(holder) => (first_held_out(holder, &cache)? + 1, holder.data.evaluate as f64),
            None => (0, 1.0),
        };
        let is_packed = one.source.data.pack.is_whole();
        Ok(Text { path: one.path(), cache, first, share, is_packed })
    }
}

/// Conversations that are read, as tokens.
pub(crate) struct Chats {
    pub(crate) cache: Arc<Cache>,
    /// The first token of the first conversation that is scored.
    pub(crate) first: u64,
    /// The number of answers from there on.
    pub(crate) answers: usize,
    read: ToRead,
}

impl Chats {
    /// Opens the conversations of `evaluation.path`, or all of the data of which something was held out.
    pub(crate) fn open_all(subject: &Subject, told: &mut dyn FnMut(Reading)) -> Result<Vec<Chats>> {
        let all = ToRead::of_kind(subject, true, told)?;
        all.into_iter().map(|one| Chats::open(subject, one, told)).collect()
    }

    fn open(subject: &Subject, one: ToRead, told: &mut dyn FnMut(Reading)) -> Result<Chats> {
        let cache = one.cached(subject, told)?;
        let first = one.holder.as_ref().map_or(Ok(0), |holder| first_held_out(holder, &cache))?;
        Ok(Chats { answers: count_answers(&cache, first), cache, first, read: one })
    }

    /// The path in `data.path` or `evaluation.path`.
    pub(crate) fn path(&self) -> PathBuf {
        self.read.path()
    }

    /// The conversations packed into sequences of `tokens`, as training packs what it holds out.
    pub(crate) fn packed(
        &self,
        subject: &Subject,
        tokens: usize,
    ) -> Result<(HeldOut, PackingStats)> {
        let packed = HeldOut::since(&self.read.source, &self.cache, self.first, tokens);
        packed.map_err(|error| {
            let located = self.read.with_texts(subject, |texts| error.located(texts));
            located.unwrap_or_else(|gone| gone)
        })
    }
}

/// The path of an experiment's first source.
pub(crate) fn path_of(experiment: &Experiment) -> Option<&Path> {
    experiment.data.path.first().map(|source| source.path.as_path())
}

/// The sources of the data, each with the experiment that held a part of it out: what the model was trained on depends on its run, not on the
/// evaluated experiment.
fn held_out_of(subject: &Subject) -> Vec<(Experiment, Experiment)> {
    let sources = by_source(&subject.plan.experiment);
    let trained = subject.trained_by.as_ref().map_or_else(Vec::new, |by| by_source(&by.experiment));
    let numbers = numbers_in_training(&sources, &trained);
    let with_holder = |(source, number): (Experiment, Option<usize>)| {
        let holder = number.map_or_else(|| source.clone(), |number| trained[number].clone());
        (source, holder)
    };
    sources.into_iter().zip(numbers).map(with_holder).collect()
}

/// The error of data of which nothing can be read.
fn nothing_held_out(experiment: &Experiment) -> TrainError {
    if experiment.data.formats().any(Format::is_text) {
        return TrainError::configuration(
            "`data.evaluate` is 0: all of `data.path` is trained on",
            "give another text in `evaluation.path`",
        );
    }
    let format = experiment.data.formats().next().unwrap_or(experiment.data.format);
    TrainError::configuration(
        format!("data of format `{}` is not a text to read on in", format.word()),
        "give a text: `evaluation.path=TEXT`",
    )
}
