//! A communicator of NCCL, as one process has it: it begins, transfers, and ends or is aborted, and none of these calls blocks.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::lane::{Gate, Lane, Mark, Piece};
use crate::library::{BYTES, Config, Handle, IN_PROGRESS, Library, RawId, SUCCESS};
use crate::{Error, Result};

/// How long to sleep between two checks of whether a communicator has begun or ended.
const SLEEP: Duration = Duration::from_micros(200);

/// The unique id of a clique, with which its processes join it.
#[derive(Clone, Copy)]
pub struct Id(RawId);

impl Id {
    /// A new unique id. The other processes connect to the one that draws it, which must live until all have.
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

    /// The id as bytes, to send to other processes.
    pub fn bytes(&self) -> Vec<u8> {
        self.0.0.iter().map(|byte| *byte as u8).collect()
    }

    /// The id of these bytes, as [`Id::bytes`] gives them; `None` if their number is wrong.
    pub fn of(bytes: &[u8]) -> Option<Id> {
        let bytes: [u8; 128] = bytes.try_into().ok()?;
        Some(Id(RawId(bytes.map(|byte| byte as c_char))))
    }
}

/// Sends and receives that NCCL runs as one group.
#[derive(Default)]
pub struct Transfers {
    /// What they run after.
    pub gates: Vec<Gate>,
    /// What is sent. Between two processes sends and receives are matched in the order in which they are submitted.
    pub sends: Vec<Piece>,
    /// Buffers of what is received.
    pub receives: Vec<Piece>,
}

/// A communicator of NCCL, as one of its processes has it.
pub struct Clique {
    library: Arc<Library>,
    lane: Arc<dyn Lane>,
    handle: Handle,
    /// Handed to NCCL, which has not said yet that they are on the lane.
    submitting: Option<Submitted>,
    /// On the lane: the tensors are kept until it is past the mark.
    under_way: VecDeque<(Arc<dyn Mark>, Submitted)>,
}

/// A group of transfers that was handed to NCCL.
struct Submitted {
    /// A mark after its gates and before its sends and receives.
    begun: Arc<dyn Mark>,
    /// What is kept until it is over.
    pieces: Vec<Piece>,
}

// SAFETY: NCCL takes calls of one communicator from any thread, one after the other, as `&mut` has it; the handle is this value's.
unsafe impl Send for Clique {}

impl Clique {
    /// Begins to join the clique of this id as rank `rank` of `size`; [`Clique::is_ready`] says when all have joined.
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
        Ok(Clique { library, lane, handle, submitting: None, under_way: VecDeque::new() })
    }

    /// Begins a communicator of one process, on this thread's current device, and aborts it.
    pub(crate) fn of_one(library: &Library, id: &Id) -> Result<()> {
        let handle = begun(library, id, [0, 1])?;
        let began = loop {
            match state(library, handle) {
                Ok(false) => std::thread::sleep(SLEEP),
                state => break state.map(drop),
            }
        };
        // SAFETY: the handle is not used any more.
        unsafe { (library.calls.abort)(handle) };
        began
    }

    /// Whether no call is still in progress, so that the next transfers may be submitted.
    ///
    /// # Errors
    /// What has failed since, here or at a peer: the clique is to be aborted.
    pub fn is_ready(&self) -> Result<bool> {
        state(&self.library, self.handle)
    }

    /// Hands transfers to NCCL, which must be ready; [`Clique::submitted`] says when they are on the lane.
    ///
    /// # Errors
    /// What NCCL or the driver says: the clique is to be aborted.
    pub fn submit(&mut self, transfers: Transfers) -> Result<()> {
        let Transfers { gates, sends, receives } = transfers;
        gates.into_iter().try_for_each(|gate| gate())?;
        let begun = self.lane.mark()?;
        let calls = &self.library.calls;
        // SAFETY: what is begun here ends below, on this thread.
        self.library.expect("ncclGroupStart", unsafe { (calls.group_start)() })?;
        let mut codes = Vec::with_capacity(sends.len() + receives.len());
        for Piece { peer, address, bytes, .. } in &sends {
            let (from, to) = (*address as *const c_void, *peer as c_int);
            // SAFETY: so many bytes are there, of a tensor that is kept until the lane is past the transfers.
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
        self.submitting =
            Some(Submitted { begun, pieces: sends.into_iter().chain(receives).collect() });
        // SAFETY: it was begun above.
        codes.push(("ncclGroupEnd", unsafe { (calls.group_end)() }));
        codes.into_iter().try_for_each(|(what, code)| self.library.expect(what, code))
    }

    /// A mark after the transfers that were submitted last, once they are on the lane.
    ///
    /// # Errors
    /// As [`Clique::is_ready`], and what the driver says.
    pub fn submitted(&mut self) -> Result<Option<Arc<dyn Mark>>> {
        if self.submitting.is_none() || !self.is_ready()? {
            return Ok(None);
        }
        let mark = self.lane.mark()?;
        self.under_way.extend(self.submitting.take().map(|group| (mark.clone(), group)));
        Ok(Some(mark))
    }

    /// Whether the lane waits for the oldest group of transfers that is under way. If not, there is none, or what is computed before
    /// its gates is not over.
    ///
    /// # Errors
    /// What the driver says.
    pub fn has_begun(&self) -> Result<bool> {
        let oldest = self.under_way.front().map(|(_, group)| group).or(self.submitting.as_ref());
        Ok(oldest.map_or(Ok(false), |group| group.begun.is_over())?)
    }

    /// Drops the tensors of transfers that are over. Returns how many groups of transfers are under way.
    ///
    /// # Errors
    /// As [`Clique::is_ready`], and what the driver says.
    pub fn poll(&mut self) -> Result<usize> {
        self.is_ready()?;
        while let Some((mark, _)) = self.under_way.front() {
            if !mark.is_over()? {
                break;
            }
            self.under_way.pop_front();
        }
        Ok(self.under_way.len() + usize::from(self.submitting.is_some()))
    }

    /// Gives up all transfers under way here: what waits for them on the device goes on, with undefined elements.
    pub fn abort(mut self) {
        // SAFETY: the handle is not used any more.
        unsafe { (self.library.calls.abort)(mem::replace(&mut self.handle, ptr::null_mut())) };
    }

    /// Ends the clique, as all its processes must, with nothing under way. Aborts it if it has not ended within `limit` after `waits`
    /// last returned true.
    ///
    /// # Errors
    /// What NCCL says.
    pub fn end(mut self, limit: Duration, waits: impl Fn() -> bool) -> Result<()> {
        // SAFETY: the communicator has not ended.
        let code = unsafe { (self.library.calls.finalize)(self.handle) };
        let mut begun = Instant::now();
        let mut ended = self.library.expect("ncclCommFinalize", code);
        while ended.is_ok() && !self.is_ready()? {
            if waits() {
                begun = Instant::now();
            } else if begun.elapsed() > limit {
                ended = Err(Error::new("ncclCommFinalize", "a process has not ended its part"));
                break;
            }
            std::thread::sleep(SLEEP);
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
        let left = left.map(|(_, group)| group).chain(self.submitting.take());
        // The device may still read and write there: the memory is never freed.
        left.for_each(|group| mem::forget(group.pieces));
    }
}

/// Begins a communicator.
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

/// Whether no call of a communicator, which has not ended, is in progress.
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
