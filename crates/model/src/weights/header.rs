//! The header of a safetensors file, checked before it is believed.
//!
//! Files are read for this by hand and not by the crate that defines the format: that one buffers
//! everything several times over, lets the last of two equal keys win, and adds up offsets without
//! regard to overflow. Here nothing is kept but what the model can use, so that a hostile file takes
//! less memory than it has bytes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde::de::value::StrDeserializer;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::WeightsError;
use super::error::shown;

/// The longest index that is parsed, and the longest headers of all shards together, in bytes. The
/// largest Llama needs a twentieth: 1200 entries of 150 bytes.
const LONGEST: u64 = 4 << 20;
/// Bytes of a name: the longest of a Llama has 60.
const LONGEST_NAME: usize = 512;
/// Dimensions of a tensor: a parameter has two.
const MOST_DIMENSIONS: usize = 8;

/// What index and headers may still take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Bytes to be parsed.
    bytes: u64,
    /// Tensors to be kept.
    tensors: usize,
}

impl Room {
    /// For a model of so many parameters, in files that may hold more: the frequencies of older ones,
    /// and what is wrong with them.
    pub(super) fn of(parameters: usize) -> Room {
        Room { bytes: LONGEST, tensors: 2 * parameters + 64 }
    }

    /// Refuses a header or index too long to be parsed.
    pub(super) fn take(&mut self, path: &Path, length: u64) -> Result<(), WeightsError> {
        let Room { bytes, .. } = *self;
        if let Some(left) = bytes.checked_sub(length) {
            self.bytes = left;
            return Ok(());
        }
        let problem = format!("its header of {length} bytes is too long (wanted at most {bytes})");
        Err(WeightsError::malformed(path, &problem))
    }
}

/// What one entry says.
#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(borrow)]
    dtype: Short<'a>,
    shape: Dimensions,
    data_offsets: (usize, usize),
}

/// The tensors of the safetensors file whose content is `bytes`, by name; its header comes out of
/// `room`.
pub(super) fn parse<'a>(
    path: &Path,
    bytes: &'a [u8],
    room: &mut Room,
) -> Result<BTreeMap<Cow<'a, str>, TensorView<'a>>, WeightsError> {
    let malformed = |problem: &dyn fmt::Display| WeightsError::malformed(path, problem);
    let Some((length, rest)) = bytes.split_first_chunk() else {
        return Err(malformed(&format!("it has {} bytes (wanted at least 8)", bytes.len())));
    };
    let length = u64::from_le_bytes(*length);
    room.take(path, length)?;
    let Some((header, data)) = rest.split_at_checked(length as usize) else {
        let size = bytes.len();
        return Err(malformed(&format!("its header of {length} bytes exceeds its {size} bytes")));
    };
    let entries: Unique<'a, Entry<'a>> =
        object(header, Entries::new(room.tensors)).map_err(|error| malformed(&error))?;
    room.tensors -= entries.len();
    let mut extents = Vec::with_capacity(entries.len());
    let mut tensors = BTreeMap::new();
    for (name, entry) in entries {
        let view = view(&name, entry, data, &mut extents).map_err(|problem| malformed(&problem))?;
        tensors.insert(name, view);
    }
    whole(extents, data.len()).map_err(|problem| malformed(&problem))?;
    Ok(tensors)
}

/// The tensor of an entry, which must be what it says over `data`.
fn view<'a>(
    name: &str,
    Entry { dtype, shape: Dimensions(shape), data_offsets: (begin, end) }: Entry<'_>,
    data: &'a [u8],
    extents: &mut Vec<(usize, usize, String)>,
) -> Result<TensorView<'a>, String> {
    let (name, size) = (shown(name), data.len());
    let word: StrDeserializer<'_, serde::de::value::Error> = StrDeserializer::new(&dtype.0);
    let dtype = Dtype::deserialize(word).map_err(|error| format!("`{name}`: {error}"))?;
    if begin > end || end > size {
        return Err(format!("`{name}` is said to be bytes {begin} to {end} of {size}"));
    }
    let bits = shape.iter().try_fold(dtype.bitsize(), |bits, &n| bits.checked_mul(n));
    if bits != (end - begin).checked_mul(8) {
        let found = end - begin;
        return Err(format!("`{name}` is said to be {dtype} {shape:?} in {found} bytes"));
    }
    extents.push((begin, end, name.clone()));
    TensorView::new(dtype, shape, &data[begin..end]).map_err(|error| format!("`{name}`: {error}"))
}

/// That tensors lie one behind the other and leave nothing out: bytes of two, or of none, are how a
/// file hides something.
fn whole(mut extents: Vec<(usize, usize, String)>, size: usize) -> Result<(), String> {
    extents.sort_unstable();
    let mut from = 0;
    for (begin, end, name) in extents {
        if begin != from {
            return Err(format!("`{name}` begins at byte {begin} of the data (wanted {from})"));
        }
        from = end;
    }
    if from == size {
        return Ok(());
    }
    Err(format!("bytes {from} to {size} of the data are of no tensor"))
}

impl WeightsError {
    /// The problem may quote the file.
    pub(super) fn malformed(path: &Path, problem: &dyn fmt::Display) -> WeightsError {
        WeightsError::Malformed { file: path.to_owned(), problem: shown(&problem.to_string()) }
    }
}

/// A JSON object in which no key comes twice.
pub(super) type Unique<'a, V> = BTreeMap<Cow<'a, str>, V>;

/// The file of every tensor, as an index has it; it comes out of `room`.
pub(super) fn parse_index<'a>(
    path: &Path,
    bytes: &'a [u8],
    room: &mut Room,
) -> Result<Unique<'a, Short<'a>>, WeightsError> {
    room.take(path, bytes.len() as u64)?;
    object(bytes, Index(room.tensors)).map_err(|error| WeightsError::malformed(path, &error))
}

/// Reads a text that is one object.
fn object<'a, V: Visitor<'a>>(bytes: &'a [u8], visitor: V) -> serde_json::Result<V::Value> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = json.deserialize_map(visitor)?;
    json.end()?;
    Ok(value)
}

/// Of an index what is read of it, with at most so many tensors.
struct Index(usize);

impl<'de> Visitor<'de> for Index {
    type Value = Unique<'de, Short<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        const KEY: &str = "weight_map";
        let mut found = None;
        while let Some(Short(key)) = object.next_key()? {
            if key != KEY {
                object.next_value::<IgnoredAny>()?;
            } else if found.replace(object.next_value_seed(Entries::new(self.0))?).is_some() {
                return Err(A::Error::duplicate_field(KEY));
            }
        }
        found.ok_or_else(|| A::Error::missing_field(KEY))
    }
}

/// The sizes of a tensor.
struct Dimensions(Vec<usize>);

impl<'de> Deserialize<'de> for Dimensions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Sizes)
    }
}

struct Sizes;

impl<'de> Visitor<'de> for Sizes {
    type Value = Dimensions;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of sizes")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Dimensions, A::Error> {
        let mut sizes = Vec::new();
        while let Some(size) = list.next_element()? {
            if sizes.len() == MOST_DIMENSIONS {
                let wanted = format!("more than {MOST_DIMENSIONS} dimensions");
                return Err(A::Error::custom(wanted));
            }
            sizes.push(size);
        }
        Ok(Dimensions(sizes))
    }
}

/// An object of strings that nobody needs.
struct Strings;

impl<'de> Deserialize<'de> for Strings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Strings)
    }
}

impl<'de> Visitor<'de> for Strings {
    type Value = Strings;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Strings, A::Error> {
        while object.next_key::<IgnoredAny>()?.is_some() {
            object.next_value::<Any>()?;
        }
        Ok(Strings)
    }
}

/// A string of any length, which is not kept.
struct Any;

impl<'de> Deserialize<'de> for Any {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Any)
    }
}

impl Visitor<'_> for Any {
    type Value = Any;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }
    fn visit_str<E: Error>(self, _: &str) -> Result<Any, E> {
        Ok(Any)
    }
}

/// Text of a file that is not long, borrowed from it where it holds no escape.
pub(super) struct Short<'a>(pub(super) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Short<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Text)
    }
}

struct Text;

impl Text {
    fn short<E: Error>(text: &str) -> Result<(), E> {
        if text.len() <= LONGEST_NAME {
            return Ok(());
        }
        // Enough to find it by; whoever prints it makes it printable.
        let (text, found): (String, _) = (text.chars().take(60).collect(), text.len());
        Err(E::custom(format!("`{text}` has {found} bytes (wanted at most {LONGEST_NAME})")))
    }
}

impl<'de> Visitor<'de> for Text {
    type Value = Short<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }
    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Short<'de>, E> {
        Text::short(text)?;
        Ok(Short(Cow::Borrowed(text)))
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<Short<'de>, E> {
        Text::short(text)?;
        Ok(Short(Cow::Owned(text.to_owned())))
    }
}

/// An object of at most so many entries, but for `__metadata__`, which is only looked at.
struct Entries<V> {
    most: usize,
    value: PhantomData<V>,
}

impl<V> Entries<V> {
    fn new(most: usize) -> Entries<V> {
        Entries { most, value: PhantomData }
    }
}

impl<'de, V: Deserialize<'de>> DeserializeSeed<'de> for Entries<V> {
    type Value = Unique<'de, V>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, V: Deserialize<'de>> Visitor<'de> for Entries<V> {
    type Value = Unique<'de, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Unique<'de, V>, A::Error> {
        let mut entries = BTreeMap::new();
        while let Some(Short(key)) = object.next_key()? {
            let named = |error| A::Error::custom(format!("`{}`: {error}", shown(&key)));
            if key == "__metadata__" {
                object.next_value::<Strings>().map_err(named)?;
                continue;
            }
            let value = object.next_value().map_err(named)?;
            if entries.len() == self.most {
                return Err(A::Error::custom(format!("it has more than {} tensors", self.most)));
            }
            if entries.contains_key(&key) {
                return Err(A::Error::custom(format!("`{}` comes twice", shown(&key))));
            }
            entries.insert(key, value);
        }
        Ok(entries)
    }
}
