//! The thread that owns a run's clique: it hands rounds to NCCL, watches them, and gives the clique up where one fails or hangs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use annulus_nccl::{Clique, Id};

use super::envelope::Passes;
use super::express::{Express, Round};
use crate::Label;
use crate::threads::{Group, Patience};

/// How long the thread rests where nothing happens: while something is under way, and else, when whoever has something wakes it.
const NAPS: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(5)];
/// How long a clique may take to begin, at least.
const BEGIN: Duration = Duration::from_secs(120);
/// How long a clique may take to end once the program does.
pub(super) const LAST: Duration = Duration::from_secs(2);

/// What the thread is told.
pub(super) struct Orders {
    pub(super) express: Arc<Express>,
    pub(super) group: Arc<Group>,
    /// How many processes there are, each with a rank.
    pub(super) size: usize,
    pub(super) deadline: Duration,
    /// Tells the others the clique's name, for the process that draws it.
    pub(super) tell: Option<Box<dyn Fn(Vec<u8>) + Send>>,
    /// The program ends.
    pub(super) is_last: Arc<AtomicBool>,
}

/// Starts the thread.
pub(super) fn start(orders: Orders) -> std::io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name("nccl".to_owned()).spawn(move || {
        let express = orders.express.clone();
        let served = catch_unwind(AssertUnwindSafe(|| serve(orders)));
        match served {
            Ok(Ok(())) => {}
            Ok(Err(why)) => express.fail(&why),
            Err(_) => express.fail("the thread of NCCL panicked"),
        }
    })
}

/// The thread's own.
struct Courier {
    orders: Orders,
    clique: Clique,
    passes: Passes,
    shipping: Option<Round>,
    /// Where what is under way belongs, and with which ranks, the oldest first.
    under_way: Vec<(Label, Vec<usize>)>,
    watch: Watch,
}

/// How long nothing has moved.
struct Watch {
    patience: Patience,
    seen: u64,
}

impl Watch {
    fn new(deadline: Duration) -> Watch {
        Watch { patience: Patience::new(deadline, Instant::now()), seen: 0 }
    }

    /// A look, with how far all that is waited for has come.
    fn is_over(&mut self, far: u64) -> bool {
        self.patience.look(Instant::now());
        if far != self.seen {
            self.seen = far;
            self.patience.moved();
        }
        self.patience.is_over()
    }
}

/// Until the run's end. The clique is given up with whatever is wrong.
fn serve(orders: Orders) -> Result<(), String> {
    let Some(id) = name(&orders)? else { return Ok(()) };
    let Orders { express, size, deadline, .. } = &orders;
    let (joined, seat) = (express.joined.clone(), [express.rank, *size]);
    let here = |error| format!("NCCL, rank {}: {error}", express.rank);
    let clique = Clique::begin(joined.found.library, joined.lane, &id, seat).map_err(here)?;
    // Connections take their time, whatever ranks wait for each other.
    let mut watch = Watch::new((*deadline).max(BEGIN));
    while !clique.is_ready().map_err(here)? {
        if orders.is_lost() {
            return Ok(());
        }
        if watch.is_over(0) {
            return Err(format!("NCCL has not begun within {} s", BEGIN.as_secs_f64()));
        }
        thread::sleep(NAPS[0]);
    }
    let (watch, passes) = (Watch::new(*deadline), Passes::default());
    let courier = Courier { orders, clique, passes, shipping: None, under_way: Vec::new(), watch };
    courier.rounds()
}

/// The clique's name: drawn, or told; `None`: the run ended before.
fn name(orders: &Orders) -> Result<Option<Id>, String> {
    let express = &orders.express;
    if let Some(tell) = &orders.tell {
        let id = Id::draw(&express.joined.found.library).map_err(|error| error.to_string())?;
        tell(id.bytes());
        return Ok(Some(id));
    }
    loop {
        let state = express.state();
        if state.id.is_some() {
            return Ok(state.id);
        }
        let ends = state.ends;
        drop(express.wake.wait_timeout(state, NAPS[1]).map_err(PoisonError::into_inner));
        if orders.is_lost() || ends {
            return Ok(None);
        }
    }
}

impl Orders {
    /// Whether nothing that is under way will be wanted: a rank has failed.
    fn is_lost(&self) -> bool {
        self.group.first().is_some() || self.group.is_lost()
    }
}

impl Courier {
    fn rounds(mut self) -> Result<(), String> {
        loop {
            if self.orders.is_lost() {
                // First, so that nobody takes what is aborted for what has come.
                self.orders.express.gives_up("NCCL's transfers were aborted, as a rank has failed");
                self.clique.abort();
                return Ok(());
            }
            let busy = match self.round() {
                Ok(busy) => busy,
                Err(why) => {
                    let why = self.at(&why);
                    // First, so that what waits for the device finds why when it goes on.
                    self.orders.express.fail(&why);
                    self.clique.abort();
                    return Err(why);
                }
            };
            let express = self.orders.express.clone();
            let mut state = express.state();
            let is_idle = self.shipping.is_none() && self.under_way.is_empty();
            // A round that is left then is one that its rank has not waited for.
            if state.ends && is_idle {
                drop(state);
                self.end();
                return Ok(());
            }
            if !std::mem::take(&mut state.is_new) && !busy {
                let nap = NAPS[usize::from(is_idle)];
                drop(express.wake.wait_timeout(state, nap).map_err(PoisonError::into_inner));
            }
        }
    }

    /// Ships, hands on, lets go. Whether anything happened.
    fn round(&mut self) -> Result<bool, String> {
        let express = self.orders.express.clone();
        let text = |error: annulus_nccl::Error| error.to_string();
        let mut busy = false;
        if self.shipping.is_none()
            && let Some(mut round) = express.next().map_err(|error| error.to_string())?
        {
            let shipment = round.shipment();
            self.under_way.push((round.label, round.peers()));
            self.shipping = Some(round);
            self.clique.ship(shipment).map_err(text)?;
            busy = true;
        }
        if self.shipping.is_some()
            && let Some(mark) = self.clique.shipped().map_err(text)?
        {
            if let Some(round) = self.shipping.take() {
                express.hand_on(round, &mark, &mut self.passes);
            }
            busy = true;
        }
        let left = self.clique.look().map_err(text)?;
        let over = self.under_way.len() - left;
        self.under_way.drain(..over);
        express.have_not_ended(left);
        let group = &self.orders.group;
        let peers = self.under_way.first().map_or(&[][..], |(_, peers)| peers);
        let far = peers.iter().map(|peer| group.operations(*peer)).fold(0, u64::wrapping_add);
        if over > 0 || peers.is_empty() {
            self.watch.patience.moved();
        }
        if self.watch.is_over(far) {
            let deadline = self.orders.deadline.as_secs_f64();
            return Err(format!("a transfer has not ended within {deadline} s"));
        }
        Ok(busy || over > 0)
    }

    /// Why, and where what is under way belongs.
    fn at(&self, why: &str) -> String {
        let Some((label, peers)) = self.under_way.first() else { return why.to_owned() };
        let peers: Vec<String> = peers.iter().map(usize::to_string).collect();
        let (rank, peers) = (self.orders.express.rank, peers.join(", "));
        format!("NCCL, rank {rank} with {peers} ({label}): {why}")
    }

    /// The others may be in the run for long: waits for them, as long as the program lasts.
    fn end(self) {
        let Courier { clique, orders, .. } = self;
        let until = || {
            let is_last = orders.is_last.load(Ordering::Relaxed);
            orders.group.first().is_none() && !is_last
        };
        // A clique that does not end has carried all it was to carry.
        let _ = clique.end(LAST, until);
    }
}
