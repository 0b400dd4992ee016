//! YAML files as typed sections. A key is one line of [`section!`](crate::section): its field, kind,
//! default and sentence; the struct, the reader, the JSON Schema and the text of the file follow
//! from it. All mistakes of a file are shown at once, each at its place.
//!
//! Knows keys and kinds of values; does not know what any file is for.

mod document;
mod elsewhere;
mod explain;
mod keys;
mod kind;
mod lists;
mod page;
mod path;
mod problem;
mod quantity;
mod read;
mod schema;
mod section;
mod source;
mod tree;
mod values;
mod words;
mod write;

pub use document::{Document, LARGEST, Override, Reading, read_file, read_within};
pub use elsewhere::{conversion, elsewhere};
pub use explain::{absent, explain, explain_value};
pub use keys::{Absent, Interval, Key, Kind, OneOf, Only, Side, join, key};
pub use kind::nearest;
pub use lists::{Lists, Rows, text};
pub use page::page;
pub use problem::{Problem, Problems, Report};
pub use quantity::{Unit, bandwidth, binary_bandwidth};
pub use schema::schema;
pub use section::{Field, Listed, Scalar, Section};
pub use source::{Places, Source, Span, printable};
pub use tree::{Entry, Node, Value};
pub use values::{Typed, Values};
pub use words::Word;
pub use write::{Lines, Path, list, quoted, quoted_path, ranges, real};
