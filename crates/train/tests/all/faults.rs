//! A rank that is late, lost, or wrong: all ranks end in time, and the first cause is reported.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{BASE, Place, losses, state};
use annulus_comm::{
    Checked, Communicator, Fault, Faulty, Label, P2pOp, Pending, Result as CommResult, When, World,
    Wrap, Wrapper,
};
use annulus_train::{Outcome, RunOptions, Silent, TrainError, run};

const DEADLINE: Duration = Duration::from_secs(2);

fn faulty(place: &Place, output: &str, wrap: Wrap) -> Result<Outcome, TrainError> {
    faulty_mesh(place, output, &[("mesh.sequence", "3")], wrap)
}

fn faulty_mesh(
    place: &Place,
    output: &str,
    mesh: &[(&str, &str)],
    wrap: Wrap,
) -> Result<Outcome, TrainError> {
    let output = place.path(output);
    let changes = [
        ("output", output.to_str().unwrap()),
        ("attention.strategy", "ring"),
        ("mesh.deadline", "2"),
        ("schedule.stop", "3"),
    ];
    let plan = place.plan(&[&changes[..], mesh].concat());
    let mut options = RunOptions::new(BASE, 3);
    options.world = World::alone().wrapped(wrap);
    run(&plan, options, &mut Silent)
}

/// First and last hop of a ring of three, and the sum of gradients.
const PLACES: [(&str, Option<usize>); 5] = [
    ("forward", Some(0)),
    ("forward", Some(1)),
    ("backward", Some(0)),
    ("backward", Some(1)),
    ("gradient sum", None),
];

fn wrap(fault: Fault, pass: &'static str, hop: Option<usize>) -> Wrap {
    Arc::new(move |comm| {
        let faulty = Faulty::new(comm, When { rank: 1, pass, hop, layer: None }, fault);
        Checked::new(faulty)
    })
}

#[test]
fn a_late_rank_changes_nothing() {
    let place = Place::new();
    let right = faulty(&place, "right", Arc::new(|comm| comm)).unwrap();
    for (index, (pass, hop)) in PLACES.into_iter().enumerate() {
        let late = Fault::Delay(Duration::from_millis(100));
        let outcome = faulty(&place, &format!("late-{index}"), wrap(late, pass, hop)).unwrap();
        assert_eq!(losses(&outcome), losses(&right), "{pass} {hop:?}");
        assert_eq!(state(&outcome.checkpoint.unwrap()), state(right.checkpoint.as_ref().unwrap()));
    }
}

#[test]
fn a_fault_ends_all_ranks_in_time_and_says_what_it_was() {
    let place = Place::new();
    for (fault, codes) in
        [(Fault::Die, [13, 13]), (Fault::Drop, [12, 1]), (Fault::Corrupt, [14, 14])]
    {
        for (index, (pass, hop)) in PLACES.into_iter().enumerate() {
            // A machine with other work may be late: in time means in time in one of three attempts.
            let mut attempts = (0..3).map(|attempt| {
                let name = format!("{fault:?}-{index}-{attempt}");
                let start = Instant::now();
                let error = faulty(&place, &name, wrap(fault, pass, hop)).unwrap_err();
                (start.elapsed() < DEADLINE + Duration::from_secs(2), name, error)
            });
            let ended = attempts.find(|(in_time, ..)| *in_time);
            let (_, name, error) = ended.expect("all ranks end soon after the deadline");
            assert!(codes.contains(&error.exit_code()), "{name}: {} {error}", error.exit_code());
            assert!(error.to_string().contains("rank 1"), "{name}: {error}");
        }
    }
}

/// Makes the first tensor that one rank sends in the second layer of step 2 NaN.
#[derive(Debug)]
struct Poison {
    inner: Arc<dyn Communicator>,
    /// The poisoned rank's number in the world.
    rank: usize,
    /// Whether poison is given; where only the evaluation after the step is meant, it is set at the sum of gradients.
    armed: Arc<AtomicBool>,
    done: Arc<AtomicBool>,
}

/// Wraps every rank's communicator in [`Poison`]; also returns a flag that is set when poison was given.
fn poison(rank: usize, armed: bool) -> (Wrap, Arc<AtomicBool>) {
    let (armed, done) = (Arc::new(AtomicBool::new(armed)), Arc::new(AtomicBool::new(false)));
    let flag = done.clone();
    let wrap: Wrap = Arc::new(move |inner| {
        Arc::new(Poison { inner, rank, armed: armed.clone(), done: flag.clone() })
    });
    (wrap, done)
}

impl Wrapper for Poison {
    fn inner(&self) -> &dyn Communicator {
        &*self.inner
    }
    fn exchange(&self, label: Label, mut moves: Vec<P2pOp>) -> CommResult<Pending> {
        let rank = self.inner.global_rank(self.inner.rank());
        let own = rank == self.rank && label.step == 2;
        if own && label.pass == "gradient sum" {
            self.armed.store(true, Ordering::Relaxed);
        }
        let now = own && label.layer == 1 && self.armed.load(Ordering::Relaxed);
        if now && label.pass == "forward" && !self.done.swap(true, Ordering::Relaxed) {
            for one in &mut moves {
                if let P2pOp::Send { tensor, .. } = one {
                    *tensor = (tensor.ones_like()? * f64::NAN)?;
                }
            }
        }
        self.inner.exchange(label, moves)
    }
    fn split(&self, label: Label, color: usize, key: usize) -> CommResult<Arc<dyn Communicator>> {
        let inner = self.inner.split(label, color, key)?;
        let (armed, done) = (self.armed.clone(), self.done.clone());
        Ok(Arc::new(Poison { inner, rank: self.rank, armed, done }))
    }
}

#[test]
fn what_is_no_number_is_named_and_nothing_is_updated() {
    let place = Place::new();
    // The poisoned rank sends its keys to the next one of its ring. On the grid, both are in replica 1, whose micro-batches are sequences 3
    // and 4.
    let grid = [("mesh.data", "2"), ("mesh.sequence", "2"), ("memory.micro_batch", "1")];
    let cases: [(&[(&str, &str)], usize, &str, &str); 2] = [
        (&[("mesh.sequence", "3")], 1, "rank 2", "sequences 1 to 4 of"),
        (&grid, 2, "rank 3", "sequence 3 of"),
    ];
    for (mesh, rank, seen, sequences) in cases {
        let (poison, done) = poison(rank, true);
        let name = format!("poisoned-{rank}");
        let error = faulty_mesh(&place, &name, mesh, poison).unwrap_err();
        assert!(done.load(Ordering::Relaxed));
        assert_eq!(error.exit_code(), 11);
        let text = error.to_string();
        for part in ["step 2: `train/loss` is NaN", seen, "model.layers.1.", sequences] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let (run, hint) = (place.path(&name), error.hint().unwrap());
        let show = format!("`annulus data show {} --step 2`", run.display());
        assert!(hint.contains(&show) && hint.contains("learning_rate"), "{hint}");
        assert_eq!(hint.contains("--from"), run.join("step-1").exists(), "{hint}");
    }
}

/// The checkpoint that is being written beside training is kept, and nothing is written of weights with a loss that is not finite.
#[test]
fn an_evaluation_that_is_no_number_keeps_the_checkpoint_before() {
    let place = Place::new();
    let (poison, done) = poison(1, false);
    let changes = [
        ("mesh.sequence", "3"),
        ("every.evaluate", "2"),
        ("every.checkpoint", "1"),
        ("memory.recompute", "none"),
    ];
    let error = faulty_mesh(&place, "evaluated", &changes, poison).unwrap_err();
    assert!(done.load(Ordering::Relaxed));
    assert_eq!(error.exit_code(), 11, "{error}");
    assert!(error.to_string().contains("the validation loss is NaN"), "{error}");
    assert!(place.path("evaluated/step-1/model.safetensors").exists());
    assert!(!place.path("evaluated/step-2").exists());
}
