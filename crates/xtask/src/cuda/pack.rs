//! Makes a folder that runs on a machine with a GPU but without Rust or nvcc: it tests the kernels, compares their speed with PyTorch's,
//! and training steps with those of transformers.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::toolkit::Toolkit;
use crate::{root, tool};

/// The programs in the folder.
const PROGRAMS: [&str; 3] = ["kernels", "annulus-bench", "annulus"];

/// The files in the folder besides programs.
const FILES: [(&str, &str); 5] = [
    ("run.sh", include_str!("../../gpu/run.sh")),
    ("sdpa.py", include_str!("../../gpu/sdpa.py")),
    ("rule.py", include_str!("../../gpu/rule.py")),
    ("llama.py", include_str!("../../gpu/llama.py")),
    ("tables.py", include_str!("../../gpu/tables.py")),
];

/// Builds the programs and fills `target/cuda/pack`.
pub(crate) fn run(toolkit: &Toolkit) -> Result<PathBuf> {
    let folder = root().join("target/cuda/pack");
    tool::remove_old(&folder)?;
    std::fs::create_dir_all(&folder)?;
    for (name, program) in PROGRAMS.into_iter().zip(built(toolkit)?) {
        put(&program, &folder.join(name))?;
    }
    for (name, text) in FILES {
        std::fs::write(folder.join(name), text)?;
    }
    Ok(folder)
}

/// Builds an optimised `annulus` with CUDA.
pub(crate) fn program(toolkit: &Toolkit) -> Result<PathBuf> {
    let words = ["--package", "annulus-cli", "--bin", "annulus", "--features", "cuda"];
    tool::built_by(build(toolkit, &words))
}

/// Builds all programs by one command. Built one by one, packages select different features of dependencies, and Candle's kernels, which
/// take most of the time, would be compiled for each.
fn built(toolkit: &Toolkit) -> Result<[PathBuf; 3]> {
    let words = [
        ["--package", "annulus-ops", "--test", "kernels"],
        ["--package", "annulus-bench", "--bin", "annulus-bench"],
        ["--package", "annulus-cli", "--bin", "annulus"],
    ];
    let features = ["--features", "annulus-ops/cuda,annulus-bench/cuda,annulus-cli/cuda"];
    let built = tool::all_built_by(build(toolkit, &[words.as_flattened(), &features].concat()))?;
    let [tests, bench, annulus] = PROGRAMS.map(|name| named(&built, name));
    Ok([tests?, bench?, annulus?])
}

/// The program of this name; a test's has a hash appended.
fn named(built: &[PathBuf], name: &str) -> Result<PathBuf> {
    let is = |file: &str| {
        let hash = file.strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
        let is_hash = |hash: &str| hash.len() == 16 && hash.chars().all(|c| c.is_ascii_hexdigit());
        file == name || hash.is_some_and(is_hash)
    };
    let found = built.iter().find(|path| path.file_name().and_then(OsStr::to_str).is_some_and(is));
    found.cloned().with_context(|| format!("cargo built no `{name}`"))
}

/// The cargo command that builds optimised programs with CUDA.
fn build(toolkit: &Toolkit, words: &[&str]) -> Command {
    let mut command = tool::cargo_command();
    command.args(["build", "--release"]).args(words);
    toolkit.around(&mut command);
    command
}

/// Copies a program without symbols, compressed such that Python can decompress it on the other machine.
fn put(program: &Path, into: &Path) -> Result<()> {
    let words: [&OsStr; 3] = ["-o".as_ref(), into.as_os_str(), program.as_os_str()];
    tool::run("strip", &words)?;
    let code = "import lzma, os, sys; p = sys.argv[1]; \
                open(p + '.xz', 'wb').write(lzma.compress(open(p, 'rb').read())); os.remove(p)";
    tool::run("python3", &["-c".as_ref(), code.as_ref(), into.as_os_str()])
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Stdio;

    use super::*;

    #[test]
    fn programs_are_told_apart_by_their_names() {
        let built = ["a/annulus-bench", "a/annulus", "a/deps/kernels-0123456789abcdef"];
        let built = built.map(PathBuf::from);
        for (name, wanted) in PROGRAMS.into_iter().zip([2, 0, 1]) {
            assert_eq!(named(&built, name).ok(), Some(built[wanted].clone()));
        }
        assert!(named(&built[..1], "annulus").is_err());
    }

    /// Programs and Python are scripts that fail: with words, without any, and by their time.
    #[test]
    fn a_failed_command_is_reported_with_its_own_words() -> Result<()> {
        let folder = std::env::temp_dir().join(format!("annulus-pack-{}", std::process::id()));
        let scripts = folder.join("scripts");
        std::fs::create_dir_all(&scripts)?;
        let python = "case \"$*\" in *sdpa.py*) echo no torch >&2; exit 1;; *llama.py*) exec sleep 60;;\n\
                      *lzma*) printf '#!/bin/bash\\nexit 3\\n' >\"${@: -1}\"; chmod +x \"${@: -1}\";; esac";
        for (name, text) in [("nvidia-smi", "echo a GPU"), ("python3", python)] {
            let script = scripts.join(name);
            std::fs::write(&script, format!("#!/bin/bash\n{text}\n"))?;
            std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755))?;
        }
        std::fs::write(folder.join("run.sh"), FILES[0].1)?;
        std::fs::write(folder.join("annulus-bench.xz"), "")?;
        let path = format!("{}:{}", scripts.display(), std::env::var("PATH")?);
        let mut command = Command::new("bash");
        command.arg(folder.join("run.sh")).args(["time", "longest"]).stdin(Stdio::null());
        let output = command.env("PATH", path).env_remove("OUT").env("LIMIT", "3").output()?;
        std::fs::remove_dir_all(&folder)?;
        let wanted = "a GPU\nsdpa.py ended with 1:\nno torch\nannulus-bench gpu ended with 3\n\
                      annulus-bench step --longest ended with 3\nllama.py --longest: its time ran out\n";
        assert_eq!(String::from_utf8_lossy(&output.stdout), wanted);
        assert_eq!(output.status.code(), Some(1));
        Ok(())
    }
}
