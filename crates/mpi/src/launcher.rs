//! Which launcher started this process, by the environment variables that launchers set: `mpirun` or `srun`, whose processes MPI joins,
//! or a program that starts copies which know nothing of each other.

use std::env;

use crate::{Error, NAMED, Result, Session};

/// A launcher of MPI that started this process as one of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launched {
    /// Whether it is Open MPI's; otherwise it speaks PMI, as MPICH's and Slurm's do.
    pub open: bool,
    /// How many processes it says that it started; `None`: only MPI knows.
    pub processes: Option<usize>,
    /// The environment variable that says so.
    pub by: &'static str,
}

/// Environment variables with the number of a process under some launcher, in the order in which they are read.
const NUMBERS: [&str; 5] =
    ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "RANK", "SLURM_PROCID"];
/// The environment variable with the number of copies that PyTorch's launchers started.
const TORCH: &str = "WORLD_SIZE";
/// The environment variable with the number of tasks of a Slurm step. `SLURM_NTASKS` is also set for the only process of a batch script.
const SLURM: &str = "SLURM_STEP_NUM_TASKS";

/// The launcher of MPI that started this process; `None`: none did.
///
/// # Errors
/// When this process is one of several copies that MPI does not join: each would do all of the work by itself, into one folder.
pub fn launched() -> Result<Option<Launched>> {
    Environment(&|name| env::var(name).ok()).launched()
}

/// The number of this process as its launcher says; 0 where there is no launcher or it does not say.
pub fn number() -> usize {
    Environment(&|name| env::var(name).ok()).number()
}

/// Environment variables by name.
struct Environment<'a>(&'a dyn Fn(&str) -> Option<String>);

impl Environment<'_> {
    fn count(&self, name: &str) -> Option<usize> {
        self.0(name)?.parse().ok()
    }

    fn has(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.0(name).is_some())
    }

    fn number(&self) -> usize {
        NUMBERS.iter().find_map(|name| self.count(name)).unwrap_or(0)
    }

    fn launched(&self) -> Result<Option<Launched>> {
        let copies = self.count(TORCH).filter(|count| *count > 1);
        // `torchrun` below a launcher of MPI passes that one's variables on, and so does a pod of Kubernetes to an `mpirun` in it.
        if let Some(count) = copies.filter(|_| self.has(&["TORCHELASTIC_RUN_ID"])) {
            return Err(of_torch(count));
        }
        let joined = self.joined();
        let is_one = joined.is_none_or(|joined| joined.processes == Some(1));
        if let Some(count) = copies.filter(|_| is_one && self.has(&["RANK"])) {
            return Err(of_torch(count));
        }
        if joined.is_some() {
            return Ok(joined);
        }
        self.count(SLURM).filter(|count| *count > 1).map_or(Ok(None), |count| Err(of_slurm(count)))
    }

    /// A launcher whose processes MPI joins.
    fn joined(&self) -> Option<Launched> {
        for (by, open) in [("OMPI_COMM_WORLD_SIZE", true), ("PMI_SIZE", false)] {
            if let Some(processes) = self.count(by) {
                return Some(Launched { open, processes: Some(processes), by });
            }
        }
        let is_pmix = self.has(&["PMIX_RANK"]);
        // Open MPI's daemons run in a Slurm step of their own.
        if let Some(tasks) = self.count(SLURM).filter(|_| !self.has(&["PRTE_LAUNCHED"])) {
            let is_cray = self.has(&["PMI_CONTROL_PORT", "PALS_APID"]);
            let launched = Launched { open: is_pmix, processes: Some(tasks), by: SLURM };
            return (is_pmix || is_cray).then_some(launched);
        }
        is_pmix.then_some(Launched { open: true, processes: None, by: "PMIX_RANK" })
    }
}

fn of_torch(count: usize) -> Error {
    let hint = format!(
        "start them by `mpirun -n {count} annulus …` (`pip install mpich`) in place of `torchrun`, or start one: its ranks are \
         threads; a process that is to train by itself is started by `env -u {TORCH} annulus …`"
    );
    unjoined(TORCH, count, &hint)
}

fn of_slurm(count: usize) -> Error {
    let hint = format!(
        "start them by `srun --mpi=pmix -n {count} annulus …` for Open MPI, by `srun --mpi=pmi2 …` for MPICH (`srun --mpi=list` \
         shows what there is), or by `mpirun -n {count} annulus …` in the batch script; tasks that are to train each by itself are \
         started by `srun … env -u {SLURM} annulus …`"
    );
    unjoined(SLURM, count, &hint)
}

fn unjoined(variable: &str, count: usize, hint: &str) -> Error {
    let what = format!(
        "{variable}={count} says that this is one of {count} processes, but no launcher of MPI started them: each would train \
         alone, all into one folder"
    );
    Error { what, why: hint.to_owned() }
}

impl Launched {
    /// Refuses a library that begins alone where the launcher started several: it is not the launcher's.
    ///
    /// # Errors
    /// When this process is the only one of `session`.
    pub fn check(self, session: &Session) -> Result<()> {
        let Launched { open, processes, by } = self;
        let Some(count) = processes.filter(|count| *count > 1 && session.size == 1) else {
            return Ok(());
        };
        let what = format!(
            "{by}={count} says that {count} processes were started, but {} ({}) knows of one: it is not the launcher's library",
            session.version(),
            session.path.display()
        );
        let launcher = if open { "Open MPI" } else { "MPICH or its kin" };
        let why = format!(
            "name the library of the launcher, which is of {launcher}, by {NAMED}=/path/to/libmpi.so, or start by the `mpirun` \
             that belongs to the library"
        );
        Err(Error { what, why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launched(variables: &[(&str, &str)]) -> Result<Option<Launched>> {
        let value = |name: &str| {
            let found = variables.iter().find(|(one, _)| *one == name)?;
            Some(found.1.to_owned())
        };
        Environment(&value).launched()
    }

    fn processes(variables: &[(&str, &str)]) -> Option<(bool, Option<usize>)> {
        let launched = launched(variables).expect("joined, or alone")?;
        Some((launched.open, launched.processes))
    }

    fn refused(variables: &[(&str, &str)], wanted: [&str; 2]) {
        let Error { what, why } = launched(variables).expect_err("copies");
        assert!(what.contains(wanted[0]) && why.contains(wanted[1]), "{what}: {why}");
    }

    #[test]
    fn launchers_of_mpi_are_known_by_their_variables() {
        let step = ("SLURM_STEP_NUM_TASKS", "4");
        assert_eq!(processes(&[("OMPI_COMM_WORLD_SIZE", "2")]), Some((true, Some(2))));
        assert_eq!(processes(&[("PMI_SIZE", "3")]), Some((false, Some(3))));
        assert_eq!(processes(&[("PMI_SIZE", "4"), step]), Some((false, Some(4))));
        assert_eq!(processes(&[("PMIX_RANK", "0"), step]), Some((true, Some(4))));
        assert_eq!(processes(&[("PMI_CONTROL_PORT", "1"), step]), Some((false, Some(4))));
        assert_eq!(processes(&[("PMIX_RANK", "0")]), Some((true, None)));
        let below_a_daemon =
            [("PMIX_RANK", "0"), ("PRTE_LAUNCHED", "1"), ("SLURM_STEP_NUM_TASKS", "1")];
        assert_eq!(processes(&below_a_daemon), Some((true, None)));
    }

    #[test]
    fn one_process_is_alone_in_whatever_it_is_started() {
        let batch = [("SLURM_JOB_ID", "1"), ("SLURM_NTASKS", "8"), ("SLURM_PROCID", "0")];
        let step = [("SLURM_NTASKS", "1"), ("SLURM_STEP_NUM_TASKS", "1"), ("SLURM_PROCID", "0")];
        let torch = [("WORLD_SIZE", "1"), ("RANK", "0"), ("TORCHELASTIC_RUN_ID", "none")];
        for variables in [&[][..], &batch, &step, &torch, &[("WORLD_SIZE", "8")]] {
            assert_eq!(processes(variables), None, "{variables:?}");
        }
    }

    #[test]
    fn copies_that_mpi_does_not_join_are_refused_with_the_way_out() {
        let torch = [("WORLD_SIZE", "4"), ("RANK", "1")];
        refused(&torch, ["WORLD_SIZE=4", "mpirun -n 4"]);
        let below_mpi = [&torch[..], &[("TORCHELASTIC_RUN_ID", "x"), ("PMI_SIZE", "2")]].concat();
        refused(&below_mpi, ["WORLD_SIZE=4", "in place of `torchrun`"]);
        let step = [("SLURM_NTASKS", "2"), ("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_PROCID", "1")];
        refused(&step, ["SLURM_STEP_NUM_TASKS=2", "srun --mpi=pmix -n 2"]);
        // An `mpirun` in a pod whose operator sets PyTorch's variables.
        let in_a_pod = [&torch[..], &[("OMPI_COMM_WORLD_SIZE", "2")]].concat();
        assert_eq!(processes(&in_a_pod), Some((true, Some(2))));
        // Copies that a launcher of PyTorch starts below one task.
        let below_a_task =
            [&torch[..], &[("PMIX_RANK", "0"), ("SLURM_STEP_NUM_TASKS", "1")]].concat();
        refused(&below_a_task, ["WORLD_SIZE=4", "mpirun -n 4"]);
    }

    #[test]
    fn a_process_knows_its_number_under_every_launcher() {
        let number =
            |name: &str| Environment(&|asked| (asked == name).then(|| "3".to_owned())).number();
        assert!(NUMBERS.iter().all(|name| number(name) == 3));
        assert_eq!(number("NONE"), 0);
    }
}
