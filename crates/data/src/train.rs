//! A tokenizer of one's own: byte pairs learned from texts, the same every time.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use annulus_files::hugging_face::TOKENIZER_CONFIG;
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

/// A stretch without white space is torn from here on, in bytes: the time that the library takes for a word grows with the square of its
/// length.
const LONGEST: usize = 1 << 10;

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
/// Memory grows with the number of different words; of a stretch without white space, as DNA is, at most 1024 bytes are a word. Equal
/// inputs give equal files. The folder of `out` is made where there is none.
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
    train_tokenizer_of(inputs, records, COLUMN, vocabulary, out)
}

/// As [`train_tokenizer`], where `column` is the field of lines, or the column of rows, that is the text.
///
/// # Errors
/// As there.
pub fn train_tokenizer_of(
    inputs: &[PathBuf],
    records: Records,
    column: &str,
    vocabulary: usize,
    out: &Path,
) -> Result<Trained, DataError> {
    bounded(vocabulary)?;
    let files = list(inputs, records, Excluded::NOTHING)?.files;
    let config = config_beside(out)?;
    let unwritten = |source| DataError::Write { path: out.to_owned(), source };
    // Before the work, which can take long.
    if let Some(folder) = out.parent() {
        fs::create_dir_all(folder).map_err(unwritten)?;
    }
    let broken = |error: Box<dyn std::error::Error + Send + Sync>| DataError::Tokenizer {
        path: out.to_owned(),
        message: error.to_string(),
    };
    let (send, texts) = sync_channel(AHEAD);
    let (read, trained) = thread::scope(|scope| {
        let reader = thread::Builder::new().name("reading".to_owned());
        let reader = reader.spawn_scoped(scope, move || {
            files.iter().try_for_each(|file| read(file, records, column, &send))
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
    let path = out.with_file_name(TOKENIZER_CONFIG);
    if path.exists() && !fs::read_to_string(&path).is_ok_and(|text| text == CONFIG) {
        let source = io::Error::other("it belongs to another tokenizer; name another folder");
        return Err(DataError::Write { path, source });
    }
    Ok(path)
}

/// Holds the number of tokens to what can be made.
fn bounded(found: usize) -> Result<(), DataError> {
    let what = "--vocab";
    match found {
        ..FEWEST => Err(DataError::TooFew { what, found, wanted: FEWEST }),
        FEWEST..=MOST => Ok(()),
        _ => Err(DataError::TooMany { what, found, wanted: MOST }),
    }
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
fn read(
    file: &Path,
    records: Records,
    column: &str,
    send: &SyncSender<String>,
) -> Result<(), DataError> {
    let (mut utf8, mut lines, mut open) = (Utf8::new(file), Lines::new(file), String::new());
    let whole = |text: &str| {
        for part in torn(text) {
            let _ = send.send(part.to_owned());
        }
        Ok(())
    };
    let mut of_line = |number, line: &str| {
        whole(&text_of(line, column).map_err(|message| line_error(file, number, message))?)
    };
    if is_of_rows(records, file) {
        return rows(file, records, column, &mut |number, row| match row {
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

/// The text in parts, none of which has a stretch without white space longer than [`LONGEST`].
fn torn(text: &str) -> impl Iterator<Item = &str> {
    let (mut start, mut word, mut places) = (0, 0, Vec::new());
    for (at, letter) in text.char_indices() {
        if letter.is_whitespace() {
            word = at;
        } else if at + letter.len_utf8() - word > LONGEST {
            places.push(start..at);
            (start, word) = (at, at);
        }
    }
    places.push(start..text.len());
    places.into_iter().map(|place| &text[place])
}
