//! The JSON Schema of the experiment file, for editors.

/// The JSON Schema, as kept at `experiments/schema.json`.
pub fn schema() -> serde_json::Value {
    todo!()
}
