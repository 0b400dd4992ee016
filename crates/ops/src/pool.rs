//! The workers of one rank.

use std::fmt;
use std::sync::Arc;
use std::thread::{self, panicking};
use std::time::Duration;

use annulus_machine::Core;
use candle_core::{Result, Tensor, bail};
use parking_lot::{Condvar, Mutex};
use pulp::Arch;

use crate::cores::{Busy, Cores, Helpers, Share};
use crate::vector::{Dispatch, arch};

/// The workers of one rank. Nothing that waits for a peer may run inside.
///
/// Which worker takes which job differs from run to run, so what a job computes must depend on the
/// job alone: cut work into pieces of a fixed size, never into as many pieces as there are workers.
#[derive(Clone, Default)]
pub struct Pool {
    core: Core,
    threads: Option<Arc<rayon::ThreadPool>>,
    share: Option<Share>,
    block: Option<usize>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({})", self.workers())
    }
}

impl Pool {
    /// A pool of `workers` threads; with one (or none), everything runs in the caller, and so it
    /// does where the system refuses to start threads.
    pub fn new(workers: usize) -> Pool {
        Pool::starting(workers, || ())
    }
    /// The pool of one of `ranks` ranks on the same `cores`: its share of them, and cores that the others leave idle ([`Pool::watched`]).
    /// Every worker calls `start` first, for its thread-local state, such as the owner of its memory.
    pub fn share(cores: &Cores, ranks: usize, start: impl Fn() + Send + Sync + 'static) -> Pool {
        let start: Arc<dyn Fn() + Send + Sync> = Arc::new(start);
        let workers = cores.share(ranks);
        let share = Some(Share { cores: cores.clone(), ranks, start: start.clone() });
        Pool { share, ..Pool::starting(workers, move || start()) }
    }
    fn starting(workers: usize, start: impl Fn() + Send + Sync + 'static) -> Pool {
        if workers < 2 {
            return Pool::serial();
        }
        let threads = rayon::ThreadPoolBuilder::new()
            .num_threads(workers)
            .thread_name(|index| format!("worker {index}"))
            .start_handler(move |_| start())
            .build();
        Pool { threads: threads.ok().map(Arc::new), ..Pool::default() }
    }
    /// A pool without threads: everything runs on the calling thread.
    pub fn serial() -> Pool {
        Pool::default()
    }
    /// This pool computing as `core` says instead of with this machine's best instructions.
    ///
    /// # Errors
    /// When the processor lacks its instructions.
    pub fn with(self, core: Core) -> Result<Pool> {
        core.instructions.check()?;
        Ok(Pool { core, ..self })
    }
    /// This pool with order-free sums over tokens, in blocks of `block`: their bits do not depend on who holds which blocks. Gradients of
    /// parameters are then tables of such sums ([`crate::order_free`]). `None`: sums are f32.
    #[must_use]
    pub fn in_blocks(self, block: Option<usize>) -> Pool {
        Pool { block, ..self }
    }
    /// The number of tokens of a strict block, where sums are order-free.
    pub fn block(&self) -> Option<usize> {
        self.block
    }
    /// Refuses inputs on Candle's tape where sums are order-free: gradients are tables of bins there, which the tape cannot add.
    pub(crate) fn off_tape<'a>(
        &self,
        operator: &str,
        inputs: impl IntoIterator<Item = &'a Tensor>,
    ) -> candle_core::Result<()> {
        if self.block.is_some() && inputs.into_iter().any(Tensor::track_op) {
            bail!(
                "{operator}: found an input on the tape, expected detached ones: with order-free sums gradients are made by hand"
            );
        }
        Ok(())
    }
    /// The caches and instructions that workers compute with.
    pub fn core(&self) -> &Core {
        &self.core
    }
    /// The instructions for loops that the compiler vectorizes.
    pub(crate) fn arch(&self) -> Arch {
        arch(self.core.instructions)
    }
    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.threads.as_ref().map_or(1, |pool| pool.current_num_threads())
    }
    /// Runs `job(0) .. job(jobs - 1)`, in any order, and returns when all are done.
    pub fn run(&self, jobs: usize, job: impl Fn(usize) + Send + Sync) {
        self.each(0..jobs, job);
    }
    /// Cuts `data` into pieces of `chunk` elements (the last may be shorter) and runs `job(index,
    /// piece)` for each.
    pub fn for_chunks<T: Send>(
        &self,
        data: &mut [T],
        chunk: usize,
        job: impl Fn(usize, &mut [T]) + Send + Sync,
    ) {
        self.each(data.chunks_mut(chunk).enumerate(), |(index, piece)| job(index, piece));
    }
    /// The results of `job(0) .. job(jobs - 1)`, computed in any order and returned in theirs.
    pub fn map<T: Send>(&self, jobs: usize, job: impl Fn(usize) -> T + Send + Sync) -> Vec<T> {
        let mut slots: Vec<Option<T>> = std::iter::repeat_with(|| None).take(jobs).collect();
        self.for_chunks(&mut slots, 1, |index, slot| slot[0] = Some(job(index)));
        slots.into_iter().flatten().collect()
    }
    /// Runs `job` for every item, taken in order by whichever worker is free, and returns when all are done. A panic in a job ends in the
    /// caller. Jobs allocate in the caller's memory class ([`annulus_memory::scope`]).
    pub fn each<I>(&self, items: I, job: impl Fn(I::Item) + Send + Sync)
    where
        I: IntoIterator,
        I::IntoIter: ExactSizeIterator + Send,
        I::Item: Send,
    {
        let items = items.into_iter();
        let jobs = items.len();
        let _busy = self.busy(jobs);
        let Some(threads) = self.threads.as_ref().filter(|_| jobs > 1) else {
            return items.for_each(job);
        };
        let items = Mutex::new(items);
        // The lock is held for one step of the iterator, never while a job runs.
        let next = || items.lock().next();
        let class = annulus_memory::class();
        threads.in_place_scope(|scope| {
            for _ in 0..threads.current_num_threads().min(jobs) {
                scope.spawn(|_| {
                    let _same_as_the_caller = annulus_memory::scope(class);
                    while let Some(item) = next() {
                        job(item);
                    }
                });
            }
        });
    }
    /// The cores that a call with `jobs` jobs keeps busy, until it is dropped.
    fn busy(&self, jobs: usize) -> Option<Busy<'_>> {
        self.share.as_ref().map(|share| share.cores.keep_busy(self.workers().min(jobs)))
    }
    /// Runs a job for every item as [`each`](Pool::each) does, and calls `progress` now and then on the calling thread; its error ends the
    /// call, and jobs not yet begun are left out. Cores that other ranks of a [share](Pool::share) do not use help.
    ///
    /// # Errors
    /// What `progress` returns.
    pub fn watched<T: Send, E>(
        &self,
        items: Vec<T>,
        progress: &dyn Fn() -> std::result::Result<(), E>,
        job: impl Fn(T) + Send + Sync,
    ) -> std::result::Result<(), E> {
        progress()?;
        let count = items.len();
        let _busy = self.busy(count);
        let jobs = Jobs::new(items, job);
        thread::scope(|scope| {
            let mut helpers = self.share.as_ref().map(|share| Helpers::new(share, scope, count));
            let mut watch = || {
                progress()?;
                if let Some(helpers) = &mut helpers {
                    helpers.call(&jobs);
                }
                Ok(())
            };
            let outcome = match &self.threads {
                None => jobs.done_here(&mut watch),
                Some(threads) => threads.in_place_scope(|scope| {
                    for _ in 0..threads.current_num_threads() {
                        scope.spawn(|_| jobs.work(|| true));
                    }
                    // The scope ends when its workers do, who take jobs for as long as there are any.
                    jobs.wait(&mut watch).inspect_err(|_| jobs.leave_out())
                }),
            };
            if outcome.is_err() {
                jobs.leave_out();
            }
            if let Some(helpers) = helpers {
                helpers.join();
            }
            outcome
        })
    }
}

/// The interval at which a call that waits for its workers looks after other things.
const WATCH: Duration = Duration::from_millis(5);

/// The jobs of a call, which any free thread takes.
pub(crate) struct Jobs<T, F> {
    items: Mutex<std::vec::IntoIter<T>>,
    job: F,
    /// The memory class of their allocations.
    class: annulus_memory::Class,
    /// The number of jobs that are not done; 0 after a panic, so that nobody waits.
    left: Mutex<usize>,
    none_left: Condvar,
}

impl<T: Send, F: Fn(T) + Send + Sync> Jobs<T, F> {
    fn new(items: Vec<T>, job: F) -> Jobs<T, F> {
        let (left, class) = (Mutex::new(items.len()), annulus_memory::class());
        let items = Mutex::new(items.into_iter());
        Jobs { items, job, class, left, none_left: Condvar::new() }
    }
    /// The next job that nobody has begun.
    fn next(&self) -> Option<T> {
        self.items.lock().next()
    }
    /// Leaves out the jobs that nobody has begun.
    fn leave_out(&self) {
        while self.next().is_some() {}
    }
    /// The number of jobs that nobody has begun.
    pub(crate) fn waiting(&self) -> usize {
        self.items.lock().len()
    }
    /// Runs one job after another while there are any, and while `stay` holds after each.
    pub(crate) fn work(&self, stay: impl Fn() -> bool) {
        let _same_as_the_caller = annulus_memory::scope(self.class);
        while let Some(item) = self.next() {
            let _one = One(self);
            (self.job)(item);
            if !stay() {
                return;
            }
        }
    }
    /// Runs the jobs on the calling thread.
    fn done_here<E>(
        &self,
        watch: &mut dyn FnMut() -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        while let Some(item) = self.next() {
            (self.job)(item);
            watch()?;
        }
        Ok(())
    }
    /// Waits until all jobs are done, or `watch` fails.
    fn wait<E>(
        &self,
        watch: &mut dyn FnMut() -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let mut left = self.left.lock();
        while *left > 0 {
            self.none_left.wait_for(&mut left, WATCH);
            drop(left);
            watch()?;
            left = self.left.lock();
        }
        Ok(())
    }
}

/// A job that is counted as done when dropped.
struct One<'a, T, F>(&'a Jobs<T, F>);

impl<T, F> Drop for One<'_, T, F> {
    fn drop(&mut self) {
        let mut left = self.0.left.lock();
        *left = if panicking() { 0 } else { left.saturating_sub(1) };
        if *left == 0 {
            self.0.none_left.notify_all();
        }
    }
}

/// Buffers that jobs borrow and return, so that there are as many as workers, not as many as jobs.
#[derive(Debug, Default)]
pub(crate) struct Shelf<T>(Mutex<Vec<T>>);

impl<T: Default> Shelf<T> {
    /// A shelf with these items.
    pub(crate) fn of(items: impl Iterator<Item = T>) -> Shelf<T> {
        Shelf(Mutex::new(items.collect()))
    }
    pub(crate) fn with<R>(&self, job: impl FnOnce(&mut T) -> R) -> R {
        let taken = self.0.lock().pop();
        let mut item = taken.unwrap_or_default();
        let result = job(&mut item);
        self.0.lock().push(item);
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn every_job_runs_once_in_any_pool() {
        for workers in [0, 1, 2, 5] {
            let pool = Pool::new(workers);
            assert_eq!(pool.workers(), workers.max(1));
            let counts: Vec<AtomicUsize> = (0..100).map(|_| AtomicUsize::new(0)).collect();
            pool.run(100, |index| {
                counts[index].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            pool.run(0, |_| panic!("there is no job"));
            assert_eq!(pool.map(9, |index| index * index), [0, 1, 4, 9, 16, 25, 36, 49, 64]);
        }
    }

    #[test]
    fn chunks_cover_the_slice_and_know_their_index() {
        let pool = Pool::new(3);
        let mut data = vec![0; 10];
        pool.for_chunks(&mut data, 4, |index, piece| piece.fill(index + 1));
        assert_eq!(data, [1, 1, 1, 1, 2, 2, 2, 2, 3, 3]);
    }

    #[test]
    fn a_watched_call_ends_when_its_watch_fails() {
        for workers in [1, 3] {
            let (pool, done) = (Pool::new(workers), AtomicUsize::new(0));
            let job = |()| {
                done.fetch_add(1, Ordering::Relaxed);
            };
            assert_eq!(pool.watched(vec![(); 50], &|| Ok::<(), ()>(()), job), Ok(()));
            assert_eq!(done.load(Ordering::Relaxed), 50);
            assert_eq!(pool.watched(vec![(); 50], &|| Err("enough"), job), Err("enough"));
            assert_eq!(done.load(Ordering::Relaxed), 50, "it failed before the first job");
        }
    }

    #[test]
    fn a_watched_call_that_fails_in_between_leaves_out_what_is_not_begun() {
        for workers in [1, 3] {
            let (done, looks) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let watch =
                || if looks.fetch_add(1, Ordering::Relaxed) < 3 { Ok(()) } else { Err("enough") };
            let ended = Pool::new(workers).watched(vec![(); 2000], &watch, |()| {
                done.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(1));
            });
            assert_eq!(ended, Err("enough"));
            let done = done.load(Ordering::Relaxed);
            assert!(done < 1000, "{done} jobs were done by {workers} workers");
        }
    }

    #[test]
    #[should_panic(expected = "every job")]
    fn a_panic_ends_a_watched_call() {
        let _: std::result::Result<(), ()> =
            Pool::new(2).watched(vec![(); 8], &|| Ok(()), |()| panic!("every job"));
    }

    #[test]
    #[should_panic(expected = "job 3")]
    fn a_panic_reaches_the_caller() {
        Pool::new(2).run(8, |index| assert!(index != 3, "job 3"));
    }
}
