//! What a `tokenizer.json` of somebody else may ask for, held to bounds before its library sees it: a step that writes a
//! megabyte for every letter is a short file.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Steps of all kinds: those in use have at most ten.
const STEPS: usize = 64;

/// The longest pattern, or text that is put in for another, in bytes.
const LONGEST_TEXT: usize = 1 << 14;

/// The longest token, in bytes.
const LONGEST_TOKEN: usize = 1 << 12;

/// The longest table of SentencePiece's characters, in base64: ten times the one in use.
const LONGEST_TABLE: usize = 1 << 22;

/// How much longer a text may become. Unicode's own forms, which write one character as up to eighteen, are not counted.
const GROWTH: usize = 64;

/// The most tokens, merges of two, and ids: four times as many as the largest vocabulary in use.
const MOST: usize = 1 << 20;

/// The most tokens that are named one by one besides those of the model.
const ADDED: usize = 1 << 16;

/// What is done to text, and how many tokens there are. Tokens are looked at once the library has them.
#[derive(Deserialize)]
struct Outline {
    #[serde(default)]
    model: Model,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(default)]
    added_tokens: Vec<Added>,
}

/// A token that is named by itself.
#[derive(Deserialize)]
pub(super) struct Added {
    pub(super) content: String,
    #[serde(default)]
    pub(super) id: Option<u64>,
}

/// What a file asks for, within bounds.
pub(super) struct Bounded {
    /// How many times as long its steps can make a text.
    pub(super) growth: usize,
    /// The ids that it says tokens have; its library may give them others.
    pub(super) added: Vec<Added>,
}

#[derive(Default, Deserialize)]
struct Model {
    #[serde(default)]
    vocab: Counted,
    #[serde(default)]
    merges: Counted,
}

/// How many entries a list or an object has.
#[derive(Default)]
struct Counted(usize);

/// The steps of a kind: the key of those in a sequence, and the names of those that are known.
struct Steps {
    list: &'static str,
    known: &'static [&'static str],
}

const NORMALIZERS: Steps = Steps {
    list: "normalizers",
    known: &[
        "BertNormalizer",
        "ByteLevel",
        "Lowercase",
        "NFC",
        "NFD",
        "NFKC",
        "NFKD",
        "Nmt",
        "Precompiled",
        "Prepend",
        "Replace",
        "Strip",
        "StripAccents",
    ],
};

const PRE_TOKENIZERS: Steps = Steps {
    list: "pretokenizers",
    known: &[
        "BertPreTokenizer",
        "ByteLevel",
        "CharDelimiterSplit",
        "Digits",
        "FixedLength",
        "Metaspace",
        "Punctuation",
        "Split",
        "UnicodeScripts",
        "Whitespace",
        "WhitespaceSplit",
    ],
};

const DECODERS: Steps = Steps {
    list: "decoders",
    known: &[
        "BPEDecoder",
        "ByteFallback",
        "ByteLevel",
        "CTC",
        "Fuse",
        "Metaspace",
        "Replace",
        "Strip",
        "WordPiece",
    ],
};

/// What a `tokenizer.json` asks for.
///
/// # Errors
/// What in it is larger than anything in use.
pub(super) fn bounded(file: &[u8]) -> Result<Bounded, String> {
    let outline: Outline = serde_json::from_slice(file).map_err(|error| error.to_string())?;
    let Outline { model, added_tokens, .. } = &outline;
    for (what, found, most) in [
        ("tokens", model.vocab.0, MOST),
        ("merges", model.merges.0, MOST),
        ("added tokens", added_tokens.len(), ADDED),
    ] {
        if found > most {
            return Err(format!("it has {found} {what}, expected at most {most}"));
        }
    }
    for Added { content, .. } in added_tokens {
        token(content)?;
    }
    let before = [(&outline.normalizer, NORMALIZERS), (&outline.pre_tokenizer, PRE_TOKENIZERS)];
    let mut grown: usize = 1;
    for (part, steps) in before {
        grown = grown.saturating_mul(of_steps(part, &steps)?);
    }
    // What a decoder writes is text that was decoded, not text that is encoded.
    let decoded = of_steps(&outline.decoder, &DECODERS)?;
    for found in [grown, decoded] {
        if found > GROWTH {
            return Err(format!(
                "its steps can make a text {found} times as long, expected at most {GROWTH}"
            ));
        }
    }
    Ok(Bounded { growth: grown, added: outline.added_tokens })
}

/// Holds a token to its longest.
pub(super) fn token(token: &str) -> Result<(), String> {
    if token.len() <= LONGEST_TOKEN {
        return Ok(());
    }
    let length = token.len();
    Err(format!("it has a token of {length} bytes, expected at most {LONGEST_TOKEN}"))
}

/// Holds ids to their largest.
pub(super) fn id(id: u32) -> Result<(), String> {
    if (id as usize) < MOST {
        Ok(())
    } else {
        Err(format!("it has the id {id}, expected less than {MOST}"))
    }
}

/// The growth of a step, or of all steps of a sequence.
fn of_steps(part: &Value, kind: &Steps) -> Result<usize, String> {
    let (mut open, mut seen, mut grown) = (vec![part], 0, 1_usize);
    open.retain(|part| !part.is_null());
    while let Some(step) = open.pop() {
        seen += 1;
        if seen > STEPS {
            return Err(format!("it has more than {STEPS} steps"));
        }
        // The library guesses where there is no name; what it would take the step for cannot be told.
        let name = step["type"].as_str().ok_or("one of its steps has no `type`")?;
        if name == "Sequence" {
            open.extend(step[kind.list].as_array().ok_or("a `Sequence` of its steps has none")?);
        } else if kind.known.contains(&name) {
            grown = grown.saturating_mul(of_step(name, step)?);
        } else {
            return Err(format!("its step `{name}` is not known among its {}", kind.list));
        }
    }
    Ok(grown)
}

fn of_step(name: &str, step: &Value) -> Result<usize, String> {
    let written = text(name, &step["content"])?;
    match name {
        "Replace" => {
            let pattern = &step["pattern"];
            let found = text(name, &pattern["String"])?.or(text(name, &pattern["Regex"])?);
            if found == Some("") {
                return Err("a step `Replace` has an empty pattern".to_owned());
            }
            // A regular expression can match a single byte.
            let least = pattern["String"].as_str().map_or(1, str::len).max(1);
            Ok(written.unwrap_or_default().len().div_ceil(least).max(1))
        }
        "Split" => {
            text(name, &step["pattern"]["String"])?;
            text(name, &step["pattern"]["Regex"])?;
            Ok(1)
        }
        "Prepend" => Ok(1 + text(name, &step["prepend"])?.unwrap_or_default().len()),
        // A space is written as a character of three bytes; a byte as a letter of two.
        "Metaspace" => Ok(3),
        "ByteLevel" => Ok(2),
        "Precompiled" => of_table(step["precompiled_charsmap"].as_str().unwrap_or_default()),
        _ => Ok(1),
    }
}

/// A string of a step, which may not be there.
fn text<'v>(step: &str, value: &'v Value) -> Result<Option<&'v str>, String> {
    let Some(text) = value.as_str() else { return Ok(None) };
    if text.len() <= LONGEST_TEXT {
        return Ok(Some(text));
    }
    let length = text.len();
    Err(format!("a step `{step}` has a text of {length} bytes, expected at most {LONGEST_TEXT}"))
}

/// Of SentencePiece's table: the length of a tree in four bytes, the tree, and what is put in, each ended by a zero byte.
fn of_table(table: &str) -> Result<usize, String> {
    let wrong = |what: &str| format!("the table of its step `Precompiled` {what}");
    if table.len() > LONGEST_TABLE {
        return Err(wrong(&format!("has {} bytes, expected at most {LONGEST_TABLE}", table.len())));
    }
    let bytes = STANDARD.decode(table).map_err(|_| wrong("is not base64"))?;
    let (length, rest) = bytes.split_first_chunk().ok_or_else(|| wrong("is cut short"))?;
    let tree = u32::from_le_bytes(*length) as usize;
    let texts = rest.get(tree..).ok_or_else(|| wrong("is shorter than its tree"))?;
    let longest = texts.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or_default();
    // Unicode's own table has one of 33 bytes for a character of 3.
    Ok(longest.div_ceil(11).max(1))
}

impl<'de> Deserialize<'de> for Counted {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Counted, D::Error> {
        deserializer.deserialize_any(Counting)
    }
}

struct Counting;

impl<'de> Visitor<'de> for Counting {
    type Value = Counted;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list or an object")
    }
    fn visit_unit<E: Error>(self) -> Result<Counted, E> {
        Ok(Counted(0))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Counted, A::Error> {
        let mut count = 0;
        while list.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok(Counted(count))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Counted, A::Error> {
        let mut count = 0;
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok(Counted(count))
    }
}
