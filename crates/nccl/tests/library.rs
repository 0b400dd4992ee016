//! Cliques of threads over a library of our own, and what NVIDIA's says where there is no GPU.
#![cfg(feature = "emulator")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use annulus_nccl::{Clique, Found, Gate, Id, Lane, Mark, Piece, Transfers, emulated, find, lane};
use candle_core::{DType, Device, Result, Shape, Tensor};

const PATIENCE: Duration = Duration::from_secs(10);

/// Our own library, or one that `ANNULUS_NCCL` names.
fn library() -> Found {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let into = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("nccl");
    let path = emulated::compile(&root.join("kernels"), &into).expect("a C++ compiler");
    Found::at(path).expect("our own library")
}

/// Joins a clique; also its lane.
fn joined(found: &Found, id: &Id, place: [usize; 2]) -> (Clique, Arc<dyn Lane>) {
    let lane = lane(&found.library, &Device::Cpu).unwrap().expect("our own is of the host");
    let clique = Clique::begin(found.library.clone(), lane.clone(), id, place).unwrap();
    until(|| clique.is_ready().unwrap());
    (clique, lane)
}

#[track_caller]
fn until(mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "it takes too long");
        thread::sleep(Duration::from_micros(100));
    }
}

fn on_all<T: Send>(size: usize, one: impl Fn(usize) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> = (0..size).map(|rank| scope.spawn(move || one(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn numbers(rank: usize, elements: usize) -> Tensor {
    let all = (0..elements).map(|index| (rank * 1000 + index) as f32);
    Tensor::from_iter(all, &Device::Cpu).unwrap()
}

/// Every rank sends every other one tensors of two sizes, one larger than what is under way at once, in three groups of transfers.
#[test]
fn what_is_submitted_arrives_in_order() {
    let found = library();
    for size in [2, 4] {
        let id = Id::draw(&found.library).unwrap();
        on_all(size, |rank| {
            let (mut clique, lane) = joined(&found, &id, [rank, size]);
            for elements in [7, 100_000, 20] {
                let mut transfers = Transfers::default();
                for peer in (0..size).filter(|peer| *peer != rank) {
                    for length in [elements, elements / 2] {
                        let piece = lane.leaving(&numbers(rank, length), peer).unwrap();
                        transfers.sends.push(piece);
                        let buffer = lane.buffer(DType::F32, length.into(), peer).unwrap();
                        transfers.receives.push(buffer);
                    }
                }
                let came = transfers.receives.clone();
                transfers.gates.push(lane.gate().unwrap());
                clique.submit(transfers).unwrap();
                let mut mark = None;
                until(|| {
                    mark = clique.submitted().unwrap();
                    mark.is_some()
                });
                mark.unwrap().precede_computing(&|| false).unwrap();
                for piece in came {
                    let wanted = numbers(piece.peer, piece.tensor.elem_count());
                    let [found, wanted] =
                        [&piece.tensor, &wanted].map(|tensor| tensor.to_vec1::<f32>().unwrap());
                    assert!(found == wanted, "{elements} elements from {} to {rank}", piece.peer);
                }
            }
            until(|| clique.poll().unwrap() == 0);
            clique.end(PATIENCE, || false).unwrap();
        });
    }
}

/// A receive to which nobody sends: whoever waits on the device goes on once it is given up.
#[test]
fn what_hangs_can_be_given_up() {
    let found = library();
    let id = Id::draw(&found.library).unwrap();
    on_all(2, |rank| {
        let (mut clique, lane) = joined(&found, &id, [rank, 2]);
        if rank == 1 {
            clique.abort();
            return;
        }
        let buffer = lane.buffer(DType::F32, 9.into(), 1).unwrap();
        clique.submit(Transfers { receives: vec![buffer], ..Transfers::default() }).unwrap();
        let mut mark = None;
        until(|| {
            mark = clique.submitted().unwrap();
            mark.is_some()
        });
        let mark = mark.unwrap();
        thread::sleep(Duration::from_millis(20));
        assert!(!mark.is_over().unwrap() && clique.poll().unwrap() == 1);
        let begun = Instant::now();
        clique.abort();
        assert!(mark.precede_computing(&|| false).is_err());
        assert!(begun.elapsed() < PATIENCE);
    });
}

/// The lane of another, whose marks are over once gates are open.
#[derive(Debug)]
struct Gated {
    inner: Arc<dyn Lane>,
    is_open: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Behind(Arc<AtomicBool>, Arc<dyn Mark>);

impl Mark for Behind {
    fn is_over(&self) -> Result<bool> {
        Ok(self.0.load(Ordering::Relaxed) && self.1.is_over()?)
    }
    fn precede_computing(&self, given_up: &dyn Fn() -> bool) -> Result<()> {
        self.1.precede_computing(given_up)
    }
}

impl Lane for Gated {
    fn enter(&self) -> Result<()> {
        self.inner.enter()
    }
    fn stream(&self) -> *mut c_void {
        self.inner.stream()
    }
    fn carries(&self, tensor: &Tensor) -> bool {
        self.inner.carries(tensor)
    }
    fn gate(&self) -> Result<Gate> {
        self.inner.gate()
    }
    fn mark(&self) -> Result<Arc<dyn Mark>> {
        Ok(Arc::new(Behind(self.is_open.clone(), self.inner.mark()?)))
    }
    fn leaving(&self, tensor: &Tensor, to: usize) -> Result<Piece> {
        self.inner.leaving(tensor, to)
    }
    fn buffer(&self, dtype: DType, shape: Shape, from: usize) -> Result<Piece> {
        self.inner.buffer(dtype, shape, from)
    }
}

/// Transfers begin when what is computed before them is over, however long ago they were submitted.
#[test]
fn a_group_begins_when_its_gates_are_open() {
    let found = library();
    let id = Id::draw(&found.library).unwrap();
    on_all(2, |rank| {
        let inner = lane(&found.library, &Device::Cpu).unwrap().unwrap();
        let is_open = Arc::new(AtomicBool::new(false));
        let lane: Arc<dyn Lane> = Arc::new(Gated { inner, is_open: is_open.clone() });
        let mut clique =
            Clique::begin(found.library.clone(), lane.clone(), &id, [rank, 2]).unwrap();
        until(|| clique.is_ready().unwrap());
        assert!(!clique.has_begun().unwrap(), "there is none");
        let piece = lane.leaving(&numbers(rank, 3), 1 - rank).unwrap();
        let buffer = lane.buffer(DType::F32, 3.into(), 1 - rank).unwrap();
        let transfers = Transfers {
            gates: vec![lane.gate().unwrap()],
            sends: vec![piece],
            receives: vec![buffer],
        };
        clique.submit(transfers).unwrap();
        assert!(!clique.has_begun().unwrap());
        until(|| clique.submitted().unwrap().is_some());
        thread::sleep(Duration::from_millis(20));
        assert!(!clique.has_begun().unwrap() && clique.poll().unwrap() == 1);
        is_open.store(true, Ordering::Relaxed);
        until(|| clique.has_begun().unwrap());
        until(|| clique.poll().unwrap() == 0);
        assert!(!clique.has_begun().unwrap(), "it is over");
        clique.end(PATIENCE, || false).unwrap();
    });
}

/// NVIDIA's library, where it is: its version and names without a GPU, and one clear error of a communicator.
#[test]
fn the_real_library_is_understood_without_a_gpu() {
    let found = match find() {
        Ok(found) => found,
        Err(error) => return println!("SKIPPED: {error}"),
    };
    let Some(id) = Id::draw(&found.library).ok() else {
        return println!("SKIPPED: {} draws no name here", found.path.display());
    };
    println!("NCCL {} ({})", found.library.version(), found.path.display());
    let again = Id::of(&id.bytes()).map(|id| id.bytes());
    assert_eq!(again.as_deref(), Some(&id.bytes()[..]));
    let Some(refusal) = found.refusal(&id) else {
        return println!("SKIPPED: a GPU is there, and a communicator began");
    };
    println!("{refusal}");
    assert!(!refusal.why.is_empty());
}
