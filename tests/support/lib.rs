//! What the tests of the boundaries share: running the program, scratch folders, the material beside the repository.

#[cfg(unix)]
pub mod attack;
pub mod drill;
pub mod drills;
#[cfg(unix)]
pub mod fuzz;
pub mod hub;
pub mod memory;
pub mod nccl;
pub mod runs;
pub mod signals;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("below the root").to_path_buf()
}

/// Reference material beside the repository, or `None`, said aloud.
#[expect(clippy::print_stdout, reason = "a skipped test says so")]
pub fn shared(name: &str) -> Option<PathBuf> {
    let path = root().join("../shared").join(name);
    if path.exists() {
        return Some(path);
    }
    println!("SKIPPED: {} is not there", path.display());
    None
}

/// What a run of the program left.
#[derive(Debug)]
pub struct Ran {
    /// Its exit code; `None`: a signal ended it.
    pub code: Option<i32>,
    /// Data.
    pub stdout: String,
    /// Talk.
    pub stderr: String,
}

impl Ran {
    /// From a finished process.
    pub fn of(output: &Output) -> Ran {
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Fails the test unless the program ended with `code`.
    #[track_caller]
    pub fn ended(&self, code: i32) -> &Ran {
        assert_eq!(self.code, Some(code), "{}\n{}", self.stdout, self.stderr);
        self
    }

    /// Standard output as lines of JSON.
    #[track_caller]
    pub fn json(&self) -> Vec<serde_json::Value> {
        let parse = |line| serde_json::from_str(line).expect("a line of JSON");
        self.stdout.lines().map(parse).collect()
    }
}

/// Runs `program` (the test's `env!("CARGO_BIN_EXE_annulus-under-test")`) in `folder`.
pub fn run(program: &str, folder: &Path, arguments: &[&str]) -> Ran {
    Ran::of(&command(program, folder, arguments).output().expect("the program starts"))
}

/// Runs it, and gives besides the most memory that it had, bytes.
pub fn run_measured(program: &str, folder: &Path, arguments: &[&str]) -> (Ran, u64) {
    let peak = tempfile::NamedTempFile::new().expect("a scratch file");
    let mut command = command(program, folder, arguments);
    let ran =
        Ran::of(&command.env(memory::PEAK, peak.path()).output().expect("the program starts"));
    let said = std::fs::read_to_string(peak.path()).expect("the program said its peak");
    (ran, said.parse().expect("the program came to its end"))
}

fn command(program: &str, folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    // With it, errors of tensors carry where they were made.
    command.args(arguments).current_dir(folder).env_remove("RUST_BACKTRACE");
    command
}

/// All tensors of a safetensors file in f64, by name.
pub fn tensors(path: &Path) -> std::collections::BTreeMap<String, Vec<f64>> {
    let file = candle_core::safetensors::load(path, &candle_core::Device::Cpu);
    let file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut tensors: Vec<_> = file.into_iter().collect();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    let flat = |tensor: candle_core::Tensor| {
        let wide = tensor.to_dtype(candle_core::DType::F64).expect("a number");
        wide.flatten_all().and_then(|flat| flat.to_vec1()).expect("on the CPU")
    };
    tensors.into_iter().map(|(name, tensor)| (name, flat(tensor))).collect()
}

/// max|a - b| / max|b|, or max|a - b| where b is all zero; infinite elements must be equal, NaN is infinitely wrong.
pub fn error(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let off = std::iter::zip(a, b).map(|(a, b)| if a == b { 0.0 } else { (a - b).abs() });
    let off = off.fold(0.0, |most: f64, x| if x.is_nan() { f64::INFINITY } else { most.max(x) });
    let largest = b.iter().filter(|b| b.is_finite()).fold(0.0, |most: f64, b| most.max(b.abs()));
    if largest > 0.0 { off / largest } else { off }
}

/// |a - b| / |b| in the Euclidean norm.
pub fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let off = norm(&mut std::iter::zip(a, b).map(|(a, b)| a - b));
    off / norm(&mut b.iter().copied())
}
