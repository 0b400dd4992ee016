//! Every strategy on every number of ranks equals dense attention in f64, forward and backward.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::time::Duration;

use annulus_attention::{Attention, Place, Qkv, Setting};
use annulus_comm::{Communicator, threads};
use annulus_ops::attention::{AttentionKernel, Dense, Fused, Reference, dense};
use annulus_ops::{Key, Pool, normal};
use annulus_sequence::{Mask, Positions, Return, Rule, Strategy};
use candle_core::{DType, Device, Result, Tensor, Var};

/// max|a - b| / max|b|, or max|a - b| where b is all zero; stated once.
const LIMIT: f64 = 5e-6;

struct Case {
    qkv: Qkv,
    gradient: Tensor,
    mask: Mask,
    scale: f64,
}

fn case(heads: usize, groups: usize, tokens: usize, dim: usize, mask: Mask) -> Case {
    let random = |name: &str, heads: usize| {
        let values = normal(Key { seed: 7, purpose: "test", name }, 0, 2 * heads * tokens * dim);
        let tensor = Tensor::from_vec(values, (2, heads, tokens, dim), &Device::Cpu).unwrap();
        // Peaked, so that the running maximum moves and the running sum is rescaled.
        (tensor * 2.0).unwrap()
    };
    let qkv = Qkv { q: random("q", heads), k: random("k", groups), v: random("v", groups) };
    Case { qkv, gradient: random("gradient", heads), mask, scale: 1.0 / (dim as f64).sqrt() }
}

fn reference(case: &Case) -> Dense {
    let Case { qkv: Qkv { q, k, v }, gradient, mask, scale } = case;
    let all = Positions::all(q.dim(2).unwrap());
    dense(q, k, v, gradient, mask, &all, &all, *scale).unwrap()
}

fn attention(
    case: &Case,
    strategy: Strategy,
    gradients: Return,
    comm: Arc<dyn Communicator>,
    kernel: Arc<dyn AttentionKernel>,
) -> Arc<Attention> {
    let setting = Setting {
        strategy,
        mask: case.mask.clone(),
        tokens: case.qkv.q.dim(2).unwrap(),
        key_value_heads: case.qkv.k.dim(1).unwrap(),
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

#[track_caller]
fn close(what: &str, ours: &Tensor, dense: &Tensor, positions: &Positions) {
    let (ours, whole, dense) = (flat(ours), flat(dense), flat(&rows(dense, positions)));
    assert_eq!(ours.len(), dense.len());
    let largest = whole.iter().filter(|x| x.is_finite()).fold(0.0f64, |most, x| most.max(x.abs()));
    for (a, b) in std::iter::zip(ours, dense) {
        let off = if a == b { 0.0 } else { (a - b).abs() };
        let scale = if largest > 0.0 { largest } else { 1.0 };
        assert!(off <= LIMIT * scale, "{what}: {a} is not {b}");
    }
}

fn options(world: usize) -> threads::Options {
    threads::Options { world, deadline: Duration::from_secs(20), stop: Arc::default() }
}

/// The one place that compares a split attention with the dense one.
#[track_caller]
fn check(case: &Case, dense: &Dense, strategy: Strategy, world: usize, returning: Return) {
    let ran = threads::run(&options(world), |comm| -> Result<()> {
        let kernel = Arc::new(Fused::new(Pool::serial()));
        let attention = attention(case, strategy, returning, comm, kernel);
        let here = attention.positions();
        let Case { qkv: Qkv { q, k, v }, gradient, .. } = case;
        let qkv = Qkv { q: rows(q, here), k: rows(k, here), v: rows(v, here) };
        let done = attention.forward(Place::default(), &qkv)?;
        let back = attention.backward(Place::default(), qkv, done.clone(), rows(gradient, here))?;
        let what =
            |tensor| format!("{} on {world} ranks, {returning:?}, {tensor}", strategy.name());
        close(&what("out"), &done.out, &dense.out, here);
        close(&what("lse"), &done.lse, &dense.lse, here);
        close(&what("dq"), &back.q, &dense.dq, here);
        close(&what("dk"), &back.k, &dense.dk, here);
        close(&what("dv"), &back.v, &dense.dv, here);
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

#[test]
fn every_strategy_equals_dense_attention() {
    let mut cases = 0;
    for mask in masks() {
        for (heads, groups) in [(2, 2), (4, 2), (3, 1)] {
            for world in 1..=8 {
                // Deals to every number of ranks in every layout; odd shares for odd worlds.
                let case = case(heads, groups, 2 * world * (24 / world + 1), 12, mask.clone());
                let dense = reference(&case);
                for strategy in Strategy::ALL {
                    if strategy == Strategy::Local && world > 1 {
                        continue;
                    }
                    for returning in [Return::Travelling, Return::Reversed] {
                        check(&case, &dense, strategy, world, returning);
                        cases += 1;
                    }
                }
            }
        }
    }
    println!("{cases} cases");
}

/// Rows that see nothing: queries at 0 .. n against a window that looks past them is impossible in one sequence, so the mask is cut
/// to nothing by a window of zero.
#[test]
fn rows_that_see_nothing_are_zero_and_cost_nothing() {
    let case = case(2, 1, 24, 8, Mask::causal().and(Rule::Window(0)));
    let dense = reference(&case);
    for world in [1, 2, 3, 4] {
        for strategy in [Strategy::Ring, Strategy::Striped, Strategy::Megatron, Strategy::AllGather]
        {
            check(&case, &dense, strategy, world, Return::Reversed);
        }
    }
}

/// The tape's gradients are the schedule's; what is off the tape stays there.
#[test]
fn the_tape_runs_the_backward_schedule() {
    let case = case(4, 2, 24, 8, Mask::causal());
    let dense = reference(&case);
    let ran = threads::run(&options(3), |comm| -> Result<()> {
        let attention =
            attention(&case, Strategy::Striped, Return::Reversed, comm, Arc::new(Reference));
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
