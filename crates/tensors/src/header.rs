//! The header of a safetensors file, checked before it is used.
//!
//! Files are read for this by hand and not by the crate that defines the format: that one buffers
//! everything several times over, lets the last of two equal keys win, and adds up offsets without
//! regard to overflow. Here nothing is kept but what there is room for, so that a hostile file takes
//! less memory than it has bytes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use safetensors::Dtype;
use serde::Deserialize;
use serde::de::value::StrDeserializer;

use crate::TensorsError;
use crate::error::shown;
use crate::json::{Dimensions, Entries, Found, Short, object};

/// Bytes before the header, which hold its length.
pub(crate) const LENGTH: usize = 8;

/// What headers and indices may still take of memory.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Bytes that may be parsed.
    bytes: u64,
    /// Tensors that may be kept.
    tensors: usize,
    /// The metadata that is kept, by name.
    metadata: &'static [&'static str],
}

impl Room {
    /// The longest index that is parsed, and the longest headers of all shards together, in bytes. The
    /// largest Llama needs a twentieth: 1200 entries of 150 bytes.
    pub const LONGEST: u64 = 4 << 20;

    /// Room for the header of a model with `tensors` tensors.
    pub fn of(tensors: usize) -> Room {
        Room { bytes: Room::LONGEST, tensors, metadata: &[] }
    }

    /// This room, and more for the metadata under these names.
    #[must_use]
    pub fn and_metadata(self, metadata: &'static [&'static str]) -> Room {
        Room { metadata, ..self }
    }

    pub(crate) fn tensors(&self) -> usize {
        self.tensors
    }

    /// Takes `length` bytes for `what`, a header or an index.
    ///
    /// # Errors
    /// When there is no room for them.
    pub(crate) fn take(
        &mut self,
        path: &Path,
        what: &str,
        length: u64,
    ) -> Result<(), TensorsError> {
        let (most, left) = (Room::LONGEST, self.bytes);
        if length <= left {
            self.bytes = left - length;
            return Ok(());
        }
        let expected = if length > most {
            format!("at most {most}")
        } else {
            format!("at most {left}: {most} for all files together, less those before it")
        };
        let problem = format!("{what} of {length} bytes is too long (expected {expected})");
        Err(TensorsError::malformed(path, &problem))
    }
}

/// A tensor in a file.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The dtype of the elements.
    pub dtype: Dtype,
    /// The sizes along each dimension.
    pub shape: Vec<usize>,
    /// Where its bytes are, from where the first tensor begins.
    pub(crate) bytes: Range<u64>,
}

impl Entry {
    /// The number of the tensor's bytes.
    pub fn length(&self) -> u64 {
        self.bytes.end - self.bytes.start
    }
}

/// The contents of a header.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) tensors: BTreeMap<String, Entry>,
    pub(crate) metadata: BTreeMap<String, String>,
}

/// A tensor's entry as written in a header.
#[derive(Deserialize)]
pub(crate) struct Written<'a> {
    #[serde(borrow)]
    dtype: Short<'a>,
    shape: Dimensions,
    data_offsets: (u64, u64),
}

impl Header {
    /// Parses the header of a file with `size` bytes of tensors; what it holds is taken from `room`.
    pub(crate) fn parse(bytes: &[u8], size: u64, room: &mut Room) -> Result<Header, String> {
        let Found { entries, metadata } =
            object(bytes, Entries::<Written<'_>>::new(room.tensors, room.metadata))
                .map_err(|e| e.to_string())?;
        room.tensors -= entries.len();
        let mut tensors = BTreeMap::new();
        for (name, written) in entries {
            let entry = entry(written, size, &shown(&name))?;
            tensors.insert(name.into_owned(), entry);
        }
        whole(&tensors, size)?;
        Ok(Header { tensors, metadata })
    }
}

/// The entry of a tensor, whose bytes must match its shape and lie within `size` bytes.
fn entry(written: Written<'_>, size: u64, name: &str) -> Result<Entry, String> {
    let Written { dtype, shape: Dimensions(shape), data_offsets: (begin, end) } = written;
    let word: StrDeserializer<'_, serde::de::value::Error> = StrDeserializer::new(&dtype.0);
    let dtype = Dtype::deserialize(word).map_err(|error| format!("`{name}`: {error}"))?;
    if begin > end || end > size {
        let what = if begin > end {
            ", which end before they begin".to_owned()
        } else {
            format!(", but only {size} follow: the file may be truncated")
        };
        return Err(format!("its header puts `{name}` at bytes {begin} to {end}{what}"));
    }
    let bits = shape.iter().try_fold(dtype.bitsize(), |bits, &n| bits.checked_mul(n));
    if bits.map(|bits| bits as u64) != (end - begin).checked_mul(8) {
        let found = end - begin;
        return Err(format!("its header says that `{name}` is {dtype} {shape:?} in {found} bytes"));
    }
    Ok(Entry { dtype, shape, bytes: begin..end })
}

/// Checks that tensors follow one another without gaps or overlaps, where a file could hide something.
fn whole(tensors: &BTreeMap<String, Entry>, size: u64) -> Result<(), String> {
    let mut extents: Vec<_> = tensors.iter().map(|(name, entry)| (&entry.bytes, name)).collect();
    extents.sort_unstable_by_key(|(bytes, name)| (bytes.start, bytes.end, *name));
    let mut from = 0;
    for (bytes, name) in extents {
        if bytes.start != from {
            let (name, begin) = (shown(name), bytes.start);
            return Err(format!("`{name}` begins at byte {begin} of the data (expected {from})"));
        }
        from = bytes.end;
    }
    if from == size {
        return Ok(());
    }
    Err(format!("bytes {from} to {size} of the data are of no tensor"))
}
