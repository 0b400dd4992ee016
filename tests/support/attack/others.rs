//! What others made must not hurt: large rows, files that never end, tensors that are not what they say.

use super::parts;
use super::{Case, case};

const REFUSED: &[i32] = &[2, 3, 4];

pub(super) const CASES: &[Case] = &[
    case(
        "C3 a line of 100 MB",
        "{ printf '{\"text\": \"'; head -c 100000000 /dev/zero | tr '\\0' a; printf '\"}\\n'; } >big.jsonl; annulus tokenize big.jsonl --jsonl --out c",
        &[0, 3],
        &[],
    ),
    case(
        "C3 a line of 270 MB",
        "{ printf '{\"text\": \"'; head -c 270000000 /dev/zero | tr '\\0' a; printf '\"}\\n'; } >big.jsonl; annulus tokenize big.jsonl --jsonl --out c",
        &[3],
        &["big.jsonl", "1"],
    ),
    case("C3 a line without an end", "truncate -s 400M big.jsonl; annulus tokenize big.jsonl --jsonl --out c", &[3], &["big.jsonl"]),
    fifo("C7 config.json", "f=model/config.json c='train tuned.yaml'").short(),
    fifo("C7 the weights", "f=model/model.safetensors c='train tuned.yaml'"),
    fifo("C7 generation_config.json", "f=model/generation_config.json c='train tuned.yaml'"),
    fifo("C7 the tokenizer", "f=tokenizer.json c='train tiny.yaml data.tokenizer=tokenizer.json'"),
    fifo("C7 state.json", "f=run/step-1/state.json c='train tiny.yaml'").short(),
    fifo("C7 hashes.json", "f=run/step-1/hashes.json c='train tiny.yaml'"),
    fifo("C7 optimizer.safetensors", "f=run/step-1/optimizer.safetensors c='train tiny.yaml'"),
    fifo("C7 metrics.jsonl", "f=run/metrics.jsonl c='train tiny.yaml'"),
    fifo("C7 run.lock", "f=run/run.lock c='train tiny.yaml'"),
    fifo("C7 a text", "f=text.txt c='train tiny.yaml output=out'"),
    fifo("C7 lines", "f=texts.jsonl c='tokenize texts.jsonl --jsonl --out c'"),
    fifo("C7 a cache", "f=x.tokens c='data show x.tokens'"),
    fifo("C7 a trace", "f=trace-1.json c='trace trace-1.json'"),
    fifo("C7 an experiment", "f=x.yaml c='check x.yaml'"),
    fifo("C7 a cluster", "f=cluster.yaml c='plan tiny.yaml --cluster cluster.yaml'"),
    fifo("C7 adapter_config.json", "f=a/adapter_config.json c='generate tuned.yaml lora.path=a --prompt a'"),
    fifo("C7 ids to score", "f=ids.safetensors c='score --model model --tokens ids.safetensors --out out'"),
    fifo("C7 a case to attend", "f=case.safetensors c='attend --case case.safetensors --out out'"),
    fifo("C7 batches", "f=b.safetensors c='train tiny.yaml output=out data.format=batches data.path=b.safetensors'"),
    allowed("C7 LATEST is a pipe", "f=run/LATEST c='train tiny.yaml'", "mkfifo $f"),
    allowed("C7 manifest.json is a pipe", "f=run/manifest.json c='train tiny.yaml'", "mkfifo $f"),
    allowed("C7 stamps are pipes", "c='train tiny.yaml'", "for f in cache/*.stamps; do rm $f; mkfifo $f; done"),
    allowed("C7 caches are pipes", "c='train tiny.yaml'", "for f in cache/*.tokens; do rm $f; mkfifo $f; done"),
    allowed("C7 LATEST never ends", "f=run/LATEST c='train tiny.yaml'", "ln -s /dev/zero $f").short(),
    endless("C7 state.json never ends", "f=run/step-1/state.json c='train tiny.yaml'"),
    endless("C7 a trace never ends", "f=trace-1.json c='trace trace-1.json'"),
    endless("C7 config.json never ends", "f=model/config.json c='train tuned.yaml'"),
    endless("C7 a text never ends", "f=text.txt c='train tiny.yaml output=out'"),
    case("C7 a folder for a file", "mkdir x.yaml; annulus check x.yaml", &[2], &["x.yaml"]),
    case("C7 a folder for weights", "rm model/model.safetensors; mkdir model/model.safetensors; annulus train tuned.yaml", REFUSED, &["model.safetensors"]),
    tensors("C8 score with a header of 95 MB", "annulus score --model model --tokens ids.safetensors --out out", &["ids.safetensors"]).short(),
    tensors("C8 attend with a header of 95 MB", "annulus attend --case ids.safetensors --out out", &["ids.safetensors"]),
    tensors("C8 batches with a header of 95 MB", "annulus train tiny.yaml output=out data.format=batches data.path=ids.safetensors", &["ids.safetensors"]),
    case("C8 score with 3 GB of nothing", "truncate -s 3G ids.safetensors; annulus score --model model --tokens ids.safetensors --out out", REFUSED, &["ids.safetensors"]),
    case("C8 attend with 3 GB of nothing", "truncate -s 3G ids.safetensors; annulus attend --case ids.safetensors --out out", REFUSED, &["ids.safetensors"]),
    case("C8 score with a sparse tensor of 3 GB", "truncate -s 3221225600 ids.safetensors; annulus score --model model --tokens ids.safetensors --out out", REFUSED, &["ids.safetensors"])
        .made(|scene| {
            let header = "{\"input_ids\":{\"dtype\":\"I64\",\"shape\":[1,402653184],\"data_offsets\":[0,3221225472]}}";
            scene.write("ids.safetensors", parts::with_header(&format!("{header:<120}"), &[]));
        }),
    case("C9 a cache's document beyond its end", "annulus train tiny.yaml output=out data.pack=documents && annulus data show cache/*.tokens", &[0, 3], &[]),
];

/// A pipe where a file is meant: refused at once.
const fn fifo(name: &'static str, what: &'static str) -> Case {
    let script = "mkdir -p a; rm -f $f; mkfifo $f; annulus $c";
    case(name, script, REFUSED, &[]).given(what).within(5)
}

/// A device where a file is meant.
const fn endless(name: &'static str, what: &'static str) -> Case {
    let script = "rm -f $f; ln -s /dev/zero $f; annulus $c";
    case(name, script, REFUSED, &[]).given(what).within(5)
}

/// What a run can do without.
const fn allowed(name: &'static str, what: &'static str, make: &'static str) -> Case {
    let script = "rm -f $f; eval \"$t\"; annulus $c";
    case(name, script, &[0, 2, 3, 4], &[]).given(what).variable(make).within(10)
}

/// A header that says much.
const fn tensors(name: &'static str, script: &'static str, says: &'static [&'static str]) -> Case {
    case(name, script, REFUSED, says).made(|scene| {
        let entry = |n: usize| {
            format!("\"t{n}\":{{\"dtype\":\"I64\",\"shape\":[0],\"data_offsets\":[0,0]}},")
        };
        let entries: String = (0..1_500_000).map(entry).collect();
        let header = format!("{{{}}}", entries.trim_end_matches(','));
        scene.write("ids.safetensors", parts::with_header(&header, &[]));
    })
}
