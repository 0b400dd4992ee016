//! Words of others that reach the terminal: nothing of them is obeyed, and nothing is shown without end.

use serde_json::json;

use super::parts;
use super::{Case, case};

const REFUSED: &[i32] = &[2, 3, 4];

pub(super) const CASES: &[Case] = &[
    word("F the data's path", "annulus train tiny.yaml \"data.path=$e\"").short(),
    word("F the tokenizer's path", "annulus train tiny.yaml \"data.tokenizer=$e\""),
    word("F the model's path", "annulus train tuned.yaml \"model.path=$e\"").short(),
    word("F the cluster's path", "annulus train tiny.yaml \"mesh.cluster=$e\""),
    word("F a name of the hub", "HF_HUB_OFFLINE=1 annulus train tuned.yaml \"model.path=hf://a/b$e\""),
    word("F an experiment that is not there", "annulus train \"$e\""),
    word("F a folder that is not there", "annulus evaluate \"$e\""),
    word("F a key", "annulus train tiny.yaml \"$e=1\""),
    word("F a value", "annulus train tiny.yaml \"seed=$e\""),
    word("F a wanted measure", "annulus train tiny.yaml --check \"expect.$e.max=1\""),
    word("F the hub's address", "HF_ENDPOINT=\"http://$e\" annulus train tuned.yaml model.path=hf://a/b"),
    word("F a command", "annulus \"$e\""),
    word("F an option", "annulus train \"--$e\""),
    word("F the name of an export", "annulus export \"$e\" --out e"),
    word("F a case of attention", "annulus attend --case \"$e\" --out o"),
    chat("F a role", |s| s.write("chats.jsonl", format!("{}\n", json!({"messages": [{"role": "\u{1b}[31m\u{202e}", "content": "a"}]})))).short(),
    chat("F a role of 1 MB", |s| s.write("chats.jsonl", format!("{}\n", json!({"messages": [{"role": "a".repeat(1 << 20), "content": "a"}]})))),
    chat("F what a template raises", |s| s.write("chat_template.jinja", "{{ raise_exception(\"\u{1b}[31m\u{202e}\") }}")),
    chat("F what a template raises, 10 MB", |s| s.write("chat_template.jinja", "{{ raise_exception(\"x\" * 10000000) }}")),
    chat("F a field of a conversation", |s| s.write("chats.jsonl", "{\"messages\": \"\u{1b}[31m\u{202e}\"}\n")),
    tensor("F a tensor's name to score", "annulus score --model model --tokens ids.safetensors --out out").short(),
    tensor("F a tensor's name to attend", "annulus attend --case ids.safetensors --out out"),
    tensor("F a tensor's name in batches", "annulus train tiny.yaml output=out data.format=batches data.path=ids.safetensors"),
    case("F a mask to attend", "annulus attend --case ids.safetensors --out out", REFUSED, &[]).made(|s| {
        let header = json!({"__metadata__": {"mask": format!("\u{1b}[31m\u{202e}{}", "m".repeat(1 << 20))}});
        s.write("ids.safetensors", parts::with_header(&header.to_string(), &[]));
    }),
    case("F a weight's name", "annulus train tuned.yaml", REFUSED, &[]).made(|s| {
        let name = format!("\u{1b}[31m\u{202e}{}", "n".repeat(1 << 20));
        s.write("model/model.safetensors", parts::tensors(&[(&name, "F32", &[1], vec![0; 4])]));
    }),
    case("F a shard's name", "rm model/model.safetensors; annulus train tuned.yaml", REFUSED, &[]).made(|s| {
        let index = json!({"weight_map": {"a": "\u{1b}[31m\u{202e}.safetensors"}});
        s.write("model/model.safetensors.index.json", index.to_string());
    }),
    case("F a state's fingerprint", "annulus train tiny.yaml", &[4], &[]).made(|s| {
        let mut state: serde_json::Value =
            serde_json::from_slice(&s.read("run/step-1/state.json")).expect("a state");
        state["data"] = "\u{1b}[31m\u{202e}".into();
        s.write("run/step-1/state.json", state.to_string());
    }),
    case("F a name in hashes.json", "annulus train tiny.yaml", &[4], &[]).made(|s| {
        let name = "\u{1b}[31m\u{202e}";
        s.write("run/step-1/hashes.json", json!({name: {"size": 1, "blake3": name}}).to_string());
    }),
    case("F who holds a run", "printf '\\033[31m%s\\n' x >run/run.lock; flock run/run.lock \"$ANNULUS\" train tiny.yaml", &[4], &[]),
    case("F a trace", "annulus trace trace-1.json", REFUSED, &[]).made(|s| {
        s.write("trace-1.json", json!({"otherData": {"annulus": {"version": "\u{1b}[31m\u{202e}"}}}).to_string());
    }),
    case("F a trace's title", "annulus trace trace-1.json", &[0, 2, 3], &[]).made(|s| {
        let about = json!({"version": 1, "title": "\u{1b}[31m\u{202e}", "step": 1, "planned": null, "ranks": 1});
        s.write("trace-1.json", json!({"otherData": {"annulus": about}, "traceEvents": []}).to_string());
    }),
    case("F a YAML value", "annulus check x.yaml", &[2], &[]).made(|s| s.write("x.yaml", "seed: \"\u{202e}\\e[31m\"\n\u{202e}key: 1\n")),
    case("F a family of models", "annulus train tuned.yaml", REFUSED, &[]).made(|s| {
        s.write("model/config.json", json!({"model_type": "\u{1b}[31m\u{202e}"}).to_string());
    }),
    case("F an adapter's kind", "mkdir a; annulus generate tuned.yaml lora.path=a --prompt a", REFUSED, &[]).made(|s| {
        std::fs::create_dir(s.folder().join("a")).expect("a folder");
        s.write("a/adapter_config.json", json!({"peft_type": "\u{1b}[31m\u{202e}"}).to_string());
    }),
    case("F a text that is shown", "annulus data show text.txt --tokens 40", &[0], &[]).made(|s| s.write("text.txt", "\u{1b}[31m\u{202e}\u{7}\r".repeat(400))),
    case("F what a model says", "annulus generate tuned.yaml --prompt a --tokens 60 --temperature 2", &[0], &[]),
    case("F a hundred thousand mistakes", "yes 'x: 1' | head -100000 >x.yaml; annulus check x.yaml", &[2], &["x.yaml"]),
];

/// A word that colours the terminal, turns writing round, and has no end.
const fn word(name: &'static str, script: &'static str) -> Case {
    case(name, script, &[2, 3, 4], &[]).given(
        "e=$(printf '\\033[31mred\\342\\200\\256\\007'; head -c 100000 /dev/zero | tr '\\0' a)",
    )
}

const fn chat(name: &'static str, make: fn(&super::Scene)) -> Case {
    let script = "[ -f chat_template.jinja ] || echo '{{ messages }}' >chat_template.jinja; annulus data show chats.jsonl --chat --tokenizer tokenizer.json";
    case(name, script, &[3], &[]).made(make)
}

const fn tensor(name: &'static str, script: &'static str) -> Case {
    case(name, script, REFUSED, &[]).made(|s| {
        let name = format!("\u{1b}[31m\u{202e}{}", "n".repeat(2 << 20));
        s.write("ids.safetensors", parts::tensors(&[(&name, "F32", &[1], vec![0; 4])]));
    })
}
