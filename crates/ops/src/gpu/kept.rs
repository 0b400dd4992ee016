//! Keeps uploads on the device by content: what kernels need of a mask is equal for every layer, and mostly for every step.

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::Result;
use parking_lot::Mutex;

use super::{Processor, Uploaded};

/// The most bytes that are kept: the least recently used uploads go first. Two masks over 1M tokens take half: with less, layers that take
/// turns would upload theirs at every launch.
const MOST: usize = 128 << 20;

/// Uploads by their content.
#[derive(Debug, Default)]
pub struct Kept(Mutex<Shelf>);

#[derive(Debug, Default)]
struct Shelf {
    entries: HashMap<blake3::Hash, Entry>,
    bytes: usize,
    asked: u64,
}

#[derive(Debug)]
struct Entry {
    uploaded: Arc<Uploaded>,
    bytes: usize,
    asked: u64,
}

impl Kept {
    /// A copy of `bytes` on `processor`, to which this cache belongs: an earlier one, if it is still there.
    ///
    /// # Errors
    /// As [`Processor::upload`].
    pub fn upload(&self, processor: &dyn Processor, bytes: &[u8]) -> Result<Arc<Uploaded>> {
        let hash = blake3::hash(bytes);
        let mut shelf = self.0.lock();
        shelf.asked += 1;
        let asked = shelf.asked;
        if let Some(entry) = shelf.entries.get_mut(&hash) {
            entry.asked = asked;
            return Ok(entry.uploaded.clone());
        }
        let uploaded = Arc::new(processor.upload(bytes)?);
        let entry = Entry { uploaded: uploaded.clone(), bytes: bytes.len(), asked };
        shelf.bytes += bytes.len();
        shelf.entries.insert(hash, entry);
        shelf.make_room();
        Ok(uploaded)
    }
}

impl Shelf {
    /// Frees old uploads; the newest stays, however large it is.
    fn make_room(&mut self) {
        while self.bytes > MOST && self.entries.len() > 1 {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.asked);
            let Some(hash) = oldest.map(|(hash, _)| *hash) else { return };
            if let Some(entry) = self.entries.remove(&hash) {
                self.bytes -= entry.bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(shelf: &mut Shelf, name: u8, bytes: usize) {
        shelf.asked += 1;
        let uploaded = Uploaded { address: u64::from(name), owner: Box::new(Nothing) };
        let entry = Entry { uploaded: Arc::new(uploaded), bytes, asked: shelf.asked };
        shelf.entries.insert(blake3::hash(&[name]), entry);
        shelf.bytes += bytes;
        shelf.make_room();
    }

    #[derive(Debug)]
    struct Nothing;
    impl crate::gpu::Owner for Nothing {}

    #[test]
    fn what_was_not_asked_for_longest_goes_first() {
        let mut shelf = Shelf::default();
        for name in 0..3 {
            entry(&mut shelf, name, MOST / 2);
        }
        assert!(!shelf.entries.contains_key(&blake3::hash(&[0])));
        assert_eq!((shelf.entries.len(), shelf.bytes), (2, MOST / 2 * 2));
        // The newest stays, however large it is.
        entry(&mut shelf, 9, 2 * MOST);
        assert!(shelf.entries.contains_key(&blake3::hash(&[9])) && shelf.entries.len() == 1);
    }
}
