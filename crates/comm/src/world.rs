//! Where ranks run: threads of this process, or of several that MPI joins.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use annulus_mpi::Session;
use candle_core::Device;
use parking_lot::Mutex;

use crate::flight::{self, Flight, Log};
use crate::processes::{Facts, MpiProcess, Unjoined};
use crate::threads::{self, DeviceCopy, Group, LocalRanks, Options};
use crate::{Blame, Communicator, Error, Failure, Label, RankHosts, all_gather_values};

/// How long a process may be silent outside of runs. One that sends heartbeats is waited for without limit.
const SILENCE: Duration = Duration::from_secs(10);

/// When the thread that owns MPI lets messages between processes progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MpiProgress {
    /// Always.
    Always,
    /// Only while all ranks here wait: to measure what communication costs if it does not overlap with computing.
    WhileWaiting,
}

/// Wraps the communicator of every rank.
pub type Wrap = Arc<dyn Fn(Arc<dyn Communicator>) -> Arc<dyn Communicator> + Send + Sync>;

/// The processes that share a job, of which this is one.
#[derive(Clone, Default)]
pub struct World {
    /// `None`: this process is the only one.
    pub(crate) mpi: Option<Arc<MpiProcess>>,
    /// The host of every process; empty where this is the only one.
    hosts: Arc<[String]>,
    /// The flight record of this process, shared by the clones of this world.
    flight: Arc<Mutex<Option<Arc<Flight>>>>,
    wrap: Option<Wrap>,
    /// How tensors are copied between the devices of ranks of this process; `None`: they compute on one.
    device_copy: Option<Arc<dyn DeviceCopy>>,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

impl World {
    /// This process alone: ranks are its threads.
    pub fn alone() -> World {
        World::default()
    }

    /// The processes that a launcher of MPI (`mpirun`, `srun`) started; this one alone where none did. `begun` is called once all are there.
    /// The program must call [`World::end`] before it ends, also where it fails: a process that ends without may take output of others with
    /// it, and its launcher may report success.
    ///
    /// # Errors
    /// When a launcher did, and its library of MPI is not found, does not begin (in time) or is not the launcher's; and when this is
    /// one of several copies that no launcher of MPI started.
    pub fn init(begun: impl FnOnce()) -> Result<World, Unjoined> {
        let launched = annulus_mpi::launched()?.filter(|launched| launched.processes != Some(1));
        let mpi = launched.map(|launched| MpiProcess::open(launched).map(Arc::new)).transpose()?;
        begun();
        let mut world = World { mpi, ..World::alone() };
        let early = std::env::var_os(flight::EARLY).map(PathBuf::from);
        // If the supervisor runs on another host, the folder is only there.
        if let Some(folder) = early.filter(|folder| folder.is_dir()) {
            // A job begins even if its flight record cannot be written.
            let _ = world.record(&folder, 0..0);
        }
        if world.mpi.is_none() {
            return Ok(world);
        }
        world.meet()?;
        if let Some(flight) = world.flight() {
            flight.is_now(world.process());
        }
        Ok(world)
    }

    /// Exchanges hosts and processors with the other processes: numbers processes so that those of a host are neighbours, and finds out
    /// whether they share cores.
    fn meet(&mut self) -> Result<(), Unjoined> {
        let own = [annulus_machine::host_name(), annulus_machine::processors()];
        let said = self.gather(own.join("\n").as_bytes()).map_err(Unjoined::Apart)?;
        let said: Vec<_> = said.iter().map(|one| String::from_utf8_lossy(one)).collect();
        let said: Vec<(&str, &str)> =
            said.iter().map(|one| one.split_once('\n').unwrap_or((one, ""))).collect();
        let beside = said.iter().filter(|(host, _)| *host == own[0]);
        let beside: Vec<&str> = beside.map(|(_, processors)| *processors).collect();
        annulus_machine::are_shared(&own[1], &beside);
        let hosts: Vec<&str> = said.iter().map(|(host, _)| *host).collect();
        let order = neighbours(&hosts);
        self.hosts = order.iter().map(|rank| hosts[*rank].to_owned()).collect();
        if let Some(mpi) = &mut self.mpi {
            let mpi = Arc::get_mut(mpi).expect("nobody else has it yet");
            mpi.renumber(order);
        }
        Ok(())
    }

    /// This world, with the communicator of every rank wrapped by `wrap`: for faults in tests.
    #[must_use]
    pub fn wrapped(self, wrap: Wrap) -> World {
        World { wrap: Some(wrap), ..self }
    }

    /// This world, with tensors copied by `device_copy` between ranks of this process that compute on different devices.
    #[must_use]
    pub fn with_device_copy(self, device_copy: Option<Arc<dyn DeviceCopy>>) -> World {
        World { device_copy, ..self }
    }

    /// From now on this process, whose ranks are `ranks`, keeps its flight record in `folder`.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn record(&self, folder: &Path, ranks: Range<usize>) -> io::Result<()> {
        let flight = Flight::begin(folder, self, ranks)?;
        if let Some(mpi) = &self.mpi {
            mpi.keep_alive_in(flight.clone());
        }
        if let Some(before) = self.flight.lock().replace(flight.clone()) {
            before.moved(&flight);
        }
        Ok(())
    }

    fn flight(&self) -> Option<Arc<Flight>> {
        self.flight.lock().clone()
    }

    /// Says in the flight record what this process does outside of runs.
    pub fn note(&self, what: &'static str) {
        let label = Label { pass: what, ..Label::default() };
        if let Some(flight) = self.flight() {
            Log::of_process(flight).at(0, label);
        }
    }

    /// Says in the flight record why a rank of this process failed.
    pub fn failed(&self, rank: usize, why: &str, blames: Option<Blame>) {
        if let Some(flight) = self.flight() {
            Log::of_ranks(flight).failed(rank, why, blames);
        }
    }

    /// Sets when messages to and from other processes progress.
    pub fn set_mpi_progress(&self, progress: MpiProgress) {
        if let Some(mpi) = &self.mpi {
            mpi.set_progress(progress);
        }
    }

    /// From now on ranks here compute on `device`: tensors that come from a GPU of another process are received on it.
    pub fn computes_on(&self, device: &Device) {
        if let Some(mpi) = &self.mpi {
            mpi.computes_on(device);
        }
    }

    /// The host of every process; empty where this is the only one.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// A process and its host in words, as in "process 1 on `host`".
    pub fn process_on_host(&self, process: usize) -> String {
        let host = self.hosts.get(process).map_or("", String::as_str);
        format!("process {process} on `{host}`")
    }

    /// The processes and hosts of `ranks` ranks, whose number must be a multiple of that of processes.
    pub fn rank_hosts(&self, ranks: usize) -> RankHosts {
        RankHosts::new(self.hosts.clone(), ranks)
    }

    /// The processes on this one's host, this one among them: they have neighbouring numbers.
    pub fn beside(&self) -> Range<usize> {
        let Some(own) = self.hosts.get(self.process()) else { return 0..1 };
        let first = self.hosts.iter().position(|host| host == own).unwrap_or_default();
        first..first + self.hosts.iter().filter(|host| *host == own).count()
    }

    /// How many processes a launcher of MPI says it started; 1 where none did, `None` where it does not say.
    ///
    /// # Errors
    /// When this is one of several copies that no launcher of MPI started.
    pub fn launched() -> annulus_mpi::Result<Option<usize>> {
        Ok(annulus_mpi::launched()?.map_or(Some(1), |launched| launched.processes))
    }

    /// The number of this process as its launcher has it, before MPI has begun; 0 where none started it.
    pub fn number() -> usize {
        annulus_mpi::number()
    }

    /// The rank of MPI that this process is; 0 where this is the only one.
    pub(crate) fn number_of_mpi(&self) -> usize {
        self.mpi.as_ref().map_or(0, |mpi| mpi.number_of_mpi())
    }

    /// The version, file and family of the library of MPI that is found here.
    ///
    /// # Errors
    /// When none is found.
    pub fn engine() -> annulus_mpi::Result<String> {
        let found = annulus_mpi::find(annulus_mpi::launched().ok().flatten())?;
        Ok(format!("{}, {} ({})", found.version(), found.path.display(), found.family.name()))
    }

    /// The level of threads that the library of MPI promises, as the standard names it. Begins and ends MPI, which a process can do only
    /// once.
    ///
    /// # Errors
    /// When there is no library, it does not begin or is not the launcher's; some end the process instead.
    pub fn thread_level() -> annulus_mpi::Result<&'static str> {
        let launched = annulus_mpi::launched()?;
        let session = Session::begin(annulus_mpi::find(launched)?)?;
        let is_own = launched.map_or(Ok(()), |launched| launched.check(&session));
        let level = session.thread_level;
        session.end().and(is_own).map(|()| level)
    }

    /// The number of this process. Processes of a host have neighbouring numbers, whatever ranks MPI gave them; number 0 is rank 0 of
    /// MPI.
    pub fn process(&self) -> usize {
        self.mpi.as_ref().map_or(0, |mpi| mpi.facts.process)
    }

    /// How many processes there are.
    pub fn processes(&self) -> usize {
        self.mpi.as_ref().map_or(1, |mpi| mpi.facts.processes)
    }

    /// What MPI says of itself and of this process; `None`: it is not used.
    pub fn facts(&self) -> Option<&Facts> {
        self.mpi.as_ref().map(|mpi| &mpi.facts)
    }

    /// Which of `ranks` ranks are threads of this process; `None` if the processes cannot share them evenly.
    pub fn here(&self, ranks: usize) -> Option<Range<usize>> {
        let (process, share) = (self.process(), ranks / self.processes());
        ranks.is_multiple_of(self.processes()).then(|| process * share..(process + 1) * share)
    }

    /// Runs `program` on every rank of all processes, and returns what those of this one return, by rank. As
    /// [`threads::run`] in all else. Other processes may still be in the run when it returns here: [`World::end`], which the program must
    /// call in the end, waits for them.
    ///
    /// # Errors
    /// The first failure or panic, with its rank; if that is of another process, without the cause.
    pub fn run<T, E, F>(&self, options: &Options, program: F) -> Result<Vec<T>, Failure<E>>
    where
        T: Send,
        E: Send,
        F: Fn(Arc<dyn Communicator>) -> Result<T, E> + Send + Sync,
    {
        self.run_as(options, self.flight().map(Log::of_ranks), false, program)
    }

    fn run_as<T, E, F>(
        &self,
        options: &Options,
        log: Option<Log>,
        of_processes: bool,
        program: F,
    ) -> Result<Vec<T>, Failure<E>>
    where
        T: Send,
        E: Send,
        F: Fn(Arc<dyn Communicator>) -> Result<T, E> + Send + Sync,
    {
        let program = |comm| match &self.wrap {
            Some(wrap) => program(wrap(comm)),
            None => program(comm),
        };
        let Some(mpi) = &self.mpi else {
            let local = LocalRanks {
                log,
                device_copy: self.device_copy.clone(),
                ..LocalRanks::all(options.world)
            };
            return threads::run_in(&Group::new(options, local), program);
        };
        let ended = threads::run_in(&mpi.begin(options, log, of_processes), program);
        mpi.finish();
        ended
    }

    /// Gathers bytes of all processes, by process; those of this one are `own`. All processes must call it.
    ///
    /// # Errors
    /// A process that is late, gone or stopped.
    pub fn gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, Failure<Error>> {
        if self.mpi.is_none() {
            return Ok(vec![own.to_vec()]);
        }
        let options = Options { world: self.processes(), deadline: SILENCE, stop: Arc::default() };
        let log = self.flight().map(Log::of_process);
        let said = self.run_as(&options, log, true, |comm| {
            // A byte more, so that no tensor is empty.
            let bytes: Vec<u8> = [&[0], own].concat();
            let label = Label { pass: "between processes", ..Label::default() };
            let all =
                all_gather_values(&*comm, label, &bytes).map_err(|error| self.missed(error))?;
            Ok(all.into_iter().map(|one| one[1..].to_vec()).collect())
        })?;
        Ok(said.into_iter().next().unwrap_or_default())
    }

    /// The error of a gather between runs: a rank that is late there is a process that is silent. It is noted in the flight record.
    fn missed(&self, error: Error) -> Error {
        let error = match error {
            Error::Deadline { rank: process, peer, waited, .. } => {
                Error::Silent { process, peer, waited }
            }
            error => error,
        };
        if let (Some(flight), Some(blame)) = (self.flight(), error.blames()) {
            Log::of_process(flight).failed(self.process(), &error.to_string(), Some(blame));
        }
        error
    }

    /// Says in the flight record that this process was asked to stop.
    pub fn asked(&self) {
        if let Some(flight) = self.flight() {
            Log::of_process(flight).asked();
        }
    }

    /// Whether this process, which fails with `code` by its own fault, is the one to report it: of several, the first.
    pub fn is_first_to_fail(&self, code: i32) -> bool {
        self.mpi.as_ref().is_none_or(|mpi| mpi.is_first_to_fail(code))
    }

    /// Ends this process's part of the job with exit code `code`, which the others are told; `why`: the reason, if it failed by its own
    /// fault. Returns the exit code of the job.
    pub fn end(&self, code: i32, why: Option<&str>) -> i32 {
        if let Some(flight) = self.flight() {
            flight.ended(code, why);
        }
        self.mpi.as_ref().map_or(code, |mpi| mpi.close(code, why.is_some()))
    }
}

/// The ranks of MPI in the order in which processes are numbered: by host, in the order of the hosts' first ranks, then by rank.
fn neighbours(hosts: &[&str]) -> Vec<usize> {
    let first = |rank: usize| hosts.iter().position(|host| *host == hosts[rank]);
    let mut order: Vec<usize> = (0..hosts.len()).collect();
    order.sort_by_key(|rank| (first(*rank), *rank));
    order
}

#[cfg(test)]
mod tests {
    use super::neighbours;

    fn order(hosts: &str) -> Vec<usize> {
        neighbours(&hosts.split(' ').collect::<Vec<_>>())
    }

    #[test]
    fn processes_of_a_host_are_neighbours_however_they_were_placed() {
        assert_eq!(order("a a b b"), [0, 1, 2, 3]);
        assert_eq!(order("b a b a"), [0, 2, 1, 3]);
        assert_eq!(order("a b c a b"), [0, 3, 1, 4, 2]);
    }
}
