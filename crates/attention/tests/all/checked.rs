//! What an attention is set up with and given is checked before anything is computed, whatever the strategy.

use std::sync::Arc;
use std::time::Duration;

use annulus_attention::{Attention, Cache, CallSite, Qkv, rows_at};
use annulus_comm::{Communicator, threads};
use annulus_ops::attention::{
    Attended, AttentionKernel, BackwardTile, Dropout, Fused, KeyValueGradients, Prepared, Progress,
    Reference, State, Tile, dense,
};
use annulus_ops::testing::error;
use annulus_ops::{Key, Pool, normal};
use annulus_sequence::{
    Documents, Heads, Mask, Positions, Rule, Schedules, Setting, Strategy, Wire,
};
use candle_core::{DType, Device, Result, Tensor, Var};

use crate::case::LIMIT;

const HEADS: Heads = Heads { query: 4, key_value: 2 };
const WORLD: usize = 2;
const TOKENS: usize = 24;
const DIM: usize = 8;
const SCALE: f64 = 0.3;
const HERE: CallSite = CallSite { step: 0, layer: 0 };

fn schedules(strategy: Strategy, world: usize, heads: Heads, mask: &Mask) -> Arc<Schedules> {
    Arc::new(Setting::new(strategy, TOKENS, world, heads).schedules(mask).unwrap())
}

fn with(schedules: Arc<Schedules>, scale: f64, comm: Arc<dyn Communicator>) -> Attention {
    Attention::new(schedules, scale, comm, Arc::new(Fused::new(Pool::serial())))
}

/// An attention of one rank.
fn alone(strategy: Strategy, mask: &Mask) -> Attention {
    with(schedules(strategy, 1, HEADS, mask), SCALE, threads::solo())
}

fn options() -> threads::Options {
    threads::Options { world: WORLD, deadline: Duration::from_secs(60), stop: Arc::default() }
}

fn random(name: &str, heads: usize, rows: usize) -> Tensor {
    let values = normal(Key { seed: 4, purpose: "checked", name }, 0, heads * rows * DIM);
    Tensor::from_vec(values, (1, heads, rows, DIM), &Device::Cpu).unwrap()
}

fn whole(heads: Heads, rows: usize) -> Qkv {
    let [q, k, v] = [("q", heads.query), ("k", heads.key_value), ("v", heads.key_value)];
    let [q, k, v] = [q, k, v].map(|(name, heads)| random(name, heads, rows));
    Qkv { q, k, v }
}

fn map(qkv: &Qkv, change: impl Fn(&Tensor) -> Result<Tensor>) -> Qkv {
    let Qkv { q, k, v } = qkv;
    Qkv { q: change(q).unwrap(), k: change(k).unwrap(), v: change(v).unwrap() }
}

#[track_caller]
fn check_says<T>(outcome: Result<T>, wanted: &str) {
    let why = outcome.err().expect("refused").to_string();
    assert!(why.contains(wanted), "{why}; wanted {wanted}");
}

#[test]
fn a_mask_that_shows_more_than_was_planned_is_refused() {
    let attention = alone(Strategy::Ring, &Mask::causal());
    for (mask, name) in [
        (Mask::full(), "full"),
        (Mask::full().and(Rule::Window(4)), "window:4"),
        (Mask::full().and(Rule::Prefix(3)), "prefix:3"),
    ] {
        let wanted = format!("the mask `{name}`, expected one that shows nothing beyond `causal`");
        check_says(attention.with_mask(mask), &wanted);
    }
    // What was seen before does not matter.
    let narrow = attention.with_mask(Mask::causal().and(Rule::Window(2))).unwrap();
    assert!(narrow.with_mask(Mask::causal()).is_ok());
}

#[test]
fn a_mask_that_shows_less_gives_what_dense_attention_gives() {
    let Qkv { q, k, v } = whole(HEADS, TOKENS);
    let all = Positions::all(TOKENS);
    let planned = Mask::causal().and(Rule::Window(9));
    let schedules = schedules(Strategy::Ring, WORLD, HEADS, &planned);
    for mask in [
        planned.clone().and(Rule::documents(&[5, 11])),
        Mask::causal().and(Rule::Window(4)),
        Mask::full().and(Rule::Window(1)),
    ] {
        let dense = dense([&q, &k, &v, &q], &mask, [&all, &all], SCALE, None).unwrap().out;
        let ran = threads::run(&options(), |comm| -> Result<()> {
            let attention = with(schedules.clone(), SCALE, comm).with_mask(mask.clone())?;
            let rows = |all: &Tensor| rows_at(all, 2, attention.positions());
            let qkv = Qkv { q: rows(&q)?, k: rows(&k)?, v: rows(&v)? };
            let out = attention.forward(HERE, &qkv)?.out;
            assert!(error(&out, &rows(&dense)?)? <= LIMIT, "{mask}");
            Ok(())
        });
        ran.unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn every_strategy_refuses_what_no_kernel_takes() {
    let right = whole(HEADS, TOKENS);
    for strategy in [Strategy::Ring, Strategy::LiRing] {
        let causal = Mask::causal();
        let attention = alone(strategy, &causal);
        let forward = |qkv: &Qkv| attention.forward(HERE, qkv);
        assert!(forward(&right).is_ok());
        for dtype in [DType::I64, DType::U32, DType::U8] {
            let typed = map(&right, |tensor| tensor.to_dtype(dtype));
            check_says(forward(&typed), &format!("found q of {dtype:?}, expected floats"));
            let keys = Qkv { k: typed.k, ..right.clone() };
            check_says(forward(&keys), &format!("found k of {dtype:?}, expected floats"));
        }
        for dtype in [DType::F64, DType::F16] {
            let typed = map(&right, |tensor| tensor.to_dtype(dtype));
            check_says(forward(&typed), &format!("{dtype:?}, expected F32 or BF16"));
            check_says(forward(&typed), "`to_dtype` converts it, and the kernel `Reference` takes");
        }
        for (dim, found) in [(0, "[0, 4, 24, 8]"), (3, "[1, 4, 24, 0]")] {
            let empty = map(&right, |tensor| tensor.narrow(dim, 0, 0));
            check_says(forward(&empty), &format!("found q {found}, expected a batch and a width"));
        }
        for scale in [f64::NAN, 0.0] {
            let made = with(schedules(strategy, 1, HEADS, &causal), scale, threads::solo());
            check_says(made.forward(HERE, &right), &format!("scale of scores is {scale}"));
        }
        let wired = attention.with_wire_dtypes(Wire { output: Some(DType::U8), ..Wire::default() });
        check_says(wired.forward(HERE, &right), "found comm dtypes of U8, expected floats");
    }
}

/// A kernel of a program's own, of another formula than softmax's.
#[derive(Debug)]
struct Own;

impl AttentionKernel for Own {
    fn begin(&self, q: &Tensor, scale: f64) -> Result<Box<dyn State>> {
        Reference.begin(q, 2.0 * scale)
    }
    fn forward(&self, tiles: &[Tile<'_>], state: &mut dyn State, at: Progress<'_>) -> Result<()> {
        Reference.forward(tiles, state, at)
    }
    fn finish(&self, state: Box<dyn State>) -> Result<Attended> {
        Reference.finish(state)
    }
    fn prepare(&self, attended: &Attended, gradient: &Tensor) -> Result<Prepared> {
        Reference.prepare(attended, gradient)
    }
    fn begin_prepared(&self, q: &Tensor, of: &Prepared, scale: f64) -> Result<Box<dyn State>> {
        Reference.begin_prepared(q, of, 2.0 * scale)
    }
    fn backward(
        &self,
        tiles: Vec<BackwardTile<'_>>,
        state: &mut dyn State,
        at: Progress<'_>,
    ) -> Result<Vec<KeyValueGradients>> {
        Reference.backward(tiles, state, at)
    }
    fn finish_backward(&self, state: Box<dyn State>) -> Result<Tensor> {
        Reference.finish_backward(state)
    }
}

#[test]
fn kept_scores_are_no_formula_of_another_kernel() {
    let (mask, own) = (Mask::causal(), Arc::new(Own));
    let attend = |strategy, scale| {
        let schedules = schedules(strategy, 1, HEADS, &mask);
        Attention::new(schedules, scale, threads::solo(), own.clone())
            .forward(HERE, &whole(HEADS, TOKENS))
    };
    check_says(attend(Strategy::LiRing, SCALE), "the kernel Own, whose `is_plain_softmax` says");
    let found = attend(Strategy::Ring, SCALE).unwrap().out;
    let wanted = with(schedules(Strategy::Ring, 1, HEADS, &mask), 2.0 * SCALE, threads::solo());
    let wanted = wanted.forward(HERE, &whole(HEADS, TOKENS)).unwrap().out;
    assert!(error(&found, &wanted).unwrap() <= LIMIT);
    // Where tensors have gaps, too, the reference takes any float.
    let reference = Attention::new(
        schedules(Strategy::Ulysses, 1, HEADS, &mask),
        2.0 * SCALE,
        threads::solo(),
        Arc::new(Reference),
    );
    let wide = map(&whole(HEADS, TOKENS), |tensor| {
        tensor.to_dtype(DType::F64)?.transpose(1, 2)?.contiguous()?.transpose(1, 2)
    });
    let found = reference.forward(HERE, &wide).unwrap().out;
    assert!(error(&found.to_dtype(DType::F32).unwrap(), &wanted).unwrap() <= LIMIT);
}

#[test]
fn every_strategy_refuses_masks_of_fewer_rows_than_the_batch() {
    let three = map(&whole(HEADS, TOKENS), |tensor| Tensor::cat(&[tensor; 3], 0));
    let rows = [[5_usize, 7], [9, 2]].map(|lengths| Documents::of_lengths(&lengths));
    let mask = Mask::causal().and(Rule::Documents(rows.to_vec()));
    for strategy in [Strategy::Ring, Strategy::LiRing] {
        let attention = alone(strategy, &Mask::causal()).with_mask(mask.clone()).unwrap();
        let wanted = "found a mask for 2 batch rows, expected 1 or 3";
        check_says(attention.forward(HERE, &three), wanted);
    }
}

#[test]
fn dropout_drops_a_part_of_the_weights() {
    let attention = alone(Strategy::Ring, &Mask::causal());
    let of =
        |probability| Dropout { seed: 0, probability, step: 0, layer: 0, sequence: 0, head: 0 };
    for probability in [-0.1, 1.0, 2.0, f64::NAN] {
        let wanted = format!("found dropout of probability {probability}, expected 0 to below 1");
        check_says(attention.with_dropout(of(probability)), &wanted);
    }
    assert!([0.0, 0.999].into_iter().all(|most| attention.with_dropout(of(most)).is_ok()));
}

/// What a rank that adds tokens at `positions` to a prompt says in the end.
fn grown(comm: Arc<dyn Communicator>, positions: [usize; 2]) -> Result<()> {
    let schedules = schedules(Strategy::Ring, comm.world_size(), HEADS, &Mask::causal());
    let (attention, cache) = (with(schedules, SCALE, comm), Arc::new(Cache::default()));
    let rows = attention.positions().tokens();
    attention.with_prefill_cache(&cache).forward(HERE, &whole(HEADS, rows))?;
    positions.into_iter().try_for_each(|position| {
        attention.decoding_at(&cache, position).forward(HERE, &whole(HEADS, 1)).map(drop)
    })
}

#[test]
fn a_token_is_added_right_after_what_the_cache_holds() {
    assert!(grown(threads::solo(), [TOKENS, TOKENS + 1]).is_ok());
    for (positions, found) in [
        ([TOKENS - 1, TOKENS], "position 23, expected 24"),
        ([TOKENS + 1, TOKENS], "position 25, expected 24"),
        ([TOKENS, TOKENS], "position 24, expected 25"),
    ] {
        check_says(grown(threads::solo(), positions), found);
    }
    let ran = threads::run(&options(), |comm| {
        let rank = comm.rank();
        grown(comm, [TOKENS, TOKENS + 1 + rank])
    });
    let why = ran.unwrap_err().to_string();
    assert!(why.contains("rank 1: ") && why.contains("position 26, expected 25"), "{why}");
}

#[test]
fn a_token_that_is_added_has_no_backward_pass() {
    let (attention, cache) = (alone(Strategy::Ring, &Mask::causal()), Arc::new(Cache::default()));
    attention.with_prefill_cache(&cache).forward(HERE, &whole(HEADS, TOKENS)).unwrap();
    let adding = Arc::new(attention.decoding_at(&cache, TOKENS));
    let one = whole(HEADS, 1);
    let q = Var::from_tensor(&one.q).unwrap().as_tensor().clone();
    check_says(adding.attend(HERE, &Qkv { q, ..one.clone() }), "has no backward pass");
    // Nothing was added by then.
    assert!(adding.attend(HERE, &one).is_ok());
}

/// Layers share their positions, and nothing else.
#[test]
fn attentions_beside_each_other_may_have_other_heads() {
    let (heads, all) = (Heads { query: 6, key_value: 3 }, Positions::all(TOKENS));
    let Qkv { q, k, v } = whole(heads, TOKENS);
    let causal = Mask::causal();
    let dense = dense([&q, &k, &v, &q], &causal, [&all, &all], SCALE, None).unwrap().out;
    let of = |heads| schedules(Strategy::Ring, WORLD, heads, &causal);
    let (first, other) = (of(HEADS), of(heads));
    let ran = threads::run(&options(), |comm| -> Result<()> {
        let attention = with(first.clone(), SCALE, comm).with_schedules(other.clone())?;
        let rows = |all: &Tensor| rows_at(all, 2, attention.positions());
        let qkv = Qkv { q: rows(&q)?, k: rows(&k)?, v: rows(&v)? };
        let out = attention.forward(HERE, &qkv)?.out;
        assert!(error(&out, &rows(&dense)?)? <= LIMIT);
        Ok(())
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}
