//! The support matrix: every strategy is planned with everything that can be written beside it. There is no hand-written list of what is
//! supported.

use std::collections::BTreeSet;

use annulus_experiment::{Resolved, parse};
use annulus_text::wrapped;
use annulus_yaml::{Override, Problems};

use crate::Plan;

/// The experiment that every question varies: four ranks, eight query heads.
const ASKED: &str = "\
name: support
model:
  hidden_size: 64
  intermediate_size: 64
  num_hidden_layers: 1
  num_attention_heads: 8
  vocab_size: 256
data: { tokens: 64 }
mesh: { sequence: 4 }
attention: { strategy: ring }
optimizer: { learning_rate: 1e-3 }
schedule: { steps: 1 }
";

/// The strategies of the matrix, and the keys that ask for each.
const STRATEGIES: [(&str, &[&str]); 14] = [
    ("local", &["attention.strategy=local", "mesh.sequence=1"]),
    ("ring", &["attention.strategy=ring"]),
    ("striped", &["attention.strategy=striped"]),
    ("megatron p2p", &["attention.strategy=megatron"]),
    ("megatron all-gather", &["attention.strategy=megatron", "attention.exchange=all-gather"]),
    ("megatron a2a", &["attention.strategy=megatron", "attention.exchange=a2a"]),
    ("megatron a2a+p2p", &["attention.strategy=megatron", "attention.exchange=a2a+p2p"]),
    ("ulysses", &["attention.strategy=ulysses"]),
    ("usp", &["attention.strategy=usp"]),
    ("double-ring", &["attention.strategy=double-ring"]),
    ("all-gather", &["attention.strategy=all-gather"]),
    ("broadcast", &["attention.strategy=broadcast"]),
    ("halo", &["attention.strategy=halo"]),
    ("li-ring", &["attention.strategy=li-ring"]),
];

/// A column of the matrix: its head, and the keys that ask for it.
type Column = (&'static str, &'static [&'static str]);

const MASKS: [Column; 12] = [
    ("full", &["attention.mask=full"]),
    ("causal", &["attention.mask=causal"]),
    ("window", &["attention.window=9"]),
    ("dilated", &["attention.window=4", "attention.dilation=3"]),
    ("prefix", &["attention.prefix=5"]),
    ("documents", &["attention.documents=[30, 7, 27]"]),
    ("documents of the data", &["attention.documents=data"]),
    ("padding", &["attention.padding=50"]),
    ("sinks", &["attention.window=9", "attention.sinks=2"]),
    ("global", &["attention.window=9", "attention.global=[3, 40]"]),
    ("strided", &["attention.pattern=strided", "attention.stride=8"]),
    ("fixed", &["attention.pattern=fixed", "attention.stride=8"]),
];

const SHARES: [Column; 6] = [
    ("contiguous", &["attention.layout=contiguous"]),
    ("striped", &["attention.layout=striped"]),
    ("zigzag", &["attention.layout=zigzag"]),
    ("balanced", &["attention.layout=balanced"]),
    ("any length", &["data.tokens=61"]),
    ("`mesh.weights`", &["mesh.weights=[3, 1, 2, 2]"]),
];

const HEADS: [Column; 6] = [
    ("as many KV heads", &["model.num_key_value_heads=8"]),
    ("fewer than ranks", &["model.num_key_value_heads=2"]),
    ("one for all", &["model.num_key_value_heads=1"]),
    (
        "3 KV heads on 4 ranks",
        &["model.num_attention_heads=12", "model.head_dim=8", "model.num_key_value_heads=3"],
    ),
    ("3 ranks", &["mesh.sequence=3"]),
    ("5 query heads", &["model.num_attention_heads=5", "model.head_dim=8"]),
];

const PASSES: [Column; 8] = [
    ("reversed", &["attention.backward=reversed"]),
    ("travelling", &["attention.backward=travelling"]),
    ("direct", &["attention.backward=direct"]),
    ("queries", &["attention.backward=queries"]),
    ("bf16 gradients", &["attention.wire.gradient=bf16"]),
    ("cpu", &["device=cpu"]),
    ("cuda", &["device=cuda"]),
    ("dropout", &["attention.dropout=0.1"]),
];

/// The support matrix as Markdown: first the exceptions, then tables without a blank cell, and for every `no` its error message.
pub fn support() -> String {
    let tables = [
        ("mask", &MASKS[..]),
        ("layout", &SHARES[..]),
        ("heads and ranks", &HEADS[..]),
        ("backward route, dtype, device", &PASSES[..]),
    ];
    let (mut refusals, mut exceptions) = (BTreeSet::new(), Vec::new());
    let mut shown = Vec::new();
    for (head, columns) in tables {
        let answers = answers(columns, &mut refusals);
        exceptions.push(wrapped(&exceptions_of(head, columns, &answers), 2));
        shown.push(table(head, columns, &answers));
    }
    let exceptions = exceptions.join("\n");
    format!(
        "All combinations are supported except these:\n\n{exceptions}\n\n{}\nThe error message for every `no`:\n\n{}",
        shown.join("\n"),
        refusals.into_iter().collect::<String>()
    )
}

/// Whether each strategy goes with each column; error messages are added to `refusals`.
fn answers(columns: &[Column], refusals: &mut BTreeSet<String>) -> Vec<Vec<bool>> {
    let mut answer = |written: &[&str], more: &[&str]| match asked(written, more) {
        Ok(()) => true,
        Err(problems) => {
            refusals.extend(said(&problems));
            false
        }
    };
    let mut of_strategy =
        |written: &[&str]| columns.iter().map(|(_, more)| answer(written, more)).collect();
    STRATEGIES.iter().map(|(_, written)| of_strategy(written)).collect()
}

/// The strategies that do not take a column; columns with the same exceptions share a line.
fn exceptions_of(head: &str, columns: &[Column], answers: &[Vec<bool>]) -> String {
    let mut refused: Vec<(Vec<&str>, Vec<String>)> = Vec::new();
    for (number, (column, _)) in columns.iter().enumerate() {
        let unable = STRATEGIES.iter().zip(answers).filter(|(_, answers)| !answers[number]);
        let unable: Vec<String> = unable.map(|((name, _), _)| format!("`{name}`")).collect();
        match refused.iter_mut().find(|(_, others)| *others == unable) {
            Some((columns, _)) => columns.push(column),
            None if unable.is_empty() => {}
            None => refused.push((vec![column], unable)),
        }
    }
    let lines = refused.iter().map(|(columns, unable)| {
        format!("\n- {head}: {}: not with {}", columns.join(", "), unable.join(", "))
    });
    let lines = lines.collect::<String>();
    if lines.is_empty() { format!("- {head}: none") } else { lines.trim_start().to_owned() }
}

/// A Markdown table of the answers for `columns`.
fn table(head: &str, columns: &[Column], answers: &[Vec<bool>]) -> String {
    let mut rows = vec![vec![head.to_owned()]];
    rows[0].extend(columns.iter().map(|(head, _)| (*head).to_owned()));
    for ((name, _), answers) in STRATEGIES.iter().zip(answers) {
        let word = |yes: &bool| String::from(if *yes { "yes" } else { "**no**" });
        rows.push(std::iter::once(format!("`{name}`")).chain(answers.iter().map(word)).collect());
    }
    markdown(&rows)
}

/// Plans `strategy` with `more` keys; the error is the answer `no`.
fn asked(strategy: &[&str], more: &[&str]) -> Result<(), Problems> {
    let arguments = strategy.iter().chain(more);
    let overrides: Vec<Override> = arguments.filter_map(|a| Override::split(a)).collect();
    let experiment = parse("support", ASKED, &overrides)?;
    Plan::new(&Resolved::read(experiment, None)?).map(drop)
}

/// The messages of `problems` and their hints, a line each.
fn said(problems: &Problems) -> impl Iterator<Item = String> {
    problems.0.iter().map(|problem| {
        let hint = problem.hint.as_deref().unwrap_or_default();
        format!("- {}: {hint}\n", problem.message)
    })
}

/// Rows as a Markdown table with aligned columns.
fn markdown(rows: &[Vec<String>]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!(" {cell:<width$} |"));
        format!("|{}\n", cells.collect::<String>())
    };
    let rule = widths.iter().map(|width| "-".repeat(*width)).collect();
    let (head, body) = rows.split_at(1);
    [&head[0], &rule].into_iter().chain(body).map(line).collect()
}
