//! With the feature `cuda`: compiles all kernels into one image for every architecture that the toolkit's nvcc knows.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Architectures that there is code for, and the first toolkit that knows each. Of sm_80 also PTX, which a driver compiles for what
/// comes later.
const ARCHITECTURES: [(&str, [u32; 2]); 6] = [
    ("80", [12, 4]),
    ("86", [12, 4]),
    ("89", [12, 4]),
    ("90a", [12, 4]),
    ("100f", [12, 9]),
    ("120", [12, 8]),
];

/// The variable that names fewer of them, as `80,90a`: a build for one's own GPUs takes less time.
const ONLY: &str = "ANNULUS_CUDA_ARCHITECTURES";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(annulus_cuda_loads_itself)");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels");
    println!("cargo:rerun-if-changed={}", kernels.display());
    for variable in ["NVCC", "CUDA_HOME", "PATH", ONLY] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let image =
        PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("kernels.fatbin");
    let compiler = compiler();
    let toolkit = version(&compiler);
    println!("cargo:rustc-env=ANNULUS_TOOLKIT={}.{}", toolkit[0], toolkit[1]);
    let known = known(toolkit);
    let numbers = known.iter().map(|name| name.trim_end_matches(['a', 'f'])).collect::<Vec<_>>();
    println!("cargo:rustc-env=ANNULUS_ARCHITECTURES={}", numbers.join(","));
    let status = Command::new(&compiler)
        .args(["-std=c++17", "-O3", "-fatbin", "--threads", "0", "-o"])
        .arg(&image)
        .args(known.iter().map(|name| generated(name)))
        .arg(kernels.join("entries.cu"))
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("`{}` cannot compile the kernels: {status}", compiler.display()),
        Err(error) => panic!("cannot start `{}`: {error}", compiler.display()),
    }
}

/// What this toolkit compiles: all, or what is named, which it must know.
fn known(toolkit: [u32; 2]) -> Vec<&'static str> {
    let [major, minor] = toolkit;
    let known = ARCHITECTURES.iter().filter(|(_, since)| *since <= toolkit);
    let known: Vec<&str> = known.map(|(name, _)| *name).collect();
    assert!(
        !known.is_empty(),
        "the feature `cuda` needs a CUDA toolkit of version 12.4 or later, found {major}.{minor}"
    );
    let Ok(only) = env::var(ONLY) else { return known };
    let find = |name: &str| {
        let found = known.iter().copied().find(|one| *one == name);
        found.unwrap_or_else(|| {
            panic!("{ONLY}={only}: `{name}` is none of {known:?}, which toolkit {major}.{minor} compiles")
        })
    };
    only.split(',').map(find).collect()
}

fn generated(name: &str) -> String {
    let ptx = if name == "80" { ",compute_80" } else { "" };
    format!("-gencode=arch=compute_{name},code=[sm_{name}{ptx}]")
}

/// The toolkit's, as its compiler says it: `Cuda compilation tools, release 13.0, V13.0.88`.
fn version(compiler: &Path) -> [u32; 2] {
    let said = match Command::new(compiler).arg("--version").output() {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(error) => panic!(
            "the feature `cuda` needs a CUDA toolkit of version 12.4 or later: cannot start `{}`: {error}. \
             Set NVCC or CUDA_HOME, or run `cargo xtask cuda build`, which brings its own",
            compiler.display()
        ),
    };
    let release = said.split("release ").nth(1).and_then(|rest| rest.split(',').next());
    let numbers: Vec<u32> =
        release.unwrap_or("").split('.').filter_map(|number| number.trim().parse().ok()).collect();
    match *numbers {
        [major, minor] => [major, minor],
        _ => panic!("`{} --version` says no release: {said}", compiler.display()),
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
