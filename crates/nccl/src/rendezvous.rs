//! Where processes that nothing else joins get the name of a clique: in a file that all of them see.
//!
//! Launchers number processes and leave it to them to meet: torchrun's own store holds `MASTER_PORT`, so that no process of the job
//! can listen there. A file in a folder that all hosts see needs no port, and its name is the job's.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use crate::{Error, Id, Result};

/// Between two looks at what is not there yet.
const NAP: Duration = Duration::from_millis(2);

/// Which of how many processes this is, as its launcher says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Its number.
    pub rank: usize,
    /// How many there are.
    pub size: usize,
    /// What no other start of this or another job is called.
    pub job: String,
}

/// A launcher's variables: of a process's number, of how many there are, and of what makes the name of a start.
struct Launcher {
    name: &'static str,
    rank: &'static str,
    size: &'static str,
    job: [&'static str; 2],
}

/// In the order in which they are asked: `torchrun` below another launcher passes that one's variables on.
const LAUNCHERS: [Launcher; 4] = [
    Launcher {
        name: "torch",
        rank: "RANK",
        size: "WORLD_SIZE",
        job: ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"],
    },
    Launcher {
        name: "openmpi",
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        job: ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
    },
    Launcher {
        name: "pmi",
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        job: ["PMI_JOBID", "HYDI_CONTROL_FD"],
    },
    Launcher {
        name: "slurm",
        rank: "SLURM_PROCID",
        size: "SLURM_STEP_NUM_TASKS",
        job: ["SLURM_JOB_ID", "SLURM_STEP_ID"],
    },
];

/// The seat that `torchrun`, `mpirun` or `srun` gave this process; `None`: none did.
pub fn seat() -> Option<Seat> {
    seat_by(&|name| env::var(name).ok())
}

fn seat_by(value: &dyn Fn(&str) -> Option<String>) -> Option<Seat> {
    let count = |name| value(name)?.parse::<usize>().ok();
    LAUNCHERS.iter().find_map(|Launcher { name, rank, size, job }| {
        let (rank, size) = (count(rank)?, count(size)?);
        let named = job.iter().filter_map(|name| value(name)).collect::<Vec<_>>();
        let job = [&[(*name).to_owned()], &named[..]].concat().join("-");
        // A name of a file, whatever a job is called.
        let job = job.replace(|c: char| !c.is_ascii_alphanumeric() && c != '-', "_");
        (rank < size).then_some(Seat { rank, size, job })
    })
}

/// The name that the process with seat 0 draws, in all processes: it leaves it in `folder`, which all of them see, and takes it away
/// when all have said that they have it.
///
/// # Errors
/// A folder that cannot be read or written, what `draw` says, and processes that have not come within `patience`, by their numbers.
pub fn meet(
    folder: &Path,
    seat: &Seat,
    patience: Duration,
    draw: impl FnOnce() -> Result<Id>,
) -> Result<Id> {
    let until = Instant::now() + patience;
    let file = |rank: usize| folder.join(format!("annulus-{}.{rank}", seat.job));
    if seat.rank > 0 {
        let bytes = wait(&file(0), until).map_err(|error| unmet(folder, error))?;
        let id = bytes.and_then(|bytes| Id::of(&bytes));
        let late = || unmet(folder, format!("process 0 of {} has not come", seat.size));
        let id = id.ok_or_else(late)?;
        write(&file(seat.rank), &[]).map_err(|error| unmet(folder, error))?;
        return Ok(id);
    }
    // Left there by a start of the same name that did not come to this end.
    (0..seat.size)
        .try_for_each(|rank| remove(&file(rank)))
        .map_err(|error| unmet(folder, error))?;
    let id = draw()?;
    write(&file(0), &id.bytes()).map_err(|error| unmet(folder, error))?;
    let absent = (1..seat.size).map(|rank| Ok((rank, wait(&file(rank), until)?.is_none())));
    let absent = absent.collect::<std::io::Result<Vec<_>>>();
    let absent = absent.map_err(|error| unmet(folder, error))?;
    (0..seat.size)
        .try_for_each(|rank| remove(&file(rank)))
        .map_err(|error| unmet(folder, error))?;
    let absent: Vec<String> =
        absent.iter().filter(|(_, is)| *is).map(|(rank, _)| rank.to_string()).collect();
    if absent.is_empty() {
        return Ok(id);
    }
    let why = format!("of {} processes {} have not come", seat.size, absent.join(", "));
    Err(unmet(folder, why))
}

fn unmet(folder: &Path, why: impl ToString) -> Error {
    Error::new(format!("the processes do not meet in `{}`", folder.display()), why)
}

/// All of a file, once it is there; `None`: it has not come in time.
fn wait(path: &Path, until: Instant) -> std::io::Result<Option<Vec<u8>>> {
    loop {
        match fs::read(path) {
            Ok(bytes) => return Ok(Some(bytes)),
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            Err(_) if Instant::now() > until => return Ok(None),
            Err(_) => thread::sleep(NAP),
        }
    }
}

/// Whole or not at all.
fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut part = PathBuf::from(path);
    part.as_mut_os_string().push(format!(".{}.part", process::id()));
    fs::write(&part, bytes)?;
    fs::rename(&part, path)
}

fn remove(path: &Path) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seat_of(variables: &[(&str, &str)]) -> Option<Seat> {
        seat_by(&|name| {
            let found = variables.iter().find(|(one, _)| *one == name)?;
            Some(found.1.to_owned())
        })
    }

    #[test]
    fn every_launcher_gives_seats() {
        let taken = |variables: &[(&str, &str)]| {
            let seat = seat_of(variables)?;
            Some((seat.rank, seat.size, seat.job))
        };
        let seated = |rank, job: &str| Some((rank, 4, job.to_owned()));
        let torch = [("RANK", "2"), ("WORLD_SIZE", "4"), ("TORCHELASTIC_RUN_ID", "a/b")];
        assert_eq!(taken(&torch), seated(2, "torch-a_b"));
        let again = [&torch[..], &[("TORCHELASTIC_RESTART_COUNT", "1")]].concat();
        assert_eq!(taken(&again), seated(2, "torch-a_b-1"));
        let slurm = [("SLURM_PROCID", "3"), ("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_JOB_ID", "77")];
        assert_eq!(taken(&slurm), seated(3, "slurm-77"));
        let open = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "4")];
        assert_eq!(taken(&open), seated(0, "openmpi"));
        assert_eq!(taken(&[("PMI_RANK", "1"), ("PMI_SIZE", "4")]), seated(1, "pmi"));
        assert_eq!(taken(&[("RANK", "4"), ("WORLD_SIZE", "4")]), None);
        assert_eq!(taken(&[]), None);
    }

    fn seats(size: usize) -> impl Iterator<Item = Seat> {
        (0..size).map(move |rank| Seat { rank, size, job: "test".into() })
    }

    #[test]
    fn all_get_the_name_that_the_first_draws_and_nothing_is_left() {
        let folder = tempfile::tempdir().unwrap();
        // A start of the same name has ended badly.
        fs::write(folder.path().join("annulus-test.2"), "").unwrap();
        let come = |seat: Seat| {
            thread::sleep(Duration::from_millis(20 * (3 - seat.rank as u64)));
            let draw = || Ok(Id::of(&[7; 128]).unwrap());
            let id = meet(folder.path(), &seat, Duration::from_secs(10), draw).unwrap();
            id.bytes()
        };
        let found: Vec<Vec<u8>> = thread::scope(|scope| {
            let threads: Vec<_> = seats(4).map(|seat| scope.spawn(|| come(seat))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(found.iter().all(|id| *id == [7; 128]));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn who_does_not_come_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let draw = || Ok(Id::of(&[7; 128]).unwrap());
        let said = |seat: &Seat| {
            let met = meet(folder.path(), seat, Duration::from_millis(50), draw);
            met.err().unwrap().to_string()
        };
        let all: Vec<Seat> = seats(3).collect();
        assert!(said(&all[0]).contains("of 3 processes 1, 2 have not come"));
        assert!(said(&all[1]).contains("process 0 of 3 has not come"));
    }
}
