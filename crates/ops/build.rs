//! With the feature `cuda`: compiles all kernels into one image for every architecture, with the toolkit's nvcc.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Code for sm_80 and sm_90a, and PTX that a driver compiles for what comes later.
const ARCHITECTURES: [&str; 2] =
    ["-gencode=arch=compute_80,code=[sm_80,compute_80]", "-gencode=arch=compute_90a,code=sm_90a"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(annulus_cuda_loads_itself)");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels");
    println!("cargo:rerun-if-changed={}", kernels.display());
    for variable in ["NVCC", "CUDA_HOME", "PATH"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let image =
        PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("kernels.fatbin");
    let compiler = compiler();
    let status = Command::new(&compiler)
        .args(["-std=c++17", "-O3", "-fatbin", "--threads", "0", "-o"])
        .arg(&image)
        .args(ARCHITECTURES)
        .arg(kernels.join("entries.cu"))
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("`{}` cannot compile the kernels: {status}", compiler.display()),
        Err(error) => panic!(
            "the feature `cuda` needs a CUDA toolkit of version 13.0 or later: cannot start `{}`: {error}. \
             Set NVCC or CUDA_HOME, or run `cargo xtask cuda build`, which brings its own",
            compiler.display()
        ),
    }
}

/// `NVCC`, or the one in `CUDA_HOME`, or that of the path.
fn compiler() -> PathBuf {
    if let Some(nvcc) = env::var_os("NVCC") {
        return nvcc.into();
    }
    let home = env::var_os("CUDA_HOME").map(|home| Path::new(&home).join("bin/nvcc"));
    home.filter(|nvcc| nvcc.exists()).unwrap_or_else(|| "nvcc".into())
}
