//! A CUDA toolkit below `target/cuda`, from the registry's wheels: a compiler, a disassembler and the files that linking asks for.
//!
//! It needs no driver and no GPU. Version 13.0, because what it writes runs on every driver since 580.

use std::ffi::OsString;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{root, setup, tool};

/// Pinned through the meta-package: its parts alone would pull the newest of each other.
const TOOLKIT: &[&str] = &[
    "cuda-toolkit[nvcc,nvvm,crt,cudart,cccl]==13.0.2",
    "nvidia-cuda-cuobjdump==13.2.78",
    "nvidia-cuda-nvdisasm==13.2.78",
];

/// What cudarc names when it links, and what the driver and the toolkit call it.
const LIBRARIES: [(&str, &str); 6] = [
    ("cuda", "libcuda.so.1"),
    ("nvrtc", "libnvrtc.so.13"),
    ("curand", "libcurand.so.10"),
    ("cublas", "libcublas.so.13"),
    ("cublasLt", "libcublasLt.so.13"),
    ("nccl", "libnccl.so.2"),
];

/// A compiler that says its version and writes nothing: enough to check Rust code that asks for one.
const MUTE: &str = r#"#!/bin/sh
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

/// Where the toolkit is.
#[derive(Clone, Debug)]
pub(crate) struct Toolkit {
    /// What `CUDA_HOME` is to say.
    pub(crate) home: PathBuf,
}

impl Toolkit {
    /// Installs it once.
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

    /// One of its programs.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.home.join("bin").join(name)
    }

    /// What the wheels leave out: `lib64`, a static CUDA runtime under the name that is asked for, and libraries without
    /// symbols, which a linker wants to see and a program that loads them itself never opens.
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

    /// What a build with the feature `cuda` needs around it. Its program loads NVIDIA's libraries when it first calls them,
    /// and so starts where there are none.
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

/// Named so that flags reach our crates alone and not their build scripts.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The compiler that writes nothing.
pub(crate) fn mute_compiler() -> Result<PathBuf> {
    let folder = root().join("target/cuda");
    std::fs::create_dir_all(&folder)?;
    let compiler = folder.join("mute-nvcc");
    std::fs::write(&compiler, MUTE)?;
    std::fs::set_permissions(&compiler, std::fs::Permissions::from_mode(0o755))?;
    Ok(compiler)
}

fn link(target: &Path, link: &Path) -> Result<()> {
    if link.symlink_metadata().is_err() {
        symlink(target, link)?;
    }
    Ok(())
}
