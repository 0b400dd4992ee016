//! The way out of what is wrong with data.

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use crate::chat::IS_TEXT;
use crate::files::{ARRAY, IS_CONVERSATION, LIMIT_OF_LINE};
use crate::parquet::{CODECS, CUT_SHORT, ENCRYPTED, FOREIGN, LIMIT_OF_ROW};
use crate::unpack::unpacked_name;
use crate::{BinaryKind, DataError};

impl DataError {
    /// The hint: what to do about the error, where something can be done.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            DataError::In { source, .. } => return source.hint(),
            DataError::Read { source, .. } => of_reading(source.kind()),
            DataError::Write { path, source } => of_writing(path, source),
            DataError::Line { path, message, .. } if message == ARRAY => {
                return Some(in_lines(path));
            }
            DataError::Line { message, chat, .. } => of_line(message, *chat),
            DataError::Whole { limit, .. } => {
                return Some(format!(
                    "break the text into documents of up to {limit} bytes (lines of a jsonl file), \
                     or use a tokenizer that splits as GPT-2's or Llama's do"
                ));
            }
            DataError::Window { path } => {
                return Some(format!(
                    "unpack it yourself: `zstd -d --rm --long=31 {}`",
                    path.display()
                ));
            }
            DataError::End { batches, .. } => {
                return Some(format!("set `schedule.steps` to at most {batches}"));
            }
            DataError::TooFew { what, wanted, .. } => {
                return Some(format!("set `{what}` to {wanted} or more"));
            }
            DataError::TooMany { what, wanted, .. } => {
                return Some(format!("set `{what}` to {wanted} or less"));
            }
            DataError::TooLong { key, .. } => return Some(of_too_long(key)),
            DataError::NoFiles { json: Some(path), .. } => return Some(in_lines(path)),
            DataError::Lacking { tokenizer, .. } => return Some(saved_again(tokenizer)),
            DataError::TokenizerFolder { path } => {
                return Some(format!("name the file in it: `{}/tokenizer.json`", path.display()));
            }
            other => other.of_files().or_else(|| other.of_tokenizers()).or(other.of_sequences())?,
        };
        Some(hint.to_owned())
    }

    /// Where files are not as they should be.
    fn of_files(&self) -> Option<&'static str> {
        Some(match self {
            DataError::NoThread { .. } => "raise `ulimit -u`, or end other programs",
            DataError::Dangling { .. } => {
                "restore what it leads to, or name another file or folder"
            }
            DataError::NotAFile { .. } => "name a regular file, or, of texts, a folder of them",
            DataError::NoFiles { .. } => {
                "name another folder, or a single file, whatever it is called"
            }
            DataError::Utf8 { kind, .. } => of_encoding(*kind),
            DataError::Parquet { message, .. } => of_rows(message),
            DataError::PackedRows { .. } => "unpack it: parquet is compressed inside already",
            DataError::NoMatch { .. } => {
                "check the pattern: `*` stands for no hidden file, and a `[`, `*` or `?` in a name is written `[[]`, `[*]` or `[?]`"
            }
            DataError::Packed { .. } => "copy it again, or rename it without that ending",
            DataError::NoCache { .. } => "make it again with `annulus tokenize`",
            DataError::Foreign { .. } => "remove it: it is made again from the same texts",
            DataError::Changed { .. } => "wait until nothing writes to it, then start again",
            DataError::Batches { .. } => {
                "write it with safetensors: one tensor `tokens` alone, int64 [steps, batch, tokens + 1]"
            }
            DataError::Shape { .. } => {
                "make `data.batch` and `data.tokens` agree with the file, or write the file again"
            }
            DataError::Id { .. } => "batches hold ids only; there is no padding",
            _ => return None,
        })
    }

    /// Where text does not become tokens.
    fn of_tokenizers(&self) -> Option<&'static str> {
        Some(match self {
            DataError::Beyond { .. } => {
                "correct the ids of the special tokens in its `tokenizer.json`, or use `tokenizer: bytes`"
            }
            DataError::Special { .. } => {
                "set `data.tokenizer` to the one that came with the model, or correct its config.json"
            }
            DataError::Template { .. } => "give the template that came with the tokenizer",
            DataError::NoTemplate { .. } => {
                "set `data.tokenizer` to a `tokenizer.json` with a `tokenizer_config.json` or a \
                 `chat_template.jinja` beside it"
            }
            DataError::Tokenizer { .. } => {
                "give a `tokenizer.json` as the Hugging Face library `tokenizers` saves it, or \
                 `tokenizer: bytes`"
            }
            DataError::Encode { .. } => {
                "give the tokenizer an unknown token, or use `tokenizer: bytes`"
            }
            DataError::NoCut { .. } => {
                "break the text into documents, or use a tokenizer that splits at spaces, or \
                 `tokenizer: bytes`"
            }
            _ => return None,
        })
    }

    /// Where tokens do not become sequences.
    fn of_sequences(&self) -> Option<&'static str> {
        Some(match self {
            DataError::TaskTooLong { .. } => "questions are never cut: raise `evaluation.lengths`",
            DataError::TooShort { .. } => {
                "use a longer text, or lower `data.tokens` or `data.evaluate`"
            }
            DataError::FewSequences { dropped: 1.., .. } => {
                "raise `data.tokens`, so that fewer documents are left out, or give more documents, or lower `data.evaluate`"
            }
            DataError::FewSequences { .. } => {
                "give more documents, or lower `data.tokens` or `data.evaluate`"
            }
            _ => return None,
        })
    }
}

/// The way out where a `tokenizer.json` lacks tokens that are named beside it.
fn saved_again(tokenizer: &Path) -> String {
    let folder = tokenizer.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new(".")).display();
    format!(
        "save the tokenizer again with transformers, which writes such tokens into its `tokenizer.json`: \
         `AutoTokenizer.from_pretrained(\"{folder}\").save_pretrained(\"{folder}\")`"
    )
}

/// The way out where records are a JSON array, as Alpaca's are.
fn in_lines(path: &Path) -> String {
    let name = unpacked_name(path);
    let shown = path.display();
    let unpack = match path.extension().filter(|_| name != path).and_then(OsStr::to_str) {
        Some(ending) if ending.eq_ignore_ascii_case("gz") => {
            format!("gzip -dc {shown} | jq -c '.[]'")
        }
        Some(_) => format!("zstd -dc {shown} | jq -c '.[]'"),
        None => format!("jq -c '.[]' {shown}"),
    };
    let (stem, end) = (path.with_file_name(name.file_name().unwrap_or_default()), "jsonl");
    // Never the file that is read.
    let end = if stem.extension().is_some_and(|own| own == end) { "lines.jsonl" } else { end };
    format!(
        "write each record on a line of its own: `{unpack} > {}`",
        stem.with_extension(end).display()
    )
}

/// The way out of a document that is too long for sequences of `key`.
fn of_too_long(key: &str) -> String {
    format!(
        "raise `{key}`, or set `data.longer` to `split` (into pieces), `cut` (what is beyond) or `drop` (the document)"
    )
}

/// The way out of what is no UTF-8.
fn of_encoding(kind: Option<BinaryKind>) -> &'static str {
    match kind {
        None => {
            "convert it to UTF-8 first: `iconv -f latin1 -t utf-8 FILE`; of packed files `.gz` and `.zst` are read"
        }
        Some(BinaryKind::Gzip) => {
            "unpack it, or give it a name that ends in `.gz`, by which it is unpacked once"
        }
        Some(BinaryKind::Zstd) => "give it a name that ends in `.zst`, by which it is unpacked",
        Some(BinaryKind::Xz) => "unpack it first: `xz -d FILE`",
        Some(BinaryKind::Bzip2) => "unpack it first: `bzip2 -d FILE`",
        Some(BinaryKind::Parquet) => {
            "set `format: parquet`, or `jsonl` or `chat` and give it a name that ends in `.parquet`; `annulus data` takes `--jsonl` or `--chat`"
        }
        Some(BinaryKind::Utf16) => "convert it first: `iconv -f utf-16 -t utf-8 FILE`",
        Some(BinaryKind::Pdf) => "convert it to text first: `pdftotext FILE`",
        Some(BinaryKind::Zip) => {
            "unpack an archive, and save a document as text: `pandoc -t plain FILE`, say"
        }
    }
}

/// The way out where something cannot be read.
fn of_reading(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::NotFound => {
            "check the path; it is relative to the current folder, `~` is the home folder, and a variable is written `${NAME}`"
        }
        io::ErrorKind::PermissionDenied => "make it readable for this user",
        _ => "name a file or a folder that can be read",
    }
}

/// The way out where a cache of tokens cannot be written.
fn of_writing(path: &Path, error: &io::Error) -> &'static str {
    if matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory) {
        return "a folder is expected there: move the file of that name away, or name another folder";
    }
    if !annulus_files::is_full(error) {
        return "make its folder writable, with space on its disk";
    }
    if path == std::env::temp_dir() {
        return "free some space there, or set `TMPDIR` to a folder on another disk";
    }
    "free some space, or set another `output`: the cache of tokens lies beside it, in `cache`"
}

/// The way out of a file of rows that is not as wanted.
fn of_rows(message: &str) -> &'static str {
    const KNOWN: [(&str, &str); 7] = [
        (CODECS, "write it again, packed by zstd, snappy or gzip, or not packed"),
        (
            FOREIGN,
            "name a parquet file, or set `format`, and the ending of its name, to what it is; `git lfs pull` fetches a file of which git left a pointer",
        ),
        (CUT_SHORT, "copy or download it again"),
        (ENCRYPTED, "write it again without encryption"),
        (LIMIT_OF_ROW, "break its text up into several rows"),
        ("not UTF-8", "write its texts in UTF-8; if they are, the file is damaged: copy it again"),
        (
            "column `",
            "texts are read from the column `data.column` (of a command, `--column`), `text` unless set; conversations from `messages`, `conversations`, or `instruction` and `output`",
        ),
    ];
    let known = KNOWN.iter().find(|(part, _)| message.contains(part));
    known.map_or("copy it again, or write it again, with fewer rows in a row group", |(_, hint)| {
        hint
    })
}

/// The way out of a line that is not as wanted.
fn of_line(message: &str, chat: bool) -> &'static str {
    const KNOWN: [(&str, &str); 10] = [
        (IS_TEXT, "set its format (`data.format` or `evaluation.format`) to `jsonl`"),
        (IS_CONVERSATION, "set its format (`data.format` or `evaluation.format`) to `chat`"),
        (
            LIMIT_OF_LINE,
            "break its text up into several lines, or read a file that is not lines of JSON with `format: text`",
        ),
        ("64 bits", "write the number as a text, in quotes: `\"…\"`"),
        (
            "has no token",
            "use a tokenizer with a token for unknown characters, or `tokenizer: bytes`",
        ),
        ("bytes of text", "break the conversation up: a document is encoded as one"),
        (
            "`tools`",
            "give it as `[{\"type\": \"function\", \"function\": {…}}, …]`, or as a text of that; null where there are none",
        ),
        (
            "`tool_calls`",
            "give them as `[{\"type\": \"function\", \"function\": {\"name\": …, \"arguments\": …}}, …]`; null where there are none",
        ),
        ("`chat_template`", "mend the record, or the template beside the tokenizer"),
        (
            "generation",
            "put `{% generation %}` and `{% endgeneration %}` around what the assistant says in the template",
        ),
    ];
    let known = KNOWN.iter().find(|(part, _)| message.contains(part));
    match known {
        Some((_, hint)) => hint,
        None if chat => {
            "each line is one object like {\"messages\": [{\"role\": \"user\", \"content\": \"…\"}, \
             {\"role\": \"assistant\", \"content\": \"…\"}]}"
        }
        None => {
            "each line is one object like {\"text\": \"…\"}; `data.column` (of a command, `--column`) names another field than `text`"
        }
    }
}
