//! One case of the table, and its error.

use std::iter::zip;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use annulus_attention::{Attention, CallSite, Qkv, rows_at};
use annulus_comm::{Cause, Communicator, Metered, threads};
use annulus_ops::attention::{Attended, AttentionKernel, Dense, Fused, Reference, dense};
use annulus_ops::{Key, Pool, normal};
use annulus_sequence::{
    BlockShape, Bytes, Documents, Heads, Layout, Mask, Pass, Positions, Route, Rule, ScheduleError,
    Schedules, Setting, Strategy, StrategyError, Wire,
};
use candle_core::{DType, Device, Tensor};

/// The most of max|a - b| / max|b|, or of max|a - b| where b is all zero: as in `annulus verify`. Stated once.
pub(crate) const LIMIT: f64 = 5e-6;
/// The least number of keys that some query sees where inputs are peaked.
const MANY: usize = 16;
/// Units in the last place of one over the number of visible keys, where a row is of several softmaxes.
const JOINED_UNITS: f64 = 8.0;
/// The tensors that are compared with dense attention.
pub(crate) const TENSORS: [&str; 5] = ["out", "lse", "dq", "dk", "dv"];

/// Everything that makes up a case.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Case {
    pub(crate) strategy: Strategy,
    pub(crate) back: Route,
    pub(crate) layout: Layout,
    /// The weight of each rank.
    pub(crate) weights: Vec<usize>,
    pub(crate) tokens: usize,
    pub(crate) rules: Vec<Rule>,
    /// Lengths of documents: empty, of all batch rows, or by batch row.
    pub(crate) documents: Vec<Vec<usize>>,
    /// Whether the schedule does not know the documents, which are those of a batch.
    pub(crate) packed: bool,
    pub(crate) heads: Heads,
    pub(crate) batch: usize,
    pub(crate) dim: usize,
    /// Whether the reference kernel computes instead of the fused one.
    pub(crate) plain: bool,
    /// The size of strict blocks; `None`: sums are not order-free.
    pub(crate) block: Option<usize>,
    /// The processor that runs kernels, if not the CPU.
    pub(crate) processor: Processors,
}

/// The CPU, or kernels of a GPU on an emulator.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Processors {
    #[default]
    Cpu,
    #[cfg(feature = "emulator")]
    Emulator,
}

impl Processors {
    #[cfg(feature = "emulator")]
    fn kernel(self, block: Option<usize>) -> Option<Arc<dyn AttentionKernel>> {
        (self == Processors::Emulator).then(|| crate::emulated::kernel(block))
    }
    #[cfg(not(feature = "emulator"))]
    fn kernel(self, _: Option<usize>) -> Option<Arc<dyn AttentionKernel>> {
        match self {
            Processors::Cpu => None,
        }
    }
}

/// Queries, keys, values and the gradient of the output, for the whole sequence.
#[derive(Clone, Debug)]
pub(crate) struct Inputs {
    pub(crate) qkv: Qkv,
    pub(crate) gradient: Tensor,
}

/// The outcome of a case that does not fail.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    /// The error of each of [`TENSORS`]: at most [`LIMIT`].
    Exact([f64; 5]),
    /// The reason why it cannot run, given before anything ran.
    Refused(StrategyError),
}

/// The results of one rank.
struct Made {
    positions: Positions,
    attended: Attended,
    /// Gradients, where there was a backward pass.
    gradients: Option<Qkv>,
    /// Bytes sent forward and backward.
    bytes: [u64; 2],
}

/// The reason why a rank ended.
pub(crate) enum End {
    Refused(StrategyError),
    Failed(String),
}

impl Case {
    pub(crate) fn mask(&self) -> Mask {
        let mask = self.rules.iter().cloned().fold(Mask::full(), Mask::and);
        let rows = self.documents.iter().map(|lengths| Documents::of_lengths(lengths)).collect();
        if self.documents.is_empty() { mask } else { mask.and(Rule::Documents(rows)) }
    }
    /// Peaked inputs, so that the running maximum moves and the running sum is rescaled. Not where queries see few keys, of which one would
    /// take all the weight and leave gradients of nothing but rounding.
    pub(crate) fn random(&self) -> Inputs {
        let Case { batch, tokens, dim, heads, .. } = *self;
        let wide = if self.sees_many() { 2.0 } else { 0.5 };
        let random = |name: &str, heads: usize| {
            let key = Key { seed: 7, purpose: "test", name };
            let values = normal(key, 0, batch * heads * tokens * dim);
            let shape = (batch, heads, tokens, dim);
            let normal = Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
            (normal * wide).unwrap()
        };
        let [q, k, v] = [("q", heads.query), ("k", heads.key_value), ("v", heads.key_value)]
            .map(|(name, heads)| random(name, heads));
        Inputs { qkv: Qkv { q, k, v }, gradient: random("gradient", heads.query) }
    }
    pub(crate) fn dense(&self, inputs: &Inputs) -> Dense {
        let Inputs { qkv: Qkv { q, k, v }, gradient } = inputs;
        let all = Positions::all(self.tokens);
        dense([q, k, v, gradient], &self.mask(), [&all, &all], self.scale(), None).unwrap()
    }
    /// Compares forward and backward with dense attention, and the bytes with those of the schedules.
    ///
    /// # Errors
    /// What is wrong.
    pub(crate) fn check(&self, inputs: &Inputs, dense: &Dense) -> Result<Outcome, String> {
        let ran = self.schedules().and_then(|schedules| {
            Ok((self.planned(&schedules), self.run(&schedules, inputs, true)?))
        });
        let (planned, made) = match ran {
            Ok(ran) => ran,
            Err(End::Refused(why)) => return Ok(Outcome::Refused(why)),
            Err(End::Failed(why)) => return Err(why),
        };
        let mut off = [0.0f64; 5];
        for Made { positions, attended: Attended { out, lse }, gradients, .. } in &made {
            let Qkv { q, k, v } = gradients.as_ref().unwrap();
            let Dense { out: o, lse: l, dq, dk, dv } = dense;
            let pairs = [(out, o), (lse, l), (q, dq), (k, dk), (v, dv)];
            for (worst, (ours, dense)) in zip(&mut off, pairs) {
                *worst = worst.max(error(ours, dense, positions));
            }
        }
        let wrong = zip(TENSORS, off).find(|(_, off)| !(*off <= LIMIT));
        if let Some((name, off)) = wrong {
            return Err(format!("{name} is {off:.1e} off"));
        }
        let sent: Vec<[u64; 2]> = made.iter().map(|made| made.bytes).collect();
        if sent == planned {
            Ok(Outcome::Exact(off))
        } else {
            Err(format!("sent {sent:?} bytes, planned {planned:?}"))
        }
    }
    /// The bits of the results for the whole sequence, forward and backward, by position.
    ///
    /// # Errors
    /// What is wrong.
    pub(crate) fn bits(&self, inputs: &Inputs) -> Result<Option<Vec<u32>>, String> {
        let ran = self.schedules().and_then(|schedules| self.run(&schedules, inputs, true));
        let made = match ran {
            Ok(made) => made,
            Err(End::Refused(_)) => return Ok(None),
            Err(End::Failed(why)) => return Err(why),
        };
        let mut places: Vec<(usize, u32)> =
            made.iter().flat_map(|one| one.positions.iter()).zip(0..).collect();
        places.sort_unstable();
        let order: Vec<u32> = places.into_iter().map(|(_, at)| at).collect();
        let order = Tensor::new(order, &Device::Cpu).unwrap();
        let of = |which: fn(&Made) -> &Tensor| -> Vec<u32> {
            let parts: Vec<&Tensor> = made.iter().map(which).collect();
            let all = Tensor::cat(&parts, 2).unwrap().index_select(&order, 2).unwrap();
            let all: Vec<f32> = all.flatten_all().unwrap().to_vec1().unwrap();
            all.into_iter().map(f32::to_bits).collect()
        };
        let gradients: [fn(&Made) -> &Tensor; 5] = [
            |made| &made.attended.out,
            |made| &made.attended.lse,
            |made| &made.gradients.as_ref().unwrap().q,
            |made| &made.gradients.as_ref().unwrap().k,
            |made| &made.gradients.as_ref().unwrap().v,
        ];
        Ok(Some(gradients.into_iter().flat_map(of).collect()))
    }

    /// With queries and keys of zero, and values that mark positions, the output is the mask: 1 over the number of visible keys to
    /// a unit in the last place at every visible key, 0 everywhere else. Under strided patterns a row is of several softmaxes in
    /// one, each with a rounded log-sum-exp: some units more.
    ///
    /// # Errors
    /// What is seen that may not be, or not seen that must.
    pub(crate) fn check_visibility(&self) -> Result<(), String> {
        let Case { batch, tokens, heads, .. } = *self;
        let dim = tokens.div_ceil(heads.key_value);
        let case = Case { dim, ..self.clone() };
        let ran = case.schedules().and_then(|schedules| case.run(&schedules, &case.marks(), false));
        let made = ran.map_err(|end| match end {
            End::Refused(why) => why.to_string(),
            End::Failed(why) => why,
        })?;
        let mask = self.mask();
        let units = if mask.is_thinned() { JOINED_UNITS } else { 1.0 };
        let seen = |row: usize, q: usize| -> Vec<bool> {
            (0..tokens).map(|k| mask.allows_in(row, q, k)).collect()
        };
        for Made { positions, attended, .. } in made {
            let out = flat(&attended.out);
            let mut rows = out.chunks_exact(dim);
            for row in 0..batch {
                let seen: Vec<_> = positions.iter().map(|q| (q, seen(row, q))).collect();
                for head in 0..heads.query {
                    let first = head / heads.group() * dim;
                    for (q, seen) in &seen {
                        let out = rows.next().unwrap();
                        let wrong = |why| format!("row {row} head {head} query {q}: {why}");
                        is_mask(out, seen, first..tokens, units).map_err(wrong)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The reason why the case cannot run, if it cannot.
    pub(crate) fn refused(&self) -> Option<StrategyError> {
        match self.schedules() {
            Err(End::Refused(why)) => Some(why),
            _ => None,
        }
    }

    /// Whether there is a query that sees many keys.
    fn sees_many(&self) -> bool {
        let (mask, all) = (self.mask(), 0..self.tokens);
        let seen = |row, q| all.clone().filter(|k| mask.allows_in(row, q, *k)).count();
        (0..self.batch).any(|row| all.clone().any(|q| seen(row, q) >= MANY))
    }
    fn scale(&self) -> f64 {
        1.0 / (self.dim as f64).sqrt()
    }
    /// Zero queries and keys; the values of every KV head mark as many positions as it is wide.
    fn marks(&self) -> Inputs {
        let Case { batch, tokens, dim, heads: Heads { query, key_value }, .. } = *self;
        let mark = |index: usize| {
            let (column, position) = (index % dim, index / dim % tokens);
            let head = index / dim / tokens % key_value;
            if head * dim + column == position { 1.0 } else { 0.0 }
        };
        let marks: Vec<f32> = (0..batch * key_value * tokens * dim).map(mark).collect();
        let v = Tensor::from_vec(marks, (batch, key_value, tokens, dim), &Device::Cpu).unwrap();
        let q = Tensor::zeros((batch, query, tokens, dim), DType::F32, &Device::Cpu).unwrap();
        Inputs { qkv: Qkv { q: q.clone(), k: v.zeros_like().unwrap(), v }, gradient: q }
    }
    /// Bytes sent by rank, forward and backward, as the schedules say.
    fn planned(&self, schedules: &Schedules) -> Vec<[u64; 2]> {
        let wire = Wire::new(size_of::<f32>(), size_of::<f32>());
        let shape = BlockShape {
            batch: self.batch,
            head_dim: self.dim,
            wire,
            order_free: self.block.is_some(),
        };
        let [forward, backward] =
            [Pass::Forward, Pass::Backward].map(|pass| Bytes::of(schedules.of(pass), shape).0);
        zip(forward, backward).map(|(forward, backward)| [forward, backward]).collect()
    }
    /// The mask that the schedules know.
    fn scheduled(&self) -> Mask {
        if !self.packed {
            return self.mask();
        }
        let rules = self.rules.iter().cloned().fold(Mask::full(), Mask::and);
        rules.of_any_documents()
    }
    pub(crate) fn options(&self) -> threads::Options {
        let deadline = Duration::from_secs(60);
        threads::Options { world: self.weights.len(), deadline, stop: Arc::default() }
    }
    fn run(
        &self,
        schedules: &Arc<Schedules>,
        inputs: &Inputs,
        backward: bool,
    ) -> Result<Vec<Made>, End> {
        let ran =
            threads::run(&self.options(), |comm| self.rank(inputs, backward, schedules, comm));
        ran.map_err(|failure| match failure.cause {
            Cause::Error(end) => end,
            Cause::Panic(why) => End::Failed(format!("rank {} panicked: {why}", failure.rank)),
            Cause::Elsewhere => End::Failed("all ranks are here".to_owned()),
        })
    }
    fn rank(
        &self,
        inputs: &Inputs,
        backward: bool,
        schedules: &Arc<Schedules>,
        comm: Arc<dyn Communicator>,
    ) -> Result<Made, End> {
        let meter = Metered::new(comm);
        let attention = self.attention(schedules, meter.clone());
        let failed = |error: candle_core::Error| End::Failed(error.to_string());
        let positions = attention.positions().clone();
        let Inputs { qkv: Qkv { q, k, v }, gradient } = inputs;
        let [q, k, v, gradient] = [q, k, v, gradient].map(|tensor| rows(tensor, &positions));
        let qkv = Qkv { q, k, v };
        let attended = attention.forward(CallSite::default(), &qkv).map_err(failed)?;
        let back = || attention.backward(CallSite::default(), qkv, attended.clone(), gradient);
        let gradients = backward.then(back).transpose().map_err(failed)?;
        let sent = meter.take().bytes;
        let bytes = ["forward", "backward"].map(|pass| sent.get(pass).copied().unwrap_or_default());
        Ok(Made { positions, attended, gradients, bytes })
    }
    pub(crate) fn schedules(&self) -> Result<Arc<Schedules>, End> {
        let setting = Setting {
            strategy: self.strategy,
            layout: self.layout,
            tokens: self.tokens,
            weights: self.weights.clone(),
            heads: self.heads,
            route: self.back,
            block: self.block,
        };
        let schedules = setting.schedules(&self.scheduled());
        schedules.map(Arc::new).map_err(|error| match error {
            ScheduleError::Strategy(error) => End::Refused(error),
            flaw @ ScheduleError::Flaw { .. } => End::Failed(flaw.to_string()),
        })
    }
    fn fused(&self) -> Fused {
        Fused::new(Pool::serial().in_blocks(self.block))
    }
    pub(crate) fn attention(
        &self,
        schedules: &Arc<Schedules>,
        comm: Arc<dyn Communicator>,
    ) -> Attention {
        let kernel: Arc<dyn AttentionKernel> = match (self.processor.kernel(self.block), self.plain)
        {
            (Some(kernel), _) => kernel,
            (None, true) => Arc::new(Reference),
            (None, false) => Arc::new(self.fused()),
        };
        let attention = Attention::new(schedules.clone(), self.scale(), comm, kernel);
        if self.packed { attention.with_mask(self.mask()).unwrap() } else { attention }
    }
}

/// Whether a row of output shows the positions `marked` of what is `seen`, to so many units in the last place.
fn is_mask(out: &[f64], seen: &[bool], marked: Range<usize>, units: f64) -> Result<(), String> {
    let visible = seen.iter().filter(|seen| **seen).count();
    let wanted = 1.0 / visible as f32;
    let unit = f64::from(wanted.next_up()) - f64::from(wanted);
    for (found, key) in zip(out, marked) {
        let right = if seen[key] {
            (found - f64::from(wanted)).abs() <= units * unit && *found > 0.0
        } else {
            *found == 0.0
        };
        if !right {
            let sees = if seen[key] { "sees" } else { "does not see" };
            return Err(format!("it {sees} key {key} of {visible}, but {found} is its output"));
        }
    }
    Ok(())
}

/// How far the rows at `positions` are from those of dense attention; infinite values must be equal, what is no number is
/// infinitely wrong.
pub(crate) fn error(ours: &Tensor, dense: &Tensor, positions: &Positions) -> f64 {
    let (ours, whole, dense) = (flat(ours), flat(dense), flat(&rows(dense, positions)));
    assert_eq!(ours.len(), dense.len());
    let largest = whole.iter().filter(|x| x.is_finite()).fold(0.0f64, |most, x| most.max(x.abs()));
    let off = zip(ours, dense).map(|(a, b)| if a == b { 0.0 } else { (a - b).abs() });
    let off = off.fold(0.0f64, |most, x| if x.is_nan() { f64::INFINITY } else { most.max(x) });
    if largest > 0.0 { off / largest } else { off }
}

pub(crate) fn rows(tensor: &Tensor, positions: &Positions) -> Tensor {
    rows_at(tensor, 2, positions).unwrap()
}

fn flat(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}
