//! Which of the assistant's messages are learned: all but those that their data say are context alone.

use serde_json::Value as Json;

use super::says;

/// What says so: `weight`, as OpenAI and ShareGPT have it, and `train` or `training`, as axolotl has them.
pub(super) const FIELDS: [&str; 3] = ["weight", "train", "training"];

/// Whether the `turn`-th message, from 1, is learned; else what is wrong with what it says about that.
pub(super) fn check(turn: usize, message: &Json) -> Result<bool, String> {
    if !says(message) {
        return Ok(false);
    }
    let mut learned = true;
    for field in FIELDS {
        let value = &message[field];
        let weight = value.as_f64().filter(|_| field == "weight");
        let word = value.as_bool().filter(|_| field != "weight");
        learned &= match (weight, word) {
            (Some(1.0), _) | (_, Some(true)) => true,
            (Some(0.0), _) | (_, Some(false)) => false,
            _ if value.is_null() => true,
            _ if field == "weight" => {
                return Err(format!("the weight of message {turn} is {value}, expected 0 or 1"));
            }
            _ => {
                return Err(format!(
                    "the `{field}` of message {turn} is {value}, expected true or false"
                ));
            }
        };
    }
    Ok(learned)
}

/// Whether a message that has been checked is learned.
pub(super) fn is_learned(message: &Json) -> bool {
    check(0, message) == Ok(true)
}
