//! What the tests of this crate share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use annulus_comm::threads::{Options, run};
use annulus_comm::{Communicator, Failure, Label, P2pOp, Result};
use candle_core::{DType, Device, Tensor};

/// A rank's end of the world.
pub(crate) type Comm = Arc<dyn Communicator>;

/// What a run returns.
pub(crate) type Outcome<T> = std::result::Result<Vec<T>, Failure<annulus_comm::Error>>;

/// Long enough for a loaded machine where nothing is to go wrong.
pub(crate) const PATIENT: Duration = Duration::from_secs(60);

/// What is told and not waited for takes less, on a machine that is busy too.
pub(crate) const SOON: Duration = Duration::from_secs(30);

pub(crate) fn options(world: usize, deadline: Duration) -> Options {
    Options { world, deadline, stop: Arc::default() }
}

/// Runs where nothing is to go wrong.
pub(crate) fn on<T: Send>(
    world: usize,
    program: impl Fn(Comm) -> Result<T> + Send + Sync,
) -> Vec<T> {
    within(world, PATIENT, program).unwrap_or_else(|failure| panic!("{failure}"))
}

/// Runs where something may go wrong.
pub(crate) fn within<T: Send>(
    world: usize,
    deadline: Duration,
    program: impl Fn(Comm) -> Result<T> + Send + Sync,
) -> Outcome<T> {
    run(&options(world, deadline), program)
}

/// Gives no sign of life until another rank has failed for that, which is once `told` is set: a rank that waits counts no time in which it
/// has no core, so on a busy machine it may take many deadlines.
pub(crate) fn stand_still(told: &AtomicBool) {
    let began = Instant::now();
    while !told.load(Ordering::Relaxed) && began.elapsed() < PATIENT {
        sleep(Duration::from_millis(5));
    }
    // Whoever set it is about to return its error: until then this rank has not ended.
    sleep(Duration::from_millis(100));
}

pub(crate) fn hop(hop: usize) -> Label {
    Label { step: 7, layer: 3, pass: "forward", hop }
}

pub(crate) fn send(tensor: &Tensor, to: usize) -> P2pOp {
    P2pOp::Send { tensor: tensor.clone(), to }
}

pub(crate) fn receive(from: usize) -> P2pOp {
    P2pOp::Receive { from, form: None }
}

/// `count` different numbers that depend on `seed`, positive and negative, of very different size.
pub(crate) fn noise(seed: usize, count: usize) -> Vec<f64> {
    let mut state = seed as u64 * 2_654_435_761 + 12345;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / f64::from(1 << 24) - 0.5
    };
    (0..count).map(|_| next() * 10f64.powf(next() * 8.0)).collect()
}

pub(crate) fn tensor(values: &[f64], dtype: DType) -> Tensor {
    let tensor = Tensor::new(values, &Device::Cpu).and_then(|tensor| tensor.to_dtype(dtype));
    tensor.expect("a type that Candle converts to")
}

pub(crate) fn bits(tensor: &Tensor) -> Vec<u8> {
    let mut bytes = Vec::new();
    tensor.write_bytes(&mut bytes).expect("a vector takes all bytes");
    bytes
}
