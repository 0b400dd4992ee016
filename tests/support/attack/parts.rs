//! What cases are made of that a shell cannot write: tensors, tokenizers, conversations.

use serde_json::{Value, json};

use super::scene::Scene;

/// A safetensors file of these names, types, shapes and data.
pub(crate) fn tensors(tensors: &[(&str, &str, &[usize], Vec<u8>)]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert(
            (*name).to_owned(),
            json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}),
        );
        data.extend(bytes);
    }
    let mut header = Value::Object(header).to_string();
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    with_header(&header, &data)
}

/// A safetensors file of this header, whatever it is.
pub(super) fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    let length = header.len() as u64;
    [&length.to_le_bytes(), header.as_bytes(), data].concat()
}

/// What `score` reads.
pub(super) fn ids(rows: usize, columns: usize) -> Vec<u8> {
    let ids = (0..(rows * columns) as i64).flat_map(|id| (id % 250).to_le_bytes());
    tensors(&[("input_ids", "I64", &[rows, columns], ids.collect())])
}

/// A tokenizer of bytes as byte pairs, without a merge.
pub(super) fn tokenizer() -> Value {
    let printable = |byte: &u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let plain = (0..=255).filter(printable).map(u32::from);
    let others = (0..=255).filter(|byte| !printable(byte)).count() as u32;
    let letters = plain.chain((0..others).map(|index| 256 + index)).filter_map(char::from_u32);
    let vocabulary: serde_json::Map<String, Value> =
        letters.enumerate().map(|(id, letter)| (letter.to_string(), id.into())).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "vocab": vocabulary, "merges": [],
        },
    })
}

/// Conversations of `turns` messages, one a line.
pub(super) fn chats(turns: usize) -> String {
    let message = |turn: usize| {
        let role = ["user", "assistant"][turn % 2];
        json!({"role": role, "content": format!("word {turn}")})
    };
    let messages: Vec<_> = (0..turns.next_multiple_of(2)).map(message).collect();
    format!("{}\n", json!({"messages": messages})).repeat(3)
}

/// Replaces a part of the tokenizer, by its JSON pointer.
pub(super) fn change_tokenizer(scene: &Scene, pointer: &str, value: Value) {
    let mut tokenizer = tokenizer();
    *tokenizer.pointer_mut(pointer).expect("a part of a tokenizer") = value;
    scene.write("tokenizer.json", tokenizer.to_string());
}

/// Makes all weights of the model this number.
pub(super) fn fill_weights(scene: &Scene, number: f32) {
    let mut bytes = scene.read("model/model.safetensors");
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    for place in bytes[8 + header..].chunks_exact_mut(4) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    scene.write("model/model.safetensors", bytes);
}
