//! Ranks on threads that wait for orders: set up once, then run step by step.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use annulus_comm::{Communicator, threads};
use anyhow::{Error, Result, anyhow};

/// How long a rank waits for another that shows no progress.
const DEADLINE: Duration = Duration::from_secs(600);

/// What a rank does for every order.
pub(crate) type Work<T> = Box<dyn FnMut() -> Result<T>>;

/// What a rank says.
enum Answer<T> {
    /// It is set up.
    Ready,
    /// The order is carried out.
    Done(T),
    /// It has ended, for whatever reason.
    Gone,
}

/// A rank's way to answer; dropped, it says that the rank is gone.
struct Voice<T> {
    rank: usize,
    answer: Sender<(usize, Answer<T>)>,
}

impl<T> Voice<T> {
    /// Whether anybody listens.
    fn say(&self, answer: Answer<T>) -> bool {
        self.answer.send((self.rank, answer)).is_ok()
    }
}

impl<T> Drop for Voice<T> {
    fn drop(&mut self) {
        self.say(Answer::Gone);
    }
}

/// Ranks that wait for orders. Dropped, they end.
pub(crate) struct Crew<T> {
    orders: Vec<Sender<()>>,
    answers: Receiver<(usize, Answer<T>)>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl<T: Send + 'static> Crew<T> {
    /// `world` ranks, each with the work that `set_up` makes of its communicator, on its own thread.
    pub(crate) fn start<F>(world: usize, set_up: F) -> Result<Crew<T>>
    where
        F: Fn(Arc<dyn Communicator>) -> Result<Work<T>> + Send + Sync + 'static,
    {
        let (orders, ordered): (Vec<_>, Vec<_>) = (0..world).map(|_| channel()).unzip();
        let (answer, answers) = channel();
        let thread = thread::spawn(move || run(ordered, &answer, set_up));
        let mut crew = Crew { orders, answers, thread: Some(thread) };
        crew.all()?;
        Ok(crew)
    }

    /// One order to every rank: what they answer, by rank.
    pub(crate) fn go(&mut self) -> Result<Vec<T>> {
        for order in &self.orders {
            // A rank that is gone says why through the thread.
            let _ = order.send(());
        }
        self.all()
    }

    /// What every rank answers, by rank; those that are ready say nothing more.
    fn all(&mut self) -> Result<Vec<T>> {
        let mut values = Vec::new();
        for _ in 0..self.orders.len() {
            match self.answers.recv() {
                Ok((_, Answer::Ready)) => {}
                Ok((rank, Answer::Done(value))) => values.push((rank, value)),
                Ok((_, Answer::Gone)) | Err(_) => return Err(self.failure()),
            }
        }
        values.sort_by_key(|(rank, _)| *rank);
        Ok(values.into_iter().map(|(_, value)| value).collect())
    }

    /// Why the ranks are gone.
    fn failure(&mut self) -> Error {
        // Those that still wait for orders end.
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
            // Why it ended has been told by `go`.
            let _ = thread.join();
        }
    }
}

/// All ranks, until nobody gives orders any more.
fn run<T: Send, F>(
    ordered: Vec<Receiver<()>>,
    answer: &Sender<(usize, Answer<T>)>,
    set_up: F,
) -> Result<()>
where
    F: Fn(Arc<dyn Communicator>) -> Result<Work<T>> + Send + Sync,
{
    let options =
        threads::Options { world: ordered.len(), deadline: DEADLINE, stop: Arc::default() };
    let ends = ordered.into_iter().map(|orders| Some((orders, answer.clone())));
    let ends = Mutex::new(ends.collect::<Vec<_>>());
    let member = |comm: Arc<dyn Communicator>| -> Result<()> {
        let rank = comm.rank();
        let taken = ends.lock().unwrap_or_else(PoisonError::into_inner)[rank].take();
        let (orders, answer) = taken.expect("every rank takes its own once");
        let voice = Voice { rank, answer };
        let mut work = set_up(comm)?;
        let mut heard = voice.say(Answer::Ready);
        while heard && orders.recv().is_ok() {
            heard = voice.say(Answer::Done(work()?));
        }
        Ok(())
    };
    threads::run(&options, member).map_err(|failure| anyhow!("{failure:#}"))?;
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
