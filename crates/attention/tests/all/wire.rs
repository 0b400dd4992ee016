//! The cost of narrow comm dtypes: errors against dense attention in f64 of the same rounded inputs, and bytes.

use std::sync::Arc;
use std::time::Duration;

use annulus_attention::{Attention, CallSite, Qkv, rows_at};
use annulus_comm::{Communicator, Metered, threads};
use annulus_ops::attention::{Dense, Fused, dense};
use annulus_ops::{Key, Pool, normal};
use annulus_sequence::{
    BlockShape, Bytes, Heads, Mask, Part, Pass, Positions, Route, Schedules, Strategy, Wire,
};
use candle_core::{DType, Device, Result, Tensor};

const HEADS: Heads = Heads { query: 4, key_value: 2 };
const DIM: usize = 16;
/// max|a - b| / max|b| where nothing is rounded but sums in f32.
const EXACT: f64 = 5e-6;

type Types = Wire<Option<DType>>;

/// Values and their gradients, in f32.
struct Case {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gradient: Tensor,
    mask: Mask,
    /// The dtype that is computed in.
    dtype: DType,
}

impl Case {
    fn new(tokens: usize, mask: Mask) -> Case {
        Case::of(1, tokens, mask)
    }

    /// Several sequences: heads of one rank have gaps between them.
    fn of(batch: usize, tokens: usize, mask: Mask) -> Case {
        let random = |name: &str, heads: usize| {
            let key = Key { seed: 11, purpose: "wire", name };
            let values = normal(key, 0, batch * heads * tokens * DIM);
            (Tensor::from_vec(values, (batch, heads, tokens, DIM), &Device::Cpu).unwrap() * 2.0)
                .unwrap()
        };
        let [q, gradient] = ["q", "gradient"].map(|name| random(name, HEADS.query));
        let [k, v] = ["k", "v"].map(|name| random(name, HEADS.key_value));
        Case { q, k, v, gradient, mask, dtype: DType::F32 }
    }

    fn tokens(&self) -> usize {
        self.q.dim(2).unwrap()
    }

    /// In f64, of what is left of the values on the wire.
    fn dense(&self, wire: Types) -> Dense {
        let rounded = |tensor: &Tensor, part| {
            let dtype = wire.of(part).unwrap_or(self.dtype);
            tensor.to_dtype(dtype).unwrap().to_dtype(DType::F64).unwrap()
        };
        let narrow = |tensor: &Tensor| tensor.to_dtype(self.dtype).unwrap();
        let rounded = |tensor: &Tensor, part| rounded(&narrow(tensor), part);
        let [q, gradient] = [&self.q, &self.gradient].map(|tensor| rounded(tensor, Part::Query));
        let [k, v] = [&self.k, &self.v].map(|tensor| rounded(tensor, Part::KeyValue));
        let all = Positions::all(self.tokens());
        dense([&q, &k, &v, &gradient], &self.mask, [&all, &all], 0.25, None).unwrap()
    }

    /// out, dq, dk and dv of `world` ranks, rows in order; what was sent is held to what is planned.
    fn attend(&self, how: (Strategy, Route), world: usize, wire: Types) -> [Tensor; 4] {
        let bytes = |part: Part, dtype: Option<DType>| match (part, dtype) {
            (_, Some(dtype)) => dtype.size_in_bytes(),
            (Part::QueryGradient | Part::Gradient, None) => 4,
            _ => self.dtype.size_in_bytes(),
        };
        let batch = self.q.dim(0).unwrap();
        let shape = BlockShape { batch, head_dim: DIM, wire: wire.map(bytes), order_free: false };
        let split = how.0.split(&self.mask, self.tokens(), world, HEADS).unwrap();
        let schedules = Arc::new(Schedules::new(how.0, &split, how.1).unwrap());
        let planned = [Pass::Forward, Pass::Backward];
        let planned = planned.map(|pass| Bytes::of(schedules.of(pass), shape).0);
        let deadline = Duration::from_secs(20);
        let options = threads::Options { world, deadline, stop: Arc::default() };
        let parts = threads::run(&options, |comm| {
            let (rank, meter) = (comm.rank(), Metered::new(comm));
            let part = self.here(&schedules, meter.clone(), wire)?;
            let sent = meter.take().bytes;
            let sent = ["forward", "backward"].map(|pass| sent.get(pass).copied().unwrap_or(0));
            assert_eq!(sent, [&planned[0], &planned[1]].map(|bytes| bytes[rank]), "{how:?}");
            Ok::<_, candle_core::Error>(part)
        });
        let parts = parts.unwrap_or_else(|failure| panic!("{failure}"));
        let order: Vec<usize> = parts.iter().flat_map(|(positions, _)| positions.iter()).collect();
        let mut place = vec![0_u32; order.len()];
        order.iter().enumerate().for_each(|(row, position)| place[*position] = row as u32);
        let place = Tensor::new(&place[..], &Device::Cpu).unwrap();
        [0, 1, 2, 3].map(|index| {
            let column: Vec<&Tensor> = parts.iter().map(|(_, part)| &part[index]).collect();
            Tensor::cat(&column, 2).unwrap().index_select(&place, 2).unwrap()
        })
    }

    fn here(
        &self,
        schedules: &Arc<Schedules>,
        comm: Arc<dyn Communicator>,
        wire: Types,
    ) -> Result<(Positions, [Tensor; 4])> {
        let kernel = Arc::new(Fused::new(Pool::serial()));
        let attention =
            Attention::new(schedules.clone(), 0.25, comm, kernel).with_wire_dtypes(wire);
        let here = attention.positions().clone();
        let rows = |tensor: &Tensor| rows_at(tensor, 2, &here)?.to_dtype(self.dtype);
        let qkv = Qkv { q: rows(&self.q)?, k: rows(&self.k)?, v: rows(&self.v)? };
        let done = attention.forward(CallSite::default(), &qkv)?;
        let out = done.out.clone();
        let Qkv { q, k, v } =
            attention.backward(CallSite::default(), qkv, done, rows(&self.gradient)?)?;
        assert!([&out, &q, &k, &v].iter().all(|tensor| tensor.dtype() == self.dtype));
        Ok((here, [out, q, k, v]))
    }

    /// |a - b| / |b| of out, dq, dk and dv, in the Euclidean norm: what a largest difference does is an accident of a few values.
    fn errors(&self, how: (Strategy, Route), world: usize, wire: Types) -> [f64; 4] {
        let ours = self.attend(how, world, wire);
        let Dense { out, dq, dk, dv, .. } = self.dense(wire);
        let norm = |tensor: &Tensor| {
            tensor.sqr().unwrap().sum_all().unwrap().to_scalar::<f64>().unwrap().sqrt()
        };
        let exact = [out, dq, dk, dv];
        std::array::from_fn(|index| {
            let off = ours[index].to_dtype(DType::F64).unwrap() - &exact[index];
            norm(&off.unwrap()) / norm(&exact[index])
        })
    }

    /// The errors of dk and dv on 2, 4, 8 and 16 ranks.
    fn gradients(&self, how: (Strategy, Route), wire: Types) -> [[f64; 2]; 4] {
        [2, 4, 8, 16].map(|world| {
            let [_, _, dk, dv] = self.errors(how, world, wire);
            [dk, dv]
        })
    }
}

const NARROW: Option<DType> = Some(DType::BF16);
const RINGS: [Strategy; 3] = [Strategy::Ring, Strategy::STRIPED, Strategy::MEGATRON];

/// Gradients in f32 do not get worse with the number of ranks.
#[test]
fn f32_gradients_of_narrow_keys_are_as_good_on_any_number_of_ranks() {
    let wire = Wire { key_value: NARROW, ..Types::default() };
    let case = Case::new(256, Mask::causal());
    let others = [Strategy::ALL_GATHER, Strategy::USP, Strategy::DOUBLE_RING, Strategy::Broadcast];
    for strategy in RINGS.into_iter().chain(others) {
        if strategy.check(16, HEADS).is_err() {
            continue;
        }
        for how in strategy.routes() {
            let [two, .., sixteen] =
                [2, 4, 8, 16].map(|world| case.errors((strategy, *how), world, wire));
            for (two, sixteen) in std::iter::zip(two, sixteen) {
                assert!(
                    sixteen <= 1.1 * two,
                    "{strategy:?} {how:?}: {two:.1e}, then {sixteen:.1e}"
                );
            }
        }
    }
}

/// A sum that travels in 16 bits is rounded once per move. The `P` moves of a travelling gradient make `sqrt(P / 2)` times the error of
/// two ranks; one that starts at its owner makes a move less, and no larger an error. What is summed at the owner is rounded once, more
/// of it on more ranks, up to all.
#[test]
fn narrow_gradients_err_by_the_root_of_the_moves() {
    let wire = Wire { key_value: NARROW, gradient: NARROW, ..Types::default() };
    for mask in [Mask::full(), Mask::causal()] {
        let case = Case::new(256, mask);
        for strategy in RINGS {
            let classic = case.gradients((strategy, Route::Travelling), wire);
            let reversed = case.gradients((strategy, Route::Reversed), wire);
            let direct = case.gradients((strategy, Route::Direct), wire);
            for (index, ranks) in [2.0, 4.0, 8.0, 16.0_f64].into_iter().enumerate() {
                for tensor in 0..2 {
                    let most = (ranks / 2.0).sqrt() * classic[0][tensor];
                    let found = [classic[index][tensor], reversed[index][tensor]];
                    assert!(found[0] <= most, "{strategy:?} on {ranks} ranks: {found:?}, {most}");
                    assert!(
                        found[1] <= 1.02 * found[0],
                        "{strategy:?} on {ranks} ranks: {found:?}"
                    );
                    let most = 1.1 * (ranks - 1.0).sqrt() * reversed[0][tensor];
                    assert!(found[1] <= most, "{strategy:?} on {ranks} ranks: {found:?}, {most}");
                    let (found, most) =
                        (direct[index][tensor], (ranks / 2.0).sqrt() * direct[0][tensor]);
                    assert!(
                        found <= most,
                        "{strategy:?} on {ranks} ranks: {found:.2e}, {most:.2e}"
                    );
                }
            }
        }
        let gathers = case.gradients((Strategy::ALL_GATHER, Route::Reversed), wire);
        let [two, .., sixteen] = gathers;
        assert!(sixteen[0] <= 1.65 * two[0] && sixteen[1] <= 1.65 * two[1], "{two:?} {sixteen:?}");
    }
}

/// Where the model is bf16 its gradients are rounded once more at home, on any number of ranks.
#[test]
fn all_in_bf16_the_error_grows_by_the_root_of_the_ranks() {
    let case = Case { dtype: DType::BF16, ..Case::new(256, Mask::causal()) };
    for strategy in RINGS {
        for how in [Route::Travelling, Route::Reversed, Route::Direct] {
            let wide = case.gradients((strategy, how), Types::default());
            let narrow =
                case.gradients((strategy, how), Wire { gradient: NARROW, ..Types::default() });
            for (index, ranks) in [2.0, 4.0, 8.0, 16.0_f64].into_iter().enumerate() {
                for tensor in 0..2 {
                    assert!(wide[index][tensor] <= 1.1 * wide[0][tensor], "{strategy:?} {how:?}");
                    let most = (ranks / 2.0).sqrt() * narrow[0][tensor];
                    assert!(narrow[index][tensor] <= most, "{strategy:?} {how:?} on {ranks} ranks");
                }
            }
        }
    }
}

/// Values are rounded by who has them, travelling or not: all strategies, returns and numbers of ranks compute the same.
#[test]
fn values_are_rounded_alike_everywhere() {
    let both = [Some(DType::BF16), Some(DType::F16)];
    for (mask, dtype) in [(Mask::causal(), both[0]), (Mask::full(), both[1])] {
        let case = Case::of(2, 96, mask);
        let wire = Wire { query: dtype, key_value: dtype, ..Types::default() };
        let exact = case.dense(wire);
        for strategy in Strategy::ALL {
            for world in
                [1, 2, 3, 4].into_iter().filter(|world| strategy.check(*world, HEADS).is_ok())
            {
                for how in strategy.routes() {
                    let ours = case.attend((strategy, *how), world, wire);
                    for (ours, exact) in
                        std::iter::zip(&ours, [&exact.out, &exact.dq, &exact.dk, &exact.dv])
                    {
                        let off = error(ours, exact);
                        assert!(off <= EXACT, "{strategy:?} {how:?} on {world} ranks: {off:.1e}");
                    }
                }
            }
        }
    }
}

/// Outputs too: as good as 8 bits are.
#[test]
fn narrow_outputs_are_the_same_on_any_number_of_ranks() {
    let case = Case::new(96, Mask::causal());
    let wire = Wire { output: NARROW, query_gradient: NARROW, ..Types::default() };
    let [alone, ..] = case.attend((Strategy::Local, Route::default()), 1, wire);
    for strategy in [Strategy::Ulysses, Strategy::USP, Strategy::MEGATRON] {
        for how in strategy.routes() {
            let [out, dq, ..] = case.attend((strategy, *how), 4, wire);
            let exact = case.dense(wire);
            // A value next to the middle of two is rounded to either.
            assert!(error(&out, &alone.to_dtype(DType::F64).unwrap()) <= 1.0 / 128.0);
            assert!(error(&out, &exact.out) <= 1.0 / 256.0, "{strategy:?} {how:?}");
            assert!(error(&dq, &exact.dq) <= 0.02, "{strategy:?} {how:?}");
        }
    }
}

/// max|a - b| / max|b|.
fn error(ours: &Tensor, exact: &Tensor) -> f64 {
    let off = (ours.to_dtype(DType::F64).unwrap() - exact).unwrap().abs().unwrap();
    let most = |tensor: Tensor| tensor.flatten_all().unwrap().max(0).unwrap().to_scalar().unwrap();
    let (off, largest): (f64, f64) = (most(off), most(exact.abs().unwrap()));
    off / largest
}
