//! Every strategy on every number of ranks equals dense attention in f64, forward and backward.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use annulus_attention::{Attention, Place, Qkv, Setting};
use annulus_comm::{Communicator, Metered, threads};
use annulus_ops::attention::{AttentionKernel, Dense, Fused, Reference, dense};
use annulus_ops::{Key, Pool, normal};
use annulus_sequence::{
    BlockShape, Bytes, Documents, Exchange, Heads, Mask, Positions, Return, Rule, Strategy,
};
use candle_core::{DType, Device, Result, Tensor, Var};

/// max|a - b| / max|b|, or max|a - b| where b is all zero; stated once.
const LIMIT: f64 = 5e-6;
const BATCH: usize = 2;

struct Case {
    qkv: Qkv,
    gradient: Tensor,
    mask: Mask,
    scale: f64,
}

fn case(heads: Heads, tokens: usize, dim: usize, mask: Mask) -> Case {
    let random = |name: &str, heads: usize| {
        let key = Key { seed: 7, purpose: "test", name };
        let values = normal(key, 0, BATCH * heads * tokens * dim);
        let tensor = Tensor::from_vec(values, (BATCH, heads, tokens, dim), &Device::Cpu).unwrap();
        // Peaked, so that the running maximum moves and the running sum is rescaled.
        (tensor * 2.0).unwrap()
    };
    let Heads { query, key_value } = heads;
    let qkv = Qkv { q: random("q", query), k: random("k", key_value), v: random("v", key_value) };
    Case { qkv, gradient: random("gradient", query), mask, scale: 1.0 / (dim as f64).sqrt() }
}

impl Case {
    fn heads(&self) -> Heads {
        let Qkv { q, k, .. } = &self.qkv;
        Heads { query: q.dim(1).unwrap(), key_value: k.dim(1).unwrap() }
    }
    fn tokens(&self) -> usize {
        self.qkv.q.dim(2).unwrap()
    }
    fn dense(&self) -> Dense {
        let Case { qkv: Qkv { q, k, v }, gradient, mask, scale } = self;
        let all = Positions::all(self.tokens());
        dense(q, k, v, gradient, mask, &all, &all, *scale).unwrap()
    }
}

fn attention(
    case: &Case,
    (strategy, gradients): (Strategy, Return),
    comm: Arc<dyn Communicator>,
    kernel: Arc<dyn AttentionKernel>,
) -> Arc<Attention> {
    let setting = Setting {
        strategy,
        mask: case.mask.clone(),
        tokens: case.tokens(),
        heads: case.heads(),
        gradients,
        scale: case.scale,
    };
    Arc::new(Attention::new(&setting, comm, kernel).unwrap())
}

fn rows(tensor: &Tensor, positions: &Positions) -> Tensor {
    let index: Vec<u32> = positions.iter().map(|position| position as u32).collect();
    let len = index.len();
    tensor.index_select(&Tensor::from_vec(index, len, &Device::Cpu).unwrap(), 2).unwrap()
}

fn flat(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// The worst error so far, as the bits of an f64, which rise with it.
static WORST: AtomicU64 = AtomicU64::new(0);

#[track_caller]
fn close(what: &str, ours: &Tensor, dense: &Tensor, positions: &Positions) {
    let (ours, whole, dense) = (flat(ours), flat(dense), flat(&rows(dense, positions)));
    assert_eq!(ours.len(), dense.len());
    let largest = whole.iter().filter(|x| x.is_finite()).fold(0.0f64, |most, x| most.max(x.abs()));
    let scale = if largest > 0.0 { largest } else { 1.0 };
    for (a, b) in std::iter::zip(ours, dense) {
        let off = if a == b { 0.0 } else { (a - b).abs() / scale };
        assert!(off <= LIMIT, "{what}: {a} is not {b}");
        WORST.fetch_max(off.to_bits(), Ordering::Relaxed);
    }
}

fn options(world: usize) -> threads::Options {
    threads::Options { world, deadline: Duration::from_secs(20), stop: Arc::default() }
}

/// The one place that compares a split attention with the dense one, and its bytes with those of the schedules.
#[track_caller]
fn check(case: &Case, dense: &Dense, how: (Strategy, Return), world: usize) {
    let split = how.0.split(&case.mask, case.tokens(), world, case.heads()).unwrap();
    let head_dim = case.qkv.q.dim(3).unwrap();
    let shape = BlockShape { batch: BATCH, head_dim, wire: 4, gradient_wire: 4 };
    let schedules = [how.0.forward(&split).unwrap(), how.0.backward(&split, how.1).unwrap()];
    let planned = schedules.map(|schedule| Bytes::of(&schedule, shape).0);
    let ran = threads::run(&options(world), |comm| -> Result<()> {
        let (rank, meter) = (comm.rank(), Metered::new(comm));
        let kernel = Arc::new(Fused::new(Pool::serial()));
        let attention = attention(case, how, meter.clone(), kernel);
        let here = attention.positions();
        let Case { qkv: Qkv { q, k, v }, gradient, .. } = case;
        let qkv = Qkv { q: rows(q, here), k: rows(k, here), v: rows(v, here) };
        let done = attention.forward(Place::default(), &qkv)?;
        let back = attention.backward(Place::default(), qkv, done.clone(), rows(gradient, here))?;
        let what = |tensor| format!("{how:?} on {world} ranks, {tensor}");
        close(&what("out"), &done.out, &dense.out, here);
        close(&what("lse"), &done.lse, &dense.lse, here);
        close(&what("dq"), &back.q, &dense.dq, here);
        close(&what("dk"), &back.k, &dense.dk, here);
        close(&what("dv"), &back.v, &dense.dv, here);
        let sent = meter.take().bytes;
        let sent = ["forward", "backward"].map(|pass| sent.get(pass).copied().unwrap_or_default());
        assert_eq!(sent, [&planned[0], &planned[1]].map(|bytes| bytes[rank]), "{}", what("bytes"));
        Ok(())
    });
    if let Err(failure) = ran {
        panic!("{failure}");
    }
}

fn masks() -> [Mask; 5] {
    [
        Mask::full(),
        Mask::causal(),
        Mask::causal().and(Rule::Window(1)),
        Mask::causal().and(Rule::Window(50)),
        Mask::full().and(Rule::Window(31)),
    ]
}

/// Masks that differ by batch row, show a row more than two intervals, or thin rows out.
fn patterns() -> Vec<Mask> {
    let lengths: [&[usize]; BATCH] = [&[5, 1, 20, 9], &[17, 13]];
    let documents = Rule::Documents(lengths.map(Documents::of_lengths).to_vec());
    let window = Mask::causal().and(Rule::Window(6));
    vec![
        Mask::full().and(Rule::Prefix(11)).and(documents.clone()),
        Mask::full().and(Rule::KeyPadding(vec![0, 29])),
        window.clone().and(Rule::Sinks(3)).and(documents),
        window.and(Rule::Global(vec![2..3, 9..11, 20..22])),
        Mask::full().and(Rule::Window(3)).and(Rule::Global(vec![0..2, 12..14, 25..26])),
        Mask::causal().and(Rule::Strided { stride: 5 }),
        Mask::full().and(Rule::Strided { stride: 4 }).and(Rule::Sinks(1)),
        Mask::full().and(Rule::Strided { stride: 3 }).and(Rule::Strided { stride: 4 }),
        Mask::causal().and(Rule::Fixed { block: 7, columns: 2 }),
    ]
}

/// Every strategy, exchange, shape and group that runs on so many ranks and heads, each way back.
fn variants(world: usize, heads: Heads) -> Vec<(Strategy, Return)> {
    let divisors = |number: usize| (1..=number).filter(move |d| number.is_multiple_of(*d));
    let shapes = || divisors(world).map(|first| Some([first, world / first]));
    let mut all = vec![
        Strategy::Local,
        Strategy::Ring,
        Strategy::Striped { width: 1 },
        Strategy::Ulysses,
        Strategy::Broadcast,
        Strategy::Halo,
    ];
    all.extend(Exchange::ALL.map(|exchange| Strategy::Megatron { exchange }));
    all.extend(shapes().map(|shape| Strategy::Usp { shape }));
    all.extend(shapes().map(|shape| Strategy::DoubleRing { shape }));
    all.extend(divisors(heads.key_value).map(|groups| Strategy::AllGather { groups }));
    all.retain(|strategy| strategy.check(world, heads).is_ok());
    let ways = |strategy: Strategy| strategy.returns().iter().map(move |how| (strategy, *how));
    all.into_iter().flat_map(ways).collect()
}

/// Multi-head, grouped, and one key/value head for all; twelve of which some do not line up with four or six ranks.
const HEADS: [Heads; 4] = [
    Heads { query: 2, key_value: 2 },
    Heads { query: 4, key_value: 2 },
    Heads { query: 3, key_value: 1 },
    Heads { query: 12, key_value: 4 },
];

#[test]
fn every_strategy_equals_dense_attention() {
    let mut cases = 0;
    for mask in masks() {
        for heads in HEADS {
            for world in 1..=8 {
                // Deals to every number of ranks in every layout; odd shares for odd worlds.
                let case = case(heads, 2 * world * (24 / world + 1), 12, mask.clone());
                let dense = case.dense();
                for how in variants(world, heads) {
                    check(&case, &dense, how, world);
                    cases += 1;
                }
            }
        }
    }
    println!("{cases} cases, at most {:.1e} off", f64::from_bits(WORST.load(Ordering::Relaxed)));
}

#[test]
fn every_strategy_computes_every_mask() {
    let mut cases = 0;
    for mask in patterns() {
        for (heads, world) in [(HEADS[1], 1), (HEADS[2], 3), (HEADS[1], 4), (HEADS[3], 6)] {
            // 37 deals evenly to nobody.
            let case = case(heads, 37, 8, mask.clone());
            let dense = case.dense();
            for how in variants(world, heads) {
                check(&case, &dense, how, world);
                cases += 1;
            }
        }
    }
    println!("{cases} cases, at most {:.1e} off", f64::from_bits(WORST.load(Ordering::Relaxed)));
}

/// Rows that see nothing: queries at 0 .. n against a window that looks past them is impossible in one sequence, so the mask is cut
/// to nothing by a window of zero.
#[test]
fn rows_that_see_nothing_are_zero_and_cost_nothing() {
    let heads = Heads { query: 4, key_value: 2 };
    let case = case(heads, 24, 8, Mask::causal().and(Rule::Window(0)));
    let dense = case.dense();
    for world in [1, 2, 3, 4] {
        for how in variants(world, heads) {
            check(&case, &dense, how, world);
        }
    }
}

/// The tape's gradients are the schedule's; what is off the tape stays there.
#[test]
fn the_tape_runs_the_backward_schedule() {
    let case = case(Heads { query: 4, key_value: 2 }, 24, 8, Mask::causal());
    let dense = case.dense();
    let ran = threads::run(&options(3), |comm| -> Result<()> {
        let how = (Strategy::STRIPED, Return::Reversed);
        let attention = attention(&case, how, comm, Arc::new(Reference));
        let here = attention.positions().clone();
        let [q, k, v] = [&case.qkv.q, &case.qkv.k, &case.qkv.v].map(|tensor| rows(tensor, &here));
        let off = Qkv { q: q.clone(), k: k.clone(), v: v.clone() };
        let out = attention.attend(Place::default(), &off)?;
        assert!(!out.track_op());
        let [q, k, v] = [Var::from_tensor(&q)?, Var::from_tensor(&k)?, Var::from_tensor(&v)?];
        let on =
            Qkv { q: q.as_tensor().clone(), k: k.as_tensor().clone(), v: v.as_tensor().clone() };
        let out = attention.attend(Place::default(), &on)?;
        close("out", &out, &dense.out, &here);
        let loss = (out * rows(&case.gradient, &here))?.sum_all()?;
        let gradients = loss.backward()?;
        for (name, var, dense) in
            [("dq", &q, &dense.dq), ("dk", &k, &dense.dk), ("dv", &v, &dense.dv)]
        {
            let gradient = gradients.get(var.as_tensor()).expect("on the tape");
            close(name, gradient, dense, &here);
        }
        Ok(())
    });
    if let Err(failure) = ran {
        panic!("{failure}");
    }
}
