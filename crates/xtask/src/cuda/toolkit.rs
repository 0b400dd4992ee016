//! Installs a CUDA toolkit below `target/cuda` from PyPI's wheels: a compiler, a disassembler and the files that linking needs.
//!
//! It needs no driver and no GPU. The version is 13.0, whose output runs on every driver since 580.

use std::ffi::OsString;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{root, setup, tool};

/// Pinned by the meta-package, since its parts alone would depend on each other's newest versions.
const TOOLKIT: &[&str] = &[
    "cuda-toolkit[nvcc,nvvm,crt,cudart,cccl]==13.0.2",
    "nvidia-cuda-cuobjdump==13.2.78",
    "nvidia-cuda-nvdisasm==13.2.78",
];

/// The names by which cudarc links libraries, and the files of the driver and the toolkit.
const LIBRARIES: [(&str, &str); 6] = [
    ("cuda", "libcuda.so.1"),
    ("nvrtc", "libnvrtc.so.13"),
    ("curand", "libcurand.so.10"),
    ("cublas", "libcublas.so.13"),
    ("cublasLt", "libcublasLt.so.13"),
    ("nccl", "libnccl.so.2"),
];

/// A stub compiler that prints its version and writes empty files, enough to check Rust code whose build calls one.
const STUB: &str = r#"#!/bin/sh
# Stands in for nvcc where only Rust is checked: answers with a version, leaves empty files.
out= folder= source= library= last=
for word in "$@"; do
  case "$last" in -o) out=$word;; --output-directory) folder=$word;; esac
  case "$word" in
    --version|-V) echo "Cuda compilation tools, release 13.0, V13.0.88"; exit 0;;
    --output-directory=*) folder=${word#*=};;
    *.cu) source=$word;;
    --lib|-lib) library=1;;
  esac
  last=$word
done
[ -n "$folder" ] && [ -n "$source" ] && : > "$folder/$(basename "${source%.cu}").ptx"
[ -n "$out" ] && { if [ "$library" ]; then ar rcs "$out"; else : > "$out"; fi; }
exit 0
"#;

/// An installed toolkit.
#[derive(Clone, Debug)]
pub(crate) struct Toolkit {
    /// The value of `CUDA_HOME`.
    pub(crate) home: PathBuf,
}

impl Toolkit {
    /// Installs the toolkit once.
    pub(crate) fn set_up() -> Result<Toolkit> {
        let python = setup::environment_at(&root().join("target/cuda/environment"), &[TOOLKIT])?;
        let output = Command::new(&python)
            .args(["-c", "import nvidia; print(list(nvidia.__path__)[0])"])
            .output()?;
        let packages = PathBuf::from(String::from_utf8(output.stdout)?.trim());
        let toolkit = Toolkit { home: packages.join("cu13") };
        if !toolkit.program("nvcc").exists() {
            bail!("no nvcc in {}", toolkit.home.display());
        }
        toolkit.complete().context("cannot complete the toolkit for linking")?;
        Ok(toolkit)
    }

    /// The path of one of its programs.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.home.join("bin").join(name)
    }

    /// Adds what the wheels lack: `lib64`, a static CUDA runtime under the name that is linked, and empty libraries for the linker, which
    /// the program never opens, since it loads the real ones itself.
    fn complete(&self) -> Result<()> {
        let library = self.home.join("lib");
        link(Path::new("lib"), &self.home.join("lib64"))?;
        link(Path::new("libcudart_static.a"), &library.join("libcudart.a"))?;
        let stubs = library.join("stubs");
        std::fs::create_dir_all(&stubs)?;
        let empty = stubs.join("empty.c");
        std::fs::write(&empty, "typedef int empty;\n")?;
        for (name, installed) in LIBRARIES {
            let stub = stubs.join(format!("lib{name}.so"));
            if !stub.exists() {
                let words = ["-shared", "-fPIC", "-nostdlib", &format!("-Wl,-soname,{installed}")]
                    .map(OsString::from);
                let files = ["-o".into(), stub.into(), empty.clone().into()];
                tool::run("cc", &[&words[..], &files].concat())?;
            }
        }
        Ok(())
    }

    /// Sets the environment of a build with the feature `cuda`. The program loads NVIDIA's libraries at their first call, so it starts
    /// without them.
    pub(crate) fn around(&self, command: &mut Command) {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut folders = vec![self.home.join("bin")];
        folders.extend(std::env::split_paths(&path));
        command
            .env("PATH", std::env::join_paths(folders).unwrap_or(path))
            .env("CUDA_HOME", &self.home)
            .env("CUDA_COMPUTE_CAP", "80")
            .env("CUDARC_CUDA_VERSION", "13000")
            .env("CARGO_TARGET_DIR", root().join("target/cuda/build"))
            .env("CARGO_BUILD_TARGET", TARGET)
            .env("RUSTFLAGS", "--cfg feature=\"dynamic-loading\" --cfg annulus_cuda_loads_itself");
    }
}

/// The target, which is named so that flags apply to our crates but not to build scripts.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Installs the stub compiler.
pub(crate) fn stub_compiler() -> Result<PathBuf> {
    let folder = root().join("target/cuda");
    std::fs::create_dir_all(&folder)?;
    let compiler = folder.join("stub-nvcc");
    std::fs::write(&compiler, STUB)?;
    std::fs::set_permissions(&compiler, std::fs::Permissions::from_mode(0o755))?;
    Ok(compiler)
}

fn link(target: &Path, link: &Path) -> Result<()> {
    if link.symlink_metadata().is_err() {
        symlink(target, link)?;
    }
    Ok(())
}
