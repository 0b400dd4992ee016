//! Order-free sums by the kernels of a GPU, on the emulator: every strategy and every mask, some with each other.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use annulus_ops::attention::AttentionKernel;
use annulus_ops::gpu::attention::Kernels;
use annulus_ops::gpu::{Emulator, Processor, in_blocks};

use crate::case::Processors;
use crate::strict::every_mask;

/// Ways are so many places apart, of one mask and of the next: most strategies run, and most masks.
const APART: [usize; 2] = [127, 8];

/// The kernels of a GPU, with sums over blocks.
pub(crate) fn kernel(block: Option<usize>) -> Arc<dyn AttentionKernel> {
    Arc::new(Kernels::new(in_blocks(processor(), block), true))
}

/// The emulator, for all ranks.
fn processor() -> Arc<dyn Processor> {
    static OPENED: OnceLock<Emulator> = OnceLock::new();
    Arc::new(OPENED.get_or_init(|| emulator(80)).clone())
}

/// An emulator of a GPU of this architecture.
pub(crate) fn emulator(architecture: u32) -> Emulator {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    let compiled = || {
        let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels");
        let into = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulator");
        Emulator::compile(&kernels, &into).unwrap()
    };
    let given = || std::env::var_os("ANNULUS_EMULATOR").map(PathBuf::from);
    let library = LIBRARY.get_or_init(|| given().unwrap_or_else(compiled));
    Emulator::open(library, architecture, 1).unwrap()
}

#[test]
fn every_mask_has_one_set_of_bits_by_kernels() {
    let [ways_apart, masks_apart] = APART;
    let chosen = |place: usize, number: usize| {
        let place = place + masks_apart * number;
        place.is_multiple_of(ways_apart).then_some(place / ways_apart)
    };
    let ran = every_mask((Processors::Emulator, 6), chosen);
    let names: BTreeSet<&String> = ran.iter().collect();
    println!("{} ways: {names:?}", ran.len());
    assert!(ran.len() > 30 && names.len() > 7, "{} ways: {names:?}", ran.len());
}
