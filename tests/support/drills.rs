//! Faults of a training over two processes of two ranks each, one cell of a table at a time: how the job ends, what is
//! said of it, and what the run that goes on comes to.

use std::fmt;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, UNIX_EPOCH};

use annulus_comm::flight::{FOLDER, Wreck};
use anyhow::{Context, Result, bail, ensure};

use crate::drill::{Drill, FILLER, KEY, MARK, What};
use crate::runs::Place;
use crate::{Ran, root};

/// The deadline of the experiment; before it is known, that of the processes.
const DEADLINE: Duration = Duration::from_secs(1);
const SILENCE: Duration = Duration::from_secs(10);
/// How much later a job may have ended, and after a death at all: two seconds, and four for a busy machine. Not as late as [`SILENCE`].
const LATE: Duration = Duration::from_secs(6);
/// How long processes may be left, on a busy machine too.
const GONE: Duration = Duration::from_secs(10);
/// What every run is given besides the experiment.
const CHANGES: [&str; 5] = [
    "mesh.sequence=4",
    "mesh.deadline=1s",
    "mesh.checksum=true",
    "attention.strategy=ring",
    "schedule.steps=8",
];
const STEPS: u64 = 8;

/// The families of MPI.
pub const FAMILIES: [&str; 2] = ["mpich", "openmpi"];

/// A place of a run: its name, and the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// What it is called in the table.
    pub name: &'static str,
    rank: usize,
    step: u64,
    layer: usize,
    pass: &'static str,
    hop: usize,
}

/// Where faults happen. Rank 0 writes checkpoints, but for the last; before the run a rank stands for a process.
pub const SPOTS: [Spot; 9] = [
    Spot { name: "rendezvous", rank: 1, step: 0, layer: 0, pass: "between processes", hop: 0 },
    Spot { name: "first hop", rank: 2, step: 3, layer: 0, pass: "forward", hop: 0 },
    Spot { name: "mid backward", rank: 2, step: 3, layer: 1, pass: "backward", hop: 1 },
    Spot { name: "gradient sum", rank: 3, step: 3, layer: 0, pass: "gradient sum", hop: 0 },
    Spot { name: "weights", rank: 0, step: 3, layer: 0, pass: "checkpoint, weights", hop: 0 },
    Spot { name: "optimizer", rank: 0, step: 3, layer: 0, pass: "checkpoint, optimizer", hop: 0 },
    Spot {
        name: "texts",
        rank: 0,
        step: 3,
        layer: 0,
        pass: "checkpoint, texts and hashes",
        hop: 0,
    },
    Spot { name: "commit", rank: 0, step: 3, layer: 0, pass: "checkpoint, commit", hop: 0 },
    Spot { name: SHARE, rank: 3, step: 3, layer: 0, pass: "checkpoint, weights", hop: 0 },
];
/// There every rank writes a share.
const SHARE: &str = "share";

/// One fault at one place, under one MPI.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// The family of MPI.
    pub mpi: &'static str,
    /// What goes wrong.
    pub what: What,
    /// Where.
    pub spot: Spot,
}

/// All that mean something: what a rank sends can be damaged where it sends, and a disk be full where something is written.
pub fn cells() -> Vec<Cell> {
    let all = [What::Kill, What::Stop, What::Term, What::Slow, What::Corrupt, What::Disk];
    let means = |what: What, spot: &Spot| match what {
        What::Corrupt => matches!(spot.name, "first hop" | "mid backward" | "gradient sum"),
        What::Disk => spot.rank == 0 || spot.name == "rendezvous",
        _ => true,
    };
    let mut cells = Vec::new();
    for mpi in FAMILIES {
        for what in all {
            let spots = SPOTS.into_iter().filter(|spot| means(what, spot));
            cells.extend(spots.map(|spot| Cell { mpi, what, spot }));
        }
    }
    cells
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<8} {:<8} {:<13}", self.mpi, format!("{:?}", self.what), self.spot.name)
    }
}

/// How a cell ended.
#[derive(Clone, Copy, Debug)]
pub struct Met {
    /// The exit code that a shell sees.
    pub code: i32,
    /// From the fault to the end of the job.
    pub after: Duration,
}

/// What is to come of a fault: the exit code, and the most time until then.
struct Wanted {
    code: i32,
    within: Duration,
}

impl Cell {
    /// The launcher, if `cargo xtask setup mpi` has installed it.
    pub fn launcher(&self) -> PathBuf {
        root().join("target/python").join(self.mpi).join("bin/mpirun")
    }

    fn wanted(&self) -> Wanted {
        let is_early = self.spot.name == "rendezvous";
        let deadline = if is_early { SILENCE } else { DEADLINE };
        let writes = self.spot.rank == 0 || self.spot.name == SHARE;
        let (code, within) = match self.what {
            What::Kill => (13, LATE),
            What::Term => (75, deadline + LATE),
            // A process that is heard of is waited for, and so is a rank that writes.
            What::Slow if is_early || writes => (0, Duration::from_secs(30)),
            What::Stop | What::Slow => (12, deadline + LATE),
            What::Corrupt => (14, deadline + LATE),
            What::Disk => (4, deadline + LATE),
        };
        Wanted { code, within }
    }

    fn drill(&self) -> Drill {
        let Spot { rank, step, layer, pass, hop, .. } = self.spot;
        // The first process writes.
        let rank = if self.what == What::Disk { 0 } else { rank };
        Drill { what: self.what, rank, step, layer, pass: pass.to_owned(), hop }
    }

    /// Trains with the fault by `program`, then without to the end; `weights` are those of a run that was never disturbed.
    ///
    /// # Errors
    /// What is not as it should be.
    pub fn check(&self, program: &'static str, weights: &[u8]) -> Result<Met> {
        let place = Place::new(program);
        let _disk = (self.what == What::Disk).then(|| Disk::mount(&place)).transpose()?;
        let (ran, after) = self.job(program, &place)?;
        let Wanted { code, within } = self.wanted();
        ensure!(
            ran.code == Some(code),
            "ended with {:?}, expected {code}:\n{}",
            ran.code,
            ran.stderr
        );
        ensure!(after <= within, "ended after {after:.1?}, expected {within:.1?}");
        wait_until_gone(&place)?;
        if code != 0 {
            self.said(&ran.stderr)?;
        }
        if self.spot.name != "rendezvous" {
            records(&place.path("run"))?;
        }
        let filler = place.path(FILLER);
        if filler.exists() {
            fs::remove_file(filler)?;
        }
        let again = place.train("run", &CHANGES);
        ensure!(again.code == Some(0), "does not go on: {}", again.stderr);
        ensure!(
            final_weights(&place.path("run"))? == weights,
            "the run that went on has other bits"
        );
        Ok(Met { code, after })
    }

    /// The job with its fault: what it said, and how long after the fault it ended.
    fn job(&self, program: &str, place: &Place) -> Result<(Ran, Duration)> {
        let mut command = Command::new(program);
        command.args(["launch", "-n", "2", "train", "experiment.yaml", "output=run"]).args(CHANGES);
        command.args((self.spot.name == SHARE).then_some("parallel.state=zero3"));
        command
            .env("ANNULUS_MPIRUN", self.launcher())
            .env(KEY, serde_json::to_string(&self.drill())?);
        command.current_dir(place.path("")).stdin(Stdio::null()).process_group(0);
        let ran = Ran::of(&command.output()?);
        let mark = fs::read_to_string(place.path(MARK)).context("the fault did not happen")?;
        let mark = UNIX_EPOCH + Duration::from_micros(mark.parse()?);
        Ok((ran, mark.elapsed()?))
    }

    /// Holds what was said to the fault: one box, the process, and where its rank was.
    fn said(&self, said: &str) -> Result<()> {
        ensure!(said.matches("┌─").count() == 1, "not one box:\n{said}");
        let drill = self.drill();
        let is_early = self.spot.name == "rendezvous";
        let process = if is_early { drill.rank } else { drill.rank / 2 };
        let who = format!("│ who      process {process} of 2 on ");
        ensure!(said.contains(&who), "not process {process}:\n{said}");
        let Drill { step, layer, pass, hop, .. } = &drill;
        let place = match self.what {
            // It has saved, or ended elsewhere, since.
            What::Term => return Ok(()),
            What::Disk => "No space left on device".to_owned(),
            What::Corrupt => format!(
                "damaged data from rank {} (step {step}, layer {layer}, {pass}, hop {hop})",
                drill.rank
            ),
            _ if is_early => format!("process {process}: {pass}"),
            _ => format!("rank {}: step {step}, layer {layer}, {pass}, hop {hop}", drill.rank),
        };
        ensure!(said.contains(&place), "not `{place}`:\n{said}");
        Ok(())
    }
}

/// The records of all four ranks can be read.
fn records(run: &Path) -> Result<()> {
    let wreck = Wreck::read(&run.join(FOLDER)).context("flight records")?;
    let ranks: usize = wreck.records.iter().map(|record| record.ranks.len()).sum();
    ensure!(ranks == 4 && wreck.unread.is_empty(), "{ranks} ranks, unread: {:?}", wreck.unread);
    Ok(())
}

/// The weights of a run that was never disturbed.
///
/// # Errors
/// A run that fails.
pub fn undisturbed(program: &'static str) -> Result<Vec<u8>> {
    let place = Place::new(program);
    let ran = place.train("run", &CHANGES);
    ensure!(ran.code == Some(0), "{}", ran.stderr);
    final_weights(&place.path("run"))
}

fn final_weights(run: &Path) -> Result<Vec<u8>> {
    Ok(fs::read(run.join(format!("step-{STEPS}/model.safetensors")))?)
}

fn wait_until_gone(place: &Place) -> Result<()> {
    let began = Instant::now();
    loop {
        let left = place.processes();
        if left.is_empty() {
            return Ok(());
        }
        if began.elapsed() > GONE {
            bail!("{left:?} are left");
        }
        sleep(Duration::from_millis(20));
    }
}

/// A disk of a few megabytes in a place of tests, with its files; dropped, it is gone.
struct Disk(PathBuf);

impl Disk {
    fn mount(place: &Place) -> Result<Disk> {
        let folder = place.path("");
        let files = ["text.txt", "experiment.yaml"];
        let kept: Vec<_> =
            files.iter().map(|name| fs::read(place.path(name))).collect::<Result<_, _>>()?;
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=8m", "none"])
            .arg(&folder)
            .output()?;
        ensure!(
            mounted.status.success(),
            "no disk can be mounted here: {}",
            String::from_utf8_lossy(&mounted.stderr)
        );
        let disk = Disk(folder);
        for (name, bytes) in files.iter().zip(kept) {
            fs::write(place.path(name), bytes)?;
        }
        Ok(disk)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // What is left of it ends with the process's own view of mounts.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
