//! The thread that owns MPI.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use annulus_mpi::Session;

use super::envelope::{BEATS, Envelope, News, Passes, TAGS};
use super::inbox::{Arrived, Inbox};
use super::office::{Desk, Letter, Shared};
use super::outbox::Outbox;
use crate::threads::{Group, lock};

/// How often other processes are told how far the ranks here are.
const BEAT: Duration = Duration::from_millis(20);
/// How often the flight record says that this process is alive.
const PULSE: Duration = Duration::from_millis(1);
/// How long the thread sleeps where nothing happens and all ranks here wait, at least and at most.
const NAPS_OF_WAITS: [Duration; 2] = [Duration::from_micros(50), Duration::from_micros(400)];
/// The same where one computes: the thread takes a core from it whenever it looks, and what that had in the caches. So it looks less
/// often, and the less often the longer nothing has happened; but MPI goes on with a message only when it is called. A rank that begins
/// to wait wakes the thread.
const NAPS_OF_WORK: [Duration; 2] = [Duration::from_micros(200), Duration::from_millis(1)];
/// In between, this share of the time since something happened last: whatever happens is noticed so much later at most.
const SHARE: u32 = 8;
/// Looks in a row while a payload is on its way: at each, an MPI over TCP reads no more of it than one of its buffers holds.
const LOOKS: usize = 4;
/// For so long after something went or came the thread looks again at once where a rank waits: what is under way may be there in
/// less time than a nap takes. It yields its core between two looks.
const EAGER: Duration = Duration::from_micros(200);
/// How long a process that is done waits for the last word of one of which nothing is heard: after a failure, which may be that it
/// is gone, and else. One that is heard of has something to write.
const FAREWELL: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];

/// The exit code where a rank does not end though its group has: that of a deadline.
const STUCK: i32 = 12;

/// How far the end of the job is.
enum Farewell {
    No,
    /// All have said their last words.
    Said,
    /// One is silent, or a rank is stuck: the exit code that ends all.
    Late(i32),
}

/// The thread's own.
pub(super) struct Clerk {
    session: Session,
    shared: Arc<Shared>,
    passes: Passes,
    outbox: Outbox,
    inboxes: Vec<Inbox>,
    told: Instant,
    pulse: Instant,
    /// The run whose end was passed on.
    stopped: u64,
    /// When something went or came last.
    moved: Instant,
    /// By rank of MPI, for how long nothing has come from a process; counted once this one has said its last word.
    silence: Vec<Duration>,
    /// When that was counted last.
    looked: Instant,
    /// How far the ranks here were when one moved last, and when that was.
    still: (u64, Instant),
}

impl Clerk {
    pub(super) fn new(session: Session, shared: Arc<Shared>) -> Clerk {
        let silence = vec![Duration::ZERO; session.size];
        Clerk {
            shared,
            passes: Passes::default(),
            outbox: Outbox::new(session.size),
            inboxes: Vec::new(),
            told: Instant::now(),
            pulse: Instant::now(),
            stopped: 0,
            moved: Instant::now(),
            silence,
            looked: Instant::now(),
            still: (0, Instant::now()),
            session,
        }
    }

    /// Until all have said their last word.
    pub(super) fn serve(mut self) {
        annulus_mpi::wake_soon();
        let served = catch_unwind(AssertUnwindSafe(|| self.rounds()));
        let failed = match served {
            Ok(Ok(())) => None,
            // Whose fault it is nobody knows: the engine's.
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("its thread panicked".to_owned()),
        };
        if let Some(why) = failed {
            self.shared.lose(&why);
            return;
        }
        let inboxes = std::mem::take(&mut self.inboxes);
        for inbox in inboxes {
            // What is left of it ends with the process.
            let _ = inbox.close(&self.session);
        }
        // The process ends next, whatever MPI says.
        let _ = self.session.end();
    }

    fn open(&mut self) -> annulus_mpi::Result<()> {
        for from in (0..self.session.size).filter(|from| *from != self.session.rank) {
            for tag in TAGS {
                self.inboxes.push(Inbox::open(&self.session, from, tag)?);
            }
        }
        Ok(())
    }

    fn rounds(&mut self) -> annulus_mpi::Result<()> {
        self.open()?;
        loop {
            if let Some((_, group)) = &lock(&self.shared.desk).current {
                group.looks(Instant::now());
            }
            if self.shared.only_in_waits.load(Ordering::Relaxed) && self.ranks_compute() {
                std::thread::sleep(NAPS_OF_WAITS[0]);
                continue;
            }
            let posted = self.post()?;
            let looked = self.look()?;
            let busy = posted | self.outbox.look(&self.session, &self.shared)? | self.receive()?;
            self.beat();
            let shared = self.shared.clone();
            let desk = lock(&shared.desk);
            let group = desk.current.as_ref().map(|(_, group)| &**group);
            let waits = group.is_some_and(Group::is_waiting);
            let farewell = match group {
                Some(group) if self.is_stuck(group) => {
                    Farewell::Late(desk.fault().unwrap_or(STUCK))
                }
                _ => self.farewell(&desk),
            };
            match farewell {
                Farewell::No => {}
                Farewell::Said => return Ok(()),
                Farewell::Late(code) => {
                    drop(desk);
                    self.session.abort(code);
                    return Ok(());
                }
            }
            if busy {
                self.moved = Instant::now();
            } else if !looked {
                self.rest(desk, waits);
            }
        }
    }

    /// Lets MPI go on. Whether anything has left or arrived.
    fn look(&self) -> annulus_mpi::Result<bool> {
        let is_moving = !self.outbox.is_empty() || self.inboxes.iter().any(Inbox::is_receiving);
        let mut any = false;
        for _ in 0..if is_moving { LOOKS } else { 1 } {
            any |= self.session.look()?;
        }
        Ok(any)
    }

    /// Nothing happened: looks again soon.
    fn rest(&mut self, mut desk: MutexGuard<'_, Desk>, waits: bool) {
        if waits && self.moved.elapsed() < EAGER {
            drop(desk);
            std::thread::yield_now();
        } else if desk.letters.is_empty() && !std::mem::take(&mut desk.is_woken) {
            let is_idle = desk.current.as_ref().is_none_or(|(_, group)| group.are_all_waiting());
            let [least, most] = if is_idle { NAPS_OF_WAITS } else { NAPS_OF_WORK };
            let nap = (self.moved.elapsed() / SHARE).clamp(least, most);
            // Woken by whoever leaves a letter, asks or waits; what arrives is looked for after the nap.
            drop(self.shared.wake.wait_timeout(desk, nap).map_err(PoisonError::into_inner));
        }
    }

    /// Whether this process has heard the last words of all since it said its own.
    fn farewell(&mut self, desk: &Desk) -> Farewell {
        if !desk.closing || !desk.letters.is_empty() {
            return Farewell::No;
        }
        let is_all_read = self.inboxes.iter().all(Inbox::is_empty);
        let is_all_sent = self.outbox.is_empty();
        if desk.byes.iter().all(Option::is_some) && is_all_sent && is_all_read {
            return Farewell::Said;
        }
        // A pause of this process, however long, is one beat: the others may have been paused with it.
        let passed = self.looked.elapsed().min(BEAT);
        self.looked = Instant::now();
        let fault = desk.fault();
        let patience = FAREWELL[usize::from(fault.is_none())];
        let mut lost = false;
        for (rank, bye) in
            desk.byes.iter().enumerate().filter(|(rank, _)| *rank != self.session.rank)
        {
            self.silence[rank] += passed;
            // One that has said its last word may have left something unread.
            let is_awaited = bye.is_none() || !is_all_sent;
            lost |= is_awaited && self.silence[rank] > patience;
        }
        let own = desk.byes[self.session.rank].map_or(0, |(code, _)| code);
        // Not all is well where one says nothing.
        let code = fault.unwrap_or(if own == 0 { STUCK } else { own });
        if lost { Farewell::Late(code) } else { Farewell::No }
    }

    /// Whether the run has ended, for so long that whoever here goes on without a sign of life does not end any more.
    fn is_stuck(&mut self, group: &Group) -> bool {
        let far = group.here().map(|rank| group.operations(rank)).fold(0, u64::wrapping_add);
        if far != self.still.0 {
            self.still = (far, Instant::now());
        }
        group.has_ended_before(self.still.1)
    }

    /// Whether a rank here does not wait.
    fn ranks_compute(&self) -> bool {
        let desk = lock(&self.shared.desk);
        desk.current.as_ref().is_some_and(|(_, group)| !group.are_all_waiting())
    }

    /// Hands letters to MPI. Whether ranks have anything to do with them.
    fn post(&mut self) -> annulus_mpi::Result<bool> {
        let letters = std::mem::take(&mut lock(&self.shared.desk).letters);
        let busy = letters.iter().any(|letter| !letter.envelope.news.is_routine());
        for letter in letters {
            self.outbox.post(&self.session, letter)?;
        }
        Ok(busy)
    }

    /// Hands on what has arrived. Whether ranks have anything to do with it.
    fn receive(&mut self) -> annulus_mpi::Result<bool> {
        let mut busy = false;
        for index in 0..self.inboxes.len() {
            busy |= self.receive_by(index)?;
        }
        // A run may have begun for which something came early.
        self.hand_on();
        Ok(busy)
    }

    /// The same of one inbox.
    fn receive_by(&mut self, index: usize) -> annulus_mpi::Result<bool> {
        let mut busy = false;
        while let Some(arrived) = self.inboxes[index].look(&self.session, &self.shared)? {
            busy |= !arrived.is_routine();
            if arrived.is_of_a_rank_that_left() {
                // Why it did was told before, under the next tag, and so is here: a stop is else taken for a rank that made other calls.
                busy |= self.receive_by(index + 1)?;
                while self.session.look()? {
                    self.receive_by(index + 1)?;
                    busy = true;
                }
            }
            self.take_in(self.inboxes[index].from, arrived);
            self.hand_on();
        }
        Ok(self.inboxes[index].takes_begun() | busy)
    }

    /// Notes what concerns the process; what concerns a run is to be handed on.
    fn take_in(&mut self, from: usize, arrived: Arrived) {
        self.silence[from] = Duration::ZERO;
        let mut desk = lock(&self.shared.desk);
        let process = desk.order.iter().position(|rank| *rank == from).unwrap_or(from);
        if let Some((_, group)) = &desk.current {
            group.is_heard_of(process);
        }
        if let Arrived::News(Envelope { news: News::Bye(code, own_fault), run }) = arrived {
            desk.byes[from] = Some((code, own_fault));
            if let Some((current, group)) = &desk.current
                && run < *current
            {
                // It failed before that run; who fails behind one has done its part there.
                desk.end_with_it(process, from, group);
            }
            return;
        }
        if let (Arrived::News(Envelope { news: News::Stop, run }), Some((current, _))) =
            (&arrived, &desk.current)
            && run == current
        {
            // Known already: not to be passed on.
            self.stopped = *run;
        }
        desk.early.push(arrived);
    }

    /// Hands on what has come for the run that is under way, in the order in which it came; what has come for one that has not
    /// begun here waits. Of a run that is over nobody waits for anything.
    fn hand_on(&mut self) {
        let mut desk = lock(&self.shared.desk);
        if desk.early.is_empty() {
            return;
        }
        let (runs, current, express) = (desk.runs, desk.current.clone(), desk.express.clone());
        let (now, later) = desk.early.drain(..).partition(|one| one.run() <= runs);
        desk.early = later;
        drop(desk);
        let now: Vec<Arrived> = now;
        let Some((run, group)) = current else { return };
        for arrived in now.into_iter().filter(|one| one.run() == run) {
            arrived.reach(&group, express.as_deref(), &mut self.passes);
        }
    }

    /// Tells the others how far the ranks here are, and that the run is to stop.
    fn beat(&mut self) {
        if self.pulse.elapsed() > PULSE {
            self.pulse = Instant::now();
            if let Some(flight) = lock(&self.shared.desk).flight.clone() {
                flight.pulse();
            }
        }
        if self.told.elapsed() < BEAT {
            return;
        }
        self.told = Instant::now();
        let desk = lock(&self.shared.desk);
        let (current, closing) = (desk.current.clone(), desk.closing);
        drop(desk);
        if closing {
            // Its last word is said: nobody receives what would come after.
            return;
        }
        let (run, all) = match current {
            Some((run, group)) => (run, self.news(run, &group)),
            None => (0, vec![News::Alive]),
        };
        let mut desk = lock(&self.shared.desk);
        for news in all {
            for to in (0..self.session.size).filter(|to| *to != self.session.rank) {
                let envelope = Envelope { run, news: news.clone() };
                desk.letters.push_back(Letter { to, envelope, payload: None });
            }
        }
    }

    /// How far the ranks here are, and whether they are to stop.
    fn news(&mut self, run: u64, group: &Group) -> Vec<News> {
        let ranks: Vec<_> = group.here().map(|rank| (rank, group.beat(rank, self.told))).collect();
        let mut all: Vec<News> =
            ranks.chunks(BEATS).map(|some| News::Beats(some.to_vec())).collect();
        if group.is_to_stop() && self.stopped < run {
            self.stopped = run;
            all.push(News::Stop);
        }
        all
    }
}
