//! A tokenizer of one's own: byte pairs learned from texts, the same every time.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use tokenizers::decoders::byte_level::ByteLevel as Decoder;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior};

use crate::files::{Lines, Utf8, line_error, text_of};
use crate::list::list;
use crate::parquet::{Row, is_of_rows, rows};
use crate::texts::COLUMN;
use crate::unpack::unpacked;
use crate::{DataError, Excluded, Records};

/// What follows every document.
const END: &str = "<|endoftext|>";

/// The text of `tokenizer_config.json`.
const CONFIG: &str = r#"{
  "clean_up_tokenization_spaces": false,
  "eos_token": "<|endoftext|>",
  "model_input_names": ["input_ids", "attention_mask"],
  "tokenizer_class": "PreTrainedTokenizerFast"
}
"#;

/// How texts are split into words: as GPT-4 and Llama 3 do.
const WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The bytes and the end of a document: the fewest tokens.
const FEWEST: usize = 257;

/// The most tokens: four times the largest vocabulary in use. The library makes room for all that are asked for.
const MOST: usize = 1 << 20;

/// Blocks of text that are read ahead.
const AHEAD: usize = 4;

/// A block without white space is torn from here on, in bytes.
const LONGEST: usize = 1 << 22;

/// What training found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trained {
    /// How many tokens there are: fewer than asked for where no pair of neighbours is left to merge.
    pub vocabulary: usize,
}

/// Learns a byte-level tokenizer of `vocabulary` tokens from `inputs` (files, and folders walked in name
/// order; of `records`), and writes it to `out` as a `tokenizer.json`, with the `tokenizer_config.json` beside it that names the end of a
/// document. In `tokenizer.json` the end would follow every text that `transformers` encodes, also prompts that are to be continued.
///
/// Memory grows with the number of different words. Equal inputs give equal files.
///
/// # Errors
/// Inputs that cannot be read, a vocabulary that is too small, or `out` that cannot be written, or has the `tokenizer_config.json` of
/// another tokenizer beside it.
pub fn train_tokenizer(
    inputs: &[PathBuf],
    records: Records,
    vocabulary: usize,
    out: &Path,
) -> Result<Trained, DataError> {
    if vocabulary < FEWEST {
        return Err(DataError::TooFew { what: "--vocab", found: vocabulary, wanted: FEWEST });
    }
    if vocabulary > MOST {
        return Err(DataError::TooMany { what: "--vocab", found: vocabulary, wanted: MOST });
    }
    let files = list(inputs, records, Excluded::NOTHING)?.files;
    let config = config_beside(out)?;
    let broken = |error: Box<dyn std::error::Error + Send + Sync>| DataError::Tokenizer {
        path: out.to_owned(),
        message: error.to_string(),
    };
    let (send, texts) = sync_channel(AHEAD);
    let (read, trained) = thread::scope(|scope| {
        let reader = thread::Builder::new().name("reading".to_owned());
        let reader = reader.spawn_scoped(scope, move || {
            files.iter().try_for_each(|file| read(file, records, &send))
        });
        let reader = reader.map_err(|source| DataError::NoThread { source })?;
        let trained = learn(texts.into_iter(), vocabulary);
        let read = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok::<_, DataError>((read, trained))
    })?;
    read?;
    let tokenizer = trained.map_err(broken)?;
    let found = tokenizer.get_vocab_size(true);
    let text = tokenizer.to_string(true).map_err(broken)?;
    for (path, text) in [(out, text + "\n"), (&config, CONFIG.to_owned())] {
        let written = annulus_files::write(path, text.as_bytes());
        written.map_err(|source| DataError::Write { path: path.to_owned(), source })?;
    }
    Ok(Trained { vocabulary: found })
}

/// Where the file that names the end of a document is to lie.
///
/// # Errors
/// Another tokenizer's lies there.
fn config_beside(out: &Path) -> Result<PathBuf, DataError> {
    let path = out.with_file_name("tokenizer_config.json");
    if path.exists() && !std::fs::read_to_string(&path).is_ok_and(|text| text == CONFIG) {
        let source = io::Error::other("it belongs to another tokenizer; name another folder");
        return Err(DataError::Write { path, source });
    }
    Ok(path)
}

fn learn(
    texts: impl Iterator<Item = String> + Send,
    vocabulary: usize,
) -> tokenizers::Result<tokenizers::Tokenizer> {
    let words = SplitPattern::Regex(WORDS.to_owned());
    let words = Split::new(words, SplitDelimiterBehavior::Isolated, false)?;
    let bytes = ByteLevel::new(false, true, false);
    let mut tokenizer = tokenizers::Tokenizer::new(BPE::default());
    tokenizer
        .with_pre_tokenizer(Some(Sequence::new(vec![words.into(), bytes.into()])))
        .with_decoder(Some(Decoder::default()));
    let end = AddedToken::from(END, true);
    let mut trainer: TrainerWrapper = BpeTrainer::builder()
        .vocab_size(vocabulary)
        .show_progress(false)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(vec![end])
        .build()
        .into();
    tokenizer.train(&mut trainer, texts)?;
    Ok(tokenizer)
}

/// Sends the texts of `file`, in blocks that end with white space. A receiver that is gone has failed,
/// and says why.
fn read(file: &Path, records: Records, send: &SyncSender<String>) -> Result<(), DataError> {
    let mut utf8 = Utf8::new(file);
    let mut lines = Lines::new(file);
    let mut open = String::new();
    let whole = |text: &str| {
        let _ = send.send(text.to_owned());
        Ok(())
    };
    let mut of_line = |number, line: &str| {
        whole(&text_of(line, COLUMN).map_err(|message| line_error(file, number, message))?)
    };
    if is_of_rows(records, file) {
        return rows(file, records, COLUMN, &mut |number, row| match row {
            Row::Text(text) => whole(text),
            Row::Record(line) => of_line(number, line),
        });
    }
    unpacked(file, &mut |_| (), &mut |block| {
        utf8.push(block, &mut |text| {
            if records == Records::Lines {
                return lines.push(text, &mut of_line);
            }
            open.push_str(text);
            let words =
                open.rfind(char::is_whitespace).or((open.len() > LONGEST).then_some(open.len()));
            let Some(end) = words else { return Ok(()) };
            let rest = open.split_off(end);
            whole(&std::mem::replace(&mut open, rest))
        })
    })?;
    utf8.finish()?;
    lines.finish(&mut of_line)?;
    whole(&open)
}
