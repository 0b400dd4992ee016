//! A recorded step leaves a trace file with the hops, blocks and bytes of the schedules, and computes the same bits as without.

use std::collections::BTreeMap;

use crate::common::{Place, losses};
use annulus_experiment::Order;
use annulus_sequence::{
    BlockShape, Exchange, Heads, Hop, Mask, Part, Route, Rule, Schedule, Strategy, Wire,
    pairs_per_hop,
};
use annulus_trace::testing::check;
use annulus_trace::{Activity, Pass, Place as At, Span, Tile, Trace, TracedBlock};

/// Layers of the model of [`common::BASE`].
const LAYERS: usize = 2;
const HEADS: Heads = Heads { query: 4, key_value: 2 };
const HEAD_DIM: usize = 8;
/// The step that is traced.
const STEP: u64 = 2;

struct Case {
    name: &'static str,
    strategy: Strategy,
    back: Route,
    data: usize,
    sequence: usize,
    /// Sequences of a micro-batch, of four in all.
    micro: usize,
    tokens: usize,
    window: Option<usize>,
    more: &'static [(&'static str, &'static str)],
    order: Order,
}

impl Case {
    fn of(name: &'static str, strategy: Strategy, sequence: usize) -> Case {
        Case {
            name,
            strategy,
            back: Route::Reversed,
            data: 1,
            sequence,
            micro: 4,
            tokens: 48,
            window: None,
            more: &[],
            order: Order::SequenceFirst,
        }
    }

    fn changes(&self) -> Vec<(String, String)> {
        let back = match self.back {
            Route::Reversed => "reversed",
            Route::Travelling => "travelling",
            Route::Direct => "direct",
            Route::Queries => "queries",
        };
        let mut changes = vec![
            ("attention.strategy", self.strategy.name().to_owned()),
            ("attention.backward", back.to_owned()),
            ("mesh.sequence", self.sequence.to_string()),
            ("mesh.data", self.data.to_string()),
            ("mesh.order", self.order.word().to_owned()),
            ("memory.micro_batch", self.micro.to_string()),
            ("data.tokens", self.tokens.to_string()),
            ("schedule.stop", String::from("3")),
        ];
        changes.extend(self.window.map(|window| ("attention.window", window.to_string())));
        changes.extend(self.more.iter().map(|(key, value)| (*key, (*value).to_owned())));
        changes.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// The schedules of the forward and backward pass.
    fn schedules(&self) -> [Schedule; 2] {
        let window = |width| Mask::causal().and(Rule::Window(width));
        let mask = self.window.map_or_else(Mask::causal, window);
        let split = self.strategy.split(&mask, self.tokens, self.sequence, HEADS).unwrap();
        let backward = self.strategy.backward(&split, self.back).unwrap();
        [self.strategy.forward(&split).unwrap(), backward]
    }

    fn micro_batches(&self) -> usize {
        4 / self.data / self.micro
    }
}

fn cases() -> Vec<Case> {
    let both = Exchange::Both { shape: None };
    vec![
        Case::of("local", Strategy::Local, 1),
        Case { back: Route::Queries, ..Case::of("ring", Strategy::Ring, 3) },
        Case { back: Route::Travelling, tokens: 50, ..Case::of("striped", Strategy::STRIPED, 4) },
        Case { micro: 1, data: 2, ..Case::of("megatron", Strategy::MEGATRON, 2) },
        Case { data: 2, order: Order::DataFirst, micro: 2, ..Case::of("apart", Strategy::Ring, 3) },
        Case {
            more: &[("attention.exchange", "a2a+p2p")],
            ..Case::of("both", Strategy::Megatron { exchange: both }, 4)
        },
        Case { micro: 2, ..Case::of("ulysses", Strategy::Ulysses, 4) },
        Case::of("double-ring", Strategy::DOUBLE_RING, 4),
        Case {
            more: &[("attention.groups", "2")],
            ..Case::of("all-gather", Strategy::AllGather { groups: 2 }, 3)
        },
        Case::of("broadcast", Strategy::Broadcast, 3),
        Case { window: Some(9), ..Case::of("halo", Strategy::Halo, 4) },
        Case { more: &[("memory.recompute", "layer")], ..Case::of("li-ring", Strategy::LiRing, 3) },
    ]
}

#[test]
fn a_trace_has_what_the_schedules_have() {
    let place = Place::new();
    for case in cases() {
        let changes = case.changes();
        let mut changes: Vec<(&str, &str)> =
            changes.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let plain = place.run_in(&format!("{}-plain", case.name), &changes);
        changes.push(("trace.steps", "[2]"));
        let plan = place.plan(&changes);
        let traced = place.run_in(case.name, &changes);
        let bits = |of: &[f64]| of.iter().map(|loss| loss.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&losses(&traced)), bits(&losses(&plain)), "{}", case.name);

        assert!(
            !traced.folder.join("trace-1.json").exists()
                && !traced.folder.join("trace-3.json").exists()
        );
        let text = std::fs::read_to_string(traced.folder.join("trace-2.json")).unwrap();
        let arrows = check(&text).unwrap_or_else(|wrong| panic!("{}: {wrong}", case.name));
        let trace = Trace::from_json(&text).unwrap();
        assert_eq!((trace.step, trace.ranks.len()), (Some(STEP), case.data * case.sequence));
        assert_eq!(arrows, check_hops(&case, &trace), "{}", case.name);

        let bytes: Vec<u64> = trace
            .ranks
            .iter()
            .map(|spans| spans.iter().map(|span| span.activity.bytes()).sum())
            .collect();
        let planned: Vec<u64> =
            plan.ranks.iter().map(|rank| rank.forward + rank.backward + rank.gradients).collect();
        assert_eq!(bytes, planned, "{}", case.name);
        check_metrics(&traced.folder, &bytes, arrows > 0);
    }
}

/// Checks that logged bytes are those of the trace, and that the traced step alone logs how much communication was hidden.
fn check_metrics(folder: &std::path::Path, bytes: &[u64], moves: bool) {
    let metrics = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    for line in metrics.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let traced = line["step"] == STEP;
        let overlap = line["comm/overlap"].as_f64();
        assert_eq!(overlap.is_some(), traced && moves, "{line}");
        assert!(overlap.is_none_or(|part| (0.0..=1.0).contains(&part)), "{line}");
        if traced {
            assert_eq!(line["comm/bytes"], serde_json::json!(bytes));
        }
    }
}

/// What one rank does in one hop, in terms that schedule and trace share.
#[derive(Debug, Default, PartialEq)]
struct Done {
    tiles: Vec<Tile>,
    pairs: u64,
    finishes: Vec<TracedBlock>,
    /// For each send: to which rank, what, and how many bytes.
    sends: Vec<(usize, TracedBlock, u64)>,
    /// For each receive: from which rank, what, and how many bytes.
    receives: Vec<(usize, TracedBlock, u64)>,
}

/// Checks that every hop of every layer and micro-batch is that of the schedule; returns how many blocks were sent.
fn check_hops(case: &Case, trace: &Trace) -> usize {
    let mut moved = 0;
    for (rank, spans) in trace.ranks.iter().enumerate() {
        // The rank's place in its sequence, and the distance between the sequence's ranks.
        let (place, step) = match case.order {
            Order::SequenceFirst => (rank % case.sequence, 1),
            Order::DataFirst => (rank / case.data, case.data),
        };
        let mut wanted = BTreeMap::new();
        for schedule in case.schedules() {
            let shape = BlockShape {
                batch: case.micro,
                head_dim: HEAD_DIM,
                wire: Wire::new(4, 4),
                order_free: false,
            };
            let pairs = pairs_per_hop(&schedule);
            for (hop, plan) in schedule.of_rank(place).iter().enumerate() {
                let done =
                    planned(plan, &schedule, shape, |other| rank + other * step - place * step);
                let pairs = pairs[hop][place] * case.micro as u64;
                for layer in 0..LAYERS {
                    let at = At { layer, pass: schedule.pass.into(), hop };
                    wanted.insert(at, repeated(&done, pairs, case.micro_batches()));
                }
            }
        }
        wanted.retain(|_, done| *done != Done::default());
        let found = recorded(rank, spans);
        moved += found.values().map(|done| done.sends.len()).sum::<usize>();
        assert_eq!(found, wanted, "{}, rank {rank}", case.name);
    }
    moved
}

/// A hop of a schedule, with the ranks' numbers in the world.
fn planned(
    hop: &Hop,
    schedule: &Schedule,
    shape: BlockShape,
    rank: impl Fn(usize) -> usize,
) -> Done {
    let mut done = Done { tiles: hop.tiles.iter().map(Into::into).collect(), ..Done::default() };
    done.finishes = hop.finishes.iter().map(|block| (*block).into()).collect();
    let bytes = |block| shape.bytes(block, schedule.pass);
    done.sends = hop.sends.iter().map(|m| (rank(m.to), m.block.into(), bytes(m.block))).collect();
    done.receives =
        hop.receives.iter().map(|m| (rank(m.from), m.block.into(), bytes(m.block))).collect();
    done
}

fn repeated(done: &Done, pairs: u64, times: usize) -> Done {
    let mut all = Done { pairs: pairs * times as u64, ..Done::default() };
    for _ in 0..times {
        all.tiles.extend(done.tiles.iter().cloned());
        all.finishes.extend(done.finishes.iter().cloned());
        all.sends.extend(done.sends.iter().cloned());
        all.receives.extend(done.receives.iter().cloned());
    }
    all.sorted()
}

impl Done {
    /// Sorts sends and receives: the order in which they are posted is not part of the schedule.
    fn sorted(mut self) -> Done {
        self.sends.sort();
        self.receives.sort();
        self
    }
}

/// The hops of one rank, from its spans. Additions, and when ranks drain or post, are not part of the schedule.
fn recorded(rank: usize, spans: &[Span]) -> BTreeMap<At, Done> {
    let mut found: BTreeMap<At, Done> = BTreeMap::new();
    let mut spans: Vec<&Span> = spans.iter().collect();
    spans.sort_by_key(|span| span.begin);
    for span in spans {
        match span.activity.clone() {
            Activity::Compute { place, tiles, pairs } => {
                let done = found.entry(place).or_default();
                done.tiles.extend(tiles);
                done.pairs += pairs;
            }
            Activity::Finish { place, queries } => {
                found.entry(place).or_default().finishes.extend(queries);
            }
            Activity::Send { place, moved } => {
                assert_eq!((moved.from, moved.bytes), (rank, moved.planned_bytes));
                found.entry(place).or_default().sends.push((moved.to, moved.block, moved.bytes));
            }
            Activity::Wait { place, moved, flight } => {
                assert_eq!((moved.to, moved.bytes), (rank, moved.planned_bytes));
                assert!(flight >= span.length());
                found.entry(place).or_default().receives.push((
                    moved.from,
                    moved.block,
                    moved.bytes,
                ));
            }
            Activity::Fold { block, .. } => {
                assert!(block.part.starts_with('g'), "{block} is no sum");
            }
            Activity::Stage { .. }
            | Activity::Post { .. }
            | Activity::Drain { .. }
            | Activity::Sum { .. } => {}
        }
    }
    found.into_iter().map(|(at, done)| (at, done.sorted())).collect()
}

#[test]
fn every_stage_and_sum_of_a_step_is_there() {
    let place = Place::new();
    let changes = [
        ("attention.strategy", "ring"),
        ("mesh.sequence", "2"),
        ("schedule.stop", "2"),
        ("trace.steps", "[1, 2-2]"),
        ("every.log", "0"),
    ];
    let outcome = place.run(&changes).unwrap();
    let first = outcome.folder.join("trace-1.json");
    let trace = Trace::from_json(&std::fs::read_to_string(first).unwrap()).unwrap();
    for spans in &trace.ranks {
        let mut spans: Vec<&Span> = spans.iter().collect();
        spans.sort_by_key(|span| span.begin);
        let of = |span: &&Span| match &span.activity {
            Activity::Stage { name } => Some(name.clone()),
            _ => None,
        };
        let stages: Vec<String> = spans.iter().filter_map(of).collect();
        let layer = ["0.input_layernorm", "0.post_attention_layernorm", "1.input_layernorm"];
        assert_eq!(stages[0], "batch");
        assert_eq!(stages[1], "forward embed_tokens");
        for (index, name) in layer.iter().enumerate() {
            assert_eq!(stages[2 + index], format!("forward layers.{name}"));
            assert_eq!(stages[12 - index - 1], format!("backward layers.{name}"), "{stages:?}");
        }
        assert_eq!(stages[stages.len() - 2..], ["sum of gradients", "optimizer"]);
        let sum = |span: &&&Span| matches!(span.activity, Activity::Sum { .. });
        // One sum for every stage, one for the loss and one for the norm.
        assert_eq!(spans.iter().filter(sum).count(), 2 + LAYERS * 2 + 2);
        check_within(&spans);
    }
}

/// Checks that the hops of an attention lie within its stage's span.
fn check_within(spans: &[&Span]) {
    let named = |span: &&&Span| matches!(&span.activity, Activity::Stage { name } if name.contains("0.input"));
    let stage = spans.iter().find(named).unwrap();
    let of_layer = |span: &&&Span| {
        span.activity.place().is_some_and(|at| (at.layer, at.pass) == (0, Pass::Forward))
    };
    let mut hops = spans.iter().filter(of_layer).peekable();
    assert!(hops.peek().is_some());
    assert!(hops.all(|hop| stage.begin <= hop.begin && hop.end <= stage.end));
}

#[test]
fn a_resumed_run_traces_what_is_left_and_may_trace_other_steps() {
    let place = Place::new();
    place.run_in("run", &[("schedule.stop", "2"), ("trace.steps", "[1]")]);
    let outcome = place.run_in("run", &[("schedule.stop", "4"), ("trace.steps", "[1, 4]")]);
    assert_eq!(outcome.resumed_from, Some(2));
    for (step, there) in [(1, true), (2, false), (3, false), (4, true)] {
        assert_eq!(outcome.folder.join(format!("trace-{step}.json")).is_file(), there, "{step}");
    }
}

#[test]
fn narrow_wires_are_planned_to_the_byte() {
    let place = Place::new();
    let outcome = place.run_in(
        "narrow",
        &[
            ("attention.strategy", "striped"),
            ("attention.backward", "travelling"),
            ("mesh.sequence", "3"),
            ("attention.wire.key_value", "bf16"),
            ("attention.wire.gradient", "f16"),
            ("schedule.stop", "2"),
            ("trace.steps", "[2]"),
        ],
    );
    let text = std::fs::read_to_string(outcome.folder.join("trace-2.json")).unwrap();
    let trace = Trace::from_json(&text).unwrap();
    let mut sent = 0;
    for span in trace.ranks.iter().flatten() {
        if let Activity::Send { moved, .. } = &span.activity {
            assert_eq!(moved.bytes, moved.planned_bytes, "{moved:?}");
            let elements = 2 * HEAD_DIM * 4 * 2 * (moved.block.rows[1] - moved.block.rows[0]);
            assert_eq!(moved.bytes, 2 * elements as u64, "{moved:?}");
            assert!(
                [Part::KeyValue, Part::Gradient].map(Part::letter).contains(&&*moved.block.part)
            );
            sent += 1;
        }
    }
    assert!(sent > 0);
}
