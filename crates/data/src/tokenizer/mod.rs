//! Text to tokens: bytes, or a `tokenizer.json`.

mod around;
mod beside;
mod bounds;
mod differing;
mod frame;

use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};

use annulus_files::hugging_face::{LARGEST, TOKENIZER_CONFIG};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use bounds::{Added, Bounded};
use frame::frame;

use crate::DataError;
use crate::chat::{read_config, specials};
use crate::encode::{Cuts, Encoder, longest};
use crate::files::read_error;
use crate::guard::guarded;

/// The id that stands between documents of bytes, and ends the one before it.
const NEXT_DOCUMENT: u32 = 256;

/// How the text begins that Git LFS leaves in place of a file.
const POINTER: &[u8] = b"version https://git-lfs";

/// An unknown token that is none: what would be left out without a word is an error then.
const NONE: &str = "\u{fdd0}no token of this name\u{fdd1}";

/// Text to tokens.
#[derive(Debug)]
pub enum Tokenizer {
    /// Token `b` is byte `b`; 256 stands between documents.
    Bytes,
    /// A `tokenizer.json`.
    Json(Box<JsonTokenizer>),
}

/// A `tokenizer.json`, made ready to encode stretches of text.
#[derive(Debug)]
pub struct JsonTokenizer {
    /// Without truncation, padding and special tokens, which belong to documents, not to stretches.
    pub(crate) inner: tokenizers::Tokenizer,
    /// Whether it encodes byte pairs and has a token for every character: none is dropped.
    pub(crate) exact: bool,
    /// Where texts can be cut; else the step of which it is not known.
    pub(crate) cuts: Result<Cuts, String>,
    /// How many times as long its steps can make a text.
    pub(crate) growth: usize,
    /// Its file, beside which others lie that belong to it.
    pub(crate) path: PathBuf,
    hash: [u8; 32],
    vocabulary: usize,
    before: Vec<u32>,
    after: Vec<u32>,
    /// What is in `after` by `tokenizer_config.json`.
    added: Option<u32>,
}

impl Tokenizer {
    /// `bytes`, or the path of a `tokenizer.json`.
    ///
    /// # Errors
    /// A file that cannot be read, or is no `tokenizer.json`, or lacks a token that a file beside it names.
    pub fn open(name: &str) -> Result<Tokenizer, DataError> {
        if name == "bytes" {
            return Ok(Tokenizer::Bytes);
        }
        let path = Path::new(name);
        let broken = |message| DataError::Tokenizer { path: path.to_owned(), message };
        let bytes = annulus_files::read(path, LARGEST).map_err(|source| match source.kind() {
            _ if path.is_dir() => DataError::TokenizerFolder { path: path.to_owned() },
            ErrorKind::InvalidInput => DataError::NotAFile { path: path.to_owned() },
            ErrorKind::FileTooLarge => broken(source.to_string()),
            _ => read_error(path, source),
        })?;
        if bytes.starts_with(POINTER) {
            return Err(broken(
                "it is a Git LFS pointer, and `git lfs pull` fetches the file itself".to_owned(),
            ));
        }
        let not_json = || serde_json::from_slice::<serde::de::IgnoredAny>(&bytes).err();
        let why = |said| not_json().map_or(said, |error| format!("it is not JSON: {error}"));
        let mut json = JsonTokenizer::new(&bytes).map_err(|said| broken(why(said)))?;
        path.clone_into(&mut json.path);
        beside::check(path, &|token| json.inner.token_to_id(token).is_some())?;
        json.end_documents(&read_config(&path.with_file_name(TOKENIZER_CONFIG))?);
        Ok(Tokenizer::Json(Box::new(json)))
    }

    /// The most tokens that a text of so many bytes can have, without those that stand around documents.
    pub fn most_tokens(&self, bytes: u64) -> u64 {
        match self {
            Tokenizer::Bytes => bytes,
            Tokenizer::Json(json) => bytes.saturating_mul(json.growth as u64),
        }
    }

    /// One past the largest id there is.
    pub fn vocabulary(&self) -> usize {
        match self {
            Tokenizer::Bytes => NEXT_DOCUMENT as usize + 1,
            Tokenizer::Json(json) => json.vocabulary,
        }
    }

    /// What the tokens are a function of: a hash of the tokenizer's bytes, and of the token behind documents that it does not say itself.
    pub fn fingerprint(&self) -> [u8; 32] {
        match self {
            Tokenizer::Bytes => *blake3::hash(b"bytes, 256 between documents").as_bytes(),
            Tokenizer::Json(json) => match json.added {
                None => json.hash,
                Some(id) => *blake3::hash(&[&json.hash[..], &id.to_le_bytes()].concat()).as_bytes(),
            },
        }
    }

    /// Whether it is a `tokenizer.json` of this text.
    pub fn is_of(&self, text: &[u8]) -> bool {
        matches!(self, Tokenizer::Json(json) if json.hash == *blake3::hash(text).as_bytes())
    }

    /// The ids of `text`, handed on piece by piece, without those that begin or end a document.
    ///
    /// The text is cut where the ids are those of the whole (see [`Tokenizer::Json`] and `encode.rs`),
    /// so that time is linear in the text and memory bounded; where it is not
    /// known how to cut for a tokenizer, long texts are an error.
    ///
    /// # Errors
    /// Text that the tokenizer cannot encode, or a long one that cannot be cut.
    pub fn encode(&self, text: &str, into: &mut dyn FnMut(&[u32])) -> Result<(), DataError> {
        let mut into = |ids: &[u32]| -> Result<(), DataError> {
            into(ids);
            Ok(())
        };
        let mut encoder = Encoder::new(self);
        encoder.push(text, &mut into)?;
        encoder.finish(&mut into)
    }

    /// The ids of a short `text`, and of each whether it has a part in `learned`, which are ranges of
    /// bytes in order.
    pub(crate) fn encode_marked(
        &self,
        text: &str,
        learned: &[Range<usize>],
    ) -> Result<Vec<(u32, bool)>, String> {
        let has = |start: usize, end: usize| {
            let next = learned.partition_point(|part| part.end <= start);
            learned.get(next).is_some_and(|part| part.start < end)
        };
        match self {
            Tokenizer::Bytes => {
                let bytes = text.bytes().enumerate();
                Ok(bytes.map(|(at, byte)| (byte.into(), has(at, at + 1))).collect())
            }
            Tokenizer::Json(json) => {
                let most = longest(json.growth);
                if text.len() > most {
                    return Err(format!("{} bytes of text, expected at most {most}", text.len()));
                }
                let encoding = json.encoding(text)?;
                let ids = encoding.get_ids().iter().zip(encoding.get_offsets());
                Ok(ids.map(|(&id, &(start, end))| (id, has(start, end))).collect())
            }
        }
    }

    /// The text of `ids`, with what stands for itself (the end of a document, say) written out.
    ///
    /// # Errors
    /// What the library of a `tokenizer.json` says.
    pub fn decode(&self, ids: &[u32]) -> Result<String, DataError> {
        match self {
            Tokenizer::Bytes => {
                let mut bytes = Vec::with_capacity(ids.len());
                for &id in ids {
                    match u8::try_from(id) {
                        Ok(byte) => bytes.push(byte),
                        Err(_) => bytes.extend(format!("<{id}>").bytes()),
                    }
                }
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
            Tokenizer::Json(json) => {
                let text = guarded(|| json.inner.decode(ids, false).map_err(|e| e.to_string()));
                text.and_then(|text| text).map_err(|message| DataError::Tokenizer {
                    path: json.path.clone(),
                    message: format!("it cannot write tokens as text: {message}"),
                })
            }
        }
    }

    /// Holds the tokens that begin and end a document to those of a model: `begin` and `end` are
    /// `bos_token_id` and `eos_token_id` in its `config`, of which there may be several; none: it does not say.
    ///
    /// # Errors
    /// The first that differs.
    pub fn check_special(
        &self,
        config: &Path,
        begin: &[u32],
        end: &[u32],
    ) -> Result<(), DataError> {
        let Tokenizer::Json(json) = self else { return Ok(()) };
        let differ = |found, name, wanted| {
            let [tokenizer, config] = [&json.path, config].map(Path::to_owned);
            Err(DataError::Special { tokenizer, found, config, name, wanted })
        };
        // The end that only the file beside it names may be that of a turn: chat models differ there, and mean it.
        let after = json.after.first().filter(|_| json.added.is_none());
        let sides = [
            ("begins", "bos_token_id", json.before.last(), begin),
            ("ends", "eos_token_id", after, end),
        ];
        for (what, name, own, model) in sides {
            let list = || model.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
            if let Some(beyond) = model.iter().find(|id| **id as usize >= json.vocabulary) {
                let found = format!("has {} tokens", json.vocabulary);
                return differ(found, name, beyond.to_string());
            }
            if let Some(own) = own.filter(|own| !model.is_empty() && !model.contains(own)) {
                let token = json.inner.id_to_token(*own).unwrap_or_default();
                let found = format!("{what} documents with {own} (`{token}`)");
                return differ(found, name, list());
            }
        }
        Ok(())
    }
}

/// Whether an added token has the id that the file says.
fn agrees(Added { content, id }: &Added, tokenizer: &tokenizers::Tokenizer) -> Result<(), String> {
    let found = tokenizer.token_to_id(content).map(u64::from);
    if id.is_none() || *id == found {
        return Ok(());
    }
    let [said, found] = [*id, found].map(Option::unwrap_or_default);
    Err(format!("it says that `{content}` is {said}, and its other tokens make it {found}"))
}

impl JsonTokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// What is wrong with it, or larger than anything in use.
    pub(crate) fn new(bytes: &[u8]) -> Result<JsonTokenizer, String> {
        let bounded = bounds::bounded(bytes)?;
        let made = guarded(|| JsonTokenizer::unbounded(bytes, &bounded));
        let made = made.map_err(|panic| format!("its library fails: {panic}"))?;
        made.map_err(|error| error.to_string())
    }

    fn unbounded(bytes: &[u8], bounded: &Bounded) -> tokenizers::Result<JsonTokenizer> {
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes)?;
        inner.with_truncation(None)?;
        inner.with_padding(None);
        if let tokenizers::ModelWrapper::BPE(model) = inner.get_model() {
            let mut model = model.clone();
            // Dropout draws from a generator without a seed: no two runs would see the same tokens.
            model.dropout = None;
            model.unk_token.get_or_insert_with(|| NONE.to_owned());
            inner.with_model(model);
        }
        let vocabulary = inner.get_vocab(true);
        vocabulary.keys().try_for_each(|token| bounds::token(token))?;
        vocabulary.values().try_for_each(|&id| bounds::id(id))?;
        let largest = vocabulary.into_values().max();
        bounded.added.iter().try_for_each(|added| agrees(added, &inner))?;
        if inner.get_vocab_size(false) == 0 {
            return Err("its model has no tokens".into());
        }
        let (before, after) = frame(&inner)?;
        let largest = largest.ok_or("it has no tokens")?;
        if let Some(beyond) = before.iter().chain(&after).find(|&&id| id > largest) {
            return Err(format!(
                "it begins or ends a text with {beyond}, and its ids end with {largest}"
            )
            .into());
        }
        // Special tokens are asked for above, once; the template must not move offsets.
        inner.with_post_processor(None::<tokenizers::PostProcessorWrapper>);
        let hash = *blake3::hash(bytes).as_bytes();
        let (exact, cuts, path) = (exact(&inner)?, Cuts::new(&inner)?, PathBuf::new());
        let vocabulary = largest as usize + 1;
        let growth = bounded.growth;
        let added = None;
        Ok(Self { inner, exact, cuts, growth, path, hash, vocabulary, before, after, added })
    }

    /// Has documents end with `eos_token` where the `tokenizer_config.json` asks for that (`add_eos_token`), or where they would be
    /// joined without a token between them.
    fn end_documents(&mut self, config: &serde_json::Value) {
        let is_asked = config["add_eos_token"] == true;
        if !self.after.is_empty() || !(is_asked || self.before.is_empty()) {
            return;
        }
        let eos = specials(config).remove("eos_token");
        self.added = eos.and_then(|token| self.inner.token_to_id(&token));
        self.after.extend(self.added);
    }

    /// The tokens of a stretch of text.
    ///
    /// # Errors
    /// A character that the tokenizer has no token for, or what its library says.
    pub(crate) fn encoding(&self, text: &str) -> Result<tokenizers::Encoding, String> {
        let encoding = guarded(|| self.inner.encode(text, false))
            .map_err(|panic| format!("its library fails: {panic}"))?;
        encoding.map_err(|error| {
            let message = error.to_string();
            if message.contains(NONE) { self.unknown(text) } else { message }
        })
    }

    /// Names the first character of `text` that there is no token for.
    fn unknown(&self, text: &str) -> String {
        let fails = |letter: &char| {
            let alone = letter.to_string();
            !matches!(guarded(|| self.inner.encode(alone.as_str(), false)), Ok(Ok(_)))
        };
        let file = self.path.display();
        match text.chars().find(fails) {
            Some(letter) => format!(
                "the character {letter:?} (U+{:04X}) has no token in `{file}`, which has none for unknown ones",
                u32::from(letter)
            ),
            None => {
                format!("a character has no token in `{file}`, which has none for unknown ones")
            }
        }
    }
}

/// Whether the model is byte pair encoding, and every character can be encoded: as bytes before or
/// after the model sees it, or as unknown.
fn exact(tokenizer: &tokenizers::Tokenizer) -> tokenizers::Result<bool> {
    let tokenizers::ModelWrapper::BPE(model) = tokenizer.get_model() else { return Ok(false) };
    let known = |token: &str| tokenizer.token_to_id(token).is_some();
    let steps = [
        serde_json::to_string(&tokenizer.get_normalizer())?,
        serde_json::to_string(&tokenizer.get_pre_tokenizer())?,
    ];
    let bytes = steps.iter().any(|step| step.contains("\"ByteLevel\""))
        && ByteLevel::alphabet().into_iter().all(|letter| known(&letter.to_string()));
    let fallback = model.byte_fallback && (0..256).all(|byte| known(&format!("<0x{byte:02X}>")));
    let unknown = model.unk_token.as_deref().is_some_and(known);
    Ok(bytes || fallback || unknown)
}
