//! Windows of a text with the same ends at every length.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use annulus_data::{Cache, IGNORED, Progress as Reading, Records, Sequence, Texts};
use annulus_experiment::{Experiment, Format, Pack, ending};
use annulus_train::{
    Result, TrainError, by_source, cache_folder, excluded, first_held_out, records_of, texts,
};

use crate::{Progress, Subject};

/// The number of windows where the file does not say.
const MOST_WINDOWS: u64 = 32;

/// Windows over a text: the last `targets` tokens of each are in no other.
#[derive(Debug)]
pub(crate) struct Windows {
    cache: Arc<Cache>,
    /// The end of each window: one past its last target.
    pub(crate) ends: Vec<u64>,
    pub(crate) targets: usize,
    /// Whether documents are packed whole, so that their first tokens are no targets, as in training.
    whole_documents: bool,
}

impl Windows {
    /// Opens the windows that the experiment asks for, spread evenly over the text.
    pub(crate) fn open(subject: &Subject, progress: Progress<'_>) -> Result<Windows> {
        let experiment = &subject.plan.experiment;
        let mut told = |now: Reading| match now {
            Reading::Reading { done, total } => progress("reading", done as usize, total as usize),
            Reading::Waiting { .. } => progress(&now.to_string(), 0, 0),
        };
        let (inputs, records, column) = text(experiment)?;
        let excluded = excluded(&inputs, &experiment.output)?;
        let tokenizer = subject.tokenizer()?;
        let texts =
            Texts { inputs: &inputs, records, column: &column, tokenizer, excluded: &excluded };
        let folder = cache_folder(&experiment.output);
        let cache = Arc::new(Cache::open(&texts, &folder, subject.verify_cache, &mut told)?);
        let start = start(subject, &cache, &mut told)?;
        let targets = experiment.evaluated_targets();
        let longest = *experiment.evaluated_lengths().last().unwrap_or(&experiment.data.tokens);
        // One input more than the targets: the one before the first target.
        let first = (start + targets as u64).max(longest as u64 + 1);
        // At most as many windows as there are targets for.
        let most = cache.tokens().saturating_sub(first) / targets as u64 + 1;
        let most = most.clamp(2, MOST_WINDOWS) as usize;
        let count = experiment.evaluation.windows.unwrap_or(most);
        let (needed, last) = (first + ((count - 1) * targets) as u64, cache.tokens());
        if last < needed {
            // Context before the targets may come from the text that is trained on.
            let own = experiment.evaluation.path.is_some();
            let of_lengths = own || first > start + targets as u64;
            let start = if of_lengths { 0 } else { start };
            let asked = Asked { count, targets, longest };
            return Err(asked.too_short([last - start, needed - start], of_lengths));
        }
        let steps = count as u64 - 1;
        let ends = (0..count as u64).map(|index| first + (last - first) * index / steps);
        let whole_documents = experiment.data.pack == Pack::Documents;
        Ok(Windows { cache, ends: ends.collect(), targets, whole_documents })
    }

    /// Window `index` as a sequence of `tokens` inputs, with its documents; targets are all following tokens, or only the last ones.
    ///
    /// # Errors
    /// When the token cache cannot be read, or the window has no target.
    pub(crate) fn sequence(&self, index: usize, tokens: usize, all: bool) -> Result<Sequence> {
        let mut ids = vec![0; tokens + 1];
        let end = self.ends[index] - 1;
        let start = end - tokens as u64;
        self.cache.read(start, &mut ids)?;
        let mut sequence = Sequence::shifted(&ids);
        sequence.documents = self.cache.documents_in(start..end);
        let first = tokens - self.targets;
        if !all {
            sequence.targets[..first].fill(IGNORED);
        }
        if self.whole_documents {
            let mut begins = 0;
            for length in self.cache.documents_in(start..end + 1) {
                begins += length;
                if begins <= tokens {
                    sequence.targets[begins - 1] = IGNORED;
                }
            }
        }
        if sequence.targets[first..].iter().all(|&target| target == IGNORED) {
            return Err(TrainError::configuration(
                format!(
                    "the last {} tokens of window {} all begin documents",
                    self.targets,
                    index + 1
                ),
                "raise `evaluation.targets`, or give another text in `evaluation.path`",
            ));
        }
        Ok(sequence)
    }
}

/// The text's files, their record format, and the field that has the text.
fn text(experiment: &Experiment) -> Result<(Vec<PathBuf>, Records, String)> {
    if let Some(path) = &experiment.evaluation.path {
        let records = records_in(path, experiment.data.format)?;
        return Ok((vec![path.clone()], records, experiment.data.column.clone()));
    }
    let message = match &by_source(experiment)[..] {
        [one] => {
            let format = one.data.format;
            if let Some(records) = records_of(format).filter(|_| format != Format::Chat) {
                return Ok((texts(one)?, records, one.data.column.clone()));
            }
            format!("data of format `{}` is no text to read on in", format.word())
        }
        _ => String::from("`evaluate` cannot read the held-out part of a mixture"),
    };
    let hint = Some("give a text: `evaluation.path=TEXT`".into());
    Err(TrainError::Configuration { message, hint })
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

/// The first token that may be a target: of the experiment's own text all, of the training's what it holds out.
fn start(subject: &Subject, cache: &Arc<Cache>, progress: &mut dyn FnMut(Reading)) -> Result<u64> {
    let experiment = &subject.plan.experiment;
    match (&experiment.evaluation.path, &subject.trained_by) {
        (Some(_), _) => Ok(0),
        (None, None) => first_target(experiment, cache),
        // What the model was trained on depends on its run, not on the evaluated experiment.
        (None, Some(by)) => {
            subject.check_data(by, progress)?;
            first_target(&by.experiment, cache)
        }
    }
}

/// The first token that may be a target among what `experiment` holds out of its data.
fn first_target(experiment: &Experiment, cache: &Arc<Cache>) -> Result<u64> {
    if experiment.data.evaluate == 0 {
        return Err(TrainError::configuration(
            "`data.evaluate` is 0: all of `data.path` is trained on",
            "give another text in `evaluation.path`",
        ));
    }
    // The first held-out token has no context among them.
    Ok(first_held_out(experiment, cache)? + 1)
}

/// The windows that are asked for.
struct Asked {
    count: usize,
    targets: usize,
    longest: usize,
}

impl Asked {
    /// The error of a text that `has` fewer tokens than it `needs`: the whole text, or its held-out part.
    fn too_short(self, [has, needs]: [u64; 2], of_lengths: bool) -> TrainError {
        let Asked { count, targets, longest } = self;
        let others = ((count - 1) * targets) as u64;
        if !of_lengths {
            return TrainError::configuration(
                format!(
                    "{has} tokens held out are too few: {count} windows of {targets} targets \
                     each need {needs}"
                ),
                "lower `evaluation.windows` or `evaluation.targets`, or give another text in \
                     `evaluation.path`",
            );
        }
        let most = has.saturating_sub(others + 1);
        let lower = if most >= targets as u64 {
            format!("lower `evaluation.lengths` to at most {most}, or give a longer text")
        } else {
            "lower `evaluation.windows` or `evaluation.targets`, or give a longer text".to_owned()
        };
        TrainError::configuration(
            format!(
                "the text has {has} tokens, too few for {count} windows of {longest}: {needs} are \
                 needed, {longest} and a last target for the first, {targets} for each further one"
            ),
            format!("{lower} in `evaluation.path`"),
        )
    }
}
