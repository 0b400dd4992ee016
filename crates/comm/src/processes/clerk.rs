//! The thread that owns MPI.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use annulus_mpi::{Leaving, Sending, Session};

use super::envelope::{BEATS, Envelope, News, Passes, has_room, sealed};
use super::inbox::{Arrived, Inbox, TAG};
use super::office::{Desk, Letter, Shared};
use crate::threads::{Group, lock};

/// How often other processes are told how far the ranks here are.
const BEAT: Duration = Duration::from_millis(20);
/// How often the flight record says that this process is alive.
const PULSE: Duration = Duration::from_millis(1);
/// How long the thread sleeps where nothing happens: at first, and at most.
const NAP: [Duration; 2] = [Duration::from_micros(50), Duration::from_micros(400)];
/// For so long after something went or came the thread looks again at once where a rank waits: what is under way may be there in
/// less time than a nap takes. It yields its core between two looks.
const EAGER: Duration = Duration::from_micros(200);
/// How long a process that is done waits for the others' last words: after a failure, which may be that one of them is gone,
/// and else, where it may have a sample to write.
const FAREWELL: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(600)];

/// The exit code where a rank does not end though its group has: that of a deadline.
const STUCK: i32 = 12;

/// How far the end of the job is.
enum Farewell {
    No,
    /// All have said their last words.
    Said,
    /// Some did not in time, or a rank is stuck: the exit code that ends them.
    Late(i32),
}

/// The thread's own.
pub(super) struct Clerk {
    session: Session,
    shared: Arc<Shared>,
    passes: Passes,
    leaving: Vec<Sending>,
    inboxes: Vec<Inbox>,
    told: Instant,
    pulse: Instant,
    /// The run whose end was passed on.
    stopped: u64,
    nap: Duration,
    /// When something went or came last.
    moved: Instant,
}

impl Clerk {
    pub(super) fn new(session: Session, shared: Arc<Shared>) -> Clerk {
        Clerk {
            session,
            shared,
            passes: Passes::default(),
            leaving: Vec::new(),
            inboxes: Vec::new(),
            told: Instant::now(),
            pulse: Instant::now(),
            stopped: 0,
            nap: NAP[0],
            moved: Instant::now(),
        }
    }

    /// Until all have said their last word.
    pub(super) fn serve(mut self) {
        let served = self.rounds();
        if let Err(error) = served {
            // Whose fault it is nobody knows: the engine's.
            if let Some((_, group)) = lock(&self.shared.desk).current.take() {
                group.lose(error.to_string());
            }
            return;
        }
        let inboxes = std::mem::take(&mut self.inboxes);
        for inbox in inboxes {
            if let Inbox::Frame(receiving) = inbox {
                // What is left of it ends with the process.
                let _ = self.session.give_up(receiving);
            }
        }
        // The process ends next, whatever MPI says.
        let _ = self.session.end();
    }

    fn open(&mut self) -> annulus_mpi::Result<()> {
        for from in 0..self.session.size {
            let own = from == self.session.rank;
            let inbox = if own { Inbox::Closed } else { Inbox::open(&self.session, from)? };
            self.inboxes.push(inbox);
        }
        Ok(())
    }

    fn rounds(&mut self) -> annulus_mpi::Result<()> {
        self.open()?;
        let mut closed: Option<Instant> = None;
        loop {
            if let Some((_, group)) = &lock(&self.shared.desk).current {
                group.looks(Instant::now());
            }
            if self.shared.only_in_waits.load(Ordering::Relaxed) && self.ranks_compute() {
                std::thread::sleep(NAP[0]);
                continue;
            }
            let busy = self.send()? | self.receive()?;
            self.beat();
            let desk = lock(&self.shared.desk);
            let (waits, stuck) = state(&desk);
            let farewell = self.farewell(&desk, &mut closed);
            match if stuck { Farewell::Late(STUCK) } else { farewell } {
                Farewell::No => {}
                Farewell::Said => return Ok(()),
                Farewell::Late(code) => {
                    drop(desk);
                    self.session.abort(code);
                    return Ok(());
                }
            }
            if busy {
                (self.nap, self.moved) = (NAP[0], Instant::now());
            } else if waits && self.moved.elapsed() < EAGER {
                drop(desk);
                std::thread::yield_now();
            } else if desk.letters.is_empty() {
                // Woken by whoever leaves a letter; what arrives is looked for after the nap.
                drop(
                    self.shared.wake.wait_timeout(desk, self.nap).map_err(PoisonError::into_inner),
                );
                // Where a rank waits, what it waits for may come at any moment.
                self.nap = if waits { NAP[0] } else { (self.nap * 2).min(NAP[1]) };
            }
        }
    }

    /// Whether this process, which has said its last word since `closed`, has heard those of all.
    fn farewell(&self, desk: &Desk, closed: &mut Option<Instant>) -> Farewell {
        if !desk.closing || !desk.letters.is_empty() {
            return Farewell::No;
        }
        let since = closed.get_or_insert_with(Instant::now);
        if desk.byes.iter().all(Option::is_some) && self.leaving.is_empty() {
            return Farewell::Said;
        }
        let own = desk.byes[self.session.rank].map_or(1, |(code, _)| code);
        let culprit = desk.byes.iter().flatten().find(|(_, own_fault)| *own_fault);
        let (code, failed) = culprit.map_or((own, false), |(code, _)| (*code, true));
        let is_late = since.elapsed() > FAREWELL[usize::from(!failed)];
        if is_late { Farewell::Late(code) } else { Farewell::No }
    }

    /// Whether a rank here does not wait.
    fn ranks_compute(&self) -> bool {
        let desk = lock(&self.shared.desk);
        desk.current.as_ref().is_some_and(|(_, group)| !group.are_all_waiting())
    }

    /// Hands letters to MPI, and forgets those that have left.
    fn send(&mut self) -> annulus_mpi::Result<bool> {
        let letters = std::mem::take(&mut lock(&self.shared.desk).letters);
        let busy = !letters.is_empty();
        for Letter { to, mut envelope, tensor } in letters {
            let Some(tensor) = tensor else {
                let frame = Leaving::Bytes(sealed(&envelope, None));
                self.leaving.push(self.session.send(frame, to, TAG)?);
                continue;
            };
            let copied = |error: candle_core::Error| annulus_mpi::Error {
                what: "a tensor cannot be sent".to_owned(),
                why: error.to_string(),
            };
            let payload = Leaving::tensor(&tensor).map_err(copied)?;
            if let News::Parcel(parcel) = &mut envelope.news {
                parcel.inline = true;
            }
            let inline = has_room(&envelope, payload.bytes().len());
            if let News::Parcel(parcel) = &mut envelope.news {
                parcel.inline = inline;
            }
            let frame = sealed(&envelope, Some(payload.bytes()).filter(|_| inline));
            self.leaving.push(self.session.send(Leaving::Bytes(frame), to, TAG)?);
            if !inline {
                self.leaving.push(self.session.send(payload, to, TAG)?);
            }
        }
        let mut still = Vec::with_capacity(self.leaving.len());
        for mut sending in self.leaving.drain(..) {
            if !self.session.has_left(&mut sending)? {
                still.push(sending);
            }
        }
        self.leaving = still;
        Ok(busy)
    }

    /// Hands on what has arrived.
    fn receive(&mut self) -> annulus_mpi::Result<bool> {
        let mut busy = false;
        for from in 0..self.inboxes.len() {
            while let Some(arrived) = self.inboxes[from].look(&self.session, from)? {
                busy = true;
                self.hand_on(from, arrived);
            }
        }
        if busy || !lock(&self.shared.desk).early.is_empty() {
            self.hand_on_early();
        }
        Ok(busy)
    }

    fn hand_on(&mut self, from: usize, arrived: Arrived) {
        let mut desk = lock(&self.shared.desk);
        let process = desk.order.iter().position(|rank| *rank == from).unwrap_or(from);
        if let Some((_, group)) = &desk.current {
            group.is_heard_of(process);
        }
        if let Arrived::News(Envelope { news: News::Bye(code, own_fault), run }) = arrived {
            desk.byes[from] = Some((code, own_fault));
            if let Some((current, group)) = desk.current.as_ref().filter(|_| own_fault)
                && run < *current
            {
                // It failed before the run that others are in; who fails behind one has done its part there.
                group.fail(process * group.here().len());
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
        let run = arrived.run();
        match &desk.current {
            Some((current, group)) if *current == run => {
                let group = group.clone();
                drop(desk);
                arrived.reach(&group, &mut self.passes);
            }
            // Of a run that is over here nobody waits for anything.
            _ if run > desk.runs => desk.early.push(arrived),
            _ => {}
        }
    }

    fn hand_on_early(&mut self) {
        let mut desk = lock(&self.shared.desk);
        let Some((run, group)) = desk.current.clone() else { return };
        let early = std::mem::take(&mut desk.early);
        let (now, later): (Vec<_>, Vec<_>) = early.into_iter().partition(|one| one.run() <= run);
        desk.early = later;
        drop(desk);
        for arrived in now.into_iter().filter(|one| one.run() == run) {
            arrived.reach(&group, &mut self.passes);
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
                desk.letters.push_back(Letter { to, envelope, tensor: None });
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

/// Whether a rank here waits, and whether one does not end though the run has.
fn state(desk: &Desk) -> (bool, bool) {
    let group = desk.current.as_ref().map(|(_, group)| group);
    group.map_or((false, false), |group| (group.is_waiting(), group.is_stuck()))
}
