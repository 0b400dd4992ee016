//! `annulus data show`: shows what data contain, and which tokens count in the loss.

mod step;

use std::path::PathBuf;
use std::sync::Arc;

use annulus_data::{
    COLUMN, Cache, Chat, Longer, Packed, Packing, Preview, Records, Sequence, Source, Texts,
    Tokenizer, Window, Windows, count_padding, count_targets, show as lines,
};
use annulus_experiment::{BYTES, Override};
use annulus_text::{count, size};
use annulus_train::{Exit, Opening, is_run, note_on, open_data};
use clap::{Args, Subcommand};

use crate::Done;
use crate::check;
use crate::console::{Meter, Unit};
use crate::experiment_file::ExperimentFile;
use crate::failure::Failure;
use crate::values::replacement;
use crate::{hub, print};

#[derive(Debug, Subcommand)]
pub(crate) enum DataCommand {
    /// Shows documents, tokens, and the first tokens as text, with which of them count in the loss
    Show(Show),
}

#[derive(Args, Debug)]
pub(crate) struct Show {
    /// A text, a folder of texts, a cache (`.tokens`), an experiment (`.yaml`), or a run's folder
    file: PathBuf,
    /// Keys of an experiment to replace, as in `data.tokens=64k`
    #[arg(value_name = "KEY=VALUE", value_parser = replacement)]
    replacements: Vec<Override>,
    /// A tokenizer.json [default: bytes]; an experiment names its own
    #[arg(long)]
    tokenizer: Option<String>,
    #[command(flatten)]
    format: InputFormat,
    /// Number of tokens to show, of each sequence [default: 64, with `--step` none]
    #[arg(long)]
    tokens: Option<usize>,
    /// Of an experiment or a run: the sequences of this step, with the documents and files that they are made of
    #[arg(long, value_name = "N")]
    step: Option<u64>,
    /// Verify texts and token caches by their hashes, even if they look unchanged
    #[arg(long)]
    verify_cache: bool,
}

/// The format of the inputs.
#[derive(Args, Clone, Debug)]
pub(crate) struct InputFormat {
    /// The inputs are lines of JSON with a field `text`
    #[arg(long)]
    jsonl: bool,
    /// The field of lines, or column of rows, that is the text [default: text]
    #[arg(long, value_name = "NAME", requires = "jsonl")]
    column: Option<String>,
    /// The inputs are lines of JSON with a field `messages`, for the tokenizer's chat template
    #[arg(long, conflicts_with = "jsonl")]
    chat: bool,
}

impl InputFormat {
    pub(crate) fn records(&self) -> Records {
        match (self.jsonl, self.chat) {
            (_, true) => Records::Chats,
            (true, _) => Records::Lines,
            _ => Records::Text,
        }
    }

    pub(crate) fn column(&self) -> &str {
        self.column.as_deref().unwrap_or(COLUMN)
    }
}

pub(crate) fn show(arguments: &Show) -> Done {
    let ending = arguments.file.extension().and_then(|ending| ending.to_str());
    let is_experiment = matches!(ending, Some("yaml" | "yml")) || is_run(&arguments.file);
    arguments.refuse_others(is_experiment)?;
    match ending {
        _ if is_experiment => experiment(arguments)?,
        Some("tokens") => {
            let tokenizer = Tokenizer::open(&hub::tokenizer(arguments.tokenizer())?)?;
            cache(Cache::open_file(&arguments.file)?, &tokenizer, arguments.tokens())?;
        }
        _ => text(arguments)?,
    }
    Ok(0)
}

/// The number of tokens that are shown where nothing says how many.
const TOKENS: usize = 64;

impl Show {
    fn tokens(&self) -> usize {
        self.tokens.unwrap_or(TOKENS)
    }

    fn tokenizer(&self) -> &str {
        self.tokenizer.as_deref().unwrap_or(BYTES)
    }

    /// An error if an argument is given that means nothing for this file.
    fn refuse_others(&self, is_experiment: bool) -> Result<(), Failure> {
        let file = self.file.display();
        let replaced = self.replacements.first().map(|one| format!("{}={}", one.key, one.value));
        let given = [
            ("--tokenizer", self.tokenizer.is_some()),
            ("--column", self.format.column.is_some()),
            ("--jsonl", self.format.jsonl),
            ("--chat", self.format.chat),
        ];
        let given = given.into_iter().find_map(|(name, is_given)| is_given.then_some(name));
        if self.step.is_some() && !is_experiment {
            return Err(Failure::usage(
                format!("`--step` is for experiments and runs, and `{file}` is none"),
                "leave it out, or name the experiment or the run's folder",
            ));
        }
        match (is_experiment, replaced, given) {
            (false, Some(replaced), _) => Err(Failure::usage(
                format!("`{replaced}` replaces a key of an experiment, and `{file}` is none"),
                "leave it out, or name an experiment",
            )),
            (true, _, Some(given)) => Err(Failure::usage(
                format!("`{given}` is for texts, and `{file}` is an experiment"),
                "leave it out; `data.tokenizer`, `data.format` and `data.column` say it",
            )),
            _ => Ok(()),
        }
    }
}

/// Prints the batch of an experiment's first step, or of the one asked for, as it is trained on.
fn experiment(arguments: &Show) -> Result<(), Failure> {
    let Show { file, replacements, step, verify_cache, .. } = arguments;
    let named = ExperimentFile { file: file.clone(), replacements: replacements.clone() };
    let opened = check::opened(&named)?;
    let plans = opened.plans(annulus_machine::cores())?;
    // Only what a step read follows from the run's manifest.
    let made = if step.is_some() { step::made(file)? } else { step::made(file).ok().flatten() };
    let began = made.as_ref().and_then(|made| made.began).unwrap_or(0);
    let plan = step::plan_at(plans, *step, file, made.as_ref())?;
    let tokenizer = opened.tokenizer.as_deref();
    let meter = Meter::new(Unit::Bytes);
    let opening = Opening { tokenizer, verify: *verify_cache, ..Opening::default() };
    let data = open_data(&plan, opening, &mut |now| meter.tell(now))?;
    meter.finish();
    data.notes.iter().for_each(print::warn);
    let tokenizer = tokenizer.unwrap_or(&Tokenizer::Bytes);
    for line in data.epochs_of(&plan.experiment, began) {
        print::line(&line)?;
    }
    let batch = step::batch_of(&plan.experiment, step.unwrap_or(began + 1));
    if step.is_some() {
        step::warn_of_other_data(made.as_ref(), &opened, opening)?;
    }
    let made_of = step.map(|_| step::MadeOf::read(&plan.experiment, &data, batch, tokenizer));
    let made_of = made_of.transpose()?;
    let tokens = if step.is_some() { arguments.tokens.unwrap_or(0) } else { arguments.tokens() };
    for (row, sequence) in data.train.batch(batch)?.iter().enumerate() {
        print::line(&counted(row + 1, sequence))?;
        if let Some(made_of) = &made_of {
            print::line(&made_of.lines(row, sequence)?)?;
        }
        if tokens > 0 {
            print(sequence, tokenizer, tokens)?;
        }
    }
    Ok(())
}

/// What sequence `number` of a batch holds.
fn counted(number: usize, sequence: &Sequence) -> String {
    let (inputs, targets) = (sequence.inputs.len(), count_targets(sequence));
    let documents = sequence.documents.len() - usize::from(count_padding(sequence) > 0);
    let documents = count(documents.max(1), "document");
    format!("sequence {number}: {inputs} tokens in {documents}, {targets} count in the loss")
}

/// Of a long text the beginning is read: at least `LEAST` bytes, and `A_TOKEN` bytes for every token shown.
const LEAST: u64 = 1 << 18;
const A_TOKEN: u64 = 64;

/// Tokenizes files and folders into a temporary cache, and shows it.
fn text(arguments: &Show) -> Result<(), Failure> {
    let Show { file, format, .. } = arguments;
    let tokens = arguments.tokens();
    let tokenizer = Tokenizer::open(&hub::tokenizer(arguments.tokenizer())?)?;
    let records = format.records();
    if records == Records::Chats {
        print::line(if Chat::open(&tokenizer)?.is_marked() {
            "the template's `{% generation %}` marks the assistant's text"
        } else {
            "the template has no `{% generation %}`: rendering it turn by turn finds the assistant's text"
        })?;
    }
    let inputs = std::slice::from_ref(file);
    let texts = Texts { column: format.column(), ..Texts::new(inputs, records, &tokenizer) };
    note_on(inputs, records, texts.excluded)?.into_iter().for_each(print::warn);
    if let Some(Preview { cache: part, read, total }) =
        Preview::of(&texts, LEAST.max(tokens as u64 * A_TOKEN))
    {
        print::line(&format!("the first {} of {}:", size(read), size(total)))?;
        return cache(part, &tokenizer, tokens);
    }
    let meter = Meter::new(Unit::Bytes);
    let made = Cache::temporary(&texts, &mut |now| meter.tell(now));
    meter.finish();
    cache(made?, &tokenizer, tokens)
}

fn cache(cache: Cache, tokenizer: &Tokenizer, most: usize) -> Result<(), Failure> {
    let tokens = cache.tokens();
    print::line(&format!("{tokens} tokens in {}", count(cache.documents().len(), "document")))?;
    if cache.vocabulary() > tokenizer.vocabulary() {
        let (found, wanted) = (cache.vocabulary() - 1, tokenizer.vocabulary());
        let hint = "name the tokenizer that made it: `--tokenizer FILE`".to_owned();
        let message = format!("the cache has token {found}, the tokenizer {wanted} tokens");
        return Err(Failure::new(Exit::Data, message, Some(hint)));
    }
    let shown = (most as u64).min(tokens.saturating_sub(1)) as usize;
    if shown == 0 {
        return Ok(());
    }
    let cache = Arc::new(cache);
    let sequence = if cache.is_marked() {
        // The whole first record.
        let most = tokens as usize;
        let packing = Arc::new(Packing::new(cache, most, Longer::Refuse)?);
        Packed::new(packing, Window::Train, 0, 1, 0)?.batch(0)?
    } else {
        Windows::new(cache, Window::HeldOut, tokens, shown, 1, 0)?.batch(0)?
    };
    for sequence in &sequence {
        print(sequence, tokenizer, most)?;
    }
    Ok(())
}

fn print(sequence: &Sequence, tokenizer: &Tokenizer, most: usize) -> Result<(), Failure> {
    print::line("  place   doc      id input                target in the loss")?;
    print::line(lines(sequence, tokenizer, most)?.trim_end())
}
