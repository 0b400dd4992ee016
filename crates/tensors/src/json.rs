//! Parses the JSON of headers and indices: nothing is kept twice, duplicate keys are refused, and all sizes are limited.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::error::shown;
use crate::{Room, TensorsError};

/// The most bytes of a name: the longest of a Llama has 60.
const LONGEST_NAME: usize = 512;
/// The most dimensions of a tensor: a parameter has two.
const MOST_DIMENSIONS: usize = 8;

/// The file of every tensor, from the index at `at`, taken from `room`; errors call it `path`.
///
/// # Errors
/// When there is no room for it, or it is not such an index.
pub fn read_index(
    path: &Path,
    at: &Path,
    room: &mut Room,
) -> Result<BTreeMap<String, String>, TensorsError> {
    let unread = |error| TensorsError::read(path, error);
    let size = annulus_files::open(at).and_then(|file| file.metadata()).map_err(unread)?.len();
    room.take(path, "an index", size)?;
    let bytes = annulus_files::read(at, size).map_err(unread)?;
    let index = object(&bytes, Index(room.tensors()));
    let index = index.map_err(|error| TensorsError::malformed(path, &error))?.into_iter();
    Ok(index.map(|(tensor, Short(file))| (tensor.into_owned(), file.into_owned())).collect())
}

/// Parses a text that is one JSON object.
pub(crate) fn object<'a, V: Visitor<'a>>(
    bytes: &'a [u8],
    visitor: V,
) -> serde_json::Result<V::Value> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = json.deserialize_map(visitor)?;
    json.end()?;
    Ok(value)
}

/// The visitor of an index with at most this many tensors.
struct Index(usize);

impl<'de> Visitor<'de> for Index {
    type Value = BTreeMap<Cow<'de, str>, Short<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        const KEY: &str = "weight_map";
        let mut found = None;
        while let Some(Short(key)) = object.next_key()? {
            if key != KEY {
                object.next_value::<IgnoredAny>()?;
            } else if found.replace(object.next_value_seed(Entries::new(self.0, &[]))?).is_some() {
                return Err(A::Error::duplicate_field(KEY));
            }
        }
        let found = found.ok_or_else(|| A::Error::missing_field(KEY))?;
        Ok(found.entries)
    }
}

/// The sizes of a tensor, of limited number.
pub(crate) struct Dimensions(pub(crate) Vec<usize>);

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

/// Text of limited length, borrowed where it has no escapes.
pub(crate) struct Short<'a>(pub(crate) Cow<'a, str>);

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
        // Enough to find it; whoever prints it makes it printable.
        let (text, found): (String, _) = (text.chars().take(60).collect(), text.len());
        Err(E::custom(format!("`{text}` has {found} bytes (expected at most {LONGEST_NAME})")))
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

/// The tensors of an object, and its metadata.
pub(crate) struct Found<'a, V> {
    pub(crate) entries: BTreeMap<Cow<'a, str>, V>,
    /// The kept entries of `__metadata__`.
    pub(crate) metadata: BTreeMap<String, String>,
}

/// The visitor of an object with at most this many tensors, and `__metadata__`, some of which is kept.
pub(crate) struct Entries<V> {
    most: usize,
    kept: &'static [&'static str],
    value: PhantomData<V>,
}

impl<V> Entries<V> {
    pub(crate) fn new(most: usize, kept: &'static [&'static str]) -> Entries<V> {
        Entries { most, kept, value: PhantomData }
    }
}

impl<'de, V: Deserialize<'de>> DeserializeSeed<'de> for Entries<V> {
    type Value = Found<'de, V>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, V: Deserialize<'de>> Visitor<'de> for Entries<V> {
    type Value = Found<'de, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        let (mut entries, mut metadata) = (BTreeMap::new(), BTreeMap::new());
        while let Some(Short(key)) = object.next_key()? {
            let named = |error| A::Error::custom(format!("`{}`: {error}", shown(&key)));
            if key == "__metadata__" {
                metadata = object.next_value_seed(Strings(self.kept)).map_err(named)?;
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
        Ok(Found { entries, metadata })
    }
}

/// The visitor of an object of strings, of which those under these names are kept.
struct Strings(&'static [&'static str]);

impl<'de> DeserializeSeed<'de> for Strings {
    type Value = BTreeMap<String, String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Strings {
    type Value = BTreeMap<String, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        let mut kept = BTreeMap::new();
        while let Some(Whole(key)) = object.next_key()? {
            let Whole(value) = object.next_value()?;
            if self.0.contains(&&*key) {
                kept.insert(key.into_owned(), value.into_owned());
            }
        }
        Ok(kept)
    }
}

/// A string of any length, borrowed where it has no escapes.
struct Whole<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Whole<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Any)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Whole<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }
    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Whole<'de>, E> {
        Ok(Whole(Cow::Borrowed(text)))
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<Whole<'de>, E> {
        Ok(Whole(Cow::Owned(text.to_owned())))
    }
}
