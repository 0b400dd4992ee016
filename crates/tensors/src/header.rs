//! The header of a safetensors file, checked before it is believed.
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

/// Bytes before the header, which say how long it is.
pub(crate) const LENGTH: usize = 8;

/// What headers and indices may still take.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Bytes to be parsed.
    bytes: u64,
    /// Tensors to be kept.
    tensors: usize,
    /// What is kept of the metadata.
    metadata: &'static [&'static str],
}

impl Room {
    /// The longest index that is parsed, and the longest headers of all shards together, in bytes. The
    /// largest Llama needs a twentieth: 1200 entries of 150 bytes.
    pub const LONGEST: u64 = 4 << 20;

    /// For so many tensors.
    pub fn of(tensors: usize) -> Room {
        Room { bytes: Room::LONGEST, tensors, metadata: &[] }
    }

    /// The same, and for what stands under these names in the metadata.
    #[must_use]
    pub fn and_metadata(self, metadata: &'static [&'static str]) -> Room {
        Room { metadata, ..self }
    }

    pub(crate) fn tensors(&self) -> usize {
        self.tensors
    }

    /// Refuses a header or index of so many bytes, where there is no room for it.
    ///
    /// # Errors
    /// Then.
    pub fn take(&mut self, path: &Path, length: u64) -> Result<(), TensorsError> {
        let Room { bytes, .. } = *self;
        if let Some(left) = bytes.checked_sub(length) {
            self.bytes = left;
            return Ok(());
        }
        let problem = format!("its header of {length} bytes is too long (wanted at most {bytes})");
        Err(TensorsError::malformed(path, &problem))
    }
}

/// A tensor in a file.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What its elements are.
    pub dtype: Dtype,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// Where it is, from where the first tensor begins.
    pub(crate) bytes: Range<u64>,
}

impl Entry {
    /// How many bytes it has.
    pub fn length(&self) -> u64 {
        self.bytes.end - self.bytes.start
    }
}

/// What a header says.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) tensors: BTreeMap<String, Entry>,
    pub(crate) metadata: BTreeMap<String, String>,
}

/// What is written of a tensor.
#[derive(Deserialize)]
pub(crate) struct Written<'a> {
    #[serde(borrow)]
    dtype: Short<'a>,
    shape: Dimensions,
    data_offsets: (u64, u64),
}

impl Header {
    /// The header in these bytes, of a file with `size` bytes of tensors; they come out of `room`.
    pub(crate) fn parse(bytes: &[u8], size: u64, room: &mut Room) -> Result<Header, String> {
        let Found { entries, metadata } =
            object(bytes, Entries::<Written<'_>>::new(room.tensors, room.metadata))
                .map_err(|e| e.to_string())?;
        room.tensors -= entries.len();
        let mut tensors = BTreeMap::new();
        for (name, written) in entries {
            let entry = entry(written, size).map_err(|what| format!("`{}`{what}", shown(&name)))?;
            tensors.insert(name.into_owned(), entry);
        }
        whole(&tensors, size)?;
        Ok(Header { tensors, metadata })
    }
}

/// The tensor that is written, which must be what it says over `size` bytes.
fn entry(written: Written<'_>, size: u64) -> Result<Entry, String> {
    let Written { dtype, shape: Dimensions(shape), data_offsets: (begin, end) } = written;
    let word: StrDeserializer<'_, serde::de::value::Error> = StrDeserializer::new(&dtype.0);
    let dtype = Dtype::deserialize(word).map_err(|error| format!(": {error}"))?;
    if begin > end || end > size {
        let short = if begin <= end { ": the file may be cut short" } else { "" };
        return Err(format!(" is said to be bytes {begin} to {end} of {size}{short}"));
    }
    let bits = shape.iter().try_fold(dtype.bitsize(), |bits, &n| bits.checked_mul(n));
    if bits.map(|bits| bits as u64) != (end - begin).checked_mul(8) {
        let found = end - begin;
        return Err(format!(" is said to be {dtype} {shape:?} in {found} bytes"));
    }
    Ok(Entry { dtype, shape, bytes: begin..end })
}

/// That tensors lie one behind the other and leave nothing out: bytes of two, or of none, are how a
/// file hides something.
fn whole(tensors: &BTreeMap<String, Entry>, size: u64) -> Result<(), String> {
    let mut extents: Vec<_> = tensors.iter().map(|(name, entry)| (&entry.bytes, name)).collect();
    extents.sort_unstable_by_key(|(bytes, name)| (bytes.start, bytes.end, *name));
    let mut from = 0;
    for (bytes, name) in extents {
        if bytes.start != from {
            let (name, begin) = (shown(name), bytes.start);
            return Err(format!("`{name}` begins at byte {begin} of the data (wanted {from})"));
        }
        from = bytes.end;
    }
    if from == size {
        return Ok(());
    }
    Err(format!("bytes {from} to {size} of the data are of no tensor"))
}
