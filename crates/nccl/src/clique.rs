//! One process's end of a communicator: it begins, ships, and ends or is given up, and no call of it waits.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::lane::{Gate, Lane, Mark, Piece};
use crate::library::{BYTES, Config, Handle, IN_PROGRESS, Library, RawId, SUCCESS};
use crate::{Error, Result};

/// Between two looks at an end that is under way.
const NAP: Duration = Duration::from_micros(200);

/// The name of a clique: who has it may join.
#[derive(Clone, Copy)]
pub struct Id(RawId);

impl Id {
    /// A name that no other clique has. The process that draws it is where the others meet, and must live until all have.
    ///
    /// # Errors
    /// What NCCL says: it needs a network, if only that of the host.
    pub fn draw(library: &Library) -> Result<Id> {
        let mut id = RawId([0; 128]);
        // SAFETY: the name is written into a variable that lives.
        let code = unsafe { (library.calls.draw_id)(&raw mut id) };
        library.expect("ncclGetUniqueId", code)?;
        Ok(Id(id))
    }

    /// As it is handed on.
    pub fn bytes(&self) -> Vec<u8> {
        self.0.0.iter().map(|byte| *byte as u8).collect()
    }

    /// What was handed on; `None`: it is no name.
    pub fn of(bytes: &[u8]) -> Option<Id> {
        let bytes: [u8; 128] = bytes.try_into().ok()?;
        Some(Id(RawId(bytes.map(|byte| byte as c_char))))
    }
}

/// What goes and comes together.
#[derive(Default)]
pub struct Shipment {
    /// What it is behind.
    pub gates: Vec<Gate>,
    /// What goes. Between two processes pieces are matched in the order in which they are shipped.
    pub sends: Vec<Piece>,
    /// What comes.
    pub receives: Vec<Piece>,
}

/// A communicator of NCCL.
pub struct Clique {
    library: Arc<Library>,
    lane: Arc<dyn Lane>,
    handle: Handle,
    /// Handed to NCCL, which has not said that it is on the lane.
    shipping: Option<Vec<Piece>>,
    /// On the lane: what it reads and writes is kept.
    under_way: VecDeque<(Arc<dyn Mark>, Vec<Piece>)>,
}

// SAFETY: NCCL takes calls of one communicator from any thread, one after the other, as `&mut` has it; the handle is this value's.
unsafe impl Send for Clique {}

impl Clique {
    /// Joins the clique of this name as one of `size`; [`Clique::is_ready`] says when all have.
    ///
    /// # Errors
    /// What NCCL says at once: no driver, two processes on one GPU.
    pub fn begin(
        library: Arc<Library>,
        lane: Arc<dyn Lane>,
        id: &Id,
        [rank, size]: [usize; 2],
    ) -> Result<Clique> {
        lane.enter()?;
        let handle = begun(&library, id, [rank, size])?;
        Ok(Clique { library, lane, handle, shipping: None, under_way: VecDeque::new() })
    }

    /// Begins a communicator of one process, on whichever device is this thread's, and gives it up.
    pub(crate) fn of_one(library: &Library, id: &Id) -> Result<()> {
        let handle = begun(library, id, [0, 1])?;
        let began = loop {
            match state(library, handle) {
                Ok(false) => std::thread::sleep(NAP),
                state => break state.map(drop),
            }
        };
        // SAFETY: the handle is not used any more.
        unsafe { (library.calls.abort)(handle) };
        began
    }

    /// Whether nothing that was begun goes on by itself: the next shipment may be shipped.
    ///
    /// # Errors
    /// What has gone wrong since, here or at a peer: the clique is to be given up.
    pub fn is_ready(&self) -> Result<bool> {
        state(&self.library, self.handle)
    }

    /// Hands a shipment to NCCL, which must be ready; [`Clique::shipped`] says when it is on the lane.
    ///
    /// # Errors
    /// What NCCL or the driver says: the clique is to be given up.
    pub fn ship(&mut self, shipment: Shipment) -> Result<()> {
        let Shipment { gates, sends, receives } = shipment;
        gates.into_iter().try_for_each(|gate| gate())?;
        let calls = &self.library.calls;
        // SAFETY: what is begun here ends below, on this thread.
        self.library.expect("ncclGroupStart", unsafe { (calls.group_start)() })?;
        let mut codes = Vec::with_capacity(sends.len() + receives.len());
        for Piece { peer, address, bytes, .. } in &sends {
            let (from, to) = (*address as *const c_void, *peer as c_int);
            // SAFETY: so many bytes are there, of a tensor that is kept until the lane is past the shipment.
            let code =
                unsafe { (calls.send)(from, *bytes, BYTES, to, self.handle, self.lane.stream()) };
            codes.push(("ncclSend", code));
        }
        for Piece { peer, address, bytes, .. } in &receives {
            let (to, from) = (*address as *mut c_void, *peer as c_int);
            // SAFETY: as above; nobody reads them before that.
            let code = unsafe {
                (calls.receive)(to, *bytes, BYTES, from, self.handle, self.lane.stream())
            };
            codes.push(("ncclRecv", code));
        }
        // From here on NCCL may read and write there.
        self.shipping = Some(sends.into_iter().chain(receives).collect());
        // SAFETY: it was begun above.
        codes.push(("ncclGroupEnd", unsafe { (calls.group_end)() }));
        codes.into_iter().try_for_each(|(what, code)| self.library.expect(what, code))
    }

    /// Behind what was shipped last, once it is on the lane.
    ///
    /// # Errors
    /// As [`Clique::is_ready`], and what the driver says.
    pub fn shipped(&mut self) -> Result<Option<Arc<dyn Mark>>> {
        if self.shipping.is_none() || !self.is_ready()? {
            return Ok(None);
        }
        let mark = self.lane.mark()?;
        self.under_way.extend(self.shipping.take().map(|pieces| (mark.clone(), pieces)));
        Ok(Some(mark))
    }

    /// Lets go what the lane is past. How many shipments are under way.
    ///
    /// # Errors
    /// As [`Clique::is_ready`], and what the driver says.
    pub fn look(&mut self) -> Result<usize> {
        self.is_ready()?;
        while let Some((mark, _)) = self.under_way.front() {
            if !mark.is_over()? {
                break;
            }
            self.under_way.pop_front();
        }
        Ok(self.under_way.len() + usize::from(self.shipping.is_some()))
    }

    /// Gives up what is under way here: whatever waits for it on the device goes on, with whatever it finds.
    pub fn abort(mut self) {
        // SAFETY: the handle is not used any more.
        unsafe { (self.library.calls.abort)(mem::replace(&mut self.handle, ptr::null_mut())) };
    }

    /// Ends the clique; all must, with nothing under way. Gives it up where it has not ended within `patience` once `waits` says no.
    ///
    /// # Errors
    /// What NCCL says.
    pub fn end(mut self, patience: Duration, waits: impl Fn() -> bool) -> Result<()> {
        // SAFETY: the communicator has not ended.
        let code = unsafe { (self.library.calls.finalize)(self.handle) };
        let mut begun = Instant::now();
        let mut ended = self.library.expect("ncclCommFinalize", code);
        while ended.is_ok() && !self.is_ready()? {
            if waits() {
                begun = Instant::now();
            } else if begun.elapsed() > patience {
                ended = Err(Error::new("ncclCommFinalize", "a process has not ended its part"));
                break;
            }
            std::thread::sleep(NAP);
        }
        if ended.is_err() {
            self.abort();
            return ended;
        }
        let handle = mem::replace(&mut self.handle, ptr::null_mut());
        // SAFETY: the handle is not used any more.
        let code = unsafe { (self.library.calls.destroy)(handle) };
        self.library.expect("ncclCommDestroy", code)
    }
}

impl Drop for Clique {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: as in `abort`.
            unsafe { (self.library.calls.abort)(self.handle) };
        }
        let left = self.under_way.drain(..).filter(|(mark, _)| !matches!(mark.is_over(), Ok(true)));
        // The device may still read and write there: what it was is never given back.
        left.for_each(mem::forget);
        mem::forget(self.shipping.take());
    }
}

/// A communicator that begins.
fn begun(library: &Library, id: &Id, [rank, size]: [usize; 2]) -> Result<Handle> {
    let (mut handle, mut config) = (ptr::null_mut(), Config::non_blocking());
    // SAFETY: the handle is written into a variable that lives; NCCL copies the configuration before it returns.
    let code = unsafe {
        let (size, rank) = (size as c_int, rank as c_int);
        (library.calls.init)(&raw mut handle, size, id.0, rank, &raw mut config)
    };
    library.expect("ncclCommInitRankConfig", code)?;
    Ok(handle)
}

/// Whether nothing of a communicator, which has not ended, goes on by itself.
fn state(library: &Library, handle: Handle) -> Result<bool> {
    let mut state = SUCCESS;
    // SAFETY: the number is written into a variable that lives.
    let code = unsafe { (library.calls.state)(handle, &raw mut state) };
    library.expect("ncclCommGetAsyncError", code)?;
    match state {
        SUCCESS => Ok(true),
        IN_PROGRESS => Ok(false),
        failed => Err(library.error("NCCL noticed", failed)),
    }
}

/// What a driver or Candle says.
impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Error {
        Error::new("a transfer between devices", error.to_string())
    }
}
