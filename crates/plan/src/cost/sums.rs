//! Gradient sums over ranks, and the gathering of sharded weights: what they send, and what is held meanwhile.
//!
//! In every micro-batch, backward posts the sums of a model stage once it has left it, and goes on. Each rank sums a slice of every
//! parameter, receives what its mirrors have summed of the elements that it updates, and sends what it has updated to the holders of the
//! same state ([`StateSharding`]).

use std::ops::{Range, RangeInclusive};

use annulus_architecture::{Besides, Target, slice};
use annulus_machine::blocks::{NORM_BYTES, STRICT_ROW};
use annulus_sequence::order_free_row;

use super::{F32, Share, product};
use crate::{Plan, StateSharding};

/// Model stages whose gradient sums are in flight, beside the stage that backward computes.
pub const SUMS_IN_FLIGHT: usize = 1;
/// Bytes that are summed beside the gradients: the sum of losses and the count of targets, f64.
const LOSS: u64 = 2 * 8;
/// Bytes of the gradient's squared norm, f64, summed beside the gradients as [`LOSS`] is.
const NORM: u64 = 8;

impl Plan {
    /// Elements of each trained parameter, by model stage: the embedding, the two halves of each layer, the loss. Tied weights count in the
    /// embedding.
    pub(crate) fn trained_by_stage(&self) -> Vec<Vec<u64>> {
        let lora = self.experiment.lora.as_ref();
        let is_trained = |part: Option<Besides>| match (lora, part) {
            (None, _) => true,
            (Some(lora), Some(part)) => lora.trains(part),
            (Some(_), None) => false,
        };
        let mut stages = self.by_stage(&is_trained);
        if self.shape.tie_word_embeddings
            && let Some(last) = stages.last_mut()
            && is_trained(Some(Besides::Embeddings))
        {
            last.pop();
        }
        debug_assert_eq!(stages.iter().flatten().sum::<u64>(), self.counts().trained);
        stages
    }

    /// Elements of each parameter that a model stage reads, trained or not: tied weights count in the embedding and in the loss.
    pub(crate) fn read_by_stage(&self) -> Vec<Vec<u64>> {
        self.by_stage(&|_| true)
    }

    /// Elements of each parameter by model stage, of the embedding, the projections and the head for which `wanted` holds, and of all
    /// adapters.
    fn by_stage(&self, wanted: &dyn Fn(Option<Besides>) -> bool) -> Vec<Vec<u64>> {
        let shape = &self.own;
        let [h, m] = [shape.hidden_size, shape.intermediate_size].map(|size| size as u64);
        let (a, k, dim) = (shape.query_width(), shape.key_value_width(), shape.head_dim as u64);
        let only = |is_there: bool, sizes: &[u64]| if is_there { sizes.to_vec() } else { vec![] };
        let norms = |of_heads| {
            let all = [only(true, &[h]), only(of_heads, &[dim, dim])].concat();
            only(wanted(Some(Besides::Norms)), &all)
        };
        let weights = |sizes: Vec<u64>| only(wanted(None), &sizes);
        let biases =
            [only(shape.has_query_key_value_bias(), &[a, k, k]), only(shape.attention_bias, &[h])];
        let attention = [
            norms(shape.has_query_key_norm()),
            weights([vec![a * h, k * h, k * h, a * h], biases.concat()].concat()),
            self.adapters(&[Target::Query, Target::Key, Target::Value, Target::Output]),
        ]
        .concat();
        let feed_forward = [
            norms(false),
            weights([vec![m * h; 3], only(shape.mlp_bias, &[m, m, h])].concat()),
            self.adapters(&[Target::Gate, Target::Up, Target::Down]),
        ]
        .concat();
        let table = self.own_vocabulary() * h;
        let last = if shape.tie_word_embeddings { Besides::Embeddings } else { Besides::Head };
        let mut stages = vec![only(wanted(Some(Besides::Embeddings)), &[table])];
        for _ in 0..shape.num_hidden_layers {
            stages.extend([attention.clone(), feed_forward.clone()]);
        }
        stages.push([norms(false), only(wanted(Some(last)), &[table])].concat());
        stages
    }

    /// Whether no rank holds all of the state, because of `sharding` or of tensor parallelism.
    pub(crate) fn is_shared(&self, sharding: StateSharding) -> bool {
        sharding.holders > 1 || self.experiment.mesh.tensor > 1
    }

    /// Elements of the adapters of a layer's projections `targets`.
    fn adapters(&self, targets: &[Target]) -> Vec<u64> {
        let Some(lora) = &self.experiment.lora else { return Vec::new() };
        let own = targets.iter().filter(|target| lora.targets.contains(target));
        let sizes = own.flat_map(|target| target.sizes(&self.own));
        sizes.map(|size| lora.rank as u64 * size).collect()
    }

    /// Bytes of the trained weights, by model stage.
    pub fn trained_weights(&self) -> Vec<f64> {
        self.bytes_of(&self.trained_by_stage())
    }

    /// Bytes of all weights that a model stage reads, by stage.
    pub fn read_weights(&self) -> Vec<f64> {
        self.bytes_of(&self.read_by_stage())
    }

    fn bytes_of(&self, stages: &[Vec<u64>]) -> Vec<f64> {
        let element = self.experiment.model.dtype.bytes() as f64;
        stages.iter().map(|sizes| element * sizes.iter().sum::<u64>() as f64).collect()
    }

    /// The fraction of all gradients that is summed last, after backward has ended.
    pub fn summed_last(&self) -> f64 {
        let sums = self.trained_by_stage().into_iter().map(|sizes| sizes.into_iter().sum::<u64>());
        let sums: Vec<u64> = sums.collect();
        let last = sums.iter().find(|sum| **sum > 0).copied().unwrap_or_default();
        last as f64 / sums.iter().sum::<u64>().max(1) as f64
    }

    /// Bytes of the gradient of a parameter of `elements` elements while it is summed.
    pub(crate) fn gradient(&self, elements: u64) -> u64 {
        match self.experiment.block() {
            None => F32 * elements,
            Some(_) => rows_of(0..elements as usize),
        }
    }

    /// Bytes that each rank sends to sum gradients; 0 on a single rank.
    pub(crate) fn gradient_sums(&self) -> Vec<u64> {
        if self.world() == 1 {
            return vec![0];
        }
        let (stages, sharding) = (self.trained_by_stage(), self.sharding());
        let (passed_on, strict) = (sharding.mirrors as u64 - 1, self.experiment.block().is_some());
        let bytes = |range: Range<usize>| {
            if strict { rows_of(range) } else { F32 * range.len() as u64 }
        };
        let of_rank = |rank: usize| {
            let slot = self.slot(rank);
            let sent = |elements: &u64| {
                let of = |slot| sharding.summed(*elements as usize, slot);
                let others = (0..sharding.ranks()).filter(|other| *other != slot);
                let summed = others.map(|other| bytes(of(other))).fold(0, u64::saturating_add);
                let own = product(&[F32, of(slot).len() as u64, passed_on]);
                summed.saturating_mul(self.micro_batches as u64).saturating_add(own)
            };
            let all = stages.iter().flatten().map(sent);
            all.fold(self.between_parts(), u64::saturating_add)
        };
        (0..self.world()).map(of_rank).collect()
    }

    /// Bytes that a rank sends to sum gradients that tensor-parallel ranks hold whole, and numbers that are summed over all ranks.
    fn between_parts(&self) -> u64 {
        let of_norm = [self.summing() > 1, self.experiment.mesh.tensor > 1];
        let norm = if self.experiment.block().is_some() { NORM_BYTES } else { NORM };
        let numbers =
            LOSS + of_norm.into_iter().filter(|is_summed| *is_summed).count() as u64 * norm;
        if self.experiment.mesh.tensor == 1 {
            return numbers;
        }
        let whole = self.replicated() * self.micro_batches as u64;
        numbers + F32 * whole
    }

    /// Bytes of weights that each rank sends: what it has updated (ZeRO-1), or its shard of a model stage at every gather (ZeRO-3).
    pub(crate) fn gathers(&self) -> Vec<u64> {
        let sharding = self.sharding();
        let state = sharding.state;
        let element = self.experiment.model.dtype.bytes() as u64;
        let times = if state.shards_weights() { self.micro_batches as u64 } else { 1 };
        let stages = match (state.shards_optimizer(), state.shards_weights()) {
            (false, _) => Vec::new(),
            (true, false) => self.trained_by_stage(),
            (true, true) => {
                let ahead = self.read_by_stage();
                // Backward starts with the last stage's weights in place, and the first stage reads none.
                let back = ahead[1..ahead.len() - 1].to_vec();
                [ahead, back].concat()
            }
        };
        let of_rank = |rank: usize| {
            let slot = self.slot(rank);
            let own =
                stages.iter().flatten().map(|elements| sharding.updated(*elements as usize, slot));
            own.map(|own| own.len() as u64).sum::<u64>()
                * (sharding.holders as u64 - 1)
                * element
                * times
        };
        (0..self.world()).map(of_rank).collect()
    }
}

/// Bytes of the rows of order-free sums that hold these elements of a parameter.
fn rows_of(elements: Range<usize>) -> u64 {
    let rows = elements.end.div_ceil(STRICT_ROW) - elements.start / STRICT_ROW;
    if elements.is_empty() { 0 } else { F32 * (rows * order_free_row(STRICT_ROW)) as u64 }
}

impl Share<'_> {
    /// How processes shard the state.
    fn sharding(&self) -> StateSharding {
        self.plan.sharding_of(self.memory.state, self.here as usize)
    }

    /// The number of ranks that each update a part of a parameter.
    fn parts(&self) -> u64 {
        self.sharding().parts() as u64
    }

    /// Elements of the slices that a rank updates, on the rank that has most.
    pub(super) fn sliced(&self) -> u64 {
        self.slices_of(&self.plan.trained_by_stage())
    }

    /// Elements of the slices of these parameters, on the rank that has most.
    pub(super) fn slices_of(&self, stages: &[Vec<u64>]) -> u64 {
        let parts = self.parts() as usize;
        let most = |elements: &u64| slice(*elements as usize, parts - 1, parts).len() as u64;
        stages.iter().flatten().map(most).sum()
    }

    /// Weights at their peak, bytes. Where they are sharded: the own shard; one whole stage, counted for the first rank of a process; and
    /// on every rank the shards of the next stage as they arrive, or of this one while it is assembled.
    pub(super) fn weights(&self) -> u64 {
        let StateSharding { holders, state, .. } = self.sharding();
        let all = self.plan.counts().all;
        let arrives = |elements: u64| elements * self.element / self.parts() * (holders as u64 - 1);
        if !state.shards_optimizer() {
            return self.shared(all * self.element);
        }
        if !state.shards_weights() {
            let stages = self.plan.trained_by_stage();
            let stages: Vec<u64> = stages.iter().map(|sizes| sizes.iter().sum()).collect();
            let two = stages.windows(2).map(|two| arrives(two.iter().sum())).max();
            return self.shared(all * self.element) + two.unwrap_or_default();
        }
        let stages = self.plan.read_by_stage();
        let mut held = self.slices_of(&stages) * self.element;
        if self.plan.shape.tie_word_embeddings {
            // The loss reads the embedding's shard.
            let table = stages[0].clone();
            held -= self.slices_of(&[table]) * self.element;
        }
        let stages: Vec<u64> = stages.iter().map(|sizes| sizes.iter().sum()).collect();
        let beside = |stage: usize| {
            let near = &stages[stage.saturating_sub(1)..=(stage + 1).min(stages.len() - 1)];
            let arriving = near.iter().max().copied().unwrap_or_default();
            self.shared(stages[stage] * self.element) + arrives(arriving)
        };
        held + (0..stages.len()).map(beside).max().unwrap_or_default()
    }

    /// Bytes of weights, or of adapters alone, that this rank copies for a checkpoint written in the background.
    pub(super) fn copied_weights(&self) -> u64 {
        let counts = self.plan.counts();
        let written = if self.plan.experiment.lora.is_some() { counts.trained } else { counts.all };
        self.copied_share(written * self.element)
    }

    /// Bytes of moments, and of masters of `masters` bytes an element, that this rank copies for a background checkpoint.
    pub(super) fn copied_optimizer(&self, masters: u64) -> u64 {
        self.copied_share(self.plan.counts().trained * (2 * F32 + masters))
    }

    /// Bytes that this rank copies of `bytes` for a background checkpoint: its shard, or, where the state is not sharded, rank 0 all of it.
    fn copied_share(&self, bytes: u64) -> u64 {
        let experiment = &self.plan.experiment;
        // The copy lies on the host.
        let is_here = experiment.host.device.is_none() && experiment.host.apart.is_none();
        match self.plan.is_shared(self.sharding()) {
            _ if !experiment.background_saves || !is_here => 0,
            true => bytes / self.world(),
            false if self.is_writer => bytes,
            false => 0,
        }
    }

    fn world(&self) -> u64 {
        self.here + self.elsewhere
    }

    /// Bytes of gradients and their sums at their peak: while backward is in a layer or the loss, and over the whole step. No rank is more
    /// than one stage ahead of another.
    pub(super) fn gradients(&self) -> [u64; 2] {
        let stages = self.plan.trained_by_stage();
        let of_stage = |sizes: &Vec<u64>| sizes.iter().map(|size| self.plan.gradient(*size)).sum();
        let is_accumulated = self.plan.micro_batches > 1;
        // Without accumulation, order-free sums are read as f32 as soon as they are complete.
        let summed = |sizes: &Vec<u64>| {
            if is_accumulated { of_stage(sizes) } else { F32 * sizes.iter().sum::<u64>() }
        };
        let summed: Vec<u64> = stages.iter().map(summed).collect();
        let stages: Vec<u64> = stages.iter().map(of_stage).collect();
        let (all, world) = (summed.iter().sum::<u64>(), self.world());
        let last = stages.len() - 1;
        let of = |some: RangeInclusive<usize>| stages[some].iter().sum::<u64>();
        // The loss's gradient of tied weights waits for the embedding's.
        let is_tied = self.plan.shape.tie_word_embeddings;
        let waits = |stage: usize| if is_tied && stage > 0 { stages[0] } else { 0 };
        let within = |stage: usize| {
            // Other ranks may not yet have read their slices of one stage more.
            let oldest = (stage + SUMS_IN_FLIGHT + 1).min(last);
            let whole = of(stage..=oldest) + waits(stage);
            let done = summed[oldest.min(stage + 1)..=last].iter().sum::<u64>() / self.parts();
            // Sums of earlier micro-batches are all held, and a stage's new ones until they are added.
            let summed = if is_accumulated { (all + stages[oldest]) / self.parts() } else { done };
            whole + summed + of(stage..=oldest) / world * self.elsewhere
        };
        if world == 1 {
            // Gradients of the stage that backward is in, and of the one before.
            let two = |stage: usize| of(stage..=(stage + SUMS_IN_FLIGHT).min(last)) + waits(stage);
            let order_free = self.plan.experiment.block().is_some();
            let new = if is_accumulated || order_free { (0..=last).map(two).max() } else { None };
            return [all + new.unwrap_or_default(); 2];
        }
        let backward = (1..=last).map(within).max().unwrap_or_default();
        // The last stages' gradients are whole while they are summed; then the mirrors' sums are joined.
        let largest = stages.iter().max().copied().unwrap_or_default();
        let joined = if self.sharding().mirrors == 1 { 0 } else { largest / self.parts() };
        let ends = [stages[0], joined].map(|beside| all / self.parts() + beside);
        [backward, ends.into_iter().chain([backward, within(0)]).max().unwrap_or_default()]
    }
}
