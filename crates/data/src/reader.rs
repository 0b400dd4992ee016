//! Ids of a cache at positions, read a block of neighbours at a time: stripes of single tokens would be a system call each.

use annulus_machine::blocks::READ_IDS;

use crate::{Cache, DataError};

/// Reads a cache by places that rise.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    cache: &'a Cache,
    /// The ids from place `start` on.
    ids: Vec<u32>,
    start: u64,
    /// How many are read at once, at most.
    most: u64,
    /// One past the last place that may be read.
    end: u64,
}

impl<'a> Reader<'a> {
    /// Of a sequence of `tokens` inputs, whose places are below `end`. What is held is the same on all ranks.
    pub(crate) fn new(cache: &'a Cache, tokens: u64, end: u64) -> Reader<'a> {
        let most = READ_IDS.min(tokens + 1);
        Reader { cache, ids: Vec::with_capacity(most as usize), start: 0, most, end }
    }

    /// The ids at `place` and behind it.
    pub(crate) fn pair(&mut self, place: u64) -> Result<[u32; 2], DataError> {
        if let Some(&[id, next]) = self.within(place) {
            return Ok([id, next]);
        }
        self.ids.resize(self.most.min(self.end - place) as usize, 0);
        self.cache.read(place, &mut self.ids)?;
        self.start = place;
        Ok([self.ids[0], self.ids[1]])
    }

    fn within(&self, place: u64) -> Option<&[u32; 2]> {
        let at = place.checked_sub(self.start)? as usize;
        self.ids.get(at..)?.first_chunk()
    }
}
