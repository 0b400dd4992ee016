//! What is wrong with data: the file, where in it, what was found, and the way out.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use crate::binary_kind::not_utf8;
use crate::packed::{left_out, too_long};
use crate::{BinaryKind, Place};

/// An error of data: a file, a text, a tokenizer or a cache that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A file cannot be read.
    #[error("cannot read `{path}`: {source}", path = path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A question that is longer than the sequence it is to be asked in.
    #[error("a question of `{task}` takes {wanted} tokens at least, found room for {found}")]
    TaskTooLong {
        /// The task's name.
        task: &'static str,
        /// The tokens that a sequence has room for.
        found: usize,
        /// The fewest tokens that the question takes.
        wanted: usize,
    },
    /// A file of the token cache cannot be written.
    #[error("cannot write `{path}`: {source}", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The system starts no more threads.
    #[error("the system has no thread to read texts with: {source}")]
    NoThread {
        /// The error of the system.
        source: io::Error,
    },
    /// A link to what is not there.
    #[error("`{path}` is a link to `{target}`, which is not there", path = path.display(), target = target.display())]
    Dangling {
        /// The link.
        path: PathBuf,
        /// The path that the link names.
        target: PathBuf,
    },
    /// A folder where a file should be; a device, a socket or a pipe.
    #[error("`{path}` is not a regular file", path = path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A folder without a file that would be read.
    #[error("no file in `{path}` ends in {endings}", path = path.display())]
    NoFiles {
        /// The folder.
        path: PathBuf,
        /// The endings of files that are read.
        endings: String,
        /// A file of JSON in it, which may be an array of what is looked for.
        json: Option<PathBuf>,
    },
    /// Bytes that are not UTF-8.
    #[error("`{path}` is {}", not_utf8(*kind, *offset), path = path.display())]
    Utf8 {
        /// The file.
        path: PathBuf,
        /// The first byte, from 0, of what is not UTF-8.
        offset: u64,
        /// The kind of file, if its first bytes show it.
        kind: Option<BinaryKind>,
    },
    /// A line of a jsonl file that is no JSON object with a text.
    #[error("`{path}`, line {line}: {message}", path = path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What is wrong with it.
        message: String,
        /// Whether it should be a conversation.
        chat: bool,
    },
    /// A file that is no parquet file, or has no column that is wanted.
    #[error("`{path}` is not a usable parquet file: {message}", path = path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// A parquet file that was packed once more.
    #[error("`{path}` is a packed parquet file, which cannot be read", path = path.display())]
    PackedRows {
        /// The file.
        path: PathBuf,
    },
    /// A file that was written to while it was read.
    #[error("`{path}` changed while it was read", path = path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// A pattern of paths that no file has.
    #[error("`{path}`: {message}", path = path.display())]
    NoMatch {
        /// The pattern.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// A packed file that cannot be unpacked.
    #[error("`{path}` is not packed as its name says: {message}", path = path.display())]
    Packed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// A packed file that takes more memory to unpack than a file may ask for.
    #[error("`{path}` takes a window of more than 128 MiB to unpack", path = path.display())]
    Window {
        /// The file.
        path: PathBuf,
    },
    /// A `tokenizer.json` that cannot be used.
    #[error("`{path}` is not a usable tokenizer: {message}", path = path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// A token that a file beside a `tokenizer.json` names, and that it lacks.
    #[error(
        "`{tokenizer}` lacks the token {token:?}, which `{file}` names: texts would have it spelled letter by letter",
        tokenizer = tokenizer.display(),
        file = file.display()
    )]
    Lacking {
        /// The tokenizer's file.
        tokenizer: PathBuf,
        /// The token.
        token: String,
        /// The file that names it.
        file: PathBuf,
    },
    /// A folder for a tokenizer.
    #[error("`{path}` is a folder, expected a `tokenizer.json`", path = path.display())]
    TokenizerFolder {
        /// The folder.
        path: PathBuf,
    },
    /// A cache with an id that its header rules out.
    #[error("`{path}` was altered: it holds the id {id}, but says it has {tokens} tokens", path = path.display())]
    Foreign {
        /// The cache.
        path: PathBuf,
        /// The id.
        id: u32,
        /// The number of tokens that the header states.
        tokens: u64,
    },
    /// An id that the tokenizer gives, but does not have.
    #[error("the tokenizer gives the id {id}, but has {tokens} tokens")]
    Beyond {
        /// The id.
        id: u32,
        /// The size of the tokenizer's vocabulary.
        tokens: usize,
    },
    /// A file that is no cache of tokens, or not as it was written.
    #[error("`{path}` is not a whole cache of tokens", path = path.display())]
    NoCache {
        /// The file.
        path: PathBuf,
    },
    /// Special tokens that the tokenizer and the model do not agree on.
    #[error(
        "`{tokenizer}` {found}, but `{name}` in `{config}` is {wanted}",
        tokenizer = tokenizer.display(),
        config = config.display()
    )]
    Special {
        /// The tokenizer's file.
        tokenizer: PathBuf,
        /// What the tokenizer does instead.
        found: String,
        /// The model's config.json.
        config: PathBuf,
        /// The key in it.
        name: &'static str,
        /// The key's value.
        wanted: String,
    },
    /// A chat template that cannot be used.
    #[error("the chat template in `{path}` is not usable: {message}", path = path.display())]
    Template {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// Conversations, but no template to render them by.
    #[error(
        "{} to render conversations by",
        path.as_ref().map_or_else(
            || "`tokenizer: bytes` has no chat template".to_owned(),
            |path| format!("no `chat_template` in `{}`", path.display()),
        )
    )]
    NoTemplate {
        /// The file that has no template; `None`: the tokenizer is `bytes`.
        path: Option<PathBuf>,
    },
    /// A document that does not fit into a sequence.
    #[error("{} has {found} tokens, more than the {wanted} that fit a sequence", too_long(*document, place.as_ref()))]
    TooLong {
        /// The number of the document, from 1.
        document: usize,
        /// Where the document is; `None`: that was not looked for.
        place: Option<Place>,
        /// The number of its tokens.
        found: u64,
        /// The most tokens that fit: the inputs and the last target.
        wanted: u64,
        /// The key that says how many inputs a sequence has.
        key: &'static str,
    },
    /// A text the tokenizer fails on.
    #[error("the tokenizer failed near byte {offset} of a document: {message}")]
    Encode {
        /// Where in the document, in bytes from 0.
        offset: u64,
        /// The tokenizer's message.
        message: String,
    },
    /// A stretch of text that has no place where it can be cut without changing its tokens.
    #[error(
        "from byte {offset} of a document on, {bytes} bytes cannot be cut anywhere without changing \
         their tokens"
    )]
    NoCut {
        /// Where in the document the stretch begins, in bytes from 0.
        offset: u64,
        /// The number of bytes that were searched.
        bytes: usize,
    },
    /// A document too long to be encoded whole by a tokenizer for which it is not known how to cut.
    #[error(
        "a document of more than {limit} bytes, and {step} of the tokenizer may give other tokens \
         where a text is cut"
    )]
    Whole {
        /// The step of the tokenizer that may give other tokens.
        step: String,
        /// The most bytes that are encoded at once.
        limit: usize,
    },
    /// A file the tokenizer fails on, or a text that is too short.
    #[error("`{path}`: {source}", path = path.display())]
    In {
        /// The file.
        path: PathBuf,
        /// What is wrong in the file.
        source: Box<DataError>,
    },
    /// Fewer tokens than are held out and a sequence takes.
    #[error("{}", too_short(*found, *is_most, *held_out, *wanted))]
    TooShort {
        /// The number of tokens of the text.
        found: u64,
        /// Whether the text may have fewer.
        is_most: bool,
        /// The number of tokens to hold out.
        held_out: u64,
        /// The number of tokens needed besides those.
        wanted: u64,
    },
    /// Fewer packed sequences than are held out and trained on.
    #[error("sequences that the documents fill: {found} found, {wanted} needed{}", left_out(*dropped))]
    FewSequences {
        /// The number of sequences.
        found: u64,
        /// The number of sequences that are needed.
        wanted: u64,
        /// Documents that fill none: too long, or without a token to learn among those that fit.
        dropped: u64,
    },
    /// A step past the last batch.
    #[error("step {step} asked for, {batches} batches found")]
    End {
        /// The step, from 0.
        step: u64,
        /// The number of batches in the file.
        batches: u64,
    },
    /// A file of batches that is no safetensors file with `tokens`.
    #[error("`{path}` holds no batches: {message}", path = path.display())]
    Batches {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// `tokens` of another shape or type.
    #[error(
        "`tokens` in `{path}` is {found}, expected {wanted} [steps, batch, tokens + 1]",
        path = path.display()
    )]
    Shape {
        /// The file.
        path: PathBuf,
        /// The type and shape found.
        found: String,
        /// The type and shape wanted.
        wanted: String,
    },
    /// An id in a file of batches that is none.
    #[error(
        "`tokens`[{step}, {row}, {column}] in `{path}` is {id}, expected an id of 0 to 4294967295",
        path = path.display()
    )]
    Id {
        /// The file.
        path: PathBuf,
        /// The first index of the id: the step.
        step: usize,
        /// The second index: the row of the batch.
        row: usize,
        /// The third index: the position.
        column: usize,
        /// The id found.
        id: i64,
    },
    /// A count that is too small.
    #[error("{what} is {found}, expected at least {wanted}")]
    TooFew {
        /// The key in the experiment.
        what: &'static str,
        /// The value of the key.
        found: usize,
        /// The least value.
        wanted: usize,
    },
    /// An error of a [`Source`](crate::Source) that another program implements.
    #[error("{0}")]
    Other(Box<dyn Error + Send + Sync>),
    /// A count larger than anything needs.
    #[error("{what} is {found}, expected at most {wanted}")]
    TooMany {
        /// The option on the command line.
        what: &'static str,
        /// The value of the option.
        found: usize,
        /// The largest value.
        wanted: usize,
    },
}

/// What is said of a text that is too short.
fn too_short(found: u64, is_most: bool, held_out: u64, wanted: u64) -> String {
    let most = if is_most { "at most " } else { "" };
    if held_out == 0 {
        return format!("the text has {most}{found} tokens, expected at least {wanted}");
    }
    let needed = held_out.saturating_add(wanted);
    format!(
        "the text has {most}{found} tokens, but {needed} are needed: {held_out} held out (`data.evaluate`) and at least {wanted} to train on"
    )
}

impl DataError {
    /// Adds the file, or the folder, to what is said by those who know no files.
    #[must_use]
    pub fn in_file(self, path: &Path) -> DataError {
        match self {
            DataError::Encode { .. }
            | DataError::NoCut { .. }
            | DataError::Whole { .. }
            | DataError::Beyond { .. }
            | DataError::TooLong { .. }
            | DataError::FewSequences { .. }
            | DataError::TooShort { .. } => {
                DataError::In { path: path.to_owned(), source: Box::new(self) }
            }
            other => other,
        }
    }
}
