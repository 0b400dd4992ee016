//! Records whole models: transformers scores the program's and reads its export, and the program reads what transformers saves.

use std::path::Path;

use anyhow::Result;
use serde_json::Value;

use super::{AGAIN, ENVIRONMENTS, apart, copy, export, fixture, keep, ours, python, script, train};
use crate::tool;

/// The recorded models: a folder's name, and how its experiment differs.
const FIXTURES: [(&str, &[&str]); 7] = [
    ("untied", &["model.attention_bias=true"]),
    ("tied", &["model.tie_word_embeddings=true"]),
    (
        "dynamic",
        &["model.max_position_embeddings=24", "extend={ rope: dynamic, tokens: 64, factor: 2 }"],
    ),
    (
        "mistral",
        &[
            "model.model_type=mistral",
            "model.sliding_window=20",
            "model.max_position_embeddings=16",
            "extend={ rope: llama3, tokens: 64 }",
        ],
    ),
    (
        "qwen2",
        &[
            "model.model_type=qwen2",
            "model.sliding_window=20",
            "model.use_sliding_window=true",
            "model.max_window_layers=1",
            "model.max_position_embeddings=16",
            "extend={ rope: longrope, tokens: 64, long_factor: [1, 1.75] }",
        ],
    ),
    (
        "qwen3",
        &[
            "model.model_type=qwen3",
            "model.max_position_embeddings=16",
            "extend={ rope: yarn, tokens: 64 }",
        ],
    ),
    (
        "smollm3",
        &[
            "model.model_type=smollm3",
            "model.no_rope_layers=[0, 1]",
            "model.sliding_window=20",
            "model.use_sliding_window=true",
            "model.max_position_embeddings=16",
            "extend={ rope: yarn, tokens: 64 }",
        ],
    ),
];

/// The files of a checkpoint that transformers reads.
const FILES: [&str; 3] = ["config.json", "generation_config.json", "model.safetensors"];
/// The files that are kept of a folder that transformers saved.
const SAVED: [&str; 2] = ["config.json", "model.safetensors"];

/// Records every model with every environment.
pub(super) fn record(scratch: &Path, retrain: bool, errors: &mut Value) -> Result<()> {
    for (name, changes) in FIXTURES {
        let kept = fixture(name);
        if retrain || !kept.join(FILES[2]).exists() {
            let changes: Vec<_> = changes.iter().map(|&change| change.to_owned()).collect();
            let trained = train(&scratch.join(format!("{name}-trained")), &changes)?;
            FILES.iter().try_for_each(|file| copy(&trained.join(file), &kept.join(file)))?;
        }
        let run = scratch.join(name);
        let mut changes = AGAIN.map(str::to_owned).to_vec();
        changes.push(format!("model={{ path: {} }}", kept.display()));
        train(&run, &changes)?;
        export(&run, false)?;
    }
    for environment in ENVIRONMENTS {
        let theirs = |name: &str| scratch.join(environment).join(name);
        let mut words = vec![script("models.py")];
        for (name, _) in FIXTURES {
            let export = scratch.join(name).with_extension("export");
            words.extend([fixture(name), export, theirs(name)]);
        }
        tool::run(python(environment), &words)?;
        for (name, _) in FIXTURES {
            let theirs = theirs(name);
            let golden = theirs.join("golden.safetensors");
            let scored = |model: &Path| ours(&[model], &golden, &theirs.join("ours.safetensors"));
            let found = [
                ("ours", scored(&fixture(name))?),
                ("exported", apart(&theirs.join("exported.safetensors"), &golden)?),
                ("saved", scored(&theirs)?),
            ];
            keep(errors, [name, environment], &found)?;
            copy(&golden, &fixture(name).join("golden.safetensors"))?;
            let again = fixture(name).join(environment);
            SAVED.iter().try_for_each(|file| copy(&theirs.join(file), &again.join(file)))?;
        }
    }
    Ok(())
}
