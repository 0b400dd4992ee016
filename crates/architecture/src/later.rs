//! Features of a config.json that are not supported. Each is refused by its key: a model that is read without one of them would run, and be
//! wrong.

use annulus_yaml::{Node, Report, Value};

use crate::Family;

/// A key that is accepted only with values that change nothing.
struct Later {
    key: &'static str,
    harmless: fn(&Value) -> bool,
    wanted: &'static str,
}

const DROPOUT: &str = "attention_dropout";
const LATER: &[Later] = &[
    Later { key: DROPOUT, harmless: zero, wanted: "`0.0`" },
    Later { key: "pretraining_tp", harmless: one, wanted: "`1`" },
    Later { key: "partial_rotary_factor", harmless: one, wanted: "`1.0`" },
    Later { key: "is_encoder_decoder", harmless: off, wanted: "`false`" },
    Later { key: "add_cross_attention", harmless: off, wanted: "`false`" },
    Later { key: "is_causal", harmless: on, wanted: "`true`" },
];

fn nothing(value: &Value) -> bool {
    matches!(value, Value::Nothing)
}

fn off(value: &Value) -> bool {
    nothing(value) || value.is_word("false")
}

fn on(value: &Value) -> bool {
    nothing(value) || value.is_word("true")
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Scalar { text, quoted: false } => text.parse().ok(),
        _ => None,
    }
}

fn zero(value: &Value) -> bool {
    nothing(value) || number(value) == Some(0.0)
}

fn one(value: &Value) -> bool {
    nothing(value) || number(value) == Some(1.0)
}

/// Reports every key that asks for a feature of `family` that is not supported.
pub(crate) fn refuse(root: &Node, family: Family, report: &mut Report) {
    const QUANTISED: &str = "quantization_config";
    if let Some(entry) = root.entry(QUANTISED).filter(|entry| !nothing(&entry.value.value)) {
        report.at(entry.value.span, || {
            let message =
                format!("the weights are quantised (`{QUANTISED}`), which is not supported");
            (message, Some("use the unquantised f32 or bf16 weights of this model".to_owned()))
        });
    }
    // What SmolLM3 was trained with is left in its config.json, and read by nothing.
    let is_read = |later: &&Later| family != Family::SmolLm3 || later.key != "pretraining_tp";
    for later in LATER.iter().filter(is_read) {
        match root.entry(later.key) {
            Some(entry) if !(later.harmless)(&entry.value.value) => {
                unsupported(report, later.key, &entry.value, later.wanted);
            }
            _ => {}
        }
    }
}

fn unsupported(report: &mut Report, key: &str, value: &Node, wanted: &str) {
    report.at(value.span, || {
        let found = value.value.found();
        let hint = "set it to `0.0` in a copy of the file; to train with dropout, set `attention.dropout` in the experiment";
        let hint = (key == DROPOUT).then(|| hint.to_owned());
        (format!("`{key}` is {found}: this version supports {wanted}"), hint)
    });
}
