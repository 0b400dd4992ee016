//! The data of an experiment: training data and held-out data.

mod epochs;
mod packed;

use std::iter::zip;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use annulus_data::{
    Batches, Cache, Chain, DataError, MadeUp, Mixture, Part, Progress, Records, Sequence, Source,
    Synthetic, Texts, Tokenizer, Tokens, Window, Windows, bigram_entropy,
};
use annulus_experiment::{Experiment, Format, Pack, TextSource, tags};
use annulus_plan::Plan;
use annulus_sequence::Positions;

pub use epochs::Epoch;
pub use packed::{first_held_out, packing_notes};

use packed::packed;

use crate::setup::texts::{by_source, cache_folder, excluded, left_out_of, records_of, texts};
use crate::setup::twice::shared_files;
use crate::{Result, TrainError};

/// The opened data of a run.
#[derive(Debug)]
pub struct Data {
    /// The training data: the batch of every step.
    pub train: Arc<dyn Source>,
    /// The sequences to evaluate; `None`: no evaluation.
    pub held_out: Option<HeldOut>,
    /// What each source gives in an epoch, of those that are read again; empty: what is read comes once, or is made up.
    pub epochs: Vec<Epoch>,
    /// Notes about what the data leaves out.
    pub notes: Vec<String>,
}

/// Held-out sequences: evaluated, never trained on.
#[derive(Debug)]
pub struct HeldOut {
    /// The sequences, one per batch.
    source: Arc<dyn Source>,
    /// The number of sequences.
    pub sequences: usize,
    /// The bigram entropy of the same text, in nats per token; `None` where it is not a text of bytes.
    pub bigram_entropy: Option<f64>,
    /// Whether a target is the one right answer, so that accuracy means something.
    pub exact: bool,
    /// Of a mixture: the sequences of each source, in order. Empty: there is one source.
    pub(crate) sources: Vec<HeldOutSource>,
}

/// The held-out sequences of one source of a mixture.
#[derive(Debug)]
pub(crate) struct HeldOutSource {
    /// The tag of their loss.
    pub(crate) tag: String,
    /// Their number.
    pub(crate) sequences: usize,
}

impl Data {
    /// How many sequences there are to train on and how many epochs the steps of `experiment` after step `began` are (0, but in a fork), a
    /// line for each source that is read again.
    pub fn epochs_of(&self, experiment: &Experiment, began: u64) -> Vec<String> {
        self.epochs.iter().map(|epoch| epoch.said(experiment, began)).collect()
    }
}

impl HeldOut {
    /// The held-out sequences of several sources, one source after the other, each with its path.
    fn of_several(several: Vec<(&Path, HeldOut)>) -> Option<HeldOut> {
        let tags = tags::evaluate_loss_of(several.iter().map(|(path, _)| *path));
        let counts = several.iter().map(|(_, held_out)| held_out.sequences);
        let sources: Vec<_> =
            zip(tags, counts).map(|(tag, sequences)| HeldOutSource { tag, sequences }).collect();
        let sequences = sources.iter().map(|source| source.sequences).sum();
        let chain = several.into_iter().map(|(_, held_out)| held_out.source).collect();
        (sequences > 0).then_some(HeldOut {
            source: Arc::new(Chain(chain)),
            sequences,
            bigram_entropy: None,
            exact: false,
            sources,
        })
    }

    /// The sequences of each source: all of them, where there is only one.
    pub(crate) fn by_source(&self) -> Vec<Range<usize>> {
        if self.sources.is_empty() {
            return std::iter::once(0..self.sequences).collect();
        }
        let mut end = 0;
        let next = |source: &HeldOutSource| {
            end += source.sequences;
            end - source.sequences..end
        };
        self.sources.iter().map(next).collect()
    }

    /// Appends sequence `index`, from 0, at `positions` to `into`.
    pub(crate) fn read(
        &self,
        index: usize,
        positions: &Positions,
        into: &mut Tokens,
    ) -> Result<()> {
        Ok(self.source.read(index as u64, 0..1, positions, into)?)
    }

    /// The whole sequence `index`, from 0.
    ///
    /// # Errors
    /// Data that cannot be read any more.
    pub fn sequence(&self, index: usize) -> Result<Sequence> {
        let mut batch = self.source.batch(index as u64)?;
        batch.pop().ok_or_else(|| TrainError::Internal(format!("held-out batch {index} is empty")))
    }
}

/// Options for opening data.
#[derive(Clone, Copy, Debug, Default)]
pub struct Opening<'a> {
    /// The tokenizer, if it has been opened already.
    pub tokenizer: Option<&'a Tokenizer>,
    /// Whether texts and token caches are hashed even where nothing suggests that they have changed.
    pub verify: bool,
    /// Whether tokens are kept in a temporary file, not in the folder of token caches.
    pub temporary: bool,
    /// The run of which a step is computed again in another folder: errors name its checkpoints, not the copies there.
    pub again: Option<&'a Path>,
}

/// Opens the data of `plan`, tokenising it first where that has not been done.
///
/// # Errors
/// Missing or bad data.
pub fn open_data(
    plan: &Plan,
    opening: Opening<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Data> {
    open(&plan.experiment, opening, progress)
}

/// The fingerprint of the data that `experiment` trains on, in all its phases.
///
/// # Errors
/// Missing or bad data.
pub fn data_fingerprint(
    experiment: &Experiment,
    opening: Opening<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<String> {
    let mut prints = Vec::new();
    for phase in experiment.phases() {
        prints.push(open(&phase, opening, progress)?.train.fingerprint());
    }
    Ok(fingerprint_of_phases(prints))
}

/// One fingerprint of the data of all phases, from theirs.
pub(crate) fn fingerprint_of_phases(mut prints: Vec<String>) -> String {
    match prints.len() {
        1 => prints.swap_remove(0),
        _ => blake3::hash(prints.concat().as_bytes()).to_hex().to_string(),
    }
}

fn open(
    experiment: &Experiment,
    opening: Opening<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Data> {
    let mut opened = match &by_source(experiment)[..] {
        [one] => open_source(one, opening, progress)?,
        several => open_mixture(experiment, several, opening, progress)?,
    };
    opened.notes.extend(left_out_of(experiment)?);
    Ok(opened)
}

fn open_source(
    experiment: &Experiment,
    opening: Opening<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Data> {
    match (experiment.data.format, records_of(experiment.data.format)) {
        (_, Some(records)) => open_text(experiment, records, opening, progress),
        (Format::Needles, None) => made_up(experiment, Synthetic::Needles),
        (Format::Recall, None) => made_up(experiment, Synthetic::Recall),
        (_, None) => open_batches(experiment),
    }
}

/// Opens sequences of several sources, mixed by their weights; the last ones of each source are held out.
fn open_mixture(
    experiment: &Experiment,
    sources: &[Experiment],
    opening: Opening<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Data> {
    let mut notes: Vec<String> = shared_files(experiment)?.into_iter().collect();
    let (mut parts, mut held_out, mut epochs) = (Vec::new(), Vec::new(), Vec::new());
    let all: f64 = experiment.data.path.iter().map(TextSource::share).sum();
    for (own, source) in sources.iter().zip(&experiment.data.path) {
        // The mixture draws sequences one by one: each source has batches of one.
        let mut single = own.clone();
        single.data.batch = 1;
        let opened = open_source(&single, opening, progress)?;
        let path = source.path.display();
        notes.extend(opened.notes.iter().map(|note| format!("`{path}`: {note}")));
        held_out.extend(opened.held_out.map(|own| (source.path.as_path(), own)));
        let share = source.share() / all;
        let of_mixture = |epoch| Epoch { share, path: Some(source.path.clone()), ..epoch };
        epochs.extend(opened.epochs.into_iter().map(of_mixture));
        parts.push(Part { source: opened.train, weight: source.share() });
    }
    let train = Arc::new(Mixture::new(parts, experiment.data.batch, experiment.seed));
    Ok(Data { train, held_out: HeldOut::of_several(held_out), epochs, notes })
}

fn open_text(
    experiment: &Experiment,
    records: Records,
    Opening { tokenizer, verify, temporary, .. }: Opening<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Data> {
    let data = &experiment.data;
    let inputs = texts(experiment)?;
    let opened;
    let tokenizer = if let Some(tokenizer) = tokenizer {
        tokenizer
    } else {
        opened = Tokenizer::open(data.tokenizer())?;
        &opened
    };
    let folder = cache_folder(&experiment.output);
    let excluded = excluded(&inputs, &experiment.output)?;
    let column = &data.column;
    let texts = Texts { inputs: &inputs, records, column, tokenizer, excluded: &excluded };
    let cache = Arc::new(if temporary {
        Cache::temporary(&texts, progress)?
    } else {
        Cache::open(&texts, &folder, verify, progress)?
    });
    let whole = || packed(experiment, &cache).map_err(|error| error.located(&texts));
    let mut opened = match data.pack {
        Pack::Documents | Pack::BestFit => whole(),
        Pack::Stream => windows(experiment, &cache),
    }?;
    if data.pack.is_whole() && records != Records::Chats {
        opened.notes.extend(never_ends(tokenizer));
    }
    if !temporary && !cache.path().starts_with(&folder) {
        let folder = folder.display();
        opened.notes.push(format!(
            "nobody may write into `{folder}`: the tokens are made again at every start"
        ));
    }
    Ok(opened)
}

/// Adds a source's path to an error from code that knows tokens but no files.
pub(crate) fn named(error: DataError, experiment: &Experiment) -> DataError {
    experiment.data.path.iter().fold(error, |error, source| error.in_file(&source.path))
}

/// Opens the text as one stream of tokens, cut into windows.
fn windows(experiment: &Experiment, cache: &Arc<Cache>) -> Result<Data> {
    let data = &experiment.data;
    // Windows overlap by one token: the target of a window's last input.
    let held_out = experiment.held_out() as u64;
    let windows = |window, batch| {
        Windows::new(cache.clone(), window, held_out, data.tokens, batch, experiment.seed)
            .map_err(|error| named(error, experiment))
    };
    let train = Arc::new(windows(Window::Train, data.batch)?);
    let held_out = match held_out {
        0 => None,
        tokens => Some(HeldOut {
            source: Arc::new(windows(Window::HeldOut, 1)?),
            sequences: (tokens as usize - 1) / data.tokens,
            bigram_entropy: bytes_only(cache, tokens)?,
            exact: false,
            sources: Vec::new(),
        }),
    };
    let epochs = Epoch::of(&*train).into_iter().collect();
    Ok(Data { train, held_out, epochs, notes: Vec::new() })
}

/// The largest vocabulary that counts as bytes. Of words, most pairs in a held-out text occur once, so their entropy means nothing.
const BYTES: usize = 257;

/// The bigram entropy of the last `tokens` tokens, where tokens are bytes.
fn bytes_only(cache: &Cache, tokens: u64) -> Result<Option<f64>> {
    if cache.vocabulary() > BYTES {
        return Ok(None);
    }
    Ok(Some(bigram_entropy(cache, cache.tokens() - tokens, cache.tokens())?))
}

/// A note where no document ends with a token, so that a model of whole documents learns no end.
fn never_ends(tokenizer: &Tokenizer) -> Option<String> {
    let ends = "`tokenizer.json` adds no token at the end of documents, so the model does not learn to end them: \
                set `add_eos_token` to true and name an `eos_token` in the `tokenizer_config.json` beside it";
    tokenizer.ends().is_empty().then(|| ends.to_owned())
}

fn open_batches(experiment: &Experiment) -> Result<Data> {
    let data = &experiment.data;
    let source = data.path.first().ok_or_else(|| {
        TrainError::configuration("`data.format: batches` needs a file", "set `data.path`")
    })?;
    let train = Arc::new(Batches::open(&source.path, data.batch, data.tokens)?);
    Ok(Data { train, held_out: None, epochs: Vec::new(), notes: Vec::new() })
}

fn made_up(experiment: &Experiment, by: Synthetic) -> Result<Data> {
    let data = &experiment.data;
    let source = |batch, seed| MadeUp::new(by, data.tokens, batch, seed).map(Arc::new);
    let train = source(data.batch, experiment.seed)?;
    // Another seed: these sequences are not among those of training.
    let held_out = source(1, !experiment.seed)?;
    let held_out = (data.evaluate > 0).then(|| HeldOut {
        source: held_out,
        sequences: data.evaluate,
        bigram_entropy: None,
        exact: true,
        sources: Vec::new(),
    });
    Ok(Data { train, held_out, epochs: Vec::new(), notes: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_without_an_end_are_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("a file");
            path.display().to_string()
        };
        let made = annulus_data::byte_tokenizer(257).expect("there are 257").text;
        let path = write("tokenizer.json", &made);
        let note = || never_ends(&Tokenizer::open(&path).expect("a tokenizer"));
        assert!(note().is_some_and(|note| note.contains("`add_eos_token`")));
        write("tokenizer_config.json", r#"{"add_eos_token": true, "eos_token": "<|endoftext|>"}"#);
        assert_eq!((note(), never_ends(&Tokenizer::Bytes)), (None, None));
    }
}
