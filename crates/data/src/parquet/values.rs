//! What is in the columns of a row: text, or a record in JSON. Bytes are text if they are UTF-8, whether the file says so or not.

use parquet::record::{Field, Row};
use serde_json::{Map, Value as Json};

/// A row as the line of a jsonl file would be.
///
/// # Errors
/// What cannot be in one, with its column.
pub(super) fn record(row: &Row) -> Result<String, String> {
    Ok(object(row, "")?.to_string())
}

fn object(row: &Row, column: &str) -> Result<Json, String> {
    let mut fields = Map::new();
    for (name, field) in row.get_column_iter() {
        let column = if column.is_empty() { name.clone() } else { format!("{column}.{name}") };
        fields.insert(name.clone(), json(field, &column)?);
    }
    Ok(Json::Object(fields))
}

fn json(field: &Field, column: &str) -> Result<Json, String> {
    Ok(match field {
        Field::Bytes(bytes) => Json::from(utf8(bytes.data(), column)?),
        Field::Group(row) => object(row, column)?,
        Field::ListInternal(list) => {
            let elements = list.elements().iter().map(|element| json(element, column));
            Json::Array(elements.collect::<Result<_, _>>()?)
        }
        Field::MapInternal(map) => {
            let mut fields = Map::new();
            for (key, value) in map.entries() {
                let key = match json(key, column)? {
                    Json::String(key) => key,
                    key => key.to_string(),
                };
                fields.insert(key, json(value, column)?);
            }
            Json::Object(fields)
        }
        other => other.to_json_value(),
    })
}

/// # Errors
/// Where `bytes` are no text.
pub(super) fn utf8<'a>(bytes: &'a [u8], column: &str) -> Result<&'a str, String> {
    std::str::from_utf8(bytes).map_err(|error| {
        format!(
            "column `{column}` holds bytes that are not UTF-8 from byte {} on",
            error.valid_up_to()
        )
    })
}
