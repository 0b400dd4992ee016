//! What the kernels run on.

use std::sync::{Arc, OnceLock};

use annulus_ops::gpu::{Generation, Processor};

/// One for all tests: tensors of a GPU that is opened twice are not on the same device.
static OPENED: OnceLock<Arc<dyn Processor>> = OnceLock::new();

/// A GPU where one is named, else the emulator of one that `generation` is the fastest on, its orders drawn from `seed`. None where a
/// GPU is named that does not run the generation; says so, as a test that finds nothing to run succeeds.
pub(crate) fn processor(generation: Generation, seed: u64) -> Option<Arc<dyn Processor>> {
    match gpu() {
        None => Some(emulated(generation, seed)),
        Some(gpu) => runs(generation).then(|| gpu.clone()),
    }
}

/// Whether `processor` gives one for this generation, to ask before anything is computed for it; says so if not.
pub(crate) fn runs(generation: Generation) -> bool {
    let runs = gpu().is_none_or(|gpu| generation.runs_on(gpu.architecture()));
    if !runs {
        say(&format!("{generation:?}: NOT RUN, this GPU has other kernels"));
    }
    runs
}

/// The GPU that is named.
fn gpu() -> Option<&'static Arc<dyn Processor>> {
    let name = std::env::var("ANNULUS_KERNELS_ON").ok()?;
    let index = name.strip_prefix("cuda:").and_then(|index| index.parse().ok());
    Some(OPENED.get_or_init(|| annulus_ops::gpu::open(index.expect("cuda:N")).unwrap()))
}

/// Prints what a test did not do, for `--show-output`: it succeeds all the same.
#[expect(clippy::print_stdout, reason = "what is captured of a test")]
pub(crate) fn say(line: &str) {
    println!("{line}");
}

#[cfg(feature = "emulator")]
fn emulated(generation: Generation, seed: u64) -> Arc<dyn Processor> {
    let architecture = match generation {
        Generation::Sm100 => 100,
        Generation::Sm90 => 90,
        _ => 80,
    };
    Arc::new(emulator(architecture, seed))
}

#[cfg(feature = "emulator")]
pub(crate) fn emulator(architecture: u32, seed: u64) -> annulus_ops::gpu::Emulator {
    use std::path::{Path, PathBuf};

    use annulus_ops::gpu::Emulator;

    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    let compiled = || {
        let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels");
        let into = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulator");
        Emulator::compile(&kernels, &into).unwrap()
    };
    let given = || std::env::var_os("ANNULUS_EMULATOR").map(PathBuf::from);
    let library = LIBRARY.get_or_init(|| given().unwrap_or_else(compiled));
    let emulator = Emulator::open(library, architecture, 2).unwrap();
    emulator.reseed(seed.wrapping_mul(1 + number("ANNULUS_KERNELS_SEED").unwrap_or(0)));
    emulator
}

#[cfg(not(feature = "emulator"))]
fn emulated(_: Generation, _: u64) -> Arc<dyn Processor> {
    panic!("ANNULUS_KERNELS_ON=cuda:N is wanted: this was built without the emulator");
}

/// Of how many factors of a choice all combinations are run.
pub(crate) fn strength() -> usize {
    number("ANNULUS_KERNELS_STRENGTH").map_or(2, |number| number as usize)
}

/// Whether kernels of this name are asked for.
pub(crate) fn asked(name: &str) -> bool {
    std::env::var("ANNULUS_KERNELS_ONLY").is_ok_and(|only| name.contains(&only))
        || std::env::var_os("ANNULUS_KERNELS_ONLY").is_none()
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}
