//! Rows of a parquet file: texts, or records as the lines of a jsonl file would be.

mod columns;
mod levels;
mod pages;
mod thrift;
mod values;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::schema::types::Type;

use crate::chat::SHAPES;
use crate::files::open;
use crate::unpack::unpacked_name;
use crate::{DataError, Records, guard};
use columns::{Record, Texts};
use pages::Bounded;

/// What such files end in.
pub(crate) const ENDING: &str = "parquet";

/// What is said of a column that is packed otherwise.
pub(crate) const CODECS: &str = "expected zstd, snappy, gzip or none";

/// What is said of a file that is of another kind.
pub(crate) const FOREIGN: &str = "it does not begin with `PAR1`, as such files do";

/// What is said of a file whose end is missing.
pub(crate) const CUT_SHORT: &str = "it is cut short, as it does not end with `PAR1`";

/// What is said of a file whose footer is encrypted.
pub(crate) const ENCRYPTED: &str = "it is encrypted";

/// What is said of a row that is too long.
pub(crate) const LIMIT_OF_ROW: &str = "the limit of a row";

/// Other columns that a conversation's template may ask for.
const BESIDE_MESSAGES: &str = "tools";

/// What is in a row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Row<'a> {
    /// Of texts: the text.
    Text(&'a str),
    /// Of conversations: the row as a JSON object.
    Record(&'a str),
}

/// Whether a file of `records` is read as rows: it is said so, or its name says it.
pub(crate) fn is_of_rows(records: Records, path: &Path) -> bool {
    records == Records::Rows || records != Records::Text && is_parquet(path)
}

/// Whether a file of rows was packed once more, by its name. Such a file has to be read from its end.
pub(crate) fn is_packed(path: &Path) -> bool {
    !is_parquet(path) && is_parquet(unpacked_name(path))
}

fn is_parquet(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case(ENDING))
}

/// The longest footer that is read, in bytes.
const LONGEST_FOOTER: u64 = 1 << 24;

/// What such files begin and end with.
const MAGIC: &[u8] = b"PAR1";

/// What files with an encrypted footer end with.
const ENCRYPTED_MAGIC: &[u8] = b"PARE";

/// What stands behind a footer: its length, and what such files end with.
const END: u64 = 8;

/// The most characters of an error of the library that are shown: some have whole values in them.
const LONGEST_ERROR: usize = 200;

/// Hands every row of the file to `each`, with its number from 1; columns that `records` are not made of are not read.
///
/// # Errors
/// No parquet file, none of such a column, more than is read of such a file, or what `each` says.
pub(crate) fn rows(
    path: &Path,
    records: Records,
    column: &str,
    each: &mut dyn FnMut(u64, Row<'_>) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let file = Arc::new(open(path)?);
    let reader = guarded(path, || {
        bounded_footer(&file)?;
        let file = file.try_clone().map_err(|error| error.to_string())?;
        SerializedFileReader::new(file).map_err(said)
    })?;
    let schema = reader.metadata().file_metadata().schema();
    let columns = guarded(path, || columns(schema, records, column))?;
    let mut number = 0;
    for index in 0..reader.num_row_groups() {
        let group = guarded(path, || {
            let group = reader.get_row_group(index).map_err(said)?;
            Ok(Bounded::new(group, file.clone()))
        })?;
        let mut rows = guarded(path, || {
            if records == Records::Chats {
                return Ok(Rows::Records(Record::new(&group, &columns)?));
            }
            Ok(Rows::Texts(Box::new(Texts::new(&group, column)?)))
        })?;
        for _ in 0..group.metadata().num_rows() {
            number += 1;
            rows.next(path, number, each)?;
        }
    }
    Ok(())
}

/// The rows of a row group.
enum Rows {
    Texts(Box<Texts>),
    Records(Record),
}

impl Rows {
    /// Hands the next row to `each`.
    fn next(
        &mut self,
        path: &Path,
        number: u64,
        each: &mut dyn FnMut(u64, Row<'_>) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let at = |message: String| format!("row {number}: {message}");
        match self {
            Rows::Texts(texts) => {
                guarded(path, || texts.next().map_err(at))?;
                each(number, Row::Text(guarded(path, || texts.text().map_err(at))?))
            }
            Rows::Records(records) => {
                each(number, Row::Record(&guarded(path, || records.next().map_err(at))?))
            }
        }
    }
}

/// What `read` makes of a file, which says something else than it should in places where the library panics.
fn guarded<T>(path: &Path, read: impl FnOnce() -> Result<T, String>) -> Result<T, DataError> {
    let read = guard::guarded(read)
        .unwrap_or_else(|_| Err("its pages are not what its header says".to_owned()));
    read.map_err(|message| DataError::Parquet { path: path.to_owned(), message })
}

fn said(error: ParquetError) -> String {
    let mut message = match error {
        ParquetError::General(message) => message,
        error => error.to_string(),
    };
    if let Some((end, _)) = message.char_indices().nth(LONGEST_ERROR) {
        message.truncate(end);
        message.push('…');
    }
    message
}

/// Refuses a file of `size` bytes that does not begin and end as parquet files do.
fn whole(file: &File, size: u64) -> Result<(), String> {
    let four_at = |place: u64| {
        let mut bytes = vec![0; MAGIC.len()];
        file.read_exact_at(&mut bytes, place).map(|()| bytes).map_err(|error| error.to_string())
    };
    let length = MAGIC.len() as u64;
    let begins = size >= length && four_at(0)? == MAGIC;
    let last = if size >= length + END { four_at(size - length)? } else { Vec::new() };
    match &last[..] {
        ENCRYPTED_MAGIC => Err(ENCRYPTED.to_owned()),
        _ if !begins => Err(FOREIGN.to_owned()),
        MAGIC => Ok(()),
        _ => Err(CUT_SHORT.to_owned()),
    }
}

/// Holds what describes the file to bounds, before it is read.
fn bounded_footer(file: &File) -> Result<(), String> {
    let failed = |error: std::io::Error| error.to_string();
    let size = file.metadata().map_err(failed)?.len();
    whole(file, size)?;
    let end = size - END;
    let mut length = [0; 4];
    file.read_exact_at(&mut length, end).map_err(failed)?;
    let length = u64::from(u32::from_le_bytes(length));
    if length > LONGEST_FOOTER {
        return Err(format!(
            "its footer would have {length} bytes, of which {LONGEST_FOOTER} are read at most"
        ));
    }
    let Some(start) = end.checked_sub(length) else {
        return Err(format!("its footer would have {length} bytes, and it has {size}"));
    };
    let mut footer = vec![0; length as usize];
    file.read_exact_at(&mut footer, start).map_err(failed)?;
    thrift::bounded_schema(&footer).map_err(str::to_owned)
}

/// The part of the schema that is read.
fn columns(schema: &Type, records: Records, column: &str) -> Result<Type, String> {
    let fields = schema.get_fields();
    let is = |name: &str| fields.iter().find(|field| field.name() == name).cloned();
    let chats = records == Records::Chats;
    let shape = SHAPES.iter().find(|shape| is(shape[0]).is_some()).unwrap_or(&SHAPES[0]);
    let wanted: &[&str] = if chats { shape } else { &[column] };
    let found: Vec<Arc<Type>> = wanted.iter().filter_map(|name| is(name)).collect();
    if found.is_empty() {
        let names: Vec<_> = fields.iter().map(|field| format!("`{}`", field.name())).collect();
        return Err(format!("it has no column `{}`, but {}", wanted[0], names.join(", ")));
    }
    let beside = is(BESIDE_MESSAGES).filter(|_| chats);
    let columns: Vec<Arc<Type>> = found.into_iter().chain(beside).collect();
    let projected = Type::group_type_builder(schema.name()).with_fields(columns).build();
    projected.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_errors_of_the_library_are_cut() {
        let long = said(ParquetError::General("é".repeat(300)));
        assert_eq!(long, format!("{}…", "é".repeat(LONGEST_ERROR)));
        assert_eq!(said(ParquetError::General("short".to_owned())), "short");
    }
}
