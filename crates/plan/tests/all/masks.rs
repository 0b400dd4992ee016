//! The keys of `attention` and `mesh` for the mask and for the shards of positions.

use annulus_experiment::{Override, Problems, parse};
use annulus_sequence::{Mask, Rule, Strategy};

use crate::common::plan_of;
use crate::small::edited;

/// `SMALL` with more lines under `attention`.
fn with(lines: &str) -> String {
    edited("  mask: causal", &format!("  {}", lines.replace("; ", "\n  ")))
}

fn mask(lines: &str) -> Mask {
    plan_of(&with(lines)).groups[0].mask.clone()
}

#[test]
fn keys_are_rules() {
    let causal = Mask::causal;
    let documents = Rule::documents(&[4096, 8000, 192]);
    let cases = [
        ("mask: full", Mask::full()),
        ("mask: causal", causal()),
        ("window: 1k", causal().and(Rule::Window(1024))),
        ("mask: full; window: 7", Mask::full().and(Rule::Window(7))),
        ("window: 512; dilation: 4", causal().and(Rule::Dilated { window: 512, dilation: 4 })),
        ("prefix: 100", Mask::full().and(Rule::Prefix(100))),
        ("documents: [4k, 8000, 192]", causal().and(documents.clone())),
        ("documents: data", causal()),
        ("padding: 12k", causal().and(Rule::KeyPadding(vec![12288]))),
        ("pattern: strided; stride: 128", causal().and(Rule::Strided { stride: 128 })),
        ("pattern: fixed; stride: 64", causal().and(Rule::Fixed { block: 64, columns: 1 })),
        (
            "pattern: fixed; stride: 64; columns: 8",
            causal().and(Rule::Fixed { block: 64, columns: 8 }),
        ),
        ("window: 9; sinks: 4", causal().and(Rule::Window(9)).and(Rule::Sinks(4))),
        (
            "mask: full; window: 9; global: [0-63, 1000]",
            Mask::full().and(Rule::Window(9)).and(Rule::Global(vec![0..64, 1000..1001])),
        ),
        (
            "documents: [4k, 8000, 192]; window: 9; sinks: 4",
            causal().and(documents).and(Rule::Window(9)).and(Rule::Sinks(4)),
        ),
    ];
    for (lines, wanted) in cases {
        assert_eq!(mask(lines), wanted, "{lines}");
    }
}

#[test]
fn what_is_written_reads_back() {
    let lines = "prefix: 64; documents: [12k]; padding: 9k; window: 2k; pattern: fixed; stride: 96; \
                 columns: 4; sinks: 3; global: [0-63, 1000]";
    let text = with(lines)
        .replace("striped", "striped\n  stripe: 128")
        .replace("sequence: 4", "sequence: 4, weights: [4, 4, 3, 0]");
    let experiment = parse("small.yaml", &text, &[]).unwrap_or_else(|p| panic!("{p}"));
    assert_eq!(experiment.mesh.weights, Some(vec![4, 4, 3, 0]));
    assert_eq!(experiment.attention.strategy, Strategy::Striped { width: 128 });
    let written = experiment.to_yaml();
    let mut again = parse("again.yaml", &written, &[]).unwrap_or_else(|p| panic!("{p}\n{written}"));
    again.places = experiment.places.clone();
    assert_eq!(again, experiment);
    let section = written.find("attention:").map_or("", |start| &written[start..]);
    insta::assert_snapshot!(section.split("\n\n").next().unwrap_or_default());
}

/// The messages for wrong files.
/// How a mask that asks for nothing is warned of.
#[test]
fn what_hides_nothing_is_said() {
    for (lines, wanted) in [
        (
            "padding: 12288",
            "`attention.padding` of 12288 hides nothing in sequences of 12288 tokens",
        ),
        ("padding: 12287", "tokens from position 12287 on are hidden as keys"),
        ("window: 12288", "`attention.window` of 12288 hides nothing in sequences of 12288 tokens"),
    ] {
        let warnings = plan_of(&with(lines)).warnings;
        assert!(warnings.iter().any(|said| said.starts_with(wanted)), "{lines}: {warnings:?}");
    }
}

fn answer(text: &str) -> Problems {
    parse("small.yaml", text, &[]).map(|_| ()).expect_err(text)
}

#[test]
fn wrong_masks() {
    let cases = [
        "mask: full; prefix: 100",
        "sinks: 4",
        "global: [0]",
        "stride: 128",
        "pattern: fixed; stride: 128; columns: 129",
        "dilation: 4",
        "pattern: strided; stride: 128; columns: 8",
        "pattern: strided",
        "pattern: checkered; stride: 4",
        "documents: [4k, 4k]",
        "documents: [12k, 1]",
        "documents: []",
        "documents: [12288, 0]",
        "documents: date",
        "documents: 5",
        "padding: 12289",
        "padding: 0",
        "window: 9; global: [12288]",
        "window: 9; global: [5-3]",
        "window: 9; global: [0..5]",
        "window: 9; global: 5",
        "prefix: -1",
    ];
    let answers = cases.map(|lines| format!("## {lines}\n\n{}\n", answer(&with(lines))));
    insta::assert_snapshot!(answers.join("\n"));
}

#[test]
fn wrong_shards() {
    let mesh = |weights: &str| edited("sequence: 4", &format!("sequence: 4, weights: {weights}"));
    let cases = [
        mesh("[1, 2]"),
        mesh("[0, 0, 0, 0]"),
        mesh("[1, 1, 1, 0.5]"),
        mesh("[1, 1, 1, 65537]"),
        mesh("4"),
        edited("strategy: striped", "strategy: ring\n  stripe: 4"),
        edited("strategy: striped", "strategy: striped\n  stripe: 0"),
        edited("batch: 4", "batch: 4\n  format: recall")
            .replace("causal", "causal\n  documents: data"),
    ];
    insta::assert_snapshot!(cases.map(|case| answer(&case).to_string()).join("\n\n"));
}

#[test]
fn arguments_take_lists() {
    let argument = |text| Override::split(text).expect("cases have a `=`");
    let given = ["attention.documents=[4k, 8k]", "mesh.weights=[1, 2, 3, 4]"].map(argument);
    let experiment = parse("small.yaml", &with("window: 9"), &given);
    assert_eq!(experiment.map(|e| e.mesh.weights), Ok(Some(vec![1, 2, 3, 4])));
}
