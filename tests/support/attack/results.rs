//! Results that are wrong must not come without a word.

use serde_json::{Value, json};

use super::parts;
use super::scene::Scene;
use super::{Case, case};

/// Not finite: its own exit code, from every command.
const NOT_FINITE: &[i32] = &[11];

pub(super) const CASES: &[Case] = &[
    case(
        "B2 a run whose data holds its own folder goes on",
        "mkdir d; cp text.txt d; cd d; annulus train ../tiny.yaml data.path=. schedule.stop=1 && annulus train ../tiny.yaml data.path=.",
        &[0],
        &["from step 1"],
    )
    .short(),
    case(
        "B3 altered ids with the old time",
        "annulus train tiny.yaml output=a; sleep 2.2; annulus train tiny.yaml output=b; f=$(ls cache/*.tokens); touch -r $f old; printf '\\3\\0\\3\\0' | dd of=$f bs=1 seek=300 conv=notrunc status=none; touch -r old $f; annulus train tiny.yaml output=c",
        &[0],
        &[],
    )
    .then("cmp a/step-2/model.safetensors c/step-2/model.safetensors"),
    case(
        "B3 another text of the same size and time",
        "annulus train tiny.yaml output=a; sleep 2.2; annulus train tiny.yaml output=b; touch -r text.txt old; sed s/happy/sorry/ text.txt >t; touch -r old t; mv t text.txt; annulus train tiny.yaml output=c",
        &[0],
        &[],
    )
    .then("! cmp -s a/step-2/model.safetensors c/step-2/model.safetensors"),
    weights("B5 generate from weights that are no numbers", "annulus generate tuned.yaml --prompt a --tokens 4", f32::NAN).short(),
    weights("B5 drawn from weights that are no numbers", "annulus generate tuned.yaml --prompt a --tokens 4 --temperature 1", f32::NAN),
    weights("B5 generate from infinite weights", "annulus generate tuned.yaml --prompt a --tokens 4", f32::INFINITY),
    weights("B5 score with weights that are no numbers", "annulus score --model model --tokens ids.safetensors --out out", f32::NAN)
        .then("test ! -e out"),
    weights("B5 score with infinite weights", "annulus score --model model --tokens ids.safetensors --out out", f32::INFINITY),
    weights("B5 evaluate weights that are no numbers", "annulus evaluate tuned.yaml --out e evaluation.lengths=[16,32] data.evaluate=4", f32::NAN),
    weights("B5 evaluate infinite weights", "annulus evaluate tuned.yaml --out e evaluation.lengths=[16,32] data.evaluate=4", f32::INFINITY),
    weights("B5 train weights that are no numbers", "annulus train tuned.yaml", f32::NAN),
    case(
        "B6 an experiment from a pipe",
        "cat tiny.yaml | annulus train /dev/stdin output=out",
        &[0, 2],
        &[],
    )
    .then("test ! -e out || grep -q hidden_size out/experiment.yaml")
    .short(),
    case(
        "B6 an experiment from a file as standard input",
        "annulus train /dev/stdin output=out <tiny.yaml",
        &[0, 2],
        &[],
    )
    .then("test ! -e out || grep -q hidden_size out/experiment.yaml"),
    Case { says: &["has no token"], ..tokens("B7 byte pairs without a token for a letter", |scene| {
        parts::change_tokenizer(scene, "/model/vocab", json!({"a": 0, "l": 1}));
    }) }
    .short(),
    tokens("B7 no tokens at all", |scene| {
        parts::change_tokenizer(scene, "/model/vocab", json!({}));
    }),
    tokens("B7 a special token beyond 16 bits", |scene| {
        special(scene, 65_633);
    }),
    tokens("B7 a special token beyond 32 bits", |scene| special(scene, 1 << 33)),
    case(
        "B7 hashes without the weights",
        "annulus train tiny.yaml",
        &[4],
        &["hashes.json"],
    )
    .made(|scene| {
        let mut hashes = hashes(scene);
        hashes.as_object_mut().and_then(|files| files.remove("model.safetensors"));
        scene.write("run/step-1/hashes.json", hashes.to_string());
        let mut weights = scene.read("run/step-1/model.safetensors");
        let last = weights.len() - 1;
        weights[last] ^= 64;
        scene.write("run/step-1/model.safetensors", weights);
    })
    .short(),
    case(
        "B7 hashes that name a file elsewhere",
        "annulus train tiny.yaml",
        &[4],
        &["hashes.json"],
    )
    .made(|scene| {
        let mut hashes = hashes(scene);
        hashes["../../../others/secret"] = hashes["state.json"].clone();
        scene.write("run/step-1/hashes.json", hashes.to_string());
    }),
    case(
        "B7 weights that were altered in a checkpoint",
        "annulus train tiny.yaml",
        &[4],
        &["model.safetensors"],
    )
    .made(|scene| {
        let mut weights = scene.read("run/step-1/model.safetensors");
        let last = weights.len() - 1;
        weights[last] ^= 64;
        scene.write("run/step-1/model.safetensors", weights);
    }),
    case(
        "B7 adapters whose state cannot be read",
        "annulus train tuned.yaml lora.rank=2 output=a && echo '{' >a/step-2/state.json && annulus train tuned.yaml lora.rank=2 lora.path=a/step-2 output=b",
        &[2, 3, 4],
        &["state.json"],
    ),
];

fn hashes(scene: &Scene) -> Value {
    serde_json::from_slice(&scene.read("run/step-1/hashes.json")).expect("hashes")
}

fn special(scene: &Scene, id: u64) {
    let token = json!([{"id": id, "content": "<s>", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true}]);
    parts::change_tokenizer(scene, "/added_tokens", token);
}

/// A model whose weights are not finite.
const fn weights(name: &'static str, script: &'static str, number: f32) -> Case {
    let case = case(name, script, NOT_FINITE, &[]);
    if number.is_nan() {
        return case.made(|scene| parts::fill_weights(scene, f32::NAN));
    }
    case.made(|scene| parts::fill_weights(scene, f32::INFINITY))
}

/// A tokenizer that would give other tokens than the text's.
const fn tokens(name: &'static str, make: fn(&Scene)) -> Case {
    case(
        name,
        "annulus tokenize text.txt --tokenizer tokenizer.json --out c",
        &[3],
        &["tokenizer.json"],
    )
    .made(make)
    .then("test -z \"$(ls c 2>/dev/null | grep tokens)\"")
}
