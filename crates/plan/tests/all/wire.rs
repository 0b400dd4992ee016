//! The section `attention.wire`: comm dtypes, and what follows from them.

use annulus_experiment::{Element, parse};
use annulus_plan::Plan;
use annulus_sequence::{Route, Wire};

use crate::common::{plan_of, planned};
use crate::small::edited;

/// `SMALL` in bf16 or f32 with these lines under `attention`.
fn file(lines: &str) -> String {
    edited("mask: causal", &format!("mask: causal\n  {}", lines.replace("; ", "\n  ")))
}

fn plan(lines: &str) -> Plan {
    plan_of(&file(lines))
}

#[test]
fn what_is_left_out_travels_as_it_is() {
    let plan = plan("backward: reversed");
    assert_eq!(plan.experiment.attention.wire, Wire::default());
    assert_eq!(plan.experiment.wire(), Wire::new(Element::F32, Element::F32));
    assert!(plan.warnings.is_empty());
}

#[test]
fn types_read_back_and_are_counted() {
    let wide = plan("backward: reversed");
    let narrow = plan("backward: reversed; wire: { key_value: bf16, gradient: f16 }");
    let wire =
        Wire { key_value: Some(Element::Bf16), gradient: Some(Element::F16), ..Wire::default() };
    assert_eq!(narrow.experiment.attention.wire, wire);
    let text = narrow.experiment.to_yaml();
    let again = parse("again.yaml", &text, &[]).unwrap_or_else(|p| panic!("{p}\n{text}"));
    assert_eq!(again.attention.wire, wire, "{text}");
    for (wide, narrow) in std::iter::zip(&wide.ranks, &narrow.ranks) {
        assert_eq!((2 * narrow.forward, 2 * narrow.backward), (wide.forward, wide.backward));
        assert_eq!(narrow.gradients, wide.gradients);
    }
    let half = plan("backward: reversed; wire: { key_value: bf16 }");
    assert_eq!(4 * half.ranks[0].backward, 3 * wide.ranks[0].backward);
}

#[test]
fn sums_in_16_bits_are_warned_of_where_they_travel() {
    let narrow = plan("backward: reversed; wire: { gradient: bf16 }");
    // Wrapped to the width of a terminal.
    let text = narrow.to_text().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains(
        "warning gradients of keys and values travel in bf16: rounded at every move, their error \
         grows with the square root of the ranks, to about 1.4 times that of 2 ranks on 4; \
         `attention.wire.gradient: f32` keeps it"
    ));
    // Left open, they go where they are rounded once.
    let open = plan("wire: { gradient: bf16 }");
    assert_eq!(open.groups[0].route.how, Route::Direct);
    assert!(open.warnings[0].starts_with(
        "gradients of keys and values travel in bf16: rounded by every rank, their error grows to \
         about 1.2 times that of 2 ranks on 4;"
    ));
    assert_eq!(plan("").groups[0].route.how, Route::Reversed);
    let queries = plan("backward: queries; wire: { gradient: bf16 }");
    assert!(queries.warnings.is_empty(), "they stay at home");
    let queries = plan("backward: queries; wire: { query_gradient: f16 }");
    assert!(queries.warnings[0].starts_with("gradients of queries travel in f16"));
}

#[test]
fn values_gain_nothing_in_wider_types() {
    for (lines, key, found) in
        [("wire: { query: f32 }", "query", "f32"), ("wire: { output: f16 }", "output", "f16")]
    {
        let text = file(lines).replace("  hidden_size: 128", "  dtype: bf16\n  hidden_size: 128");
        let refused = parse("small.yaml", &text, &[]).and_then(planned);
        let problems = refused.expect_err("refused").to_string();
        let wanted = format!("`attention.wire.{key}` is {found}, but the model computes in bf16");
        assert!(problems.contains(&wanted), "{problems}");
    }
    let problems = parse("small.yaml", &file("wire: { gradient: f8 }"), &[]).expect_err("refused");
    assert!(problems.to_string().contains("must be one of `f32`, `bf16`, `f16`, found `f8`"));
}
