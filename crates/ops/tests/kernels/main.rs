//! The CUDA kernels held to plain loops in f64: on the emulator, so that what a GPU runs is found right where there is none, or on a
//! GPU.
//!
//! `ANNULUS_KERNELS_ON=cuda:0` takes that GPU (feature `cuda`); `ANNULUS_KERNELS_STRENGTH=4` runs all combinations of
//! any four settings instead of all pairs; `ANNULUS_KERNELS_ONLY=sm90_bf16` runs the kernels whose name has that in it; `ANNULUS_KERNELS_SEED=2` draws another order of
//! threads; `ANNULUS_EMULATOR=FILE` takes that library instead of compiling `kernels/`.
#![cfg(any(feature = "cuda", feature = "emulator"))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod attention;
#[path = "../all/cases.rs"]
mod cases;
mod counts;
mod cover;
mod dropout;
#[cfg(feature = "emulator")]
mod emulator;
mod family;
mod handover;
mod host_copies;
mod operators;
mod passes;
mod predictions;
mod scene;
mod strict;
mod support;
