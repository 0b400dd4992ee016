//! Faults at a place of a run: what a process does to itself when one of its ranks is there.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use annulus_comm::{
    Communicator, Fault, Faulty, Label, P2pOp, Pending, Result, When, Wrap, Wrapper,
};
use serde::{Deserialize, Serialize};

/// The key of the environment that asks for one.
pub const KEY: &str = "ANNULUS_DRILL";
/// Written in the working folder just before: when, in microseconds since 1970.
pub const MARK: &str = "drill-began";
/// What takes all the room of a disk.
pub const FILLER: &str = "filler";

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// SIGKILL.
    Kill,
    /// SIGSTOP.
    Stop,
    /// SIGTERM.
    Term,
    /// A rank does nothing for a while.
    Slow,
    /// A bit of what a rank sends is another.
    Corrupt,
    /// The disk of the working folder is full.
    Disk,
}

/// Where and what.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Drill {
    /// What goes wrong.
    pub what: What,
    /// On which rank; before the run: in which process.
    pub rank: usize,
    /// At which call of it: the step,
    pub step: u64,
    /// the layer,
    pub layer: usize,
    /// the pass,
    pub pass: String,
    /// and the hop.
    pub hop: usize,
}

/// How long a slow rank does nothing: three deadlines of drills, since a rank that waits counts no time in which it has no core.
const SLOW: Duration = Duration::from_secs(3);

/// What the environment asks for.
pub fn asked() -> Option<Wrap> {
    let text = std::env::var(KEY).ok()?;
    let drill: Drill = serde_json::from_str(&text).expect("a drill");
    let done = Arc::new(AtomicBool::new(false));
    Some(Arc::new(move |mut inner| {
        if drill.what == What::Corrupt {
            let pass: &'static str = drill.pass.clone().leak();
            let layer = Some((drill.step, drill.layer));
            let when = When { rank: drill.rank, pass, hop: Some(drill.hop), layer };
            inner = Faulty::new(inner, when, Fault::Corrupt);
        }
        Arc::new(Drilled { inner, drill: drill.clone(), done: done.clone() })
    }))
}

/// A communicator whose rank meets the fault.
#[derive(Debug)]
struct Drilled {
    inner: Arc<dyn Communicator>,
    drill: Drill,
    done: Arc<AtomicBool>,
}

impl Drilled {
    fn meet(&self, label: Label) {
        let Drill { rank, step, layer, ref pass, hop, .. } = self.drill;
        let here = self.global_rank(self.rank()) == rank
            && (label.step, label.layer, label.pass, label.hop) == (step, layer, pass, hop);
        if here && !self.done.swap(true, Ordering::Relaxed) {
            self.inner.note(label);
            happen(self.drill.what);
        }
    }
}

fn happen(what: What) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros();
    // A disk that is full has no room for it.
    let _ = fs::write(MARK, now.to_string());
    let signal = |signal| {
        // SAFETY: a signal to this thread, which has it before the call returns.
        unsafe { libc::raise(signal) };
    };
    match what {
        What::Kill => signal(libc::SIGKILL),
        What::Stop => signal(libc::SIGSTOP),
        What::Term => signal(libc::SIGTERM),
        What::Slow => sleep(SLOW),
        What::Disk => fill(Path::new(FILLER)),
        // The communicator that it wraps damages what is sent.
        What::Corrupt => {}
    }
}

/// Takes all the room that is left.
fn fill(path: &Path) {
    let mut file = File::create(path).expect("a filler");
    for size in [1 << 20, 1 << 12, 1] {
        let piece = vec![1; size];
        while file.write_all(&piece).is_ok() {}
    }
}

impl Wrapper for Drilled {
    fn inner(&self) -> &dyn Communicator {
        &*self.inner
    }
    fn exchange(&self, label: Label, moves: Vec<P2pOp>) -> Result<Pending> {
        self.meet(label);
        self.inner.exchange(label, moves)
    }
    fn split(&self, label: Label, color: usize, key: usize) -> Result<Arc<dyn Communicator>> {
        self.meet(label);
        let inner = self.inner.split(label, color, key)?;
        Ok(Arc::new(Drilled { inner, drill: self.drill.clone(), done: self.done.clone() }))
    }
    fn note(&self, label: Label) {
        self.inner.note(label);
        self.meet(label);
    }
}
