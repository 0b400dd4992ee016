//! `annulus tokenize`, `tokenizer train`: makes a token cache, or a tokenizer, from texts.

use std::path::PathBuf;

use annulus_data::{COLUMN, Cache, Records, Texts, Tokenizer, train_tokenizer_of};
use annulus_files::hugging_face::{TOKENIZER, TOKENIZER_CONFIG};
use annulus_text::count;
use annulus_train::note_on;
use clap::{Args, Subcommand};
use serde_json::json;

use crate::Done;
use crate::console::{Meter, Unit};
use crate::data::InputFormat;
use crate::failure::Failure;
use crate::{hub, print};

#[derive(Args, Debug)]
pub(crate) struct Tokenize {
    /// Files and folders
    #[arg(required = true)]
    inputs: Vec<PathBuf>,
    /// `bytes`, or a tokenizer.json
    #[arg(long, default_value = "bytes")]
    tokenizer: String,
    #[command(flatten)]
    format: InputFormat,
    /// Folder of the caches
    #[arg(long, alias = "output")]
    out: PathBuf,
    /// Verify texts and token caches by their hashes, even if they look unchanged
    #[arg(long)]
    verify_cache: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenizerCommand {
    /// Learns byte-pair merges from texts, reproducibly
    ///
    /// Text without white space (such as DNA) is cut into words of at most 1024 bytes.
    Train(TrainTokenizer),
}

#[derive(Args, Debug)]
pub(crate) struct TrainTokenizer {
    /// Files and folders
    #[arg(required = true)]
    inputs: Vec<PathBuf>,
    /// Vocabulary size, with the 256 bytes and the end of a document
    #[arg(long)]
    vocab: usize,
    /// The inputs are lines of JSON with a field `text`
    #[arg(long)]
    jsonl: bool,
    /// The field of lines, or column of rows, that is the text
    #[arg(long, value_name = "NAME", default_value = COLUMN, requires = "jsonl")]
    column: String,
    /// The tokenizer.json to write; its folder is created if missing; tokenizer_config.json beside it names the end-of-document
    /// token
    #[arg(long, alias = "output")]
    out: PathBuf,
}

pub(crate) fn run(arguments: &Tokenize) -> Done {
    let Tokenize { inputs, tokenizer, format, out, verify_cache, json } = arguments;
    let records = format.records();
    let tokenizer = Tokenizer::open(&hub::tokenizer(tokenizer)?)?;
    let meter = Meter::new(Unit::Bytes);
    let texts = Texts { column: format.column(), ..Texts::new(inputs, records, &tokenizer) };
    note_on(inputs, records, texts.excluded)?.into_iter().for_each(print::warn);
    let cache = Cache::open(&texts, out, *verify_cache, &mut |now| meter.tell(now))?;
    meter.finish();
    let (tokens, documents) = (cache.tokens(), cache.documents().len());
    let (vocabulary, fingerprint) = (tokenizer.vocabulary(), cache.fingerprint());
    let value = || {
        json!({
            "tokens": tokens, "documents": documents, "vocabulary": vocabulary,
            "fingerprint": fingerprint,
        })
    };
    let text = || format!("{tokens} tokens of {vocabulary} in {}", count(documents, "document"));
    print::either(*json, value, text)?;
    Ok(0)
}

pub(crate) fn train(arguments: &TrainTokenizer) -> Done {
    let TrainTokenizer { inputs, vocab, jsonl, column, out } = arguments;
    let records = if *jsonl { Records::Lines } else { Records::Text };
    if out.extension().is_none_or(|ending| ending != "json") {
        let message = format!("`{}` does not end in `.json`", out.display());
        let hint = format!("name the file: `--out {}`", out.join(TOKENIZER).display());
        return Err(Failure::usage(message, hint));
    }
    if out.exists() {
        let message = format!("`{}` already exists", out.display());
        return Err(Failure::usage(message, "remove it, or write elsewhere: `--out FILE`"));
    }
    let found = train_tokenizer_of(inputs, records, column, *vocab, out)?.vocabulary;
    let beside = out.with_file_name(TOKENIZER_CONFIG);
    print::line(&format!("{found} tokens in {} and {}", out.display(), beside.display()))?;
    if found < *vocab {
        print::say(&format!("{found} of {vocab} tokens: the text has no more pairs to merge"));
    }
    Ok(0)
}
