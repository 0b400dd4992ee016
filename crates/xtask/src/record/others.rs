//! Records conversations as transformers tokenizes them, tables as pyarrow writes them, and the versions of these packages.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{ENVIRONMENTS, fixture, python, script};
use crate::{setup, tool};

/// Records ids and masks of the conversations in `tests/fixtures/chat`, and makes a tokenizer for them.
pub(super) fn chats(retrain: bool) -> Result<()> {
    let folder = fixture("chat");
    let tokenizer = folder.join("tokenizer.json");
    if retrain || !tokenizer.exists() {
        let words = ["tokenizer", "train", "--vocab", "300", "LICENSE-MIT", "--out"];
        let words: Vec<_> = words.map(PathBuf::from).into_iter().chain([tokenizer]).collect();
        tool::run(tool::program("debug", "annulus")?, &words)?;
    }
    for environment in ENVIRONMENTS {
        let (chats, out) = (folder.join("chats.jsonl"), folder.join(format!("{environment}.json")));
        tool::run(python(environment), &[&script("chats.py"), &folder, &chats, &out])?;
    }
    Ok(())
}

/// Writes tables, and their records as lines of JSON.
pub(super) fn tables() -> Result<()> {
    tool::run(setup::tables()?, &[script("tables.py"), fixture("parquet")])
}

/// The versions of the packages in `environment`.
pub(super) fn versions(environment: &str) -> Result<Value> {
    let code = "import json, peft, torch, transformers; print(json.dumps(\
                {m.__name__: m.__version__ for m in (transformers, peft, torch)}))";
    let ran = Command::new(python(environment)).args(["-c", code]).output()?;
    ensure!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    serde_json::from_slice(&ran.stdout)
        .with_context(|| format!("{environment} printed no versions"))
}
