//! One thread's end of MPI: it begins, sends, receives, tests and ends it, and no other thread calls.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::io::Write;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::ptr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::library::{Handle, Library, SUCCESS};
use crate::requests::{Piece, Requests};
use crate::{Arriving, Error, Found, Leaving, NAMED, Result};

/// Bytes of a message at most: MPI counts in `int`, and of a large tensor on a slow link one sees by its pieces that it comes.
const PIECE: usize = 1 << 26;
/// Bytes of every implementation's `MPI_Status`, and more.
const STATUS: usize = 256;
/// Room for one.
type Status = [u64; STATUS / 8];
/// How long an end waits for messages that were given up.
const LAST: Duration = Duration::from_secs(1);

/// MPI between its beginning and its end.
pub struct Session {
    library: Library,
    /// Where the library was found.
    pub path: PathBuf,
    /// The number of this process.
    pub rank: usize,
    /// How many there are.
    pub size: usize,
    /// The level of threads that MPI promised, as the standard calls it.
    pub thread_level: &'static str,
    /// What is under way.
    requests: RefCell<Requests>,
    /// Stays on the thread that began it: MPI promises no more.
    stays: PhantomData<*const ()>,
}

/// What this process says if MPI ends it instead of beginning, as MPICH does below a launcher that it does not understand.
static UNBEGUN: Mutex<Option<String>> = Mutex::new(None);

/// MPI begins, for as long as this lives.
struct Beginning;

impl Beginning {
    fn new(session: &Session) -> Beginning {
        let (library, path) = (session.version(), session.path.display());
        let said = format!(
            "error: {library} ({path}) ended this process instead of beginning; it says why above, or is not the launcher's library\n\
             hint: if it says nothing, name the launcher's by {NAMED}=/path/to/libmpi.so, or start by the `mpirun` that belongs to this one\n"
        );
        let mut unbegun = UNBEGUN.lock().unwrap_or_else(PoisonError::into_inner);
        if unbegun.replace(said).is_none() {
            // SAFETY: the function needs nothing but what lives as long as the program. That it is not called is no reason not to
            // begin.
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

/// Nobody waits any longer for MPI to begin: this process ends for a reason of its own.
pub fn give_up_beginning() {
    *UNBEGUN.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

extern "C" fn say_unbegun() {
    if let Some(said) = UNBEGUN.try_lock().ok().and_then(|mut unbegun| unbegun.take()) {
        // Nobody is left to be told that it cannot be said.
        let _ = std::io::stderr().write_all(said.as_bytes());
    }
}

/// A message on its way out, in pieces.
pub struct Sending {
    pieces: VecDeque<Piece>,
    /// Where MPI reads.
    bytes: Option<Leaving>,
}

/// A message on its way in.
pub struct Receiving {
    pieces: VecDeque<Piece>,
    /// Where MPI writes.
    bytes: Option<Arriving>,
    /// Bytes that have come.
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
    /// Begins MPI on this thread. Errors come back as such from then on, instead of ending the process.
    ///
    /// # Errors
    /// What MPI says.
    pub fn begin(found: Found) -> Result<Session> {
        let Found { path, library, .. } = found;
        let mut session = Session {
            library,
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
            let begun = (calls.init)(
                ptr::null_mut(),
                ptr::null_mut(),
                constants.funneled(),
                &raw mut level,
            );
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

    /// What the library says of itself.
    pub fn version(&self) -> String {
        self.library.version()
    }

    /// Sends bytes to a process. Messages with one tag arrive in the order in which they were sent. Where bytes are still being
    /// copied it waits: ask [`Leaving::is_ready`] before.
    ///
    /// # Errors
    /// What MPI says, and what becomes of a copy.
    pub fn send(&self, bytes: Leaving, to: usize, tag: i32) -> Result<Sending> {
        bytes.wait().map_err(|error| Error {
            what: "a tensor cannot be sent".to_owned(),
            why: error.to_string(),
        })?;
        let (first, length) = bytes.place();
        // SAFETY: the bytes stay where they are until the request is done: `Sending` owns them, and keeps them for ever if it
        // ends before.
        let post = |start, count, byte, world, request| unsafe {
            let from = first.wrapping_byte_add(start);
            (self.library.calls.send)(from, count, byte, to as c_int, tag, world, request)
        };
        let mut sending = Sending { pieces: VecDeque::new(), bytes: Some(bytes) };
        self.post(("MPI_Isend", false), length, post, &mut sending.pieces)?;
        Ok(sending)
    }

    /// Receives as many bytes as there is room for, or fewer, from a process.
    ///
    /// # Errors
    /// What MPI says.
    pub fn receive(&self, mut bytes: Arriving, from: usize, tag: i32) -> Result<Receiving> {
        let (first, length) = bytes.place();
        // SAFETY: as in `send`; nobody else looks at the bytes meanwhile.
        let post = |start, count, byte, world, request| unsafe {
            let to = first.wrapping_byte_add(start);
            (self.library.calls.receive)(to, count, byte, from as c_int, tag, world, request)
        };
        let mut receiving = Receiving { pieces: VecDeque::new(), bytes: Some(bytes), came: 0 };
        self.post(("MPI_Irecv", true), length, post, &mut receiving.pieces)?;
        Ok(receiving)
    }

    /// Posts a message in pieces that MPI can count. `call` gets where a piece starts and its bytes, `MPI_BYTE`, the world and where
    /// its request goes.
    fn post(
        &self,
        (name, is_received): (&str, bool),
        length: usize,
        call: impl Fn(usize, c_int, Handle, Handle, *mut Handle) -> c_int,
        pieces: &mut VecDeque<Piece>,
    ) -> Result<()> {
        let constants = &self.library.constants;
        // Of nothing one piece that is empty.
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

    /// Notes what has left and arrived since, and lets MPI go on with what has not. Whether anything has: MPI may then have more to say.
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

    /// Whether a message had left when [`Session::progress`] was called last.
    pub fn has_left(&self, sending: &mut Sending) -> bool {
        let mut requests = self.requests.borrow_mut();
        while sending.pieces.front().is_some_and(|piece| requests.take(*piece).is_some()) {
            sending.pieces.pop_front();
        }
        sending.pieces.is_empty()
    }

    /// What had arrived when [`Session::progress`] was called last, if all of it had.
    ///
    /// # Errors
    /// Elements of which some did not come.
    pub fn arrived(&self, receiving: &mut Receiving) -> Result<Option<Arriving>> {
        let mut requests = self.requests.borrow_mut();
        while let Some(piece) = receiving.pieces.front() {
            let Some(came) = requests.take(*piece) else { return Ok(None) };
            receiving.came += came;
            receiving.pieces.pop_front();
        }
        let Some(mut bytes) = receiving.bytes.take() else { return Ok(None) };
        // SAFETY: MPI says that it wrote them. Pieces but the last are as long as their room, or the sum falls short.
        if unsafe { bytes.filled(receiving.came) } {
            return Ok(Some(bytes));
        }
        let what = String::from("a message is shorter than was said");
        Err(Error { what, why: format!("{} bytes came", receiving.came) })
    }

    /// Gives a message up that has not arrived.
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
            // MPI writes there no more.
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
        let code = unsafe { (self.library.calls.finalize)() };
        self.expect("MPI_Finalize", code)
    }

    /// Ends every process of the job; `code` is what the launcher ends with.
    pub fn abort(&self, code: i32) {
        // SAFETY: no condition but that MPI has begun.
        unsafe { (self.library.calls.abort)(self.library.constants.world, code) };
    }

    /// Which of these requests is done, if one is, and its status.
    fn done(&self, requests: &mut [Handle]) -> Result<Option<(usize, Status)>> {
        let (mut index, mut done, mut status): (c_int, c_int, Status) = (0, 0, [0; STATUS / 8]);
        let mut numbers: Vec<c_int> = Vec::new();
        let first = if self.library.constants.are_numbers {
            numbers.extend(requests.iter().map(|request| *request as c_int));
            numbers.as_mut_ptr().cast()
        } else {
            requests.as_mut_ptr()
        };
        // SAFETY: the requests are under way, and lie there as wide as the library has them; the status is larger than every
        // implementation's.
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
        // Of no request MPI says that it is done, and names none.
        Ok(usize::try_from(index).ok().filter(|_| done != 0).map(|index| (index, status)))
    }

    /// How many bytes came with a receive.
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
            // MPI may still read there: the bytes are never given back.
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
