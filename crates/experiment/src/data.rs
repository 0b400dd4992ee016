//! The section `data`: where sequences come from.

use std::path::PathBuf;

use annulus_yaml::Absent::{Is, Means, Required, RequiredWithout};
use annulus_yaml::Kind::{Count, Listed as List, Path, Real, Text, Tokens, Word};
use annulus_yaml::{Interval, Listed, section, words};

use crate::Phase;
use crate::model::of_hub;
use crate::stages::SECTION as STAGES;

/// The most tokens of a sequence; keeps products of sizes within 64 bits.
pub const MOST_TOKENS: u64 = 1 << 31;
/// The formats that an item of a mixture may have.
pub(crate) const TEXTS: &[&str] = &["text", "jsonl", "parquet", "chat"];
/// Sequences that are held out where the file does not say.
const HELD_OUT: usize = 8;

/// The word of the tokenizer whose tokens are bytes.
pub const BYTES: &str = "bytes";

section! {
    /// An item of `data.path`: a file or folder to read, and its format.
    #[derive(Clone, Debug, PartialEq)]
    pub struct TextSource {
        path: PathBuf = Path, Required, "a file or folder of texts, or several by `*`; `.gz` and `.zst` are read as what is in them";
        weight: Option<f64> = Real(Interval::AboveZero), Means("1"),
            "share of its sequences in the mixture, relative to the other weights";
        format: Option<Format> = Word(TEXTS), Means("`data.format`"), "format of its files";
        column: Option<String> = Text, Means("`data.column`"), "the field of lines, or column of rows, that is the text";
        pack: Option<Pack> = Word(Pack::WORDS), Means("`data.pack`"), "how its documents fill sequences";
        longer: Option<Longer> = Word(Longer::WORDS), Means("`data.longer`"), "what happens to its documents longer than a sequence";
    }
}

section! {
    /// The section `data` as it is written.
    #[derive(Clone, Debug, PartialEq)]
    pub struct DataKeys {
        path: Option<Listed<TextSource>> = List(TextSource::KEYS),
            Means("none: required unless `format` is `recall` or `needles`"),
            "a file or folder of texts, or several by `*`, or a mixture of them by weights; of a folder with `format: text`, files are read that end in `.txt`, `.md`, `.rs`, `.py`, `.cu`, `.cuh`, `.yaml` (but no experiments) or `.toml`; `.gz` and `.zst` are read as what is in them";
        format: Format = Word(Format::WORDS), Is("text"),
            "plain text, a JSON object per line, rows of parquet files, conversations, ready-made batches, or tasks of recall";
        column: String = Text, Is("text"), "the field of lines, or column of rows, that is the text";
        tokenizer: Option<String> = Path, Means("that of a pretrained model, else `bytes`"),
            "`bytes`, a tokenizer.json, or the tokenizer of a model of the hub: `hf://owner/name@revision`";
        tokens: Option<usize> = Tokens(1, MOST_TOKENS), RequiredWithout(STAGES), "tokens per sequence";
        batch: usize = Count(1, 1 << 20), Is("1"), "sequences per optimizer step, over all ranks (global batch size)";
        evaluate: Option<usize> = Count(0, 1 << 30), Means("8, or 0 where `format` is batches"),
            "sequences at the end of the data that are held out for evaluation";
        pack: Option<Pack> = Word(Pack::WORDS), Means("`documents` for conversations, else `stream`; of a mixture, by the format of each source"),
            "concatenate documents and cut them into sequences, or fill sequences with whole documents and padding: in the documents' order, or each document where the least room is left";
        longer: Longer = Word(Longer::WORDS), Is("refuse"),
            "with `pack: documents` or `best-fit`: what happens to a document longer than a sequence";
    }
}

impl DataKeys {
    pub(crate) fn meant(self, stages: &[Phase]) -> Option<Data> {
        let longest = stages.iter().map(|stage| stage.tokens).max();
        let held_out = if self.format == Format::Batches { 0 } else { HELD_OUT };
        let mut path = self.path.map_or_else(Vec::new, |Listed(sources)| sources);
        let pack = self.pack.unwrap_or_else(|| {
            let of = |source: &TextSource| source.format.unwrap_or(self.format).packed();
            let first = path.first().map_or(self.format.packed(), of);
            // Where sources differ, each says how it is packed.
            let is_shared = path.iter().all(|source| of(source) == first);
            let shared = if is_shared { first } else { Pack::Stream };
            for source in path.iter_mut().filter(|source| of(source) != shared) {
                source.pack = source.pack.or(Some(of(source)));
            }
            shared
        });
        Some(Data {
            path,
            format: self.format,
            column: self.column,
            tokenizer_hub: self.tokenizer.as_deref().and_then(of_hub),
            tokenizer: self.tokenizer,
            tokens: longest.or(self.tokens)?,
            batch: self.batch,
            evaluate: self.evaluate.unwrap_or(held_out),
            pack,
            longer: self.longer,
        })
    }
}

impl Data {
    /// The keys that mean this section; with phases, each phase has its own `tokens`.
    pub(crate) fn keys(&self, has_phases: bool) -> DataKeys {
        DataKeys {
            path: Some(Listed(self.path.clone())).filter(|Listed(sources)| !sources.is_empty()),
            format: self.format,
            column: self.column.clone(),
            tokenizer: self.tokenizer_hub.as_ref().or(self.tokenizer.as_ref()).cloned(),
            tokens: Some(self.tokens).filter(|_| !has_phases),
            batch: self.batch,
            evaluate: Some(self.evaluate),
            pack: Some(self.pack),
            longer: self.longer,
        }
    }
}

/// The section `data`: where sequences come from.
#[derive(Clone, Debug, PartialEq)]
pub struct Data {
    /// Files or folders whose sequences are mixed by weight; empty for the synthetic formats `recall` and `needles`.
    pub path: Vec<TextSource>,
    /// The format, `text | jsonl | parquet | chat | batches | recall | needles`; default text.
    pub format: Format,
    /// The field of a JSON line, or the column of a parquet row, that has the text; default text.
    pub column: String,
    /// The tokenizer, `bytes` or the path of a tokenizer.json; `None` until the model has been read, whose own is the default where it is
    /// pretrained. For a model of the hub `hf://…` until it has been downloaded.
    pub tokenizer: Option<String>,
    /// The `hf://owner/name@revision` that the tokenizer was named by, if it is of the hub.
    pub tokenizer_hub: Option<String>,
    /// Input tokens per sequence. Required.
    pub tokens: usize,
    /// Sequences per optimizer step, over all ranks; default 1.
    pub batch: usize,
    /// Sequences at the end of the data that are held out for evaluation; default 8, or 0 for `format: batches`. 0: none.
    pub evaluate: usize,
    /// How documents are packed into sequences, `stream | documents | best-fit`, where a source does not say otherwise; default documents for
    /// `format: chat`, else stream.
    pub pack: Pack,
    /// What happens to a document longer than a sequence where documents are packed whole, `refuse | cut | drop | split`; default refuse.
    pub longer: Longer,
}

impl Data {
    /// The tokenizer's word: `bytes` where none is named.
    pub fn tokenizer(&self) -> &str {
        self.tokenizer.as_deref().unwrap_or(BYTES)
    }
}

/// The key `pack`: how documents are packed into sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pack {
    /// Documents one after another, cut where a sequence ends.
    Stream,
    /// As many whole documents as fit, in their order, then padding.
    Documents,
    /// Whole documents, the longest first, each where the least room is left, then padding.
    BestFit,
}

words!(Pack { Stream = "stream", Documents = "documents", BestFit = "best-fit" });

impl Pack {
    /// Whether documents are packed whole.
    pub fn is_whole(self) -> bool {
        self != Pack::Stream
    }
}

/// The key `longer`: what happens to a document longer than a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Longer {
    /// A longer document is an error.
    Refuse,
    /// A longer document is cut to the sequence's length.
    Cut,
    /// A longer document is left out.
    Drop,
    /// A longer document is cut into pieces, all of which are read.
    Split,
}

words!(Longer { Refuse = "refuse", Cut = "cut", Drop = "drop", Split = "split" });

/// The key `format`: what a data file contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Plain text.
    Text,
    /// JSON objects with the field `text`, one per line, or rows of parquet files.
    Jsonl,
    /// Rows of parquet files.
    Parquet,
    /// JSON objects, one per line, with `messages`, ShareGPT's `conversations`, or Alpaca's `instruction` and `output`; only the
    /// assistant's tokens are learned.
    Chat,
    /// A safetensors file of ready-made batches.
    Batches,
    /// The synthetic recall task.
    Recall,
    /// The synthetic recall task with few facts, at any position.
    Needles,
}

words!(Format {
    Text = "text",
    Jsonl = "jsonl",
    Parquet = "parquet",
    Chat = "chat",
    Batches = "batches",
    Recall = "recall",
    Needles = "needles",
});

impl TextSource {
    /// How the source's documents fill sequences, as a source of `data`.
    pub fn pack(&self, data: &Data) -> Pack {
        self.pack.unwrap_or(data.pack)
    }

    /// The weight with which this source's sequences are read, relative to the other sources'.
    pub fn share(&self) -> f64 {
        self.weight.unwrap_or(1.0)
    }
}

/// The extension of a file's name in small letters, without `.gz` or `.zst`: `jsonl` for `A.JSONL.zst`.
pub fn ending(path: &std::path::Path) -> Option<String> {
    let name = path.file_name()?.to_str()?.to_lowercase();
    let name = name.strip_suffix(".gz").or(name.strip_suffix(".zst")).unwrap_or(&name);
    Some(name.rsplit_once('.')?.1.to_owned())
}

impl Data {
    /// The format of every source; the section's own where there is no source.
    pub fn formats(&self) -> impl Iterator<Item = Format> {
        let own = self.path.iter().map(|source| source.format.unwrap_or(self.format));
        own.chain(self.path.is_empty().then_some(self.format))
    }
}

impl Format {
    /// How documents are packed where nothing says: conversations whole, so that none is cut.
    fn packed(self) -> Pack {
        if self == Format::Chat { Pack::Documents } else { Pack::Stream }
    }

    /// Whether sequences of this format are tokenized from text.
    pub fn is_text(self) -> bool {
        matches!(self, Format::Text | Format::Jsonl | Format::Parquet | Format::Chat)
    }

    /// Whether sequences of this format are synthetic, read from no file.
    pub fn is_made_up(self) -> bool {
        matches!(self, Format::Recall | Format::Needles)
    }
}
