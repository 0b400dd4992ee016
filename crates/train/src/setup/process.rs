//! What a program sets for its whole process, before anything else.

use std::env;

use annulus_comm::World;

use super::pages::keep_freed_pages;

/// The variables by which Candle sizes its own pools of threads.
const POOLS: [&str; 2] = ["CANDLE_NUM_THREADS", "RAYON_NUM_THREADS"];
/// The variable that says when CUDA loads kernels.
const LOADING: &str = "CUDA_MODULE_LOADING";

/// Prepares this process to train: keeps freed pages for the next step (where mimalloc is the allocator), gives Candle's own pools one
/// thread, since every rank has workers of its own, and has CUDA load kernels at the start if processes may exchange by NCCL. Loading a
/// kernel later waits for all work of the GPU, which may be a transfer whose other end waits for this process (CUDA C++ programming guide,
/// "Lazy Loading").
///
/// # Safety
/// It sets environment variables: call it first, while the process has no other thread.
pub unsafe fn prepare_process() {
    keep_freed_pages();
    let set = |name, value| {
        // SAFETY: the caller knows that there is no other thread.
        unsafe { env::set_var(name, value) }
    };
    for pool in POOLS {
        set(pool, "1");
    }
    let is_one_of_several = World::launched().is_ok_and(|processes| processes != Some(1));
    if is_one_of_several && env::var_os(LOADING).is_none() {
        set(LOADING, "EAGER");
    }
}
