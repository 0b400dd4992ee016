//! Rows of a parquet file: texts, or records as the lines of a jsonl file would be.

mod values;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::reader::RowIter;
use parquet::schema::types::Type;

use crate::files::{open, read_error};
use crate::{DataError, Records};

/// What such files end in.
pub(crate) const ENDING: &str = "parquet";

/// The column of texts.
const TEXT: &str = "text";

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

/// Whether `path` is one, by its name.
pub(crate) fn is_parquet(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case(ENDING))
}

/// Hands every row of the file to `each`, with its number from 1; columns that `records` are not made of are not read.
///
/// # Errors
/// No parquet file, none of such a column, or what `each` says.
pub(crate) fn rows(
    path: &Path,
    records: Records,
    each: &mut dyn FnMut(u64, Row<'_>) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let file = open(path)?;
    let broken = |message: String| DataError::Parquet { path: path.to_owned(), message };
    // A file that is not what it says it is makes the library panic in places.
    let guarded = |read: &mut dyn FnMut() -> Result<bool, DataError>| {
        catch_unwind(AssertUnwindSafe(read))
            .unwrap_or_else(|_| Err(broken("its pages are not what its header says".to_owned())))
    };
    let mut opened = None;
    guarded(&mut || {
        let file = file.try_clone().map_err(|source| read_error(path, source))?;
        let reader = SerializedFileReader::new(file).map_err(|error| broken(error.to_string()))?;
        let columns =
            columns(reader.metadata().file_metadata().schema(), records).map_err(&broken)?;
        let rows = RowIter::from_file_into(Box::new(reader)).project(Some(columns));
        opened = Some(rows.map_err(|error| broken(error.to_string()))?);
        Ok(true)
    })?;
    let mut rows = opened.into_iter().flatten();
    let mut number = 0;
    let mut line = String::new();
    loop {
        let more = guarded(&mut || {
            let Some(row) = rows.next() else { return Ok(false) };
            let row = row.map_err(|error| broken(format!("row {}: {error}", number + 1)))?;
            let read = if records == Records::Chats {
                values::record(&row)
            } else {
                values::text(row, TEXT)
            };
            line = read.map_err(|message| broken(format!("row {}: {message}", number + 1)))?;
            Ok(true)
        })?;
        if !more {
            return Ok(());
        }
        number += 1;
        let row = if records == Records::Chats { Row::Record(&line) } else { Row::Text(&line) };
        each(number, row)?;
    }
}

/// The part of the schema that is read.
fn columns(schema: &Type, records: Records) -> Result<Type, String> {
    let wanted = if records == Records::Chats { "messages" } else { TEXT };
    let fields = schema.get_fields();
    let is = |name: &str| fields.iter().find(|field| field.name() == name).cloned();
    let Some(column) = is(wanted) else {
        let names: Vec<_> = fields.iter().map(|field| format!("`{}`", field.name())).collect();
        return Err(format!("it has no column `{wanted}`, but {}", names.join(", ")));
    };
    let beside = is(BESIDE_MESSAGES).filter(|_| records == Records::Chats);
    let columns: Vec<Arc<Type>> = [column].into_iter().chain(beside).collect();
    let projected = Type::group_type_builder(schema.name()).with_fields(columns).build();
    projected.map_err(|error| error.to_string())
}
