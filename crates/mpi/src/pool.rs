//! Memory that is handed out again and again: page-locked memory takes a driver longer to make than a message takes to travel.
//!
//! Generic over the memory and over what goes on using it once it was begun, such as a copy that a GPU makes, so that all of this
//! is tested where there is none.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::Result;

/// Less is not worth a size of its own.
const LEAST: usize = 1 << 16;

/// Memory of this process.
pub(crate) trait Memory {
    /// Where it begins, and how many bytes it has: the same as long as it lives.
    fn place(&self) -> (*mut u8, usize);
}

/// What reads or writes memory by itself once it was begun.
pub(crate) trait Work {
    /// Whether it is done with the memory; never blocks.
    ///
    /// # Errors
    /// When nobody knows any more.
    fn is_over(&self) -> Result<bool>;

    /// Returns when it is.
    ///
    /// # Errors
    /// As [`Work::is_over`].
    fn wait(&self) -> Result<()>;
}

/// Memory that nobody has for the moment, up to a limit with what is lent.
pub(crate) struct Pool<M, W> {
    limit: usize,
    shelf: Mutex<Shelf<M, W>>,
}

struct Shelf<M, W> {
    /// Bytes of the pool's memory: what lies here, what is lent, and what is being made.
    held: usize,
    /// What can be lent; last what was given back last.
    idle: Vec<M>,
    /// What was given back before work was over, and whether it is the pool's.
    busy: Vec<(M, W, bool)>,
}

impl<M: Memory, W: Work> Pool<M, W> {
    /// A pool of so many bytes at most.
    pub(crate) fn new(limit: usize) -> Pool<M, W> {
        Pool { limit, shelf: Mutex::new(Shelf { held: 0, idle: Vec::new(), busy: Vec::new() }) }
    }

    /// Memory of so many bytes or some more. What is missing is made by `make`, of as many bytes as it is told; where that says no
    /// or the limit is reached, `spare` makes memory that is not the pool's and ends after its one use.
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
        // Twice as much would be missed by a larger message.
        let fits = |size: &usize| *size >= bytes && *size < 2 * room;
        let sizes = shelf.idle.iter().map(size).enumerate().filter(|(_, size)| fits(size));
        // Of those of a size the one that was used last.
        if let Some((index, _)) = sizes.rev().min_by_key(|(_, size)| *size) {
            return Found::Memory(shelf.idle.remove(index));
        }
        let mut too_old = Vec::new();
        while shelf.held + room > self.limit && !shelf.idle.is_empty() {
            // Of the sizes that were in use the one that has not been for longest.
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
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What there is for so many bytes.
enum Found<M> {
    /// This.
    Memory(M),
    /// So much may be made; what had to go for it goes outside of the lock.
    Room(usize, Vec<M>),
    /// The limit is reached.
    Nothing,
}

impl<M: Memory, W: Work> Shelf<M, W> {
    /// Puts what work is done with where it can be lent.
    fn collect(&mut self) {
        for (memory, work, is_pools) in mem::take(&mut self.busy) {
            self.put(memory, Some(work), is_pools);
        }
    }

    fn put(&mut self, memory: M, work: Option<W>, is_pools: bool) {
        // Of what has failed nobody knows whether it still writes: its memory is never lent again.
        let going_on = work.filter(|work| !work.is_over().unwrap_or(false));
        match going_on {
            Some(work) => self.busy.push((memory, work, is_pools)),
            None if is_pools => self.idle.push(memory),
            None => drop(memory),
        }
    }
}

/// Memory that one has, and gives back when it is dropped.
pub(crate) struct Lent<M: Memory, W: Work> {
    pool: Arc<Pool<M, W>>,
    /// Until it is given back.
    memory: Option<M>,
    /// What uses it by itself.
    work: Option<W>,
    is_pools: bool,
}

impl<M: Memory, W: Work> Lent<M, W> {
    /// Where it begins, and how many bytes it has: as many as were asked for, or some more.
    pub(crate) fn place(&self) -> (*mut u8, usize) {
        self.memory.as_ref().map_or((std::ptr::null_mut(), 0), Memory::place)
    }

    /// From now on `work` uses it by itself.
    pub(crate) fn is_used_by(&mut self, work: W) {
        self.work = Some(work);
    }

    /// Whether nothing uses it by itself any more. What did is dropped, with all that it kept alive.
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

    /// Returns when nothing uses it by itself any more.
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

/// Eighths of a power of two, so that messages of about a size use the same memory.
fn rounded(bytes: usize) -> usize {
    let bytes = bytes.max(LEAST);
    bytes.next_multiple_of(bytes.next_power_of_two() / 16)
}

#[cfg(test)]
mod tests;
