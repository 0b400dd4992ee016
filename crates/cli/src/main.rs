//! The program `annulus`.

use std::process::ExitCode;

use annulus_train::memory::Counting;
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: Counting<MiMalloc> = Counting::new(MiMalloc);

fn main() -> ExitCode {
    // Candle's own pools stay at one thread: every rank brings its own workers, and pools that spin would starve them.
    for pool in ["CANDLE_NUM_THREADS", "RAYON_NUM_THREADS"] {
        // SAFETY: no other thread exists yet.
        unsafe { std::env::set_var(pool, "1") };
    }
    annulus_cli::main()
}
