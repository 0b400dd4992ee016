//! A pool of memory: a driver takes longer to allocate page-locked memory than a message takes to be sent.
//!
//! Generic over the memory, and over asynchronous work that uses it, such as a copy by a GPU, so that the pool is tested without a GPU.

use std::mem;
use std::sync::Arc;

use candle_core::Result;
use parking_lot::{Mutex, MutexGuard};

/// The smallest size: smaller requests get so many bytes.
const LEAST: usize = 1 << 16;

/// Memory that a pool can hold.
pub(crate) trait Memory {
    /// The address and the number of bytes, the same as long as the memory lives.
    fn place(&self) -> (*mut u8, usize);
}

/// Asynchronous work that reads or writes memory.
pub(crate) trait Work {
    /// Whether the work is done with the memory; never blocks.
    ///
    /// # Errors
    /// When that cannot be known any more.
    fn is_over(&self) -> Result<bool>;

    /// Blocks until the work is done with the memory.
    ///
    /// # Errors
    /// As [`Work::is_over`].
    fn wait(&self) -> Result<()>;
}

/// Memory that is lent and given back, up to a limit in all.
pub(crate) struct Pool<M, W> {
    limit: usize,
    shelf: Mutex<Shelf<M, W>>,
}

struct Shelf<M, W> {
    /// Bytes of the pool's memory: what is free, what is lent, and what is being allocated.
    held: usize,
    /// Free memory, in the order in which it was given back.
    idle: Vec<M>,
    /// Memory that was given back before its work was over, and whether it is the pool's.
    busy: Vec<(M, W, bool)>,
}

impl<M: Memory, W: Work> Pool<M, W> {
    /// A pool of so many bytes at most.
    pub(crate) fn new(limit: usize) -> Pool<M, W> {
        Pool { limit, shelf: Mutex::new(Shelf { held: 0, idle: Vec::new(), busy: Vec::new() }) }
    }

    /// Lends memory of so many bytes or some more. If none is free, `make` allocates as many bytes as it is told; if that fails or the
    /// limit is reached, `spare` allocates memory that is not the pool's and is freed after one use.
    pub(crate) fn take(
        self: &Arc<Self>,
        bytes: usize,
        make: impl FnOnce(usize) -> Option<M>,
        spare: impl FnOnce(usize) -> M,
    ) -> Lent<M, W> {
        let lend = |memory, is_pools| Lent {
            pool: self.clone(),
            memory: Some(memory),
            work: None,
            is_pools,
        };
        let made = match self.find(bytes) {
            Found::Memory(memory) => return lend(memory, true),
            Found::Room(room, too_old) => {
                drop(too_old);
                make(room).ok_or(room)
            }
            Found::Nothing => Err(0),
        };
        match made {
            Ok(memory) => lend(memory, true),
            Err(room) => {
                self.shelf().held -= room;
                lend(spare(bytes), false)
            }
        }
    }

    fn find(&self, bytes: usize) -> Found<M> {
        let mut shelf = self.shelf();
        shelf.collect();
        if bytes > self.limit {
            return Found::Nothing;
        }
        let room = rounded(bytes).min(self.limit);
        // Memory twice as large is left for a larger message.
        let fits = |size: &usize| *size >= bytes && *size < 2 * room;
        let sizes = shelf.idle.iter().map(size).enumerate().filter(|(_, size)| fits(size));
        // Of those of the best size the one that was used last.
        if let Some((index, _)) = sizes.rev().min_by_key(|(_, size)| *size) {
            return Found::Memory(shelf.idle.remove(index));
        }
        let mut too_old = Vec::new();
        while shelf.held + room > self.limit && !shelf.idle.is_empty() {
            // The memory that has been free for longest.
            let memory = shelf.idle.remove(0);
            shelf.held -= size(&memory);
            too_old.push(memory);
        }
        if shelf.held + room > self.limit {
            return Found::Nothing;
        }
        shelf.held += room;
        Found::Room(room, too_old)
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf<M, W>> {
        self.shelf.lock()
    }
}

/// How a request for memory is met.
enum Found<M> {
    /// With this free memory.
    Memory(M),
    /// So many bytes may be allocated. What is freed for them is freed outside of the lock.
    Room(usize, Vec<M>),
    /// The limit is reached.
    Nothing,
}

impl<M: Memory, W: Work> Shelf<M, W> {
    /// Makes memory free again whose work is done.
    fn collect(&mut self) {
        for (memory, work, is_pools) in mem::take(&mut self.busy) {
            self.put(memory, Some(work), is_pools);
        }
    }

    fn put(&mut self, memory: M, work: Option<W>, is_pools: bool) {
        // Work that has failed may still write: its memory is never lent again.
        let going_on = work.filter(|work| !work.is_over().unwrap_or(false));
        match going_on {
            Some(work) => self.busy.push((memory, work, is_pools)),
            None if is_pools => self.idle.push(memory),
            None => drop(memory),
        }
    }
}

/// Memory lent by a pool, which is given back when this is dropped.
pub(crate) struct Lent<M: Memory, W: Work> {
    pool: Arc<Pool<M, W>>,
    /// The memory; `None` once it is given back.
    memory: Option<M>,
    /// Asynchronous work that uses it.
    work: Option<W>,
    is_pools: bool,
}

impl<M: Memory, W: Work> Lent<M, W> {
    /// The address and the number of bytes: as many as were asked for, or some more.
    pub(crate) fn place(&self) -> (*mut u8, usize) {
        self.memory.as_ref().map_or((std::ptr::null_mut(), 0), Memory::place)
    }

    /// Notes that `work` uses the memory from now on.
    pub(crate) fn is_used_by(&mut self, work: W) {
        self.work = Some(work);
    }

    /// Whether no work uses the memory any more; never blocks. Work that is done is dropped, with all that it kept alive.
    ///
    /// # Errors
    /// As [`Work::is_over`].
    pub(crate) fn is_ready(&mut self) -> Result<bool> {
        let over = self.work.as_ref().map_or(Ok(true), Work::is_over)?;
        if over {
            self.work = None;
        }
        Ok(over)
    }

    /// Blocks until no work uses the memory any more.
    ///
    /// # Errors
    /// As [`Work::is_over`].
    pub(crate) fn wait(&self) -> Result<()> {
        self.work.as_ref().map_or(Ok(()), Work::wait)
    }
}

impl<M: Memory, W: Work> Drop for Lent<M, W> {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.pool.shelf().put(memory, self.work.take(), self.is_pools);
        }
    }
}

fn size<M: Memory>(memory: &M) -> usize {
    memory.place().1
}

/// The size of memory for so many bytes: a multiple of an eighth of a power of two, so that messages of similar sizes can use the same
/// memory.
fn rounded(bytes: usize) -> usize {
    let bytes = bytes.max(LEAST);
    bytes.next_multiple_of(bytes.next_power_of_two() / 16)
}

#[cfg(test)]
mod tests;
