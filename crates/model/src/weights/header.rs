//! The header of a safetensors file, checked before it is believed.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::TensorInfo;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::WeightsError;
use super::error::shown;

/// The longest index that is parsed, and the longest headers of all shards together, in bytes. The
/// largest Llama needs a twentieth: 1200 entries of 150 bytes. Parsing takes some twenty times the
/// length in memory, so that a hostile file cannot take the machine.
pub(super) const LONGEST: u64 = 4 << 20;

/// What a header says.
#[derive(Deserialize)]
struct Header {
    #[serde(rename = "__metadata__")]
    _metadata: Option<BTreeMap<String, String>>,
    #[serde(flatten)]
    tensors: Unique<TensorInfo>,
}

/// The tensors of the safetensors file whose content is `bytes`; its header comes out of `room`.
///
/// The crate that parses the format lets the last of two equal keys win, names no tensor in some of
/// its errors, and adds up offsets without regard to overflow; so its answer is asked for only
/// after the entries were checked one by one.
pub(super) fn parse<'a>(
    path: &Path,
    bytes: &'a [u8],
    room: &mut u64,
) -> Result<SafeTensors<'a>, WeightsError> {
    let malformed = |problem: &dyn fmt::Display| WeightsError::malformed(path, problem);
    let Some((length, rest)) = bytes.split_first_chunk() else {
        return Err(malformed(&format!("it has {} bytes (wanted at least 8)", bytes.len())));
    };
    let length = u64::from_le_bytes(*length);
    check_length(path, length, *room)?;
    *room -= length;
    let Some((header, data)) = rest.split_at_checked(length as usize) else {
        let size = bytes.len();
        return Err(malformed(&format!("its header of {length} bytes exceeds its {size} bytes")));
    };
    let header: Header = serde_json::from_slice(header).map_err(|error| malformed(&error))?;
    for (name, info) in &header.tensors.0 {
        check(name, info, data.len()).map_err(|problem| malformed(&problem))?;
    }
    SafeTensors::deserialize(bytes).map_err(|error| malformed(&error))
}

/// Refuses a header or index too long to be parsed.
pub(super) fn check_length(path: &Path, length: u64, room: u64) -> Result<(), WeightsError> {
    if length <= room {
        return Ok(());
    }
    let problem = format!("its header of {length} bytes is too long (wanted at most {room})");
    Err(WeightsError::malformed(path, &problem))
}

/// What does not hold of one entry, over `size` bytes of data.
fn check(name: &str, info: &TensorInfo, size: usize) -> Result<(), String> {
    let (begin, end) = info.data_offsets;
    if begin > end || end > size {
        return Err(format!("`{}` is said to be bytes {begin} to {end} of {size}", shown(name)));
    }
    let bits = info.shape.iter().try_fold(info.dtype.bitsize(), |bits, &n| bits.checked_mul(n));
    if bits != (end - begin).checked_mul(8) {
        let TensorInfo { dtype, shape, .. } = info;
        let (name, found) = (shown(name), end - begin);
        return Err(format!("`{name}` is said to be {dtype} {shape:?} in {found} bytes"));
    }
    Ok(())
}

impl WeightsError {
    /// The problem may quote the file.
    pub(super) fn malformed(path: &Path, problem: &dyn fmt::Display) -> WeightsError {
        WeightsError::Malformed { file: path.to_owned(), problem: shown(&problem.to_string()) }
    }
}

/// A JSON object in which no key comes twice.
pub(super) struct Unique<V>(pub(super) BTreeMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Unique<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Entries(PhantomData))
    }
}

struct Entries<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for Entries<V> {
    type Value = Unique<V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Unique<V>, A::Error> {
        let mut entries = BTreeMap::new();
        while let Some(key) = object.next_key::<String>()? {
            let named = |error| A::Error::custom(format!("`{}`: {error}", shown(&key)));
            let value = object.next_value().map_err(named)?;
            if entries.contains_key(&key) {
                return Err(A::Error::custom(format!("`{}` comes twice", shown(&key))));
            }
            entries.insert(key, value);
        }
        Ok(Unique(entries))
    }
}
