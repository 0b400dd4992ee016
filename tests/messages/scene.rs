//! The folder that cases break, and what they are answered.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use annulus_tests::{Ran, run, run_measured};
use candle_core::{Device, Tensor};
use tempfile::TempDir;

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

/// An answer takes less than this, ...
const SOON: Duration = Duration::from_secs(1);
/// ... where others keep the machine busy, one of so many times, ...
const TRIES: usize = 4;
/// ... and less than so many bytes.
const SMALL: u64 = 200_000_000;

const EXPERIMENT: &str = "\
name: tiny
model:
  hidden_size: 16
  intermediate_size: 32
  num_hidden_layers: 1
  num_attention_heads: 2
  num_key_value_heads: 1
  vocab_size: 260
data: { path: text.txt, tokens: 16, batch: 2, evaluate: 0 }
optimizer: { learning_rate: 1e-3 }
schedule: { steps: 4 }
every: { checkpoint: 2 }
output: run
";

/// A title, what is broken, and the words after `annulus`.
pub(crate) type Case = (&'static str, fn(&Scene), &'static str);

/// A copy of a folder in which everything is right.
pub(crate) struct Scene(TempDir);

impl Scene {
    fn new() -> Scene {
        static ORIGINAL: OnceLock<Scene> = OnceLock::new();
        let scene = Scene(tempfile::tempdir().unwrap());
        copy(ORIGINAL.get_or_init(Scene::original).0.path(), scene.0.path());
        scene
    }

    /// `tiny.yaml`, trained into `run`; its model in `model`; a file for every other command.
    fn original() -> Scene {
        let scene = Scene(tempfile::tempdir().unwrap());
        scene.write("tiny.yaml", EXPERIMENT);
        scene.write("text.txt", "all happy families are alike\n".repeat(20));
        scene.write("texts.jsonl", "{\"text\": \"all happy families\"}\n".repeat(20));
        scene.run("train tiny.yaml").ended(0);
        for name in ["config.json", "model.safetensors"] {
            fs::create_dir_all(scene.path("model")).unwrap();
            fs::copy(scene.path("run/step-4").join(name), scene.path("model").join(name)).unwrap();
        }
        crate::tensors::write_right(&scene);
        scene.run("score --model model --tokens ids.safetensors --out out").ended(0);
        scene.run("attend --case case.safetensors --out out").ended(0);
        let batches = "train tiny.yaml data.format=batches data.path=batches.safetensors output=b";
        scene.run(batches).ended(0);
        scene.run("train tiny.yaml data.format=jsonl data.path=texts.jsonl output=j").ended(0);
        fs::remove_file(scene.path("out")).unwrap();
        scene
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.path(name), bytes).unwrap();
    }

    pub(crate) fn remove(&self, name: &str) {
        fs::remove_file(self.path(name)).unwrap();
    }

    /// Replaces `from`, which must be in the file.
    pub(crate) fn replace(&self, name: &str, from: &str, to: &str) {
        let text = fs::read_to_string(self.path(name)).unwrap();
        assert!(text.contains(from), "`{from}` is not in `{name}`");
        self.write(name, text.replacen(from, to, 1));
    }

    /// Leaves the first `bytes` bytes of a file that has more.
    pub(crate) fn cut(&self, name: &str, bytes: usize) {
        let content = fs::read(self.path(name)).unwrap();
        self.write(name, &content[..bytes]);
    }

    /// Flips a bit in the middle of a file.
    pub(crate) fn flip(&self, name: &str) {
        let mut content = fs::read(self.path(name)).unwrap();
        let middle = content.len() / 2;
        content[middle] ^= 4;
        self.write(name, content);
    }

    /// Writes a safetensors file.
    pub(crate) fn tensors(&self, name: &str, tensors: &[(&str, Tensor)]) {
        safetensors::serialize_to_file(tensors.iter().cloned(), None, &self.path(name)).unwrap();
    }

    /// Takes `change` to the tensors of a safetensors file, without metadata.
    pub(crate) fn change(&self, name: &str, change: impl FnOnce(&mut Tensors)) {
        let loaded = candle_core::safetensors::load(self.path(name), &Device::Cpu).unwrap();
        let mut tensors: Tensors = loaded.into_iter().collect();
        change(&mut tensors);
        safetensors::serialize_to_file(&tensors, None, &self.path(name)).unwrap();
    }

    pub(crate) fn run(&self, arguments: &str) -> Ran {
        let arguments: Vec<_> = arguments.split(' ').collect();
        run(ANNULUS, self.0.path(), &arguments)
    }

    fn run_measured(&self, arguments: &str) -> (Ran, u64) {
        let arguments: Vec<_> = arguments.split(' ').collect();
        run_measured(ANNULUS, self.0.path(), &arguments)
    }

    /// What the program says, without what differs from place to place and from run to run.
    fn said(&self, ran: &Ran) -> String {
        let folder = self.0.path().canonicalize().unwrap().display().to_string();
        let text = format!("{}{}", ran.stdout, ran.stderr);
        let process = format!("process {} ", std::process::id());
        let text = text.replace(&folder, "[DIR]").replace(&process, "process [PID] ");
        let differs = ["training loss", "memory of the fullest rank", " planned"];
        let lines = text.lines().filter(|line| !differs.iter().any(|part| line.contains(part)));
        lines.fold(String::new(), |text, line| text + &mask(line) + "\n")
    }
}

/// Hides sizes of machines and of saved files, and hashes.
fn mask(line: &str) -> String {
    const NEEDS: &str = "; this needs ";
    let mut masked = match line.split_once(NEEDS) {
        Some((start, _)) => format!("{start}{NEEDS}[SIZE]"),
        None => line.to_owned(),
    };
    // A container's limit stands in for the machine's memory.
    masked = masked.replace("this process's control group allows ", "this machine has ");
    for before in ["this machine has ", "`hashes.json` has "] {
        if let Some((start, rest)) = masked.split_once(before)
            && rest.starts_with(|letter: char| letter.is_ascii_digit())
        {
            let after = rest.split_once(';').map_or("", |(_, after)| after);
            let end = if after.is_empty() { String::new() } else { format!(";{after}") };
            masked = format!("{start}{before}[SIZE]{end}");
        }
    }
    let is_hash = |word: &&str| word.len() == 64 && word.bytes().all(|b| b.is_ascii_hexdigit());
    let hashes: Vec<_> = masked.split('`').filter(is_hash).map(str::to_owned).collect();
    hashes.iter().fold(masked, |masked, hash| masked.replace(hash, "[HASH]"))
}

pub(crate) type Tensors = std::collections::BTreeMap<String, Tensor>;

/// What every case is answered, for a snapshot.
pub(crate) fn answers(cases: &[Case]) -> String {
    let mut text = String::new();
    for (title, change, arguments) in cases {
        let scene = Scene::new();
        change(&scene);
        let ran = answer(&scene, title, arguments);
        let code = ran.code.unwrap_or_else(|| panic!("{title}: ended by a signal"));
        assert!(!ran.stderr.contains("panicked"), "{title}: {}", ran.stderr);
        let said = scene.said(&ran);
        writeln!(text, "## {title}\n$ annulus {arguments}\n{said}exit {code}\n").unwrap();
    }
    text
}

/// Runs the case, in time and in memory.
fn answer(scene: &Scene, title: &str, arguments: &str) -> Ran {
    for attempt in 1.. {
        let start = Instant::now();
        let (ran, most) = scene.run_measured(arguments);
        let took = start.elapsed();
        assert!(most < SMALL, "{title}: {most} bytes");
        if took < SOON {
            return ran;
        }
        assert!(attempt < TRIES, "{title}: took {took:?}, {attempt} times");
    }
    unreachable!("the last try returns or fails")
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let (from, to) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        if from.is_dir() {
            fs::create_dir(&to).unwrap();
            copy(&from, &to);
        } else {
            fs::copy(&from, &to).unwrap();
        }
    }
}
