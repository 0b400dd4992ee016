//! `annulus init`: writes the repository's experiments, which are compiled into the program.

use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};

use annulus_experiment::quoted_path;
use annulus_train::Exit;
use clap::Args;

use crate::failure::Failure;
use crate::{Done, print};

/// The folder of the repository, from which the examples are.
const DEFAULT: &str = "experiments";

/// The example experiments.
#[derive(Args, Debug)]
pub(crate) struct Init {
    /// Folder to write; it must not exist
    #[arg(default_value = DEFAULT)]
    folder: PathBuf,
}

/// The names of files in `experiments/`, with their texts.
macro_rules! files {
    ($($name:literal),+ $(,)?) => {
        [$(($name, include_str!(concat!("../../../experiments/", $name)))),+]
    };
}

const FILES: [(&str, &str); 30] = files![
    "books.yaml",
    "clusters/a100.yaml",
    "clusters/h100-16k.yaml",
    "clusters/h100.yaml",
    "clusters/l40s.yaml",
    "clusters/processors.yaml",
    "clusters/rtx-4090.yaml",
    "extend-abf.yaml",
    "extend-linear.yaml",
    "extend-yarn.yaml",
    "KEYS.md",
    "llama-3-8b-1m.yaml",
    "llama-3.2-1b-128k.yaml",
    "longer.yaml",
    "lora.yaml",
    "million-tokens.yaml",
    "needle.yaml",
    "pretrain-small.yaml",
    "quickstart.yaml",
    "recall.yaml",
    "ruler.yaml",
    "same-bits.yaml",
    "scale.yaml",
    "schema.json",
    "sliding.yaml",
    "staged.yaml",
    "strategies-agree.yaml",
    "sweep.yaml",
    "texts/harbour.py",
    "texts/harbour.txt",
];

pub(crate) fn run(Init { folder }: &Init) -> Done {
    let shown = folder.display();
    if folder.symlink_metadata().is_ok() {
        let hint = "name another folder: nothing is overwritten";
        return Err(Failure::usage(format!("`{shown}` already exists"), hint));
    }
    for (name, text) in FILES {
        write(&folder.join(name), &placed(folder, name, text)).map_err(|error| {
            let message = format!("cannot write `{}`: {error}", folder.join(name).display());
            Failure::new(
                Exit::Internal,
                message,
                Some("make the folder writable, with space".to_owned()),
            )
        })?;
    }
    print::line(&format!(
        "{} files in `{shown}`: begin with `annulus train {shown}/quickstart.yaml`",
        FILES.len()
    ))?;
    Ok(0)
}

/// The text of a file in `folder`: experiments name their data as seen from where the program runs.
fn placed<'a>(folder: &Path, name: &str, text: &'a str) -> Cow<'a, str> {
    let is_default = folder == Path::new(DEFAULT);
    if is_default || Path::new(name).extension().is_none_or(|ending| ending != "yaml") {
        return text.into();
    }
    let own = format!("{DEFAULT}/");
    let placed = text.split_inclusive('\n').map(|line| {
        let is_key = |key: &str| line.trim_start().starts_with(key);
        match line.split_once(&own) {
            Some((before, after)) if is_key("path:") => {
                let end = after.find(char::is_whitespace).unwrap_or(after.len());
                let path = quoted_path(&folder.join(&after[..end]));
                format!("{before}{path}{}", &after[end..])
            }
            _ => line.replace(&own, &format!("{}/", folder.display())),
        }
    });
    placed.collect::<String>().into()
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(Path::new("")))?;
    fs::write(path, text)
}
