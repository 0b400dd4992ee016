//! `tokenizer: bytes` as a `tokenizer.json`, for programs that read no other.

use serde_json::{Map, json};

/// What stands between documents.
const END: &str = "<|endoftext|>";

/// The values of a byte.
const BYTES: usize = 256;

/// `tokenizer: bytes` as others read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByteTokenizer {
    /// The `tokenizer.json`.
    pub text: String,
    /// What stands between documents, where the model has a row for it.
    pub end: Option<String>,
}

/// The `tokenizer.json` with the ids of `tokenizer: bytes`, for a model of so many tokens; `None`: fewer
/// than there are bytes.
pub fn byte_tokenizer(vocabulary: usize) -> Option<ByteTokenizer> {
    if vocabulary < BYTES {
        return None;
    }
    let mut vocab = Map::new();
    // The letters of byte-level tokenizers: a byte that can be printed is itself, the others follow from 256 on.
    let mut others = 256..;
    for byte in 0..=u8::MAX {
        let printed = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        let letter = if printed { u32::from(byte) } else { others.next()? };
        vocab.insert(char::from_u32(letter)?.to_string(), json!(byte));
    }
    let end = (vocabulary > BYTES).then(|| END.to_owned());
    let added: Vec<_> = end
        .iter()
        .map(|end| {
            json!({
                "id": BYTES, "content": end, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            })
        })
        .collect();
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": level,
        "post_processor": null,
        "decoder": level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": false, "vocab": vocab, "merges": [],
        },
    });
    Some(ByteTokenizer { text: format!("{tokenizer:#}\n"), end })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tokenizer;

    #[test]
    fn ids_are_the_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        let made = byte_tokenizer(257).unwrap();
        std::fs::write(&path, &made.text).unwrap();
        let tokenizer = Tokenizer::open(&path.to_string_lossy()).unwrap();
        assert_eq!(tokenizer.vocabulary(), 257);
        let text = "tab\t line\n ¡grüße! \u{0}\u{7f}\u{a0}\u{ad} 漢字 🦀".to_owned();
        let mut ids = Vec::new();
        tokenizer.encode(&text, &mut |some| ids.extend_from_slice(some)).unwrap();
        assert_eq!(ids, text.bytes().map(u32::from).collect::<Vec<_>>());
        assert_eq!(tokenizer.decode(&ids).unwrap(), text);
        assert_eq!(tokenizer.decode(&[256]).unwrap(), made.end.unwrap());
        assert_eq!(byte_tokenizer(256).unwrap().end, None);
        assert_eq!(byte_tokenizer(255), None);
    }
}
