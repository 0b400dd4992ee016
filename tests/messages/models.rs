//! Folders of Hugging Face models: config.json, weights, index.

use std::fs;

use candle_core::{DType, Tensor};

use crate::scene::{Case, Scene, answers};

const SCORE: &str = "score --model model --tokens ids.safetensors --out out";
const CONFIG: &str = "model/config.json";
const WEIGHTS: &str = "model/model.safetensors";
const INDEX: &str = "model/model.safetensors.index.json";
const NORM: &str = "model.norm.weight";
const PROJECTION: &str = "lm_head.weight";

/// A safetensors file of the given header, and `data` bytes.
fn raw(scene: &Scene, header: &str, data: usize) {
    let length = (header.len() as u64).to_le_bytes();
    scene.write(WEIGHTS, [&length[..], header.as_bytes(), &vec![0; data]].concat());
}

/// Moves the weights into a shard that an index names as `file`.
fn shard(scene: &Scene, file: &str) {
    fs::rename(scene.path(WEIGHTS), scene.path("model/1.safetensors")).unwrap();
    scene.write(INDEX, format!(r#"{{"weight_map": {{"{NORM}": "{file}"}}}}"#));
}

fn change(scene: &Scene, name: &str, change: fn(&Tensor) -> candle_core::Result<Tensor>) {
    scene.change(WEIGHTS, |tensors| {
        let changed = change(&tensors[name]).unwrap();
        tensors.insert(name.to_owned(), changed);
    });
}

/// `tiny.yaml` for the model in `folder`.
fn train(scene: &Scene, folder: &str) {
    let rest = "data: { path: text.txt, tokens: 16 }\noptimizer: { learning_rate: 1e-3 }\n\
                schedule: { steps: 1 }\n";
    scene.write("tiny.yaml", format!("name: a\nmodel: {{ path: {folder} }}\n{rest}"));
}

#[test]
fn wrong_configs() {
    let cases: &[Case] = &[
        ("no such folder", |_| (), "score --model nowhere --tokens ids.safetensors --out out"),
        ("no config.json", |s| s.remove(CONFIG), SCORE),
        ("no JSON", |s| s.cut(CONFIG, 100), SCORE),
        ("another family", |s| s.replace(CONFIG, "\"llama\"", "\"gemma3\""), SCORE),
        ("scaled frequencies", |s| s.replace(CONFIG, "\"default\"", "\"llama3\""), SCORE),
        (
            "a width in words",
            |s| s.replace(CONFIG, "\"hidden_size\": 16", "\"hidden_size\": \"16\""),
            SCORE,
        ),
        (
            "another width than the weights'",
            |s| s.replace(CONFIG, "\"hidden_size\": 16", "\"hidden_size\": 32"),
            SCORE,
        ),
        (
            "more layers than the weights'",
            |s| s.replace(CONFIG, "_layers\": 1", "_layers\": 2"),
            SCORE,
        ),
        (
            "tied, but not its weights",
            |s| s.replace(CONFIG, "embeddings\": false", "embeddings\": true"),
            SCORE,
        ),
        (
            "fewer tokens than the tokenizer",
            |s| {
                s.replace(CONFIG, "\"vocab_size\": 260", "\"vocab_size\": 100");
                train(s, "model");
            },
            "train tiny.yaml",
        ),
        ("a model to train that is not there", |s| train(s, "nowhere"), "train tiny.yaml"),
        ("a file for a model", |s| train(s, "model/config.json"), "train tiny.yaml"),
        (
            "an address for a model",
            |s| train(s, "https://huggingface.co/owner/name"),
            "train tiny.yaml",
        ),
    ];
    insta::assert_snapshot!(answers(cases));
}

#[test]
fn wrong_weights() {
    let cases: &[Case] = &[
        ("no weights", |s| s.remove(WEIGHTS), SCORE),
        (
            "weights of PyTorch",
            |s| {
                fs::rename(s.path(WEIGHTS), s.path("model/pytorch_model.bin")).unwrap();
            },
            SCORE,
        ),
        (
            "a pointer of Git LFS",
            |s| s.write(WEIGHTS, "version https://git-lfs.github.com/spec/v1\nsize 16640\n"),
            SCORE,
        ),
        ("an empty file", |s| s.write(WEIGHTS, ""), SCORE),
        ("cut short", |s| s.cut(WEIGHTS, 10_000), SCORE),
        (
            "a header of exabytes",
            |s| s.write(WEIGHTS, [&u64::MAX.to_le_bytes()[..], b"{}"].concat()),
            SCORE,
        ),
        (
            "shapes of exabytes",
            |s| {
                raw(
                    s,
                    r#"{"model.norm.weight":{"dtype":"F32","shape":[4294967296,4294967296],
                        "data_offsets":[0,64]}}"#,
                    64,
                );
            },
            SCORE,
        ),
        (
            "one place for two",
            |s| {
                raw(
                    s,
                    r#"{"a":{"dtype":"F32","shape":[16],"data_offsets":[0,64]},
                    "b":{"dtype":"F32","shape":[16],"data_offsets":[32,96]}}"#,
                    96,
                );
            },
            SCORE,
        ),
        ("whole numbers", |s| change(s, NORM, |norm| norm.to_dtype(DType::I64)), SCORE),
        ("another shape", |s| change(s, NORM, |norm| norm.narrow(0, 0, 8)), SCORE),
        ("one missing", |s| s.change(WEIGHTS, |tensors| drop(tensors.remove(NORM))), SCORE),
        (
            "no last projection",
            |s| s.change(WEIGHTS, |tensors| drop(tensors.remove(PROJECTION))),
            SCORE,
        ),
        (
            "one missing, for a sweep",
            |s| {
                s.change(WEIGHTS, |tensors| drop(tensors.remove(NORM)));
                train(s, "model");
                s.replace("tiny.yaml", "name: a", "name: a\nsweep: { seeds: 2 }");
                s.replace("tiny.yaml", "tokens: 16", "tokens: 16, tokenizer: bytes");
            },
            "sweep tiny.yaml",
        ),
        (
            "one too many",
            |s| {
                s.change(WEIGHTS, |tensors| {
                    tensors.insert(
                        "model.layers.0.self_attn.q_proj.bias".into(),
                        tensors[NORM].clone(),
                    );
                })
            },
            SCORE,
        ),
    ];
    insta::assert_snapshot!(answers(cases));
}

#[test]
fn wrong_shards() {
    let cases: &[Case] = &[
        ("an index that leaves the folder", |s| shard(s, "../x.safetensors"), SCORE),
        ("a shard that is not there", |s| shard(s, "2.safetensors"), SCORE),
        ("a shard with more than its index", |s| shard(s, "1.safetensors"), SCORE),
        (
            "a broken index",
            |s| {
                s.remove(WEIGHTS);
                s.write(INDEX, "{\"weight_map\": ");
            },
            SCORE,
        ),
        #[cfg(unix)]
        (
            "a link that leaves the folder",
            |s| {
                s.remove(WEIGHTS);
                std::os::unix::fs::symlink("../text.txt", s.path(WEIGHTS)).unwrap();
            },
            SCORE,
        ),
    ];
    insta::assert_snapshot!(answers(cases));
}
