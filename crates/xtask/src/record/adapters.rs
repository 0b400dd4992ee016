//! Adapters of the program in PEFT's hands, and PEFT's in the program's.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::LIMIT;
use crate::{root, tool};

/// A folder's name, the recorded model beside which adapters are trained, and which.
const FIXTURES: [(&str, &str, &str); 3] = [
    (
        "adapter",
        "untied",
        "{ rank: 4, alpha: 6, targets: [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj], \
         train: [embeddings, norms, head] }",
    ),
    ("adapter-tied", "tied", "{ rank: 2, rslora: true, targets: [v_proj], train: [embeddings] }"),
    (
        "adapter-qwen3",
        "qwen3",
        "{ rank: 3, alpha: 5, targets: [q_proj, down_proj], train: [norms] }",
    ),
];

/// What is kept: the program's, but for what is of a machine, and what PEFT wrote of it.
const FILES: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];

/// Trains adapters beside recorded models, lets PEFT score and save them, and compares.
pub(super) fn run(experiment: &Path, scratch: &Path) -> Result<()> {
    for (name, base, lora) in FIXTURES {
        let base = root().join("tests/fixtures").join(base);
        let kept = root().join("tests/fixtures").join(name);
        let adapter = train(experiment, &scratch.join(name), &base, lora)?;
        fs::create_dir_all(&kept)?;
        for environment in ["transformers-4", "transformers-5"] {
            let theirs = scratch.join(format!("{name}-{environment}"));
            compare(environment, &base, &adapter, &theirs)?;
            // The newest is the one that is kept: weights of the program, PEFT's words about them.
            copy(&adapter.join(FILES[1]), &kept.join(FILES[1]))?;
            describe(&theirs.join(FILES[0]), &kept.join(FILES[0]))?;
            copy(&theirs.join("golden.safetensors"), &kept.join("golden.safetensors"))?;
        }
    }
    Ok(())
}

/// Without the folder that the base model has on this machine.
fn describe(from: &Path, to: &Path) -> Result<()> {
    let mut config: serde_json::Value = serde_json::from_str(&fs::read_to_string(from)?)?;
    config["base_model_name_or_path"] = "base".into();
    fs::write(to, serde_json::to_string_pretty(&config)? + "\n")?;
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).map(drop).with_context(|| from.display().to_string())
}

/// Trains in `output`; gives the last checkpoint.
fn train(experiment: &Path, output: &Path, base: &Path, lora: &str) -> Result<PathBuf> {
    let words = [
        "train".to_owned(),
        experiment.display().to_string(),
        format!("model={{ path: {} }}", base.display()),
        format!("lora={lora}"),
        "data.path=LICENSE-APACHE".to_owned(),
        format!("output={}", output.display()),
    ];
    tool::run(tool::program("debug", "annulus")?, &words)?;
    Ok(output.join(fs::read_to_string(output.join("LATEST"))?.trim()))
}

/// Fails where PEFT's logits are not the program's: of the program's adapter, and of what PEFT saved of it.
fn compare(environment: &str, base: &Path, adapter: &Path, theirs: &Path) -> Result<()> {
    let python = root().join("target/python").join(environment).join("bin/python");
    let script = |name: &str| root().join("crates/xtask/python").join(name);
    let words = |paths: &[&Path]| paths.iter().map(PathBuf::from).collect::<Vec<PathBuf>>();
    tool::run(&python, &words(&[&script("adapter.py"), base, adapter, theirs, Path::new(LIMIT)]))?;
    let golden = theirs.join("golden.safetensors");
    for adapter in [adapter, theirs] {
        let ours = theirs.join("ours.safetensors");
        let mut score = words(&[Path::new("score"), Path::new("--model"), base]);
        score.extend(words(&[Path::new("--adapter"), adapter, Path::new("--tokens"), &golden]));
        score.extend(words(&[Path::new("--out"), &ours]));
        tool::run(tool::program("debug", "annulus")?, &score)?;
        tool::run(&python, &words(&[&script("agree.py"), &ours, &golden, Path::new(LIMIT)]))?;
    }
    Ok(())
}
