//! Bytes of attention, three times over: closed forms written down here from the papers' algorithms, what a plan says,
//! and what a meter counts while threads run. Equal to the byte, rank by rank.
//!
//! With e bytes of an element, e' of gradients, and d elements of a head, a row of one head is
//!
//! ```text
//! keys and values  2 d e     their gradients  2 d e'
//! queries          d e       backward 2 d e + 8: with the gradient of the output, log-sum-exp, delta
//! outputs          d e + 4   gradients of queries  d e'
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use annulus_attention::{Attention, CallSite, Qkv};
use annulus_comm::{Communicator, Metered, threads};
use annulus_experiment::{Dtype, Experiment, ModelSource, Resolved, parse};
use annulus_ops::attention::Fused;
use annulus_ops::{Key, Pool, normal};
use annulus_plan::Plan;
use annulus_sequence::{Exchange, Heads, Route, Strategy};
use candle_core::{DType, Device, Result, Tensor};

const EXPERIMENT: &str = "\
name: bytes
model:
  hidden_size: 32
  intermediate_size: 32
  num_hidden_layers: 1
  num_attention_heads: 8
  num_key_value_heads: 8
  head_dim: 8
  vocab_size: 256
data: { tokens: 64, evaluate: 0 }
optimizer: { learning_rate: 1e-3 }
schedule: { steps: 1 }
";
const BATCH: usize = 2;
const HEAD_DIM: usize = 8;
/// Multi-head, grouped, one KV head for all; and some that do not line up with ranks.
const HEADS: [[usize; 2]; 4] = [[8, 8], [8, 2], [8, 1], [12, 4]];

/// A way to split a sequence, and what is sent backward.
#[derive(Clone, Debug)]
struct Case {
    strategy: Strategy,
    back: Route,
    ranks: usize,
    heads: Heads,
    tokens: usize,
    window: Option<usize>,
    dtype: Dtype,
}

/// Bytes by rank, forward and backward.
type Sent = [Vec<u64>; 2];
/// What a row of one head weighs, of the whole batch.
struct Rows {
    keys: u64,
    gradients: u64,
    queries: u64,
    queries_back: u64,
    query_gradients: u64,
    outputs: u64,
}

impl Case {
    fn rows(&self) -> Rows {
        let (d, batch) = (HEAD_DIM as u64, BATCH as u64);
        let (e, g) = (self.dtype.bytes() as u64, 4);
        Rows {
            keys: batch * 2 * d * e,
            gradients: batch * 2 * d * g,
            queries: batch * d * e,
            queries_back: batch * (2 * d * e + 8),
            query_gradients: batch * d * g,
            outputs: batch * (d * e + 4),
        }
    }

    /// The closed form; `n` is how many positions every rank holds.
    fn formula(&self, n: &[u64]) -> Sent {
        let both = |rank| match self.strategy {
            Strategy::AllGather { .. }
            | Strategy::Megatron { exchange: Exchange::AllGather }
            | Strategy::Broadcast => self.gathered(n, rank),
            Strategy::Halo => self.halo(n, rank),
            Strategy::DoubleRing { shape: Some([nodes, inside]) } if nodes > 1 && inside > 1 => {
                self.double_ring(n, inside, rank)
            }
            Strategy::Ring if self.window.is_some() => self.windowed(n[rank], rank as u64),
            _ => self.torus(n, rank),
        };
        let both: Vec<[u64; 2]> = (0..self.ranks).map(both).collect();
        [0, 1].map(|pass| both.iter().map(|sent| sent[pass]).collect())
    }

    /// Ranks that exchange heads for positions; the rest is a ring.
    fn lanes(&self) -> usize {
        match self.strategy {
            Strategy::Ulysses | Strategy::Megatron { exchange: Exchange::AllToAll } => self.ranks,
            Strategy::Usp { shape: Some([lanes, _]) }
            | Strategy::Megatron { exchange: Exchange::Both { shape: Some([lanes, _]) } } => lanes,
            _ => 1,
        }
    }

    /// Stations of some lanes that split heads among them, and a ring of those. A rank sends its
    /// positions to the lanes of its station, rows of others' results home, and every block that
    /// comes round but the one that came last; of gradients every block but its own, or, where they
    /// travel from home all the way, every block. Keys, then values are as many bytes as both at once.
    fn torus(&self, n: &[u64], rank: usize) -> [u64; 2] {
        let (row, lanes) = (self.rows(), self.lanes());
        let (stations, station) = (self.ranks / lanes, rank / lanes);
        let of = |station: usize| -> u64 {
            let first = station % stations * lanes;
            n[first..first + lanes].iter().sum()
        };
        let all: u64 = n.iter().sum();
        let query = (self.heads.query / lanes) as u64;
        let key_value = |lane: usize| self.key_heads(lane, lanes);
        let (own, others) = (n[rank], of(station) - n[rank]);
        let peers = (0..lanes).filter(|lane| *lane != rank % lanes);
        let keys: u64 = peers.map(|lane| own * key_value(lane) * row.keys).sum();
        let there = |queries: u64| own * (lanes as u64 - 1) * query * queries + keys;
        let heads = key_value(rank % lanes);
        let home = others * (query * row.query_gradients + heads * row.gradients);
        let ring = |last: u64| (all - last) * heads * row.keys;
        let [next, previous] = [of(station + 1), of(station + stations - 1)];
        let back = match self.back {
            Route::Travelling => {
                let round = if stations == 1 { 0 } else { all };
                ring(next) + round * heads * row.gradients
            }
            Route::Reversed => ring(previous) + (all - of(station)) * heads * row.gradients,
            Route::Direct => {
                // Over contiguous chunks nobody sees the later ones.
                let seen = match self.strategy {
                    Strategy::Ring => n[..rank].iter().sum(),
                    _ => all - of(station),
                };
                ring(previous) + seen * heads * row.gradients
            }
            Route::Queries => {
                let queries = (all - previous) * row.queries_back;
                query * (queries + (all - of(station)) * row.query_gradients)
            }
        };
        let forward = there(row.queries) + others * query * row.outputs + ring(next);
        [forward, there(row.queries_back) + home + back]
    }

    /// Key/value heads that the query heads of a lane use: `max(Hkv, U) / U` where one divides the
    /// other.
    fn key_heads(&self, lane: usize, lanes: usize) -> u64 {
        let (queries, group) = (self.heads.query / lanes, self.heads.query / self.heads.key_value);
        let used = (lane * queries..(lane + 1) * queries).map(|head| head / group);
        used.collect::<std::collections::BTreeSet<_>>().len() as u64
    }

    /// Inside of a node all blocks of a visit but the one that comes last, between nodes those of
    /// the own place but the one that comes last.
    fn double_ring(&self, n: &[u64], inside: usize, rank: usize) -> [u64; 2] {
        let (row, nodes) = (self.rows(), self.ranks / inside);
        let at = |node: usize, place: usize| n[node % nodes * inside + place % inside];
        let (node, place) = (rank / inside, rank % inside);
        let column = |place: usize| -> u64 { (0..nodes).map(|node| at(node, place)).sum() };
        let all: u64 = n.iter().sum();
        let moved = all - column(place + 1) + column(place) - at(node + 1, place);
        let gradients = match self.back {
            Route::Travelling => all + column(place),
            _ => all - n[rank],
        };
        let heads = self.heads.key_value as u64;
        let forward = moved * heads * row.keys;
        [forward, forward + gradients * heads * row.gradients]
    }

    /// The own block to all others; backward theirs are summed at their owners.
    fn gathered(&self, n: &[u64], rank: usize) -> [u64; 2] {
        let (row, heads) = (self.rows(), self.heads.key_value as u64);
        let keys = n[rank] * (self.ranks as u64 - 1) * heads * row.keys;
        [keys, keys + (n.iter().sum::<u64>() - n[rank]) * heads * row.gradients]
    }

    /// A ring of contiguous chunks of `n` under a causal window W stops after
    /// `min(P - 1, ceil((W - 1) / n))` hops.
    fn windowed(&self, n: u64, rank: u64) -> [u64; 2] {
        let (row, heads) = (self.rows(), self.heads.key_value as u64);
        let reach = self.window.map_or(0, |window| (window as u64 - 1).div_ceil(n));
        let hops = reach.min(self.ranks as u64 - 1);
        let back = match self.back {
            Route::Travelling => {
                let home = u64::from(hops > 0);
                heads * (hops * row.keys + (hops + home) * row.gradients)
            }
            Route::Reversed => heads * hops * (row.keys + row.gradients),
            Route::Direct => heads * (hops * row.keys + rank.min(hops) * row.gradients),
            Route::Queries => {
                self.heads.query as u64 * hops * (row.queries_back + row.query_gradients)
            }
        };
        [n * hops * heads * row.keys, n * back]
    }

    /// Contiguous chunks under a causal mask: to every later rank the rows that are less than the
    /// window before its first, and back to every earlier one the gradients of its rows.
    fn halo(&self, n: &[u64], rank: usize) -> [u64; 2] {
        let (row, heads) = (self.rows(), self.heads.key_value as u64);
        let start = |rank: usize| n[..rank].iter().sum::<u64>();
        let window = self.window.unwrap_or(self.tokens) as u64;
        let seen = |owner: usize, by: usize| {
            let first = (start(by) + 1).saturating_sub(window).max(start(owner));
            start(owner + 1).saturating_sub(first)
        };
        let sent: u64 = (rank + 1..self.ranks).map(|by| seen(rank, by)).sum();
        let home: u64 = (0..rank).map(|owner| seen(owner, rank)).sum();
        [sent * heads * row.keys, heads * (sent * row.keys + home * row.gradients)]
    }

    fn experiment(&self) -> Experiment {
        let mut experiment =
            parse("bytes.yaml", EXPERIMENT, &[]).unwrap_or_else(|problems| panic!("{problems}"));
        if let ModelSource::Inline(shape) = &mut experiment.model.source {
            shape.num_attention_heads = self.heads.query;
            shape.num_key_value_heads = self.heads.key_value;
        }
        experiment.model.dtype = self.dtype;
        experiment.data.batch = BATCH;
        experiment.data.tokens = self.tokens;
        experiment.mesh.sequence = self.ranks;
        experiment.attention.strategy = self.strategy;
        experiment.attention.backward = Some(self.back);
        experiment.attention.masking.window = self.window;
        experiment
    }

    fn plan(&self) -> Plan {
        Resolved::read(self.experiment(), None)
            .and_then(|resolved| Plan::new(&resolved))
            .unwrap_or_else(|problems| panic!("{self:?}: {problems}"))
    }

    /// What every rank hands over while both passes run on threads.
    fn metered(&self, plan: &Plan) -> Sent {
        let options = threads::Options {
            world: self.ranks,
            deadline: Duration::from_secs(20),
            stop: Arc::default(),
        };
        let ran = threads::run(&options, |comm| self.counted(plan, comm));
        let counted = ran.unwrap_or_else(|failure| panic!("{self:?}: {failure}"));
        [0, 1].map(|pass| counted.iter().map(|sent| sent[pass]).collect())
    }

    fn counted(&self, plan: &Plan, comm: Arc<dyn Communicator>) -> Result<[u64; 2]> {
        let meter = Metered::new(comm);
        let kernel = Arc::new(Fused::new(Pool::serial()));
        let attention = Attention::new(plan.schedules[0].clone(), 0.3, meter.clone(), kernel);
        let rows = attention.positions().tokens();
        let dtype = if self.dtype == Dtype::F32 { DType::F32 } else { DType::BF16 };
        let random = |name: &str, heads: usize| {
            let values =
                normal(Key { seed: 1, purpose: "bytes", name }, 0, BATCH * heads * rows * HEAD_DIM);
            let shape = (BATCH, heads, rows, HEAD_DIM);
            Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)
        };
        let Heads { query, key_value } = self.heads;
        let qkv =
            Qkv { q: random("q", query)?, k: random("k", key_value)?, v: random("v", key_value)? };
        let done = attention.forward(CallSite::default(), &qkv)?;
        attention.backward(CallSite::default(), qkv, done, random("gradient", query)?)?;
        let bytes = meter.take().bytes;
        Ok(["forward", "backward"].map(|pass| bytes.get(pass).copied().unwrap_or_default()))
    }

    /// All three are the same.
    #[track_caller]
    fn check(&self) {
        let plan = self.plan();
        let n: Vec<u64> = plan.ranks.iter().map(|rank| rank.positions.tokens() as u64).collect();
        assert_eq!(n.iter().sum::<u64>(), self.tokens as u64);
        let planned: Sent = [
            plan.ranks.iter().map(|rank| rank.forward).collect(),
            plan.ranks.iter().map(|rank| rank.backward).collect(),
        ];
        let formula = self.formula(&n);
        assert_eq!(planned, formula, "{self:?}: planned, and by formula");
        assert_eq!(self.metered(&plan), formula, "{self:?}: counted, and by formula");
    }
}

/// Every strategy in every exchange, shape and group that so many ranks and heads allow; shapes written out.
fn strategies(ranks: usize, heads: Heads) -> Vec<Strategy> {
    let is_open = |one: &Strategy| one.shape().is_none() && one.shapes(ranks).len() > 1;
    let mut all = Strategy::variants(ranks, heads);
    all.retain(|strategy| !is_open(strategy) && strategy.check(ranks, heads).is_ok());
    all
}

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    let worlds = |heads| (1..=8).map(move |ranks| (heads, ranks));
    for ([query, key_value], ranks) in HEADS.into_iter().flat_map(worlds) {
        let heads = Heads { query, key_value };
        // Even shares in bf16; shares that differ in f32.
        for (tokens, dtype) in [(4 * ranks, Dtype::Bf16), (5 * ranks - 2, Dtype::F32)] {
            for strategy in strategies(ranks, heads) {
                let of = |back| Case { strategy, back, ranks, heads, tokens, window: None, dtype };
                all.extend(strategy.routes().iter().copied().map(of));
            }
        }
    }
    all
}

#[test]
fn formulas_plans_and_meters_agree_to_the_byte() {
    let mut checked: BTreeMap<&str, usize> = BTreeMap::new();
    for case in cases() {
        case.check();
        *checked.entry(case.strategy.name()).or_default() += 1;
    }
    let all: usize = checked.values().sum();
    println!("{all} cases: {checked:?}");
    assert_eq!(checked.len(), Strategy::ALL.len());
    assert!(all > 2_000, "{all}");
}

/// A halo is the rows that a window shows, a ring under a window as many hops as it reaches.
#[test]
fn windows_cost_what_they_reach() {
    let heads = Heads { query: 4, key_value: 2 };
    let mut checked = 0;
    for ranks in 1..=8 {
        let uneven = (Strategy::Halo, 7 * ranks - 3);
        for (strategy, tokens) in [(Strategy::Ring, 6 * ranks), (Strategy::Halo, 6 * ranks), uneven]
        {
            for window in [1, 2, 6, 7, 8, 13, 6 * ranks].map(Some) {
                for back in strategy.routes().iter().copied() {
                    let dtype = Dtype::Bf16;
                    Case { strategy, back, ranks, heads, tokens, window, dtype }.check();
                    checked += 1;
                }
            }
        }
    }
    assert_eq!(checked, 8 * 7 * (4 + 1 + 1));
}

/// Travelling all the way round costs a block of gradients more than waiting at home.
#[test]
fn a_reversed_ring_saves_a_hop() {
    for ranks in 2..=8 {
        let case = |back| {
            let (strategy, tokens) = (Strategy::MEGATRON, 8 * ranks);
            let heads = Heads { query: 4, key_value: 2 };
            Case { strategy, back, ranks, heads, tokens, window: None, dtype: Dtype::Bf16 }
        };
        let [round, reversed] = [Route::Travelling, Route::Reversed].map(|back| case(back).plan());
        let block = 8 * 2 * case(Route::Reversed).rows().gradients;
        for (round, reversed) in round.ranks.iter().zip(&reversed.ranks) {
            assert_eq!(round.backward - reversed.backward, block, "{ranks} ranks");
        }
    }
}

/// Left open, queries travel exactly where g (2de + 8 + d e') < 2d (e + e'), g query heads to a
/// KV head.
#[test]
fn queries_travel_exactly_where_they_are_lighter() {
    let mut chosen = [0, 0];
    for (ranks, group) in (2..=5).flat_map(|ranks| (1..=4).map(move |group| (ranks, group))) {
        for (dtype, dim) in [Dtype::F32, Dtype::Bf16].into_iter().flat_map(|t| [(t, 8), (t, 64)]) {
            let heads = Heads { query: 2 * group, key_value: 2 };
            let (strategy, back) = (Strategy::STRIPED, Route::Reversed);
            let case = Case { strategy, back, ranks, heads, tokens: 40, window: None, dtype };
            let mut open = case.experiment();
            open.attention.backward = None;
            if let ModelSource::Inline(shape) = &mut open.model.source {
                shape.head_dim = dim;
            }
            let plan = Resolved::read(open, None)
                .and_then(|resolved| Plan::new(&resolved))
                .unwrap_or_else(|problems| panic!("{problems}"));
            let (e, g) = (dtype.bytes(), 4);
            let lighter = group * (2 * dim * e + 8 + dim * g) < 2 * dim * (e + g);
            assert_eq!(plan.groups[0].route.how == Route::Queries, lighter, "{case:?} of {dim}");
            chosen[usize::from(lighter)] += 1;
        }
    }
    assert!(chosen.iter().all(|times| *times > 5), "{chosen:?}");
}
