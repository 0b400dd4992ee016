//! MPI as the one thread that calls it has it: it begins and ends MPI, sends, receives and polls.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::io::Write;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::ptr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::library::{Handle, Library, SUCCESS};
use crate::requests::{Piece, Requests};
use crate::signals::keeping_stops;
use crate::{Arriving, Error, Found, Leaving, NAMED, Result};

/// Bytes of a piece of a message at most: MPI counts in `int`, and the pieces of a large tensor show on a slow link that it makes
/// progress.
const PIECE: usize = 1 << 26;
/// Bytes of an `MPI_Status`: more than any implementation needs.
const STATUS: usize = 256;
/// Memory for an `MPI_Status`.
type Status = [u64; STATUS / 8];
/// How long giving up a receive waits for MPI to cancel it.
const LAST: Duration = Duration::from_secs(1);

/// MPI between `MPI_Init_thread` and `MPI_Finalize`.
pub struct Session {
    /// Never unloaded: threads run destructors of the library at their end, and after an error MPI has not ended.
    library: ManuallyDrop<Library>,
    /// Where the library was found.
    pub path: PathBuf,
    /// The rank of MPI that this process is.
    pub rank: usize,
    /// The number of processes.
    pub size: usize,
    /// The level of threads that MPI promised, as the standard calls it.
    pub thread_level: &'static str,
    /// The requests that are under way.
    requests: RefCell<Requests>,
    /// Keeps the session on the thread that began it, as MPI promises no more.
    stays: PhantomData<*const ()>,
}

/// What this process prints if MPI ends it instead of beginning, as MPICH does below a launcher that it does not understand.
static UNBEGUN: Mutex<Option<String>> = Mutex::new(None);

/// Lives while MPI begins, and sets [`UNBEGUN`] for as long.
struct Beginning;

impl Beginning {
    fn new(session: &Session) -> Beginning {
        let (library, path) = (session.version(), session.path.display());
        let said = format!(
            "error: {library} ({path}) ended this process instead of beginning; it says why above, or is not the launcher's library\n\
             hint: if it says nothing, name the launcher's by {NAMED}=/path/to/libmpi.so, or start by the `mpirun` that belongs to this one\n"
        );
        let mut unbegun = UNBEGUN.lock();
        if unbegun.replace(said).is_none() {
            // SAFETY: the function uses only what lives as long as the program. If it cannot be registered, MPI begins all the same.
            let _ = unsafe { libc::atexit(say_unbegun) };
        }
        Beginning
    }
}

impl Drop for Beginning {
    fn drop(&mut self) {
        give_up_beginning();
    }
}

/// Says that this process no longer waits for MPI to begin, and ends for another reason.
pub fn give_up_beginning() {
    *UNBEGUN.lock() = None;
}

extern "C" fn say_unbegun() {
    if let Some(said) = UNBEGUN.try_lock().and_then(|mut unbegun| unbegun.take()) {
        // If this cannot be printed, nothing can.
        let _ = std::io::stderr().write_all(said.as_bytes());
    }
}

/// A message that is being sent, in pieces.
pub struct Sending {
    pieces: VecDeque<Piece>,
    /// The bytes that MPI reads.
    bytes: Option<Leaving>,
}

/// A message that is being received, in pieces.
pub struct Receiving {
    pieces: VecDeque<Piece>,
    /// The buffer that MPI writes.
    bytes: Option<Arriving>,
    /// Bytes that were received.
    came: usize,
}

impl Sending {
    /// How many pieces of it have not left.
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }
}

impl Receiving {
    /// How many pieces of it have not come.
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }
}

impl Session {
    /// Begins MPI on this thread. From then on MPI returns errors instead of ending the process.
    ///
    /// # Errors
    /// What MPI says.
    pub fn begin(found: Found) -> Result<Session> {
        let Found { path, library, .. } = found;
        let mut session = Session {
            library: ManuallyDrop::new(library),
            path,
            rank: 0,
            size: 1,
            thread_level: "",
            requests: RefCell::default(),
            stays: PhantomData,
        };
        let beginning = Beginning::new(&session);
        let world = session.library.constants.world;
        let (mut level, mut rank, mut size) = (0, 0, 0);
        let (calls, constants) = (&session.library.calls, session.library.constants);
        // SAFETY: null stands for no arguments (MPI 2.0 and later); the numbers are written into variables that live.
        let codes = unsafe {
            let begun = keeping_stops(|| {
                (calls.init)(ptr::null_mut(), ptr::null_mut(), constants.funneled(), &raw mut level)
            });
            drop(beginning);
            session.expect("MPI_Init_thread", begun)?;
            [
                (calls.on_error)(world, constants.errors_return),
                (calls.rank)(world, &raw mut rank),
                (calls.size)(world, &raw mut size),
            ]
        };
        for code in codes {
            session.expect("MPI's world", code)?;
        }
        (session.rank, session.size) = (rank as usize, size as usize);
        session.thread_level = session.library.constants.level(level);
        Ok(session)
    }

    /// The first line of the library's description of itself, up to a comma.
    pub fn version(&self) -> String {
        self.library.version()
    }

    /// Begins to send bytes to a process. Messages with one tag arrive in the order in which they were sent. Blocks while bytes are still
    /// being copied: ask [`Leaving::is_ready`] before.
    ///
    /// # Errors
    /// What MPI says, and a copy that failed.
    pub fn send(&self, bytes: Leaving, to: usize, tag: i32) -> Result<Sending> {
        bytes.wait().map_err(|error| Error {
            what: "a tensor cannot be sent".to_owned(),
            why: error.to_string(),
        })?;
        let (first, length) = bytes.place();
        // SAFETY: the bytes stay where they are until the request is done: `Sending` owns them, and leaks them if it is dropped before.
        let post = |start, count, byte, world, request| unsafe {
            let from = first.wrapping_byte_add(start);
            (self.library.calls.send)(from, count, byte, to as c_int, tag, world, request)
        };
        let mut sending = Sending { pieces: VecDeque::new(), bytes: Some(bytes) };
        self.post("MPI_Isend", false, length, post, &mut sending.pieces)?;
        Ok(sending)
    }

    /// Begins to receive a message from a process, at most as long as the buffer.
    ///
    /// # Errors
    /// What MPI says.
    pub fn receive(&self, mut bytes: Arriving, from: usize, tag: i32) -> Result<Receiving> {
        let (first, length) = bytes.place();
        // SAFETY: as in `send`; nobody else reads or writes the bytes meanwhile.
        let post = |start, count, byte, world, request| unsafe {
            let to = first.wrapping_byte_add(start);
            (self.library.calls.receive)(to, count, byte, from as c_int, tag, world, request)
        };
        let mut receiving = Receiving { pieces: VecDeque::new(), bytes: Some(bytes), came: 0 };
        self.post("MPI_Irecv", true, length, post, &mut receiving.pieces)?;
        Ok(receiving)
    }

    /// Posts a message in pieces that MPI can count. `call` gets the offset of a piece and its length, `MPI_BYTE`, the world and where to
    /// write its request.
    fn post(
        &self,
        name: &str,
        is_received: bool,
        length: usize,
        call: impl Fn(usize, c_int, Handle, Handle, *mut Handle) -> c_int,
        pieces: &mut VecDeque<Piece>,
    ) -> Result<()> {
        let constants = &self.library.constants;
        // An empty message is one empty piece.
        for start in (0..length.max(1)).step_by(PIECE) {
            let (count, mut request) = ((length - start).min(PIECE) as c_int, 0);
            self.expect(
                name,
                call(start, count, constants.byte, constants.world, &raw mut request),
            )?;
            pieces.push_back(self.requests.borrow_mut().add(request, is_received));
        }
        Ok(())
    }

    /// Lets MPI progress, and notes what has left and arrived since the last call. Returns whether anything has: if so, calling again may
    /// find more.
    ///
    /// # Errors
    /// What MPI says.
    pub fn progress(&self) -> Result<bool> {
        let mut requests = self.requests.borrow_mut();
        let mut any = false;
        while let Some((index, status)) = self.done(requests.under_way())? {
            let came = if requests.is_received(index) { self.came(&status)? } else { 0 };
            requests.end(index, came);
            any = true;
        }
        Ok(any)
    }

    /// Whether a message had left at the last call of [`Session::progress`].
    pub fn has_left(&self, sending: &mut Sending) -> bool {
        let mut requests = self.requests.borrow_mut();
        while sending.pieces.front().is_some_and(|piece| requests.take(*piece).is_some()) {
            sending.pieces.pop_front();
        }
        sending.pieces.is_empty()
    }

    /// The message, if all of it had arrived at the last call of [`Session::progress`].
    ///
    /// # Errors
    /// A message with fewer bytes than its elements have.
    pub fn arrived(&self, receiving: &mut Receiving) -> Result<Option<Arriving>> {
        let mut requests = self.requests.borrow_mut();
        while let Some(piece) = receiving.pieces.front() {
            let Some(came) = requests.take(*piece) else { return Ok(None) };
            receiving.came += came;
            receiving.pieces.pop_front();
        }
        let Some(mut bytes) = receiving.bytes.take() else { return Ok(None) };
        // SAFETY: MPI says that it wrote them. If a piece before the last was short, the sum is less than the buffer.
        if unsafe { bytes.filled(receiving.came) } {
            return Ok(Some(bytes));
        }
        let what = String::from("a message is shorter than was said");
        Err(Error { what, why: format!("{} bytes came", receiving.came) })
    }

    /// Cancels the receive of a message that has not arrived.
    ///
    /// # Errors
    /// What MPI says.
    pub fn give_up(&self, mut receiving: Receiving) -> Result<()> {
        let mut requests = self.requests.borrow_mut();
        let mut given_up: Vec<Handle> =
            receiving.pieces.iter().filter_map(|piece| requests.remove(*piece)).collect();
        for request in &mut given_up {
            // SAFETY: the request is one that is under way.
            let code = unsafe { (self.library.calls.cancel)(request) };
            self.expect("MPI_Cancel", code)?;
        }
        let begun = Instant::now();
        while !given_up.is_empty() && begun.elapsed() <= LAST {
            match self.done(&mut given_up)? {
                Some((index, _)) => drop(given_up.swap_remove(index)),
                None => std::thread::sleep(Duration::from_micros(100)),
            }
        }
        if given_up.is_empty() {
            // MPI writes to the buffer no more.
            receiving.pieces.clear();
        }
        Ok(())
    }

    /// Ends MPI; all processes must.
    ///
    /// # Errors
    /// What MPI says.
    pub fn end(self) -> Result<()> {
        // SAFETY: called once, by the thread that began.
        let code = keeping_stops(|| unsafe { (self.library.calls.finalize)() });
        self.expect("MPI_Finalize", code)
    }

    /// Ends every process of the job; `code` is the exit code for the launcher.
    pub fn abort(&self, code: i32) {
        // SAFETY: MPI has begun, which is all that the call needs.
        unsafe { (self.library.calls.abort)(self.library.constants.world, code) };
    }

    /// The index of one of these requests that is done, if any is, and its status.
    fn done(&self, requests: &mut [Handle]) -> Result<Option<(usize, Status)>> {
        let (mut index, mut done, mut status): (c_int, c_int, Status) = (0, 0, [0; STATUS / 8]);
        let mut numbers: Vec<c_int> = Vec::new();
        let first = if self.library.constants.are_numbers {
            numbers.extend(requests.iter().map(|request| *request as c_int));
            numbers.as_mut_ptr().cast()
        } else {
            requests.as_mut_ptr()
        };
        // SAFETY: the requests are under way and as wide as the library's handles; the status is larger than that of any implementation.
        let code = unsafe {
            (self.library.calls.test_any)(
                requests.len() as c_int,
                first,
                &raw mut index,
                &raw mut done,
                status.as_mut_ptr().cast(),
            )
        };
        self.expect("MPI_Testany", code)?;
        // If there are no requests, MPI says that one is done, with an undefined index, which is negative.
        Ok(usize::try_from(index).ok().filter(|_| done != 0).map(|index| (index, status)))
    }

    /// How many bytes were received, by the status of a receive.
    fn came(&self, status: &Status) -> Result<usize> {
        let (mut count, byte) = (0, self.library.constants.byte);
        // SAFETY: the status is that of a receive, as MPI wrote it.
        let code =
            unsafe { (self.library.calls.count)(status.as_ptr().cast(), byte, &raw mut count) };
        self.expect("MPI_Get_count", code)?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    fn expect(&self, what: &str, code: c_int) -> Result<()> {
        if code == SUCCESS { Ok(()) } else { Err(self.library.error(what, code)) }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if !self.pieces.is_empty() {
            // MPI may still read there: the bytes are never freed.
            std::mem::forget(self.bytes.take());
        }
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        if !self.pieces.is_empty() {
            std::mem::forget(self.bytes.take());
        }
    }
}
