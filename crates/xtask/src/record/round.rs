//! The whole way round: the program's export in the hands of transformers, and what transformers saves of
//! it in the program's; and how transformers reads conversations.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::{python, script};
use crate::{root, tool};

/// Exports the last checkpoint of a run, in files so small that there are several.
pub(super) fn export(run: &Path) -> Result<PathBuf> {
    let out = run.with_extension("export");
    let paths = [run, Path::new("--out"), &out, Path::new("--shard"), Path::new("2k")];
    let words: Vec<_> = [Path::new("export")].into_iter().chain(paths).collect();
    tool::run(tool::program("debug", "annulus")?, &words)?;
    ensure!(out.join("model.safetensors.index.json").exists(), "the export is not cut");
    Ok(out)
}

/// What `environment` saves of the export, once it has loaded it whole.
pub(super) fn saved(environment: &str, exported: &Path) -> Result<PathBuf> {
    let saved = exported.with_extension(format!("{environment}-saved"));
    tool::run(python(environment), &[&script("exported.py"), exported, &saved])?;
    Ok(saved)
}

/// Ids and masks of the conversations in `tests/fixtures/chat`, by `environment`.
pub(super) fn chats(environment: &str) -> Result<()> {
    let folder = root().join("tests/fixtures/chat");
    let tokenizer = folder.join("tokenizer.json");
    let text = root().join("LICENSE-MIT");
    let words = ["tokenizer", "train", "--vocab", "300", "--out"].map(PathBuf::from);
    let words: Vec<_> = words.into_iter().chain([tokenizer, text]).collect();
    tool::run(tool::program("debug", "annulus")?, &words)?;
    let out = folder.join(format!("{environment}.json"));
    tool::run(
        python(environment),
        &[script("chats.py"), folder.clone(), folder.join("chats.jsonl"), out],
    )
}

/// Keeps which versions recorded.
pub(super) fn versions(environments: &[&str]) -> Result<()> {
    let mut lines = Vec::new();
    for environment in environments {
        let code = "import json, torch, transformers; print(json.dumps(\
                    {'transformers': transformers.__version__, 'torch': torch.__version__}))";
        let ran = std::process::Command::new(python(environment)).args(["-c", code]).output()?;
        let said = String::from_utf8(ran.stdout)?;
        ensure!(ran.status.success() && !said.is_empty(), "{environment} says no versions");
        lines.push(format!("  \"{environment}\": {}", said.trim()));
    }
    let path = root().join("tests/fixtures/versions.json");
    let text = format!("{{\n{}\n}}\n", lines.join(",\n"));
    fs::write(&path, text).with_context(|| path.display().to_string())
}
