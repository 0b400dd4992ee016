//! What a config.json may ask for that this version does not compute. Each is refused by its key: a
//! model that is read without one of them would run, and be wrong.

use crate::problem::Report;
use crate::source::printable;
use crate::tree::{Entry, Node, Value};

/// A key that is understood only where it changes nothing.
struct Later {
    key: &'static str,
    harmless: fn(&Value) -> bool,
    wanted: &'static str,
}

const LATER: &[Later] = &[
    Later { key: "sliding_window", harmless: nothing, wanted: "`null`" },
    Later { key: "use_sliding_window", harmless: off, wanted: "`false`" },
    Later { key: "layer_types", harmless: full_attention, wanted: "`full_attention` alone" },
    Later { key: "attention_dropout", harmless: zero, wanted: "`0.0`" },
    Later { key: "pretraining_tp", harmless: one, wanted: "`1`" },
    Later { key: "partial_rotary_factor", harmless: one, wanted: "`1.0`" },
    Later { key: "quantization_config", harmless: nothing, wanted: "`null`" },
    Later { key: "is_encoder_decoder", harmless: off, wanted: "`false`" },
    Later { key: "add_cross_attention", harmless: off, wanted: "`false`" },
];

fn nothing(value: &Value) -> bool {
    matches!(value, Value::Nothing)
}

fn off(value: &Value) -> bool {
    nothing(value) || value.is_word("false")
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

fn full_attention(value: &Value) -> bool {
    let full = |item: &Node| item.value.is_word("full_attention");
    nothing(value) || matches!(value, Value::Sequence(items) if items.iter().all(full))
}

/// Reports every key that asks for what a later version computes.
pub(crate) fn refuse(root: &Node, report: &mut Report) {
    for later in LATER {
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
        (format!("`{key}` is {found}: this version supports {wanted}"), None)
    });
}

/// The base of the rotary frequencies: `rope_parameters` (transformers 5), or `rope_scaling` beside
/// `rope_theta` (4). Of the kinds of scaling only `default` is computed.
pub(crate) fn rope_theta(root: &Node, report: &mut Report) -> Option<f64> {
    let mut found: Option<(f64, String)> = None;
    let mut take = |path: String, entry: &Entry, report: &mut Report| {
        let theta = number(&entry.value.value).filter(|theta| theta.is_finite() && *theta > 0.0);
        match (theta, &found) {
            _ if nothing(&entry.value.value) => {}
            (None, _) => report.at(entry.value.span, || {
                let value = entry.value.value.found();
                (format!("`{path}` must be a number above 0, found {value}"), None)
            }),
            (Some(theta), None) => found = Some((theta, path)),
            (Some(theta), Some((first, first_path))) if first.to_bits() != theta.to_bits() => {
                report.at(entry.value.span, || {
                    (format!("`{path}` is {theta}, but `{first_path}` is {first}"), None)
                });
            }
            _ => {}
        }
    };
    for section in ["rope_parameters", "rope_scaling"] {
        if let Some(entry) = root.entry(section) {
            rope_kind(section, &entry.value, report);
            if let Some(theta) = entry.value.entry("rope_theta") {
                take(format!("{section}.rope_theta"), theta, report);
            }
        }
    }
    if let Some(theta) = root.entry("rope_theta") {
        take(String::from("rope_theta"), theta, report);
    }
    found.map(|(theta, _)| theta)
}

/// `rope_type`, or `type` as the first versions had it, must be `default`; further keys belong to
/// other kinds.
fn rope_kind(section: &str, node: &Node, report: &mut Report) {
    let entries = match &node.value {
        Value::Nothing => return,
        Value::Mapping(entries) => entries,
        other => {
            let found = other.found();
            report
                .at(node.span, || (format!("`{section}` must be a mapping, found {found}"), None));
            return;
        }
    };
    let kind = entries.iter().find(|e| e.key == "rope_type" || e.key == "type");
    if let Some(kind) = kind.filter(|kind| !kind.value.value.is_word("default")) {
        return unsupported(report, &format!("{section}.{}", kind.key), &kind.value, "`default`");
    }
    for entry in entries {
        let known = match entry.key.as_str() {
            "rope_type" | "type" | "rope_theta" => true,
            "partial_rotary_factor" => one(&entry.value.value),
            _ => false,
        };
        if !known {
            report.at(entry.key_span, || {
                let key = printable(&entry.key);
                (format!("`{section}.{key}` means nothing beside `rope_type: default`"), None)
            });
        }
    }
}
