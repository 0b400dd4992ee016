//! Ranks on threads that wait for orders: set up once, then run step by step.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use annulus_comm::{Communicator, World, threads};
use anyhow::{Error, Result, anyhow};
use parking_lot::Mutex;

/// The time that a rank waits for another that shows no progress.
const DEADLINE: Duration = Duration::from_secs(600);

/// The work that a rank does for every order.
pub(crate) type Work<T> = Box<dyn FnMut() -> Result<T>>;

/// Ranks that wait for orders. They end when this is dropped.
pub(crate) struct Crew<T> {
    orders: Vec<Sender<()>>,
    /// Answers by rank: `None` when the rank is set up, then one for every order.
    answers: Vec<Receiver<Option<T>>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl<T: Send + 'static> Crew<T> {
    /// `world` ranks, each with the work that `set_up` makes of its communicator, on its own thread.
    pub(crate) fn start<F>(world: usize, set_up: F) -> Result<Crew<T>>
    where
        F: Fn(Arc<dyn Communicator>) -> Result<Work<T>> + Send + Sync + 'static,
    {
        Crew::start_in(World::alone(), world, set_up)
    }

    /// `world` ranks of `process`, as [`Crew::start`] makes them, which may compute on several devices.
    pub(crate) fn start_in<F>(process: World, world: usize, set_up: F) -> Result<Crew<T>>
    where
        F: Fn(Arc<dyn Communicator>) -> Result<Work<T>> + Send + Sync + 'static,
    {
        let (orders, ordered): (Vec<_>, Vec<_>) = (0..world).map(|_| channel()).unzip();
        let (answer, answers): (Vec<_>, Vec<_>) = (0..world).map(|_| channel()).unzip();
        let ends = std::iter::zip(ordered, answer).map(|ends| Mutex::new(Some(ends)));
        let ends: Vec<_> = ends.collect();
        let thread = thread::spawn(move || run(&process, &ends, set_up));
        let mut crew = Crew { orders, answers, thread: Some(thread) };
        crew.all()?;
        Ok(crew)
    }

    /// Gives one order; returns the answers of all ranks.
    pub(crate) fn go(&mut self) -> Result<Vec<T>> {
        for order in &self.orders {
            // The thread of a rank that has ended says why.
            let _ = order.send(());
        }
        self.all()
    }

    /// The next answers of all ranks, by rank; an error if one of them has ended.
    fn all(&mut self) -> Result<Vec<T>> {
        let answers: Result<Vec<_>, _> = self.answers.iter().map(Receiver::recv).collect();
        let answers = answers.map_err(|_| self.failure())?;
        Ok(answers.into_iter().flatten().collect())
    }

    /// The reason why ranks have ended.
    fn failure(&mut self) -> Error {
        // Ranks that still wait for orders end.
        self.orders.clear();
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => error,
            _ => anyhow!("the ranks ended without a word"),
        }
    }
}

impl<T> Drop for Crew<T> {
    fn drop(&mut self) {
        self.orders.clear();
        if let Some(thread) = self.thread.take() {
            // `go` has told why it ended.
            let _ = thread.join();
        }
    }
}

/// One rank's ends of the two channels, until it takes them.
type Ends<T> = Mutex<Option<(Receiver<()>, Sender<Option<T>>)>>;

/// Runs all ranks until no more orders come.
fn run<T: Send, F>(process: &World, ends: &[Ends<T>], set_up: F) -> Result<()>
where
    F: Fn(Arc<dyn Communicator>) -> Result<Work<T>> + Send + Sync,
{
    let options = threads::Options { world: ends.len(), deadline: DEADLINE, stop: Arc::default() };
    let member = |comm: Arc<dyn Communicator>| -> Result<()> {
        let taken = ends[comm.rank()].lock().take();
        let (orders, answer) = taken.expect("every rank takes its own once");
        let mut work = set_up(comm)?;
        let mut heard = answer.send(None).is_ok();
        while heard && orders.recv().is_ok() {
            heard = answer.send(Some(work()?)).is_ok();
        }
        Ok(())
    };
    process.run(&options, member).map_err(|failure| anyhow!("{failure:#}"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn every_rank_carries_out_every_order() -> Result<()> {
        let mut crew = Crew::start(3, |comm| {
            let mut count = 0;
            Ok(Box::new(move || {
                count += 1;
                Ok((comm.rank(), count))
            }))
        })?;
        assert_eq!(crew.go()?, [(0, 1), (1, 1), (2, 1)]);
        assert_eq!(crew.go()?, [(0, 2), (1, 2), (2, 2)]);
        Ok(())
    }

    #[test]
    fn why_a_rank_failed_is_told() -> Result<()> {
        let wrong = |comm: Arc<dyn Communicator>| -> Result<Work<()>> {
            if comm.rank() == 1 {
                bail!("no room");
            }
            Ok(Box::new(|| Ok(())))
        };
        let said = Crew::start(2, wrong).err().map(|error| error.to_string());
        assert_eq!(said, Some("rank 1: no room".to_owned()));
        let mut crew = Crew::start(2, |comm| {
            let rank = comm.rank();
            Ok(Box::new(move || if rank == 0 { bail!("step") } else { Ok(()) }) as Work<()>)
        })?;
        let said = crew.go().err().map(|error| error.to_string());
        assert_eq!(said, Some("rank 0: step".to_owned()));
        Ok(())
    }
}
