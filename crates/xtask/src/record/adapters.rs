//! Records adapters: PEFT scores, merges and saves the program's, and the program reads what PEFT saved; transformers reads models that
//! the program has merged.

use std::fs;
use std::path::Path;

use anyhow::Result;
use serde_json::Value;

use super::{
    AGAIN, ENVIRONMENTS, apart, copy, export, fixture, keep, ours, python, script, train, write,
};
use crate::tool;

/// A folder's name, the recorded model for which adapters are trained, and the settings of the adapters.
const FIXTURES: [(&str, &str, &str); 3] = [
    (
        "adapter",
        "untied",
        "rank: 4, alpha: 6, targets: [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj], \
         train: [embeddings, norms, head]",
    ),
    ("adapter-tied", "tied", "rank: 2, rslora: true, targets: [v_proj], train: [embeddings]"),
    ("adapter-qwen3", "qwen3", "rank: 3, alpha: 5, targets: [q_proj, down_proj], train: [norms]"),
];

/// The files of an adapter.
const FILES: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];

/// Records every adapter with every environment.
pub(super) fn record(scratch: &Path, retrain: bool, errors: &mut Value) -> Result<()> {
    for (name, base, lora) in FIXTURES {
        let kept = fixture(name);
        let mut changes = vec![
            format!("model={{ path: {} }}", fixture(base).display()),
            "data.path=LICENSE-APACHE".to_owned(),
            format!("lora={{ {lora} }}"),
        ];
        if retrain || !kept.join(FILES[1]).exists() {
            let trained = train(&scratch.join(format!("{name}-trained")), &changes)?;
            FILES.iter().try_for_each(|file| copy(&trained.join(file), &kept.join(file)))?;
        }
        changes.extend(AGAIN.map(str::to_owned));
        changes.push(format!("lora.path={}", kept.display()));
        let again = train(&scratch.join(name), &changes)?;
        describe(&again.join(FILES[0]), &kept.join(FILES[0]))?;
        copy(&again.join(FILES[1]), &kept.join(FILES[1]))?;
        export(&scratch.join(name), true)?;
    }
    for environment in ENVIRONMENTS {
        compare(environment, scratch, errors)?;
    }
    Ok(())
}

fn compare(environment: &str, scratch: &Path, errors: &mut Value) -> Result<()> {
    let theirs = |name: &str| scratch.join(environment).join(name);
    let mut words = vec![script("adapters.py")];
    for (name, base, _) in FIXTURES {
        let run = scratch.join(name);
        words.extend([
            fixture(base),
            run.join("step-1"),
            run.with_extension("export"),
            theirs(name),
        ]);
    }
    tool::run(python(environment), &words)?;
    for (name, base, _) in FIXTURES {
        let (theirs, base, kept) = (theirs(name), fixture(base), fixture(name));
        let golden = theirs.join("golden.safetensors");
        let scored =
            |adapter: &Path| ours(&[&base, adapter], &golden, &theirs.join("ours.safetensors"));
        let found = [
            ("ours", scored(&kept)?),
            ("merged", apart(&theirs.join("merged.safetensors"), &golden)?),
            ("exported", apart(&theirs.join("exported.safetensors"), &golden)?),
            ("saved", scored(&theirs)?),
        ];
        keep(errors, [name, environment], &found)?;
        copy(&golden, &kept.join("golden.safetensors"))?;
        copy(&theirs.join(FILES[1]), &kept.join(environment).join(FILES[1]))?;
        describe(&theirs.join(FILES[0]), &kept.join(environment).join(FILES[0]))?;
    }
    Ok(())
}

/// Copies an adapter's configuration without the base model's path on this machine, with names sorted.
fn describe(from: &Path, to: &Path) -> Result<()> {
    let mut config: Value = serde_json::from_str(&fs::read_to_string(from)?)?;
    config["base_model_name_or_path"] = "base".into();
    if let Some(targets) = config["target_modules"].as_array_mut() {
        targets.sort_by_key(ToString::to_string);
    }
    write(&config, to)
}
