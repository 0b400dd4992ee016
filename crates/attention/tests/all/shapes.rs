//! Tensors of other shapes than a rank's are refused: too many heads or rows would be left out without a word.

use std::sync::Arc;
use std::time::Duration;

use annulus_attention::{Attention, CallSite, Qkv, rows_at};
use annulus_comm::{Communicator, threads};
use annulus_ops::attention::{Fused, dense};
use annulus_ops::testing::error;
use annulus_ops::{Key, Pool, normal};
use annulus_sequence::{Heads, Layout, Mask, Positions, Schedules, Setting, Strategy};
use candle_core::{Device, Result, Tensor, Var};

use crate::case::LIMIT;

const HEADS: Heads = Heads { query: 4, key_value: 2 };
const WORLD: usize = 3;
const TOKENS: usize = 48;
const DIM: usize = 8;
const SCALE: f64 = 0.3;

fn random(name: &str, heads: usize, rows: usize) -> Tensor {
    let values = normal(Key { seed: 3, purpose: "test", name }, 0, heads * rows * DIM);
    Tensor::from_vec(values, (1, heads, rows, DIM), &Device::Cpu).unwrap()
}

fn whole(rows: usize) -> Qkv {
    let [q, k, v] = [("q", HEADS.query), ("k", HEADS.key_value), ("v", HEADS.key_value)]
        .map(|(name, heads)| random(name, heads, rows));
    Qkv { q, k, v }
}

fn schedules(strategy: Strategy) -> Arc<Schedules> {
    Arc::new(Setting::new(strategy, TOKENS, WORLD, HEADS).schedules(&Mask::causal()).unwrap())
}

fn attention(schedules: &Arc<Schedules>, comm: Arc<dyn Communicator>) -> Attention {
    Attention::new(schedules.clone(), SCALE, comm, Arc::new(Fused::new(Pool::serial())))
}

fn options() -> threads::Options {
    threads::Options { world: WORLD, deadline: Duration::from_secs(60), stop: Arc::default() }
}

/// As the example of the library does it, in layouts whose positions do not lie side by side.
#[test]
fn rows_at_positions_are_what_a_rank_holds() {
    let Qkv { q, k, v } = whole(TOKENS);
    let all = Positions::all(TOKENS);
    let dense = dense([&q, &k, &v, &q], &Mask::causal(), [&all, &all], SCALE, None).unwrap().out;
    for strategy in [Strategy::Ring, Strategy::STRIPED, Strategy::MEGATRON] {
        let schedules = schedules(strategy);
        let ran = threads::run(&options(), |comm| -> Result<()> {
            let attention = attention(&schedules, comm);
            let rows = |all: &Tensor| rows_at(all, 2, attention.positions());
            let qkv = Qkv { q: rows(&q)?, k: rows(&k)?, v: rows(&v)? };
            let out = attention.forward(CallSite::default(), &qkv)?.out;
            assert!(error(&out, &rows(&dense)?)? <= LIMIT, "{strategy:?}");
            Ok(())
        });
        ran.unwrap_or_else(|failure| panic!("{strategy:?}: {failure}"));
    }
}

#[test]
fn rows_beyond_a_tensor_are_refused() {
    let last = &Layout::Contiguous.shard(TOKENS, WORLD).unwrap()[WORLD - 1];
    let why = rows_at(&random("q", 1, TOKENS - 1), 2, last).unwrap_err().to_string();
    assert!(why.contains("found 47 rows, expected 48"), "{why}");
}

/// What every rank says of tensors of this shape, forward and on the tape.
#[track_caller]
fn check_refused(qkv: &Qkv, wanted: &str) {
    let schedules = schedules(Strategy::STRIPED);
    let found = threads::run(&options(), |comm| -> Result<_> {
        let attention = Arc::new(attention(&schedules, comm));
        let forward = attention.forward(CallSite::default(), qkv).unwrap_err();
        let on_tape = |tensor: &Tensor| {
            Ok::<_, candle_core::Error>(Var::from_tensor(tensor)?.as_tensor().clone())
        };
        let Qkv { q, k, v } = qkv;
        let qkv = Qkv { q: on_tape(q)?, k: on_tape(k)?, v: on_tape(v)? };
        let taped = attention.attend(CallSite::default(), &qkv).unwrap_err();
        Ok([forward.to_string(), taped.to_string()])
    });
    for why in found.unwrap().into_iter().flatten() {
        assert!(why.contains(wanted), "{why}");
    }
}

#[test]
fn too_many_heads_or_rows_are_refused() {
    let right = whole(TOKENS / WORLD);
    let heads = Qkv { q: random("q", 8, 16), ..right.clone() };
    check_refused(&heads, "found q [1, 8, 16, 8], expected [1, 4, 16, 8]");
    let keys = Qkv { k: random("k", 4, 16), ..right.clone() };
    check_refused(&keys, "found k [1, 4, 16, 8], expected [1, 2, 16, 8]");
    let values = Qkv { v: random("v", 2, 17), ..right };
    check_refused(&values, "found v [1, 2, 17, 8], expected [1, 2, 16, 8]");
    check_refused(&whole(TOKENS), "found q [1, 4, 48, 8], expected [1, 4, 16, 8]");
}

#[test]
fn gradients_of_other_shapes_are_refused() {
    let schedules = schedules(Strategy::Ring);
    let found = threads::run(&options(), |comm| -> Result<_> {
        let attention = attention(&schedules, comm);
        let qkv = whole(TOKENS / WORLD);
        let done = attention.forward(CallSite::default(), &qkv)?;
        let gradient = random("gradient", HEADS.query, TOKENS);
        Ok(attention.backward(CallSite::default(), qkv, done, gradient).unwrap_err().to_string())
    });
    for why in found.unwrap() {
        assert!(why.contains("found gradient [1, 4, 48, 8], expected [1, 4, 16, 8]"), "{why}");
    }
}

#[test]
fn attentions_beside_each_other_share_their_positions() {
    let mine = schedules(Strategy::Ring);
    let alone = Setting::new(Strategy::Local, TOKENS, 1, HEADS).schedules(&Mask::causal());
    let others = [schedules(Strategy::STRIPED), Arc::new(alone.unwrap())];
    let ran = threads::run(&options(), |comm| -> Result<()> {
        let attention = attention(&mine, comm);
        assert!(attention.with_schedules(schedules(Strategy::Halo)).is_ok());
        for other in &others {
            let why = attention.with_schedules(other.clone()).unwrap_err().to_string();
            assert!(why.contains("expected those of the attention beside it, on 3 ranks"), "{why}");
        }
        Ok(())
    });
    ran.unwrap();
}
