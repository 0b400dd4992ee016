//! Dropout is the same in every strategy and layout, on any number of ranks.

use std::sync::Arc;
use std::time::Duration;

use annulus_attention::{Attention, CallSite, Qkv, rows_at};
use annulus_comm::{Communicator, threads};
use annulus_ops::attention::{Dense, Dropout, Fused, dense};
use annulus_ops::testing::{error, to_f64};
use annulus_ops::{Key, Pool, normal};
use annulus_sequence::{Heads, Layout, Mask, Positions, Route, Rule, Schedules, Setting, Strategy};
use candle_core::{DType, Device, Result, Tensor};

const HEADS: Heads = Heads { query: 4, key_value: 2 };
const PLACE: CallSite = CallSite { step: 12, layer: 3 };
/// The dropout of the tests; step and layer are those of the call.
const DROPOUT: Dropout =
    Dropout { seed: 5, probability: 0.2, step: 0, layer: 0, sequence: 8, head: 3 };
const LIMIT: f64 = 5e-6;

#[derive(Clone)]
struct Case {
    qkv: Qkv,
    gradient: Tensor,
    mask: Mask,
    scale: f64,
}

impl Case {
    fn new(tokens: usize, dim: usize, mask: Mask) -> Case {
        let random = |name: &str, heads: usize| {
            let key = Key { seed: 2, purpose: "dropout", name };
            let values = normal(key, 0, 2 * heads * tokens * dim);
            let tensor = Tensor::from_vec(values, (2, heads, tokens, dim), &Device::Cpu).unwrap();
            (tensor * 2.0).unwrap()
        };
        let [q, gradient] = ["q", "gradient"].map(|name| random(name, HEADS.query));
        let [k, v] = ["k", "v"].map(|name| random(name, HEADS.key_value));
        Case { qkv: Qkv { q, k, v }, gradient, mask, scale: 1.0 / (dim as f64).sqrt() }
    }

    fn tokens(&self) -> usize {
        self.qkv.q.dim(2).unwrap()
    }

    fn dense(&self, step: u64) -> Dense {
        let (Qkv { q, k, v }, all) = (&self.qkv, Positions::all(self.tokens()));
        let dropout = Dropout { step, layer: PLACE.layer, ..DROPOUT };
        let inputs = [q, k, v, &self.gradient];
        dense(inputs, &self.mask, [&all, &all], self.scale, Some(dropout)).unwrap()
    }

    /// out, lse, dq, dk, dv of all rows in order, of two passes of which the second computes all again.
    fn attend(&self, how: (Strategy, Route), layout: Layout, world: usize) -> [Tensor; 5] {
        let deadline = Duration::from_secs(20);
        let options = threads::Options { world, deadline, stop: Arc::default() };
        let (strategy, route) = how;
        let setting = Setting::new(strategy, self.tokens(), world, HEADS);
        let setting = Setting { layout, route, ..setting };
        let schedules = Arc::new(setting.schedules(&self.mask).unwrap());
        let parts = threads::run(&options, |comm| self.here(&schedules, comm));
        let parts = parts.unwrap_or_else(|failure| panic!("{how:?} on {world}: {failure}"));
        let order: Vec<usize> = parts.iter().flat_map(|(positions, _)| positions.iter()).collect();
        let mut place = vec![0_u32; order.len()];
        order.iter().enumerate().for_each(|(row, position)| place[*position] = row as u32);
        let place = Tensor::new(&place[..], &Device::Cpu).unwrap();
        [0, 1, 2, 3, 4].map(|index| {
            let column: Vec<&Tensor> = parts.iter().map(|(_, part)| &part[index]).collect();
            Tensor::cat(&column, 2).unwrap().index_select(&place, 2).unwrap()
        })
    }

    fn here(
        &self,
        schedules: &Arc<Schedules>,
        comm: Arc<dyn Communicator>,
    ) -> Result<(Positions, [Tensor; 5])> {
        let kernel = Arc::new(Fused::new(Pool::serial()));
        let attention = Attention::new(schedules.clone(), self.scale, comm, kernel);
        let attention = attention.with_dropout(DROPOUT)?;
        let here = attention.positions().clone();
        let rows = |tensor: &Tensor| rows_at(tensor, 2, &here);
        let Qkv { q, k, v } = &self.qkv;
        let qkv = Qkv { q: rows(q)?, k: rows(k)?, v: rows(v)? };
        let done = attention.forward(PLACE, &qkv)?;
        let again = attention.forward(PLACE, &qkv)?;
        assert_eq!(to_f64(&again.out)?, to_f64(&done.out)?, "computed again it is the same");
        let back = attention.backward(PLACE, qkv, done.clone(), rows(&self.gradient)?)?;
        Ok((here, [done.out, done.lse, back.q, back.k, back.v]))
    }
}

fn layouts(strategy: Strategy) -> [Layout; 3] {
    [strategy.layout(), Layout::Striped { width: 3 }, Layout::Zigzag]
}

/// Every strategy, backward route, layout and number of ranks for the heads.
fn ways(most: usize) -> Vec<(Strategy, Route, Layout, usize)> {
    let mut all = Vec::new();
    for strategy in Strategy::ALL {
        for world in (1..=most).filter(|world| strategy.check(*world, HEADS).is_ok()) {
            for layout in layouts(strategy) {
                let ways = strategy.routes().iter().map(|how| (strategy, *how, layout, world));
                all.extend(ways);
            }
        }
    }
    all
}

#[test]
fn every_strategy_leaves_out_what_dense_attention_does() {
    let window = Mask::causal().and(Rule::Window(9)).and(Rule::Sinks(2));
    let strided = Mask::causal().and(Rule::Strided { stride: 5 });
    let mut cases = 0;
    for mask in [Mask::full(), Mask::causal(), window, strided] {
        let case = Case::new(41, 8, mask);
        let Dense { out, lse, dq, dk, dv } = case.dense(PLACE.step);
        let every = if case.mask == Mask::causal() { 1 } else { 5 };
        for (strategy, how, layout, world) in ways(4).into_iter().step_by(every) {
            let ours = case.attend((strategy, how), layout, world);
            for (ours, exact) in std::iter::zip(&ours, [&out, &lse, &dq, &dk, &dv]) {
                let off = error(ours, exact).unwrap();
                assert!(off <= LIMIT, "{strategy:?} {how:?} {layout:?} on {world}: {off:.1e}");
            }
            cases += 1;
        }
        assert!(error(&out, &case.dense(PLACE.step + 1).out).unwrap() > 0.01, "another step");
    }
    println!("{cases} cases");
}

/// q = k = 0 and v = one-hot of the position: the output is the mask, bit by bit.
#[test]
fn the_mask_is_the_same_to_the_bit() {
    let tokens = 24;
    let case = Case::new(tokens, tokens, Mask::causal());
    let one_hot = Tensor::eye(tokens, DType::F32, &Device::Cpu).unwrap();
    let v = one_hot.broadcast_as(case.qkv.v.shape()).unwrap().contiguous().unwrap();
    let [q, k] = [&case.qkv.q, &case.qkv.k].map(|tensor| tensor.zeros_like().unwrap());
    let case = Case { qkv: Qkv { q, k, v }, ..case };
    let seen = |out: &Tensor| -> Vec<bool> {
        to_f64(out).unwrap().into_iter().map(|weight| weight != 0.0).collect()
    };
    let exact = seen(&case.dense(PLACE.step).out);
    let visible = 2 * HEADS.query * tokens * (tokens + 1) / 2;
    let share = exact.iter().filter(|seen| **seen).count() as f64 / visible as f64;
    assert!((share - 0.8).abs() < 5.0 * (0.16 / visible as f64).sqrt(), "{share}");
    for (strategy, how, layout, world) in ways(6).into_iter().step_by(2) {
        let [out, ..] = case.attend((strategy, how), layout, world);
        assert_eq!(seen(&out), exact, "{strategy:?} {layout:?} on {world}");
    }
}
