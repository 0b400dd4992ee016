//! What goes together: every strategy asked for everything that can be written beside it, and what
//! the plan answers. No list of what is supported is kept anywhere; this one is asked for.

use std::collections::BTreeSet;

use annulus_experiment::{Resolved, parse};
use annulus_yaml::{Override, Problems};

use crate::Plan;

/// What is asked about, but for what is asked: four ranks, eight query heads.
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

/// What is written for a strategy.
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

/// A column: its head, and what is written for it.
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
    ("as many key/value heads", &["model.num_key_value_heads=8"]),
    ("fewer than ranks", &["model.num_key_value_heads=2"]),
    ("one for all", &["model.num_key_value_heads=1"]),
    (
        "3 key/value heads on 4 ranks",
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
    ("narrow wire", &["attention.wire.gradient=bf16"]),
    ("cpu", &["device=cpu"]),
    ("cuda", &["device=cuda"]),
    ("dropout", &["attention.dropout=0.1"]),
];

/// What goes with every strategy, as Markdown: tables without a blank cell, and for every `no` what
/// is said instead.
pub fn support() -> String {
    let tables = [
        ("mask", &MASKS[..]),
        ("who holds what", &SHARES[..]),
        ("heads and ranks", &HEADS[..]),
        ("backward, and how", &PASSES[..]),
    ];
    let mut refusals = BTreeSet::new();
    let mut table = |(head, columns): (&str, &[Column])| table(head, columns, &mut refusals);
    let mut text: Vec<String> = tables.into_iter().map(&mut table).collect();
    text.push(refusals.into_iter().collect());
    text.join("\n")
}

/// A table, and what was refused.
fn table(head: &str, columns: &[Column], refusals: &mut BTreeSet<String>) -> String {
    let mut rows = vec![vec![head.to_owned()]];
    rows[0].extend(columns.iter().map(|(head, _)| (*head).to_owned()));
    for (name, written) in STRATEGIES {
        let mut row = vec![format!("`{name}`")];
        for (_, more) in columns {
            row.push(match asked(written, more) {
                Ok(()) => String::from("yes"),
                Err(problems) => {
                    refusals.extend(said(&problems));
                    String::from("no")
                }
            });
        }
        rows.push(row);
    }
    markdown(&rows)
}

/// Whether a plan can be made of a strategy with something more.
fn asked(strategy: &[&str], more: &[&str]) -> Result<(), Problems> {
    let arguments = strategy.iter().chain(more);
    let overrides: Vec<Override> = arguments.filter_map(|a| Override::split(a)).collect();
    let experiment = parse("support", ASKED, &overrides)?;
    Plan::new(&Resolved::read(experiment, None)?).map(drop)
}

/// What is wrong and the way out, a line each.
fn said(problems: &Problems) -> impl Iterator<Item = String> {
    problems.0.iter().map(|problem| {
        let hint = problem.hint.as_deref().unwrap_or_default();
        format!("- {}: {hint}\n", problem.message)
    })
}

/// Columns of one width each.
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
