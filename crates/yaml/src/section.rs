//! Sections as structs: one line per key, from which everything else follows.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use crate::write::{Lines, Path, list, quoted, quoted_path, ranges, real};
use crate::{Key, Typed, Values, Word, join};

/// A section of a file; [`section!`](crate::section) implements it.
pub trait Section: Sized {
    /// The section's own keys.
    const OWN: &'static [Key];
    /// All keys, with those of sections that stand in it without a name of their own.
    const KEYS: &'static [&'static [Key]];

    /// The section at `path`; `None`: a key is missing or was refused, which is reported already.
    fn read(values: &Values, path: &str) -> Option<Self>;

    /// Adds the lines of its keys.
    fn write(&self, path: &Path, lines: &mut Lines);
}

/// The value of a key, as a field of a section.
pub trait Field: Sized {
    /// The value at `path`; `None`: it is missing or was refused, which is reported already.
    fn read(values: &Values, path: &str) -> Option<Self>;

    /// True where something is written at `path`, or stands there by default.
    fn is_there(values: &Values, path: &str) -> bool;

    /// Adds its line, or lines.
    fn write(&self, path: &Path, lines: &mut Lines);
}

/// A value on one line.
pub trait Scalar: Sized {
    /// The value, if it is of this type.
    fn from_typed(typed: &Typed) -> Option<Self>;

    /// The text that reads back as the same value.
    fn text(&self) -> String;
}

impl<T: Scalar> Field for T {
    fn read(values: &Values, path: &str) -> Option<T> {
        T::from_typed(values.typed.get(path)?)
    }

    fn is_there(values: &Values, path: &str) -> bool {
        values.typed.contains_key(path)
    }

    fn write(&self, path: &Path, lines: &mut Lines) {
        lines.push(path, self.text());
    }
}

impl<T: Field> Field for Option<T> {
    fn read(values: &Values, path: &str) -> Option<Option<T>> {
        if values.refused.contains(path) {
            return None;
        }
        if T::is_there(values, path) { T::read(values, path).map(Some) } else { Some(None) }
    }

    fn is_there(values: &Values, path: &str) -> bool {
        T::is_there(values, path)
    }

    fn write(&self, path: &Path, lines: &mut Lines) {
        if let Some(value) = self {
            value.write(path, lines);
        }
    }
}

/// Sections under names that the user chooses, in the order of the file.
impl<S: Section> Field for Vec<(String, S)> {
    fn read(values: &Values, path: &str) -> Option<Self> {
        let names = values.free.get(path).map_or(&[][..], Vec::as_slice);
        names.iter().map(|name| Some((name.clone(), S::read(values, &join(path, name))?))).collect()
    }

    fn is_there(values: &Values, path: &str) -> bool {
        values.spans.contains_key(path)
    }

    fn write(&self, path: &Path, lines: &mut Lines) {
        for (name, section) in self {
            section.write(&path.to(name), lines);
        }
    }
}

/// Sections under names that the user chooses, in the order of the names.
impl<S: Section> Field for BTreeMap<String, S> {
    fn read(values: &Values, path: &str) -> Option<Self> {
        Some(<Vec<(String, S)>>::read(values, path)?.into_iter().collect())
    }

    fn is_there(values: &Values, path: &str) -> bool {
        values.spans.contains_key(path)
    }

    fn write(&self, path: &Path, lines: &mut Lines) {
        for (name, section) in self {
            section.write(&path.to(name), lines);
        }
    }
}

/// Sections in a list.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listed<S>(pub Vec<S>);

impl<S: Section> Field for Listed<S> {
    fn read(values: &Values, path: &str) -> Option<Self> {
        let numbers = values.free.get(path).map_or(&[][..], Vec::as_slice);
        let items = numbers.iter().map(|number| S::read(values, &join(path, number)));
        items.collect::<Option<_>>().map(Listed)
    }

    fn is_there(values: &Values, path: &str) -> bool {
        values.spans.contains_key(path)
    }

    fn write(&self, path: &Path, lines: &mut Lines) {
        let items: Vec<String> = self.0.iter().map(in_braces).collect();
        match &items[..] {
            [] => {}
            [one] => lines.push(path, one.clone()),
            several => lines.push(path, list(several.iter().cloned())),
        }
    }
}

/// A section on one line; of its first key alone, the value.
fn in_braces<S: Section>(section: &S) -> String {
    let mut lines = Lines::default();
    section.write(&Path::default(), &mut lines);
    let first = S::KEYS.iter().copied().flatten().next().map(|key| key.name);
    let entries: Vec<_> = lines.iter().collect();
    match &entries[..] {
        [(key, value)] if Some(key.as_str()) == first => (*value).to_owned(),
        _ => {
            let entries: Vec<_> =
                entries.iter().map(|(key, value)| format!("{key}: {value}")).collect();
            format!("{{ {} }}", entries.join(", "))
        }
    }
}

/// `impl Scalar` for a type whose values are of one kind.
macro_rules! scalar {
    ($($type:ty, $typed:pat => $value:expr, $self:ident => $text:expr;)+) => {
        $(impl Scalar for $type {
            fn from_typed(typed: &Typed) -> Option<$type> {
                match typed {
                    $typed => $value,
                    _ => None,
                }
            }

            fn text(&$self) -> String {
                $text
            }
        })+
    };
}

scalar! {
    String, Typed::Text(text) => Some(text.clone()), self => quoted(self);
    PathBuf, Typed::Text(text) => Some(PathBuf::from(text)), self => quoted_path(self);
    bool, Typed::Truth(truth) => Some(*truth), self => self.to_string();
    u64, Typed::Count(count) => Some(*count), self => self.to_string();
    usize, Typed::Count(count) => usize::try_from(*count).ok(), self => self.to_string();
    f64, Typed::Real(number) => Some(*number), self => real(*self);
    (f64, f64), Typed::Pair(first, second) => Some((*first, *second)),
        self => list([self.0, self.1].map(real));
    Vec<f64>, Typed::Reals(reals) => Some(reals.clone()), self => list(self.iter().copied().map(real));
    Vec<usize>, Typed::Counts(counts) => counts.iter().map(|count| usize::try_from(*count).ok()).collect(),
        self => list(self.iter().map(usize::to_string));
    Vec<Range<usize>>, Typed::Ranges(all) => all.iter().map(half_open).collect(), self => ranges(self);
    Duration, Typed::Seconds(seconds) => Some(*seconds), self => {
        let rest = self.subsec_nanos();
        let fraction = if rest == 0 { String::new() } else { format!(".{rest:09}") };
        format!("{}{fraction}s", self.as_secs())
    };
}

impl<W: Word> Scalar for W {
    fn from_typed(typed: &Typed) -> Option<W> {
        match typed {
            Typed::Text(text) => W::from_word(text),
            _ => None,
        }
    }

    fn text(&self) -> String {
        self.word().to_owned()
    }
}

impl<W: Word> Scalar for Vec<W> {
    fn from_typed(typed: &Typed) -> Option<Vec<W>> {
        match typed {
            Typed::Words(words) => words.iter().map(|word| W::from_word(word)).collect(),
            _ => None,
        }
    }

    fn text(&self) -> String {
        list(self.iter().map(|word| word.word().to_owned()))
    }
}

/// A range whose last number is not in it.
fn half_open((first, last): &(u64, u64)) -> Option<Range<usize>> {
    Some(usize::try_from(*first).ok()?..usize::try_from(last.checked_add(1)?).ok()?)
}

/// A section: a struct whose fields are keys. Of every key it says the field and its type, then what
/// it takes ([`Kind`](crate::Kind)), what its absence means ([`Absent`](crate::Absent)) and a sentence, which is its documentation, too.
///
/// Behind the keys may stand `..field: Section;`, whose keys stand in the same mapping.
#[macro_export]
macro_rules! section {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $($field:ident: $type:ty = $kind:expr, $absent:expr, $about:literal;)*
            $(..$inner:ident: $section:ty;)*
        }
    ) => {
        $(#[$meta])*
        pub struct $name {
            $(#[doc = $about] pub $field: $type,)*
            $(#[doc = concat!("The keys of [`", stringify!($section), "`].")] pub $inner: $section,)*
        }

        impl $crate::Section for $name {
            const OWN: &'static [$crate::Key] =
                &[$($crate::key(stringify!($field), $kind, $absent, $about)),*];
            const KEYS: &'static [&'static [$crate::Key]] =
                &[<$name as $crate::Section>::OWN, $(<$section as $crate::Section>::OWN),*];

            fn read(values: &$crate::Values, path: &str) -> Option<$name> {
                if values.refused.contains(path) {
                    return None;
                }
                let own = <$name as $crate::Section>::OWN;
                let mut keys = own.iter().map(|key| $crate::join(path, key.name));
                Some($name {
                    $($field: $crate::Field::read(values, &keys.next()?)?,)*
                    $($inner: <$section as $crate::Section>::read(values, path)?,)*
                })
            }

            fn write(&self, path: &$crate::Path, lines: &mut $crate::Lines) {
                let own = <$name as $crate::Section>::OWN;
                let mut keys = own.iter().map(|key| path.to(key.name));
                $(if let Some(key) = keys.next() {
                    $crate::Field::write(&self.$field, &key, lines);
                })*
                $($crate::Section::write(&self.$inner, path, lines);)*
            }
        }

        impl $crate::Field for $name {
            fn read(values: &$crate::Values, path: &str) -> Option<$name> {
                <$name as $crate::Section>::read(values, path)
            }

            fn is_there(values: &$crate::Values, path: &str) -> bool {
                values.is_written(path)
            }

            fn write(&self, path: &$crate::Path, lines: &mut $crate::Lines) {
                <$name as $crate::Section>::write(self, path, lines);
            }
        }
    };
}
