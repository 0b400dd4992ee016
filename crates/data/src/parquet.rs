//! Rows of a parquet file, handed on as the lines of a jsonl file would be.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::reader::RowIter;
use parquet::schema::types::Type;

use crate::files::read_error;
use crate::{DataError, Records};

/// What such files end in.
pub(crate) const ENDING: &str = "parquet";

/// Other columns that a conversation's template may ask for.
const BESIDE_MESSAGES: &str = "tools";

/// Whether `path` is one, by its name.
pub(crate) fn is_parquet(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case(ENDING))
}

/// Hands every row of the file to `each`, with its number from 1, as the JSON object of the columns that
/// `records` are made of; the others are not read.
///
/// # Errors
/// No parquet file, none of such a column, or what `each` says.
pub(crate) fn rows(
    path: &Path,
    records: Records,
    each: &mut dyn FnMut(u64, &str) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let file = File::open(path).map_err(|source| read_error(path, source))?;
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
            line = row.to_json_value().to_string();
            Ok(true)
        })?;
        if !more {
            return Ok(());
        }
        number += 1;
        each(number, &line)?;
    }
}

/// The part of the schema that is read.
fn columns(schema: &Type, records: Records) -> Result<Type, String> {
    let wanted = if records == Records::Chats { "messages" } else { "text" };
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
