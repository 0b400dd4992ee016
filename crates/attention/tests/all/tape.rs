//! On Candle's tape, gradients are those of the backward schedule.

use std::sync::Arc;

use annulus_attention::{CallSite, Qkv};
use annulus_comm::threads;
use annulus_sequence::{Heads, Layout, Route, Rule, Strategy};
use candle_core::{Result, Var};

use crate::case::{Case, LIMIT, Processors, error, rows};

/// What is off the tape stays there.
#[test]
fn the_tape_runs_the_backward_schedule() {
    let case = Case {
        strategy: Strategy::STRIPED,
        back: Route::Reversed,
        layout: Layout::Striped { width: 1 },
        weights: vec![1; 3],
        tokens: 24,
        rules: vec![Rule::Causal],
        documents: Vec::new(),
        packed: false,
        heads: Heads { query: 4, key_value: 2 },
        batch: 2,
        dim: 8,
        plain: true,
        block: None,
        processor: Processors::Cpu,
    };
    let inputs = case.random();
    let dense = case.dense(&inputs);
    let schedules = case.schedules().ok().unwrap();
    let ran = threads::run(&case.options(), |comm| -> Result<()> {
        let attention = Arc::new(case.attention(&schedules, comm));
        let here = attention.positions().clone();
        let [q, k, v] = [&inputs.qkv.q, &inputs.qkv.k, &inputs.qkv.v].map(|all| rows(all, &here));
        let off = Qkv { q: q.clone(), k: k.clone(), v: v.clone() };
        assert!(!attention.attend(CallSite::default(), &off)?.track_op());
        let vars = [Var::from_tensor(&q)?, Var::from_tensor(&k)?, Var::from_tensor(&v)?];
        let [q, k, v] = vars.each_ref().map(|var| var.as_tensor().clone());
        let out = attention.attend(CallSite::default(), &Qkv { q, k, v })?;
        assert!(error(&out, &dense.out, &here) <= LIMIT);
        let gradients = (out * rows(&inputs.gradient, &here))?.sum_all()?.backward()?;
        for (var, dense) in std::iter::zip(&vars, [&dense.dq, &dense.dk, &dense.dv]) {
            let gradient = gradients.get(var.as_tensor()).expect("on the tape");
            assert!(error(gradient, dense, &here) <= LIMIT);
        }
        Ok(())
    });
    if let Err(failure) = ran {
        panic!("{failure}");
    }
}
