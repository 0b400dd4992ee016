//! The folder that a case works in, and the one beside it that belongs to others.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use tempfile::TempDir;

use super::answer::{Answer, answer};
use super::parts;

/// What others' files hold, and nothing else may.
pub(super) const SECRET: &str = "SECRET-5c0ffee";

/// Kilobytes of memory, mapped ones too, that a case can have at all.
const ROOM: u64 = 20 << 20;

/// A tiny Llama on a tiny text: a second's training.
const EXPERIMENT: &str = "\
name: tiny
seed: 3
output: run
model:
  hidden_size: 64
  intermediate_size: 96
  num_hidden_layers: 2
  num_attention_heads: 4
  num_key_value_heads: 2
  vocab_size: 260
data: { path: text.txt, tokens: 64, batch: 1, evaluate: 0 }
mesh: { sequence: 2 }
attention: { strategy: striped }
optimizer: { learning_rate: 1e-3 }
schedule: { steps: 2 }
every: { checkpoint: 2 }
";

/// Others' files, by path, with their times and content.
type Watched = Vec<(PathBuf, SystemTime, Vec<u8>)>;

/// A copy of a folder in which everything is right, with a folder of others' files beside it.
pub(super) struct Scene {
    root: TempDir,
    program: &'static str,
    watched: Watched,
}

impl Scene {
    /// `tiny.yaml`, half trained into `run`; its model in `model`, for `tuned.yaml`; a tokenizer; a text; others' files in `../others`.
    pub(super) fn original(program: &'static str) -> Scene {
        let scene = Scene::empty(program);
        scene.write("tiny.yaml", EXPERIMENT);
        let (before, rest) = EXPERIMENT.split_once("model:\n").expect("it has a model");
        let after = rest.find("data:").map(|data| &rest[data..]).expect("it has data");
        let tuned = format!("{before}model: {{ path: model }}\n{after}");
        scene.write("tuned.yaml", tuned.replace("output: run", "output: tuned"));
        scene.write("text.txt", "all happy families are alike\n".repeat(40));
        scene.write("texts.jsonl", "{\"text\": \"all happy families\"}\n".repeat(40));
        scene.write("tokenizer.json", parts::tokenizer().to_string());
        scene.write("tokenizer_config.json", "{}");
        scene.write("chats.jsonl", parts::chats(20));
        scene.write("ids.safetensors", parts::ids(2, 16));
        scene.write("../others/secret", SECRET);
        scene.write("../others/work.tmp/thesis", SECRET);
        let made = scene.shell(
            "annulus train tiny.yaml schedule.stop=1 && mkdir model && cp run/step-1/config.json \
             run/step-1/generation_config.json run/step-1/tokenizer.json run/step-1/model.safetensors \
             model",
            60,
        );
        assert_eq!(made.code, Some(0), "{}", made.text());
        scene
    }

    fn empty(program: &'static str) -> Scene {
        let root = tempfile::Builder::new().prefix("attack-").tempdir().expect("a scratch folder");
        for folder in ["here", "home", "others/work.tmp"] {
            fs::create_dir_all(root.path().join(folder)).expect("a scratch folder");
        }
        Scene { root, program, watched: Watched::new() }
    }

    /// A copy, whose other files are watched from now on.
    pub(super) fn copy(&self) -> Scene {
        let mut scene = Scene::empty(self.program);
        let copied = Command::new("cp")
            .arg("-a")
            .arg(self.root.path().join("."))
            .arg(scene.root.path())
            .status();
        assert!(copied.is_ok_and(|status| status.success()), "a scratch folder can be copied");
        scene.watched = watched(&scene.root.path().join("others"));
        scene
    }

    /// Where it works.
    pub(super) fn folder(&self) -> PathBuf {
        self.root.path().join("here")
    }

    /// Writes a file in it.
    pub(super) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.folder().join(name), bytes).expect("a scratch folder can be written");
    }

    /// Reads a file of it.
    pub(super) fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.folder().join(name)).expect("a file")
    }

    /// Runs a script in it, in which `annulus` is the program.
    pub(super) fn shell(&self, script: &str, seconds: u64) -> Answer {
        let mut shell = Command::new("sh");
        // What takes memory without bound is not to take the machine's.
        let given = format!("ulimit -v {ROOM}; annulus() {{ \"$ANNULUS\" \"$@\"; }}");
        shell.args(["-c", &format!("{given}\n{script}")]);
        shell.current_dir(self.folder()).env_remove("RUST_BACKTRACE");
        shell.env("ANNULUS", self.program).env("HOME", self.root.path().join("home"));
        answer(shell, seconds)
    }

    /// What is wrong with others' files.
    pub(super) fn touched(&self) -> Option<String> {
        let others = self.root.path().join("others");
        if watched(&others) != self.watched {
            return Some("others' files were touched".to_owned());
        }
        let mut copies = Vec::new();
        find(&self.folder(), &mut |path, bytes| {
            let secret = SECRET.as_bytes();
            if bytes.windows(secret.len()).any(|part| part == secret) {
                copies.push(path.display().to_string());
            }
        });
        (!copies.is_empty()).then(|| format!("others' content is in {}", copies.join(", ")))
    }

    /// Keeps it for whoever looks for the cause.
    pub(super) fn keep(self) -> PathBuf {
        self.root.keep().join("here")
    }
}

fn watched(folder: &Path) -> Watched {
    let mut found = Watched::new();
    find(folder, &mut |path, bytes| {
        let changed = path.metadata().and_then(|about| about.modified());
        found.push((path.to_owned(), changed.expect("times are kept"), bytes.to_owned()));
    });
    found.sort();
    found
}

/// Hands every regular file below `folder` to `each`; links are not followed.
fn find(folder: &Path, each: &mut dyn FnMut(&Path, &[u8])) {
    for entry in fs::read_dir(folder).expect("readable") {
        let path = entry.expect("readable").path();
        let kind = path.symlink_metadata().expect("readable");
        if kind.is_dir() {
            find(&path, each);
        } else if kind.is_file() && kind.len() < 1 << 24 {
            each(&path, &fs::read(&path).expect("readable"));
        }
    }
}
