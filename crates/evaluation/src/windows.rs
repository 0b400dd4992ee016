//! Stretches of a text that all end where they end, however long they are.

use std::path::PathBuf;
use std::sync::Arc;

use annulus_data::{Cache, IGNORED, Progress as Reading, Records, Sequence, Texts};
use annulus_experiment::{Experiment, Format, ending};
use annulus_train::{Result, TrainError, by_source, cache_folder, excluded, records_of, texts};

use crate::{Progress, Subject};

/// Windows where it is not said how many.
const MOST_WINDOWS: u64 = 32;

/// Windows over a text: the last `targets` tokens of each are in no other's.
#[derive(Debug)]
pub(crate) struct Windows {
    cache: Arc<Cache>,
    /// Where each ends: one past its last target.
    pub(crate) ends: Vec<u64>,
    pub(crate) targets: usize,
}

impl Windows {
    /// Those that the experiment asks for, spread evenly.
    pub(crate) fn open(subject: &Subject, progress: Progress<'_>) -> Result<Windows> {
        let experiment = &subject.plan.experiment;
        let mut told = |now: Reading| match now {
            Reading::Reading { done, total } => progress("reading", done as usize, total as usize),
            Reading::Waiting { .. } => progress(&now.to_string(), 0, 0),
        };
        let (inputs, records, column) = text(experiment)?;
        let excluded = excluded(&inputs, &experiment.output)?;
        let tokenizer = &subject.tokenizer;
        let texts =
            Texts { inputs: &inputs, records, column: &column, tokenizer, excluded: &excluded };
        let folder = cache_folder(&experiment.output);
        let cache = Cache::open(&texts, &folder, subject.verify_cache, &mut told)?;
        let start = first_target(experiment, cache.tokens())?;
        let targets = experiment.evaluated_targets();
        let longest = *experiment.evaluated_lengths().last().unwrap_or(&experiment.data.tokens);
        // An input more than the targets: what precedes the first of them.
        let first = (start + targets as u64).max(longest as u64 + 1);
        // As many as there are targets for.
        let most = cache.tokens().saturating_sub(first) / targets as u64 + 1;
        let most = most.clamp(2, MOST_WINDOWS) as usize;
        let count = experiment.evaluation.windows.unwrap_or(most);
        let (needed, last) = (first + ((count - 1) * targets) as u64, cache.tokens());
        if last < needed {
            // What stands before the targets may be read from the text that is trained on.
            let own = experiment.evaluation.path.is_some();
            let of_lengths = own || first > start + targets as u64;
            let start = if of_lengths { 0 } else { start };
            let asked = Asked { count, targets, longest };
            return Err(asked.too_short([last - start, needed - start], of_lengths));
        }
        let steps = count as u64 - 1;
        let ends = (0..count as u64).map(|index| first + (last - first) * index / steps);
        Ok(Windows { cache: Arc::new(cache), ends: ends.collect(), targets })
    }

    /// Window `index` as a sequence of `tokens` inputs; all that follow are targets, or the last ones.
    ///
    /// # Errors
    /// When the token cache cannot be read.
    pub(crate) fn sequence(&self, index: usize, tokens: usize, all: bool) -> Result<Sequence> {
        let mut ids = vec![0; tokens + 1];
        self.cache.read(self.ends[index] - tokens as u64 - 1, &mut ids)?;
        let mut sequence = Sequence::shifted(&ids);
        if !all {
            sequence.targets[..tokens - self.targets].fill(IGNORED);
        }
        Ok(sequence)
    }
}

/// The text, what it is made of, and the field that is the text.
fn text(experiment: &Experiment) -> Result<(Vec<PathBuf>, Records, String)> {
    if let Some(path) = &experiment.evaluation.path {
        let records = match ending(path) {
            Some("jsonl") => Records::Lines,
            Some("parquet") => Records::Rows,
            _ => Records::Text,
        };
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
        _ => String::from("a mixture is no text to read on in"),
    };
    let hint = Some("give a text in `evaluation.path`".into());
    Err(TrainError::Configuration { message, hint })
}

/// The first token that may be a target: of the data of training only what is held out.
fn first_target(experiment: &Experiment, tokens: u64) -> Result<u64> {
    if experiment.evaluation.path.is_some() {
        return Ok(0);
    }
    if experiment.data.evaluate == 0 {
        return Err(TrainError::Configuration {
            message: "`data.evaluate` is 0: all of `data.path` is trained on".into(),
            hint: Some("give another text in `evaluation.path`".into()),
        });
    }
    Ok(tokens.saturating_sub(experiment.held_out() as u64 - 1))
}

/// Windows that are asked for.
struct Asked {
    count: usize,
    targets: usize,
    longest: usize,
}

impl Asked {
    /// Of a text that `has` fewer tokens than it `needs`: as a whole, or of what is held out.
    fn too_short(self, [has, needs]: [u64; 2], of_lengths: bool) -> TrainError {
        let Asked { count, targets, longest } = self;
        let others = ((count - 1) * targets) as u64;
        if !of_lengths {
            return TrainError::Configuration {
                message: format!(
                    "{has} tokens held out are too few: {count} windows of {targets} targets \
                     each need {needs}"
                ),
                hint: Some(
                    "lower `evaluation.windows` or `evaluation.targets`, or give another text in \
                     `evaluation.path`"
                        .to_owned(),
                ),
            };
        }
        let most = has.saturating_sub(others + 1);
        let lower = if most >= targets as u64 {
            format!("lower `evaluation.lengths` to at most {most}, or give a longer text")
        } else {
            "lower `evaluation.windows` or `evaluation.targets`, or give a longer text".to_owned()
        };
        TrainError::Configuration {
            message: format!(
                "the text has {has} tokens, too few for {count} windows of {longest}: {needs} are \
                 needed, {longest} and a last target for the first, {targets} for each further one"
            ),
            hint: Some(format!("{lower} in `evaluation.path`")),
        }
    }
}
