//! Training runs that do not come to their end undisturbed: started, watched, ended, compared.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::Ran;

/// Longer than anything here takes; a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often a live run is looked at.
const GLANCE: Duration = Duration::from_micros(200);
/// What a step is compared by, to the bit.
const MEASURED: [&str; 4] = ["train/loss", "train/grad_norm", "train/lr", "evaluate/loss"];

/// A tiny Llama on a tiny text, saved after every step.
const EXPERIMENT: &str = "\
name: tiny
seed: 3
output: run
model:
  hidden_size: 32
  intermediate_size: 48
  num_hidden_layers: 2
  num_attention_heads: 4
  num_key_value_heads: 2
data: { path: text.txt, tokens: 48, batch: 2, evaluate: 4 }
mesh: { sequence: 3 }
attention: { strategy: striped }
optimizer: { learning_rate: 1e-2 }
schedule: { steps: 20, warmup: 2, decay: cosine }
every: { evaluate: 4, checkpoint: 1 }
keep: 3
";

/// A scratch folder with a text and an experiment, in which runs are made.
pub struct Place {
    folder: tempfile::TempDir,
    program: &'static str,
}

/// A run that is going on. Dropped, it is killed.
pub struct Live {
    child: Child,
    /// The run's folder.
    pub output: PathBuf,
    talk: tempfile::NamedTempFile,
}

impl Place {
    /// With a tiny `experiment.yaml` and some structure to learn in `text.txt`.
    pub fn new(program: &'static str) -> Place {
        let place = Place { folder: tempfile::tempdir().expect("a scratch folder"), program };
        let words = ["alpha", "beta", "gamma", "delta", "epsilon"];
        let line = |n: usize| format!("{0} {1} {0};\n", words[n % 5], n * 7 % 13);
        let text: String = (0..900).map(line).collect();
        place.write("text.txt", &text);
        place.write("experiment.yaml", EXPERIMENT);
        place
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file in it.
    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("a scratch folder can be written");
    }

    /// Puts files of others beside the runs, for [`Place::assert_watched`].
    pub fn watch(&self) {
        fs::create_dir_all(self.path("others/work.tmp")).expect("a scratch folder");
        self.write("others/work.tmp/thesis", "years");
        fs::create_dir_all(self.path("run")).expect("a scratch folder");
        self.write("run/notes.tmp", "years");
    }

    /// Fails where files of others were touched.
    #[track_caller]
    pub fn assert_watched(&self) {
        for name in ["others/work.tmp/thesis", "run/notes.tmp"] {
            assert_eq!(
                fs::read_to_string(self.path(name)).ok().as_deref(),
                Some("years"),
                "{name}"
            );
        }
    }

    /// Copies the run in `from` to `to`, which must not exist.
    pub fn copy(&self, from: &str, to: &str) {
        copy(&self.path(from), &self.path(to));
    }

    /// The processes of the program that run in it.
    pub fn processes(&self) -> Vec<u32> {
        let folder = self.folder.path().canonicalize().expect("it is there");
        let name = Path::new(self.program).file_name().expect("a program");
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let runs = |number: &u32| {
            let process = PathBuf::from(format!("/proc/{number}"));
            let own = fs::read_link(process.join("exe")).is_ok_and(|path| path.ends_with(name));
            own && fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd == folder)
        };
        numbers.filter(runs).collect()
    }

    /// The command that trains in `output`, with these keys changed.
    pub fn command(&self, output: &str, changes: &[&str]) -> Command {
        let mut command = Command::new(self.program);
        command.args(["train", "experiment.yaml", &format!("output={output}")]).args(changes);
        command.current_dir(self.folder.path());
        command
    }

    /// Trains in `output` to the end.
    pub fn train(&self, output: &str, changes: &[&str]) -> Ran {
        Ran::of(&self.command(output, changes).output().expect("the program starts"))
    }

    /// Starts to train in `output` and waits until the folder is this run's.
    pub fn start(&self, output: &str, changes: &[&str]) -> Live {
        let talk = tempfile::NamedTempFile::new().expect("a scratch file");
        let mut command = self.command(output, changes);
        command.stdout(Stdio::null()).stderr(talk.reopen().expect("it is there"));
        heed_interrupts(&mut command);
        let child = command.spawn().expect("the program starts");
        let mut live = Live { child, output: self.path(output), talk };
        let (lock, id) = (live.output.join("run.lock"), format!("{}\n", live.id()));
        live.wait_for(|_| fs::read_to_string(&lock).is_ok_and(|holder| holder == id));
        live
    }
}

/// Has the program heed SIGINT even where these tests were started to ignore it, as shells start what is in the background.
fn heed_interrupts(command: &mut Command) {
    // SAFETY: `signal` may be called between fork and exec, and touches nothing that is shared.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGINT, libc::SIG_DFL);
            Ok(())
        });
    }
}

impl Live {
    /// The process's number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `reached` says so of the run's folder; false: the process ended before.
    pub fn wait_for(&mut self, mut reached: impl FnMut(&Path) -> bool) -> bool {
        let began = Instant::now();
        while !reached(&self.output) {
            if self.child.try_wait().expect("it is ours").is_some() {
                return false;
            }
            assert!(began.elapsed() < PATIENCE, "nothing happens: {}", self.talk());
            sleep(GLANCE);
        }
        true
    }

    /// Sends signals by their names in this order, and at once: a program that did so would first have to start.
    pub fn signal(&self, names: &[&str]) {
        for name in names {
            let signal = match *name {
                "CONT" => libc::SIGCONT,
                "HUP" => libc::SIGHUP,
                "INT" => libc::SIGINT,
                "STOP" => libc::SIGSTOP,
                "TERM" => libc::SIGTERM,
                "USR1" => libc::SIGUSR1,
                other => panic!("`{other}` is not sent here"),
            };
            // SAFETY: the process is a child of this one. It may have ended by itself meanwhile.
            unsafe { libc::kill(self.id() as i32, signal) };
        }
    }

    /// `kill -9`; false: the process had ended before.
    pub fn kill(mut self) -> bool {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours").code().is_none()
    }

    /// Waits for its end.
    pub fn end(mut self) -> Ran {
        self.wait_for(|_| false);
        let code = self.child.wait().expect("it has ended").code();
        Ran { code, stdout: String::new(), stderr: self.talk() }
    }

    fn talk(&self) -> String {
        fs::read_to_string(self.talk.path()).expect("it is there")
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // It has ended, or must.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Numbers that look random and are the same every time.
pub struct Random(pub u64);

impl Random {
    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as f64 / (1_u64 << 31) as f64
    }

    /// Uniform among 0, 1, .. `end` - 1.
    pub fn below(&mut self, end: u64) -> u64 {
        (self.unit() * end as f64) as u64
    }
}

/// The lines of `metrics.jsonl` that are whole.
pub fn metrics(output: &Path) -> Vec<Value> {
    let text = fs::read_to_string(output.join("metrics.jsonl")).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The last step that `metrics.jsonl` has; 0: none.
pub fn last_logged(output: &Path) -> u64 {
    metrics(output).last().map_or(0, |line| line["step"].as_u64().expect("a step"))
}

/// The losses in `metrics.jsonl`, by line.
pub fn losses(output: &Path) -> Vec<f64> {
    metrics(output).iter().map(|line| line["train/loss"].as_f64().expect("a loss")).collect()
}

/// The largest relative difference of two lists of losses.
#[track_caller]
pub fn difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    std::iter::zip(a, b).map(|(a, b)| (a - b).abs() / b.abs()).fold(0.0, f64::max)
}

fn names(output: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(output) else { return Vec::new() };
    let mut names: Vec<_> = entries
        .map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// The steps that have a checkpoint, rising.
pub fn checkpoints(output: &Path) -> Vec<u64> {
    let step = |name: &String| name.strip_prefix("step-")?.parse::<u64>().ok();
    let mut steps: Vec<_> = names(output).iter().filter_map(step).collect();
    steps.sort_unstable();
    steps
}

/// The last step that has a checkpoint; 0: none.
pub fn last_saved(output: &Path) -> u64 {
    checkpoints(output).pop().unwrap_or(0)
}

/// Files and folders that are not finished.
fn unfinished(output: &Path) -> Vec<String> {
    names(output).into_iter().filter(|name| annulus_files::is_leftover(name.as_ref())).collect()
}

/// Whether a checkpoint is begun and not finished.
pub fn is_saving(output: &Path) -> bool {
    // One that is being removed has a folder in it.
    let begun =
        |name: String| output.join(&name).is_dir() && !output.join(name).join("going").exists();
    unfinished(output).into_iter().any(begun)
}

/// Every file below `output` but its lock, by path.
pub fn contents(output: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut contents = BTreeMap::new();
    for name in names(output).into_iter().filter(|name| name != "run.lock") {
        let path = output.join(&name);
        if path.is_dir() {
            contents.extend(self::contents(&path));
        } else {
            let bytes = fs::read(&path).expect("readable");
            contents.insert(path, bytes);
        }
    }
    contents
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).expect("it is not there");
    for name in names(from) {
        let (from, to) = (from.join(&name), to.join(&name));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(from, to).expect("readable");
        }
    }
}

/// Fails unless both runs ended with the same weights and moments and measured the same at every
/// step, to the bit; every step once, and nothing unfinished left.
#[track_caller]
pub fn assert_same(output: &Path, whole: &Path) {
    let last = last_saved(whole);
    assert_eq!(last_saved(output), last);
    for file in ["model.safetensors", "optimizer.safetensors"] {
        let bytes = |run: &Path| fs::read(run.join(format!("step-{last}")).join(file)).expect(file);
        assert!(bytes(output) == bytes(whole), "{file} of step {last} differs");
    }
    let (lines, wanted) = (metrics(output), metrics(whole));
    let steps: Vec<_> = lines.iter().map(|line| line["step"].as_u64().expect("a step")).collect();
    assert_eq!(steps, (1..=last).collect::<Vec<_>>());
    for (line, wanted) in std::iter::zip(&lines, &wanted) {
        for tag in MEASURED {
            assert_eq!(line.get(tag), wanted.get(tag), "{tag} of step {}", line["step"]);
        }
    }
    assert_eq!(unfinished(output), [""; 0]);
    let newest = fs::read_to_string(output.join("LATEST")).expect("LATEST");
    assert_eq!(newest, format!("step-{last}\n"));
}

/// Changes one bit in the middle of a file.
pub fn flip(path: &Path) {
    let mut bytes = fs::read(path).expect("readable");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(path, bytes).expect("writable");
}

/// Cuts a file's last byte off.
pub fn truncate(path: &Path) {
    let file = File::options().write(true).open(path).expect("writable");
    let length = file.metadata().expect("readable").len();
    file.set_len(length - 1).expect("writable");
}
