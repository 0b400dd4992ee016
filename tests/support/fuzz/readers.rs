//! The readers.

use std::path::PathBuf;

use annulus_data::{Batches, Cache, Records, Texts, Tokenizer};
use annulus_experiment::{Override, parse_config, read_adapter};
use annulus_simulate::Cluster;
use serde_json::json;

use super::{Place, Reader};
use crate::attack::parts;

/// A tokenizer of bytes, as a file.
pub(super) const TOKENIZER: &str = include_str!("../../fixtures/chat/tokenizer.json");
/// A tiny model.
pub(super) const CONFIG: &str = "{\"model_type\": \"llama\", \"hidden_size\": 8, \"intermediate_size\": 8, \
    \"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"vocab_size\": 6, \
    \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-5, \"hidden_act\": \"silu\", \"rope_theta\": 10000.0, \
    \"tie_word_embeddings\": false}";

/// A text is read as far as that, tokens.
const READ: u64 = 1 << 16;

/// All of them.
pub const READERS: &[Reader] = &[
    Reader {
        name: "sweep",
        seeds: |_| vec![include_bytes!("../../../experiments/sweep.yaml").to_vec()],
        read: |_, bytes| {
            let text = text(bytes)?;
            annulus_experiment::parse_sweep("x.yaml", text, &[])
                .map(drop)
                .map_err(|e| e.to_string())
        },
    },
    Reader {
        name: "experiment",
        seeds: |_| {
            texts(&[
                include_str!("../../../experiments/quickstart.yaml"),
                include_str!("../../../experiments/staged.yaml"),
                "model: {path: m}\nextend: {rope: yarn, tokens: 8k}\nlora: {rank: 2}\ndata: {path: a, tokens: 8}\n",
            ])
            .into_iter()
            .take(2)
            .collect()
        },
        read: |_, bytes| {
            let text = text(bytes)?;
            annulus_experiment::parse("x.yaml", text, &[]).map(drop).map_err(|e| e.to_string())
        },
    },
    Reader {
        name: "override",
        seeds: |_| {
            texts(&["data.tokens=64k", "evaluation.lengths=[16,32]", "attention={strategy: ring}"])
        },
        read: |_, bytes| {
            let given = Override::split(text(bytes)?).ok_or("no `=`")?;
            let file = include_str!("../../../experiments/quickstart.yaml");
            // What contradicts the file is right as a value.
            let _ = annulus_experiment::parse("x.yaml", file, &[given]).map_err(|e| e.to_string());
            Ok(())
        },
    },
    Reader {
        name: "config",
        seeds: |_| {
            texts(&[
                CONFIG,
                include_str!("../../fixtures/llama-3.2-1b/config.json"),
                include_str!("../../fixtures/qwen3/config.json"),
            ])
        },
        read: |_, bytes| {
            let read = annulus_experiment::parse_config("config.json", text(bytes)?);
            read.map(drop).map_err(|error| error.to_string())
        },
    },
    Reader {
        name: "cluster",
        seeds: |_| {
            texts(&[
                "name: two nodes\nnodes: 2\ndevices_per_node: 4\nmemory: 80GiB\ncompute: { forward: 300e12, backward: 280e12 }\ninside: { bandwidth: 400GB/s, latency: 3us }\nbetween: { bandwidth: 50GB/s, latency: 8us, per: node }\ndevices: { 3: { slowdown: 2 } }\n",
            ])
        },
        read: |_, bytes| {
            Cluster::parse("cluster.yaml", text(bytes)?).map(drop).map_err(|e| e.to_string())
        },
    },
    Reader {
        name: "adapter",
        seeds: |_| texts(&[include_str!("../../fixtures/adapter/adapter_config.json")]),
        read: |place, bytes| {
            place.write("adapter_config.json", bytes);
            let config = include_str!("../../fixtures/untied/config.json");
            let shape = parse_config("config.json", config).map_err(|e| e.to_string())?;
            read_adapter(&place.path(""), &shape).map(drop).map_err(|e| e.to_string())
        },
    },
    Reader {
        name: "weights",
        seeds: |place| vec![weights(place)],
        read: |place, bytes| {
            place.write("model/model.safetensors", bytes);
            load(place, "model")
        },
    },
    Reader {
        name: "index",
        seeds: |place| {
            place.write("sharded/one.safetensors", &weights(place));
            let names =
                place.specification.iter().map(|one| (one.name.clone(), "one.safetensors".into()));
            let map: serde_json::Map<_, _> = names.collect();
            texts(&[&json!({"metadata": {"total_size": 1}, "weight_map": map}).to_string()])
        },
        read: |place, bytes| {
            place.write("sharded/model.safetensors.index.json", bytes);
            load(place, "sharded")
        },
    },
    Reader {
        name: "batches",
        seeds: |_| vec![parts::tensors(&[("tokens", "I64", &[2, 2, 5], vec![0; 160])])],
        read: |place, bytes| {
            let path = place.write("batches.safetensors", bytes);
            let batches = Batches::open(&path, 2, 4).map_err(|error| error.to_string())?;
            annulus_data::Source::batch(&batches, 0).map(drop).map_err(|error| error.to_string())
        },
    },
    Reader {
        name: "tokenizer",
        seeds: |_| vec![TOKENIZER.as_bytes().to_vec()],
        read: |place, bytes| {
            let path = place.write("tokenizer.json", bytes);
            let tokenizer = Tokenizer::open(&path.display().to_string());
            let tokenizer = tokenizer.map_err(|error| error.to_string())?;
            let read =
                tokenizer.encode("All happy families, 7 of them.\n\u{fc}\u{1f600}", &mut |_| ());
            read.map_err(|error| error.to_string())
        },
    },
    Reader {
        name: "template",
        seeds: |_| {
            texts(&[
                include_str!("../../fixtures/chat/chat_template.jinja"),
                "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content | trim }}{% endgeneration %}{% else %}{{ m['content'] ~ bos_token }}{% endif %}{% endfor %}",
            ])
        },
        read: |place, bytes| {
            place.write("chat/chat_template.jinja", bytes);
            let path = place.write("chats.jsonl", CHAT.as_bytes());
            tokens(place, path, Records::Chats)
        },
    },
    Reader {
        name: "conversation",
        seeds: |_| texts(&[CHAT]),
        read: |place, bytes| {
            place.write(
                "chat/chat_template.jinja",
                include_bytes!("../../fixtures/chat/chat_template.jinja"),
            );
            let path = place.write("chats.jsonl", bytes);
            tokens(place, path, Records::Chats)
        },
    },
    Reader {
        name: "lines",
        seeds: |_| {
            texts(&["{\"text\": \"all happy\"}\n\n{\"text\": \"\\u00fc\", \"n\": [1, {}]}\n"])
        },
        read: |place, bytes| {
            let path = place.write("texts.jsonl", bytes);
            tokens(place, path, Records::Lines)
        },
    },
    Reader {
        name: "parquet",
        seeds: |_| {
            let files: [&[u8]; 4] = [
                include_bytes!("../../fixtures/parquet/snappy.parquet"),
                include_bytes!("../../fixtures/parquet/gzip.parquet"),
                include_bytes!("../../fixtures/parquet/zstd.parquet"),
                include_bytes!("../../fixtures/parquet/body.parquet"),
            ];
            files.iter().take(3).map(|file| file.to_vec()).collect()
        },
        read: |place, bytes| {
            let path = place.write("texts.parquet", bytes);
            tokens(place, path, Records::Lines)
        },
    },
    Reader {
        name: "cache",
        seeds: |place| {
            let input = [place.write("text.txt", b"all happy families are alike")];
            let texts = Texts::new(&input, Records::Text, &Tokenizer::Bytes);
            let cache = Cache::open(&texts, &place.path("cache"), false, &mut |_| ());
            vec![std::fs::read(cache.expect("a cache").path()).expect("a cache")]
        },
        read: |place, bytes| {
            let path = place.write("x.tokens", &signed(bytes));
            walk(&Cache::open_file(&path).map_err(|error| error.to_string())?)
        },
    },
    Reader {
        name: "trace",
        seeds: |_| {
            let about = json!({"version": 1, "title": "t", "step": 1, "planned": null, "ranks": 2});
            let mut apart = about.clone();
            apart["version"] = json!(2);
            apart["seats"] = [0, 1].map(|process| json!({"process": process, "host": "h"})).into();
            let span = json!({
                "ph": "X", "pid": 1, "tid": 3, "ts": 0.5, "dur": 1.0,
                "args": {"doing": "stage", "name": "batch"},
            });
            let of =
                |about, event| json!({"otherData": {"annulus": about}, "traceEvents": [event]});
            let named = json!({"ph": "M", "pid": 0});
            texts(&[&of(about, named).to_string(), &of(apart, span).to_string()])
        },
        read: |_, bytes| {
            let read = annulus_trace::Trace::from_json(text(bytes)?);
            let read = read.map_err(|error| error.to_string())?;
            annulus_trace::Sums::of(&read);
            Ok(())
        },
    },
    Reader {
        name: "page of metrics",
        seeds: |_| {
            texts(&[
                "{\"step\": 1, \"train/loss\": 2.5, \"evaluate/loss\": null, \"memory/peak\": [4096, 8192]}\n{\"st",
            ])
        },
        read: |place, bytes| page(place, "metrics.jsonl", bytes),
    },
    Reader {
        name: "page of answers",
        seeds: |_| {
            let mean = json!({"mean": 0.5, "standard_error": 0.125});
            let right = json!({"right": 3, "of": 4, "low": 0.3, "high": 0.95});
            let cell = json!({"task": "needle", "tokens": 8, "depth": 0.0, "right": right, "parts": mean, "loss": mean, "answers": []});
            texts(&[&json!({"name": "n", "weights": "w", "step": 7, "ranks": 1, "cells": [cell]})
                .to_string()])
        },
        read: |place, bytes| page(place, "evaluation/tasks.json", bytes),
    },
    Reader {
        name: "page of a trace",
        seeds: |_| texts(&[&busy()]),
        read: |place, bytes| page(place, "trace-2.json", bytes),
    },
    Reader {
        name: "state",
        seeds: |_| texts(&[STATE]),
        read: |place, bytes| checkpoint(place, bytes, None),
    },
    Reader {
        name: "hashes",
        seeds: |_| texts(&[&hashes(STATE.as_bytes())]),
        read: |place, bytes| checkpoint(place, STATE.as_bytes(), Some(bytes)),
    },
];

const CHAT: &str = "{\"messages\": [{\"role\": \"system\", \"content\": \"be short\"}, {\"role\": \"user\", \"content\": \"hello\"}, {\"role\": \"assistant\", \"content\": \"hi\"}], \"tools\": [{\"name\": \"f\"}]}\n";
const STATE: &str = "{\"version\":1,\"step\":1,\"tokens\":64,\"data\":\"00\",\"experiment\":\"name: a\\nmodel: { hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1, num_attention_heads: 2 }\\ndata: { path: a.txt, tokens: 16 }\\noptimizer: { learning_rate: 1e-3 }\\nschedule: { steps: 5 }\\n\",\"base\":null}";

/// A trace of a block that goes from rank 0 to rank 1, which computes with it.
fn busy() -> String {
    let piece = |part: &str| json!({"part": part, "owner": 0, "heads": [0, 1], "rows": [0, 4]});
    let span = |pid: u64, ts: f64, more: serde_json::Value| {
        let mut args = json!({"layer": 0, "pass": "forward", "hop": 0});
        let all = args.as_object_mut().into_iter();
        all.for_each(|args| args.extend(more.as_object().cloned().unwrap_or_default()));
        json!({"ph": "X", "pid": pid, "tid": 1, "ts": ts, "dur": 2.0, "args": args})
    };
    let moved = json!({"block": piece("k"), "from": 0, "to": 1, "bytes": 64, "planned_bytes": 64});
    let with = |mut args: serde_json::Value, doing: &str| {
        args["doing"] = doing.into();
        args
    };
    let mut waits = with(moved.clone(), "wait");
    waits["flight"] = 4000.into();
    let tile = json!({"queries": piece("q"), "keys": piece("k")});
    let computes = with(json!({"tiles": [tile], "pairs": 10}), "compute");
    let events = [span(0, 1.0, with(moved, "send")), span(1, 2.0, waits), span(1, 5.0, computes)];
    let about = json!({"version": 1, "title": "t", "step": 2, "planned": null, "ranks": 2});
    json!({"otherData": {"annulus": about}, "traceEvents": events}).to_string()
}

/// A page of a run that has this file and nothing else but what makes it one.
fn page(place: &Place, name: &str, bytes: &[u8]) -> Result<(), String> {
    let run = place.path("reported");
    let _ = std::fs::remove_dir_all(&run);
    std::fs::create_dir_all(run.join("evaluation")).map_err(|error| error.to_string())?;
    let file = "name: tiny\nmodel: { hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1, num_attention_heads: 2 }\n\
        data: { path: text.txt, tokens: 8 }\noptimizer: { learning_rate: 1e-2 }\nschedule: { steps: 10 }\n";
    place.write("reported/run.lock", b"1\n");
    place.write("reported/experiment.yaml", file.as_bytes());
    place.write(&format!("reported/{name}"), bytes);
    let page = annulus_report::report(&[run], &|_, _| Err(String::from("not planned")));
    page.map(drop).map_err(|error| error.to_string())
}

fn text(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|error| error.to_string())
}

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn weights(place: &Place) -> Vec<u8> {
    let tensors: Vec<_> = place
        .specification
        .iter()
        .map(|one| {
            let elements: usize = one.shape.iter().product();
            (one.name.as_str(), "BF16", &one.shape[..], vec![0; 2 * elements])
        })
        .collect();
    parts::tensors(&tensors)
}

fn load(place: &Place, folder: &str) -> Result<(), String> {
    let folder = place.path(folder);
    let read = annulus_model::load(&folder, &place.specification, candle_core::DType::F32);
    read.map(drop).map_err(|error| error.to_string())
}

/// Makes tokens of a file and reads all of them.
fn tokens(place: &Place, path: PathBuf, records: Records) -> Result<(), String> {
    let inputs = [path];
    let texts = Texts::new(&inputs, records, &place.tokenizer);
    walk(&Cache::temporary(&texts, &mut |_| ()).map_err(|error| error.to_string())?)
}

/// Everything that a run asks of a cache.
fn walk(cache: &Cache) -> Result<(), String> {
    let read = cache.tokens().min(READ);
    let mut ids = vec![0; read as usize];
    cache.read(0, &mut ids).map_err(|error| error.to_string())?;
    for &document in cache.documents() {
        assert!(document <= cache.tokens(), "a document begins at {document}");
        let _ = cache.learns(document);
    }
    assert!(ids.iter().all(|id| (*id as usize) < cache.vocabulary()), "an id is out of range");
    Ok(())
}

/// A cache with the hashes that it should have: what is wrong with it is to be found behind them.
fn signed(bytes: &[u8]) -> Vec<u8> {
    const CONTENT: usize = 48;
    const OWN: usize = 112;
    const HEADER: usize = 256;
    let mut bytes = bytes.to_vec();
    if let Some((header, rest)) = bytes.split_at_mut_checked(HEADER) {
        header[CONTENT..][..32].copy_from_slice(blake3::hash(rest).as_bytes());
        let own = blake3::hash(&header[..OWN]);
        header[OWN..][..32].copy_from_slice(own.as_bytes());
    }
    bytes
}

/// `hashes.json` of a checkpoint with this state.
fn hashes(state: &[u8]) -> String {
    let stamp = |bytes: &[u8]| json!({"size": bytes.len(), "blake3": blake3::hash(bytes).to_hex().as_str()});
    let names = ["config.json", "model.safetensors", "optimizer.safetensors"];
    let mut files: serde_json::Map<_, _> =
        names.iter().map(|name| ((*name).to_owned(), stamp(b"x"))).collect();
    files.insert("state.json".to_owned(), stamp(state));
    serde_json::Value::Object(files).to_string()
}

/// Looks for the newest checkpoint of a run that has one.
fn checkpoint(place: &Place, state: &[u8], given: Option<&[u8]>) -> Result<(), String> {
    for name in ["config.json", "model.safetensors", "optimizer.safetensors"] {
        if !place.path("run/step-1").join(name).exists() {
            place.write(&format!("run/step-1/{name}"), b"x");
        }
    }
    place.write("run/step-1/state.json", state);
    let own = hashes(state);
    place.write("run/step-1/hashes.json", given.unwrap_or(own.as_bytes()));
    annulus_train::Saved::open(&place.path("run")).map(drop).map_err(|error| error.to_string())
}
