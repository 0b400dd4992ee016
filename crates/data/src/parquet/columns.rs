//! The rows of a row group, one after the other: how long a row is is known before it is made.

use std::sync::Arc;

use parquet::basic::ConvertedType;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{
    AsBytes, ByteArray, ByteArrayType, DataType, FixedLenByteArray, FixedLenByteArrayType,
};
use parquet::file::reader::RowGroupReader;
use parquet::record::reader::{ReaderIter, TreeBuilder};
use parquet::schema::types::{SchemaDescriptor, Type};

use super::{LIMIT_OF_ROW, said, values};
use crate::files::LONGEST;

/// What a value in a list takes besides its bytes, with the names of its fields, in bytes.
const OVERHEAD: usize = 256;

/// A column of texts.
pub(super) struct Texts {
    column: Leaf,
}

impl Texts {
    /// The column `name` of a row group.
    pub(super) fn new(group: &dyn RowGroupReader, name: &str) -> Result<Texts, String> {
        let schema = group.metadata().schema_descr();
        let column = schema.columns().iter().position(|column| column.path().parts()[0] == name);
        let column = column.ok_or_else(|| format!("it has no column `{name}`"))?;
        let about = schema.column(column);
        let is_text = matches!(
            about.converted_type(),
            ConvertedType::NONE | ConvertedType::UTF8 | ConvertedType::ENUM | ConvertedType::JSON
        );
        let found = if about.path().parts().len() > 1 || about.max_rep_level() > 0 {
            Some("lists or objects")
        } else if is_text {
            None
        } else {
            Some("numbers or times")
        };
        let leaf = Leaf::new(group, column)?;
        let is_bytes = matches!(leaf.reader, Values::Bytes(..) | Values::Fixed(..));
        match found.or((!is_bytes).then_some("numbers or times")) {
            Some(found) => Err(format!("column `{name}` holds {found}, expected texts")),
            None => Ok(Texts { column: leaf }),
        }
    }

    /// Goes on to the next row.
    pub(super) fn next(&mut self) -> Result<(), String> {
        let length = self.column.next()?;
        within(length)
    }

    /// The text of the row.
    pub(super) fn text(&self) -> Result<&str, String> {
        let name = self.column.name.as_str();
        let bytes = match &self.column.reader {
            Values::Bytes(_, values) => values.first().map(ByteArray::data),
            Values::Fixed(_, values) => values.first().map(AsBytes::as_bytes),
            Values::Other(_) => None,
        };
        let bytes =
            bytes.ok_or_else(|| format!("column `{name}` holds nothing, expected a text"))?;
        values::utf8(bytes, name)
    }
}

/// Columns of records.
pub(super) struct Record {
    /// Every column a second time, to know how long a row is.
    leaves: Vec<Leaf>,
    rows: ReaderIter,
}

impl Record {
    /// The `columns` of a row group.
    pub(super) fn new(group: &dyn RowGroupReader, columns: &Type) -> Result<Record, String> {
        let schema = group.metadata().schema_descr();
        let is_read = |name: &str| columns.get_fields().iter().any(|field| field.name() == name);
        let read = schema.columns().iter().enumerate();
        let read = read.filter(|(_, column)| is_read(&column.path().parts()[0]));
        let leaves = read.map(|(index, _)| Leaf::new(group, index)).collect::<Result<_, _>>()?;
        let columns = Arc::new(SchemaDescriptor::new(Arc::new(columns.clone())));
        // One row at a time: of those that are read ahead nobody knows how long they are.
        let rows = TreeBuilder::new().with_batch_size(1).as_iter(columns, group).map_err(said)?;
        Ok(Record { leaves, rows })
    }

    /// The next row in JSON.
    pub(super) fn next(&mut self) -> Result<String, String> {
        let mut length = 0_usize;
        for leaf in &mut self.leaves {
            length = length.saturating_add(leaf.next()?);
            within(length)?;
            leaf.check_text()?;
        }
        let row = self.rows.next().ok_or("there are fewer rows than the file says")?;
        values::record(&row.map_err(said)?)
    }
}

fn within(length: usize) -> Result<(), String> {
    if length > LONGEST {
        return Err(format!("over {LONGEST} bytes long, {LIMIT_OF_ROW}"));
    }
    Ok(())
}

/// A column of values, and those of the row that is read.
struct Leaf {
    /// The fields that lead to it.
    name: String,
    /// Whether the file says that its values are text.
    is_text: bool,
    levels: Vec<i16>,
    repeated: Vec<i16>,
    reader: Values,
}

enum Values {
    Bytes(ColumnReaderImpl<ByteArrayType>, Vec<ByteArray>),
    Fixed(ColumnReaderImpl<FixedLenByteArrayType>, Vec<FixedLenByteArray>),
    Other(ColumnReader),
}

impl Leaf {
    fn new(group: &dyn RowGroupReader, index: usize) -> Result<Leaf, String> {
        let about = group.metadata().schema_descr().column(index);
        let is_text = matches!(
            about.converted_type(),
            ConvertedType::UTF8 | ConvertedType::ENUM | ConvertedType::JSON
        );
        let reader = match group.get_column_reader(index).map_err(said)? {
            ColumnReader::ByteArrayColumnReader(reader) => Values::Bytes(reader, Vec::new()),
            ColumnReader::FixedLenByteArrayColumnReader(reader) => {
                Values::Fixed(reader, Vec::new())
            }
            other => Values::Other(other),
        };
        let (levels, repeated) = (Vec::new(), Vec::new());
        Ok(Leaf { name: about.path().string(), is_text, levels, repeated, reader })
    }

    /// An error where a text of the row is not UTF-8: of such a one the library prints every byte.
    fn check_text(&self) -> Result<(), String> {
        match &self.reader {
            Values::Bytes(_, texts) if self.is_text => {
                texts.iter().try_for_each(|text| values::utf8(text.data(), &self.name).map(drop))
            }
            _ => Ok(()),
        }
    }

    /// Reads the values of the next row, and says how much they take.
    fn next(&mut self) -> Result<usize, String> {
        self.levels.clear();
        self.repeated.clear();
        let (levels, repeated) = (&mut self.levels, &mut self.repeated);
        let (bytes, count) = match &mut self.reader {
            Values::Bytes(reader, values) => {
                let count = one(reader, levels, repeated, values)?;
                (values.iter().map(ByteArray::len).sum::<usize>(), count)
            }
            Values::Fixed(reader, values) => {
                let count = one(reader, levels, repeated, values)?;
                (values.iter().map(|value| value.as_bytes().len()).sum(), count)
            }
            Values::Other(ColumnReader::BoolColumnReader(reader)) => {
                (0, one(reader, levels, repeated, &mut Vec::new())?)
            }
            Values::Other(ColumnReader::Int32ColumnReader(reader)) => {
                (0, one(reader, levels, repeated, &mut Vec::new())?)
            }
            Values::Other(ColumnReader::Int64ColumnReader(reader)) => {
                (0, one(reader, levels, repeated, &mut Vec::new())?)
            }
            Values::Other(ColumnReader::Int96ColumnReader(reader)) => {
                (0, one(reader, levels, repeated, &mut Vec::new())?)
            }
            Values::Other(ColumnReader::FloatColumnReader(reader)) => {
                (0, one(reader, levels, repeated, &mut Vec::new())?)
            }
            Values::Other(ColumnReader::DoubleColumnReader(reader)) => {
                (0, one(reader, levels, repeated, &mut Vec::new())?)
            }
            Values::Other(_) => (0, 0),
        };
        // A text has no fields around it, and is read as it is.
        let around = if count > 1 { count * OVERHEAD } else { 0 };
        Ok(bytes.saturating_add(around))
    }
}

/// Reads the next row's values, and says how many places it has.
fn one<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    levels: &mut Vec<i16>,
    repeated: &mut Vec<i16>,
    values: &mut Vec<T::T>,
) -> Result<usize, String> {
    values.clear();
    let read = reader.read_records(1, Some(levels), Some(repeated), values);
    let (rows, _, places) = read.map_err(said)?;
    if rows == 0 {
        return Err("there are fewer rows than the file says".to_owned());
    }
    Ok(places)
}
