//! The cores that ranks of a process share: idle cores of waiting ranks help others.
//!
//! Every rank has as many workers of its own as its share of cores. Ranks that see less than others (a causal mask over contiguous shards)
//! finish early and wait; a core that no call keeps busy meanwhile helps with another rank's jobs, as one more thread that ends with the
//! jobs, or when its core is needed again. Results of jobs do not depend on which thread runs them.

use std::fmt;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use crate::pool::Jobs;

/// The least time that the rest of a call must take for another thread to be worth its start.
const WORTH: Duration = Duration::from_micros(500);

/// The cores that the ranks of a process share, made from their number; 0 counts as 1.
#[derive(Clone, Debug)]
pub struct Cores {
    all: usize,
    /// Whether other processes compute on these cores, too.
    in_turns: bool,
    busy: Arc<AtomicUsize>,
}

impl Cores {
    /// These cores where `processes` processes share the machine's. If ranks outnumber cores they take turns on them with other processes'
    /// ranks, so a rank that waits lends its turn although no core is idle.
    #[must_use]
    pub fn among(self, processes: usize) -> Cores {
        Cores { in_turns: processes > 1, ..self }
    }
    /// A rank's number of cores, where there are `ranks`.
    pub(crate) fn share(&self, ranks: usize) -> usize {
        annulus_machine::share(self.all, ranks)
    }
    /// Counts `count` cores as busy until the result is dropped: calls may outnumber cores.
    pub(crate) fn keep_busy(&self, count: usize) -> Busy<'_> {
        self.busy.fetch_add(count, Ordering::Relaxed);
        Busy { cores: self, count }
    }
}

impl From<usize> for Cores {
    fn from(all: usize) -> Cores {
        Cores { all: all.max(1), in_turns: false, busy: Arc::default() }
    }
}

/// Cores that are counted as busy.
pub(crate) struct Busy<'a> {
    cores: &'a Cores,
    count: usize,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.cores.busy.fetch_sub(self.count, Ordering::Relaxed);
    }
}

/// A rank's share of the cores.
#[derive(Clone)]
pub(crate) struct Share {
    pub(crate) cores: Cores,
    /// The number of ranks that share the cores.
    pub(crate) ranks: usize,
    /// Called first by every thread that works for the rank.
    pub(crate) start: Arc<dyn Fn() + Send + Sync>,
}

impl Share {
    /// The most threads of the process that may work.
    fn threads(&self) -> usize {
        if self.cores.in_turns { self.cores.all.max(self.ranks) } else { self.cores.all }
    }
    /// A core that is idle, or a turn on one.
    fn idle(&self) -> Option<Busy<'_>> {
        let one_more = |busy| (busy < self.threads()).then_some(busy + 1);
        let cores = &self.cores;
        cores.busy.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Busy { cores, count: 1 })
    }
    fn are_crowded(&self) -> bool {
        self.cores.busy.load(Ordering::Relaxed) > self.threads()
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cores.fmt(f)
    }
}

/// Threads on idle cores that help with the jobs of a call.
pub(crate) struct Helpers<'scope, 'env> {
    share: &'env Share,
    scope: &'scope Scope<'scope, 'env>,
    threads: Vec<ScopedJoinHandle<'scope, ()>>,
    begun: Instant,
    /// The number of waiting jobs at that time.
    jobs: usize,
}

impl<'scope, 'env> Helpers<'scope, 'env> {
    pub(crate) fn new(share: &'env Share, scope: &'scope Scope<'scope, 'env>, jobs: usize) -> Self {
        Helpers { share, scope, threads: Vec::new(), begun: Instant::now(), jobs }
    }

    /// Starts another thread where a core is idle and the waiting jobs are worth it.
    pub(crate) fn call<T: Send, F: Fn(T) + Send + Sync>(&mut self, jobs: &'env Jobs<T, F>) {
        let waiting = jobs.waiting();
        let Some(cores) = self.worth(waiting).then(|| self.share.idle()).flatten() else {
            return;
        };
        let share = self.share;
        let thread = Builder::new().name("helper".to_owned()).spawn_scoped(self.scope, move || {
            let _busy = cores;
            (share.start)();
            jobs.work(|| !share.are_crowded());
        });
        // Without the thread, the call goes on as it is.
        self.threads.extend(thread);
    }

    /// Whether `waiting` jobs take longer than starting a thread, at the pace so far.
    fn worth(&self, waiting: usize) -> bool {
        let done = self.jobs.saturating_sub(waiting).max(1);
        self.begun.elapsed().mul_f64(waiting as f64 / done as f64) > WORTH
    }

    /// Waits for all threads; a panic of one becomes the caller's.
    pub(crate) fn join(self) {
        for thread in self.threads {
            if let Err(panic) = thread.join() {
                resume_unwind(panic);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::thread::{ThreadId, current, sleep};

    use parking_lot::{Condvar, Mutex};

    use super::*;
    use crate::Pool;

    /// Runs jobs on one of two ranks that share `cores`; returns how many jobs each thread ran.
    fn done_by(cores: &Cores, jobs: usize, job: impl Fn(usize) + Sync + Send) -> Vec<usize> {
        let counts = Mutex::new(BTreeMap::<String, usize>::new());
        let pool = Pool::share(cores, 2, || ());
        let watched = pool.watched((0..jobs).collect(), &|| Ok::<(), ()>(()), |index| {
            sleep(2 * WORTH);
            job(index);
            *counts.lock().entry(format!("{:?}", current().id())).or_default() += 1;
        });
        assert_eq!(watched, Ok(()));
        assert_eq!(cores.busy.load(Ordering::Relaxed), 0, "all are free again");
        counts.into_inner().into_values().collect()
    }

    /// Waits until two threads have come.
    #[derive(Default)]
    struct Meeting(Mutex<usize>, Condvar);

    impl Meeting {
        fn join(&self) {
            let mut here = self.0.lock();
            *here += 1;
            self.1.notify_all();
            let patience = Duration::from_secs(60);
            let waited = self.1.wait_while_for(&mut here, |here| *here < 2, patience);
            assert!(!waited.timed_out(), "nobody helped");
        }
    }

    #[test]
    fn an_idle_core_helps_with_another_ranks_jobs() {
        // Of a shared core, the turn of the rank that waits is lent.
        for cores in [Cores::from(2), Cores::from(1).among(2)] {
            let meeting = Meeting::default();
            let counts = done_by(&cores, 20, |index| {
                if index > 0 {
                    meeting.join();
                }
            });
            assert_eq!((counts.len(), counts.iter().sum::<usize>()), (2, 20));
        }
    }

    #[test]
    fn a_core_whose_rank_is_at_work_does_not() {
        let cores = Cores::from(2);
        let job = |_| ();
        let pool = Pool::share(&cores, 2, || ());
        // The other rank's call lasts as long as this one's.
        pool.run(1, |_| {
            let counts = Mutex::new(Vec::new());
            let of_other = Pool::share(&cores, 2, || ());
            let watched = of_other.watched(vec![(); 9], &|| Ok::<(), ()>(()), |()| {
                sleep(2 * WORTH);
                counts.lock().push(current().id());
            });
            assert_eq!(watched, Ok(()));
            assert!(counts.into_inner().iter().all(|id| *id == current().id()));
        });
        assert_eq!(done_by(&Cores::from(1), 9, job), [9], "there is one core");
    }

    #[test]
    fn a_helper_leaves_when_its_core_is_wanted_again() {
        let (cores, meeting, caller) = (Cores::from(2), Meeting::default(), current().id());
        let wanted = Mutex::new(Vec::new());
        let helped = Mutex::new(Vec::<ThreadId>::new());
        let pool = Pool::share(&cores, 2, || ());
        let watched = pool.watched((0..30).collect(), &|| Ok::<(), ()>(()), |index: usize| {
            sleep(2 * WORTH);
            if index > 0 {
                meeting.join();
            }
            if current().id() != caller {
                wanted.lock().push(cores.keep_busy(1));
                helped.lock().push(current().id());
            }
        });
        assert_eq!((watched, helped.into_inner().len()), (Ok(()), 1));
    }

    #[test]
    #[should_panic(expected = "the helper's")]
    fn a_panic_of_a_helper_is_the_callers() {
        let (meeting, caller) = (Meeting::default(), current().id());
        done_by(&Cores::from(2), 20, |index| {
            if index > 0 {
                meeting.join();
            }
            assert!(current().id() == caller, "the helper's");
        });
    }
}
