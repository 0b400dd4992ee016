//! Gradient sums over ranks, and the gathering of sharded weights: what they send, and what is held meanwhile.
//!
//! In every micro-batch, backward posts the sums of a model stage once it has left it, and goes on. Each rank sums a slice of every
//! parameter, receives what its mirrors have summed of the elements that it updates, and sends what it has updated to the holders of the
//! same state ([`StateSharding`]).

use std::ops::Range;

use annulus_architecture::{FullyTrained, Target, slice_range};
use annulus_machine::blocks::{NORM_BYTES, STRICT_ROW};
use annulus_sequence::order_free_row;

use super::{F32, Share, product, sum};
use crate::{Plan, StateSharding};

/// Model stages whose gradient sums are in flight, beside the stage that backward computes.
pub const SUMS_IN_FLIGHT: usize = 1;
/// Bytes that are summed beside the gradients: the sum of losses and the count of targets, f64.
const LOSS: u64 = 2 * 8;
/// Bytes of the gradient's squared norm, f64, summed beside the gradients as [`LOSS`] is.
const NORM: u64 = 8;

impl Plan {
    /// Elements of each trained parameter, by model stage: the embedding, the two halves of each layer, the loss. Tied weights count in the
    /// embedding. On the tensor-parallel rank that has most.
    pub(crate) fn trained_by_stage(&self) -> Vec<Vec<u64>> {
        let stages = self.trained_with(self.own_vocabulary());
        debug_assert_eq!(stages.iter().flatten().sum::<u64>(), self.counts().trained);
        stages
    }

    /// [`Plan::trained_by_stage`] on a rank with so many tokens of the vocabulary.
    fn trained_with(&self, vocabulary: u64) -> Vec<Vec<u64>> {
        let is_trained = |part: Option<FullyTrained>| match part {
            Some(part) => self.trains(part),
            None => self.experiment.lora.is_none(),
        };
        let mut stages = self.by_stage(vocabulary, &is_trained);
        if self.shape.tie_word_embeddings
            && let Some(last) = stages.last_mut()
            && self.trains(FullyTrained::Embeddings)
        {
            last.pop();
        }
        stages
    }

    /// Elements of each parameter that a model stage reads, trained or not: tied weights count in the embedding and in the loss. On the
    /// tensor-parallel rank that has most.
    pub(crate) fn read_by_stage(&self) -> Vec<Vec<u64>> {
        self.by_stage(self.own_vocabulary(), &|_| true)
    }

    /// What `of` gives for the vocabulary of each tensor-parallel part: where it does not divide, some have a token less.
    fn by_part<T>(&self, of: impl Fn(u64) -> T) -> Vec<T> {
        (0..self.experiment.mesh.tensor).map(|part| of(self.vocabulary_of(part))).collect()
    }

    /// Elements of each parameter by model stage, of the embedding, the projections and the head for which `wanted` holds, and of all
    /// adapters, on a rank with so many tokens of the vocabulary.
    fn by_stage(
        &self,
        vocabulary: u64,
        wanted: &dyn Fn(Option<FullyTrained>) -> bool,
    ) -> Vec<Vec<u64>> {
        let shape = &self.own;
        let [h, m] = [shape.hidden_size, shape.intermediate_size].map(|size| size as u64);
        let (a, k, dim) = (shape.query_width(), shape.key_value_width(), shape.head_dim as u64);
        let only = |is_there: bool, sizes: &[u64]| if is_there { sizes.to_vec() } else { vec![] };
        let norms = |of_heads| {
            let all = [only(true, &[h]), only(of_heads, &[dim, dim])].concat();
            only(wanted(Some(FullyTrained::Norms)), &all)
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
        let table = vocabulary * h;
        let mut stages = vec![only(wanted(Some(FullyTrained::Embeddings)), &[table])];
        for _ in 0..shape.num_hidden_layers {
            stages.extend([attention.clone(), feed_forward.clone()]);
        }
        stages.push([norms(false), only(wanted(Some(shape.projects_with())), &[table])].concat());
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
        let parts = self.by_part(|vocabulary| self.trained_with(vocabulary).concat());
        let sharding = self.sharding();
        let (passed_on, strict) = (sharding.mirrors as u64 - 1, self.experiment.block().is_some());
        let bytes = |range: Range<usize>| {
            if strict { rows_of(range) } else { F32 * range.len() as u64 }
        };
        // All slices of each parameter: summed once, as there may be thousands of ranks.
        let whole = |elements: &u64| {
            let slices =
                (0..sharding.ranks()).map(|slot| sharding.summed(*elements as usize, slot));
            (*elements as usize, sum(slices.map(bytes)))
        };
        let parts: Vec<Vec<(usize, u64)>> =
            parts.iter().map(|sizes| sizes.iter().map(whole).collect()).collect();
        let of_rank = |rank: usize| {
            let slot = self.slot(rank);
            let sent = |&(elements, all): &(usize, u64)| {
                let own = sharding.summed(elements, slot);
                let passed_on = product(&[F32, own.len() as u64, passed_on]);
                let others = all.saturating_sub(bytes(own));
                others.saturating_mul(self.micro_batches as u64).saturating_add(passed_on)
            };
            let sent = sum(parts[rank % parts.len()].iter().map(sent));
            self.between_parts().saturating_add(sent)
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
        let gathered = |vocabulary| match (state.shards_optimizer(), state.shards_weights()) {
            (false, _) => Vec::new(),
            (true, false) => self.trained_with(vocabulary),
            (true, true) => {
                let ahead = self.by_stage(vocabulary, &|_| true);
                // Backward starts with the last stage's weights in place, and the first stage reads none.
                let back = ahead[1..ahead.len() - 1].to_vec();
                [ahead, back].concat()
            }
        };
        let parts = self.by_part(|vocabulary| gathered(vocabulary).concat());
        let of_rank = |rank: usize| {
            let slot = self.slot(rank);
            let own = parts[rank % parts.len()].iter();
            let own = own.map(|elements| sharding.updated(*elements as usize, slot));
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
    pub(super) fn sharding(&self) -> StateSharding {
        self.plan.sharding_of(self.memory.state, self.here as usize)
    }

    /// The number of ranks that each update a part of a parameter.
    pub(super) fn parts(&self) -> u64 {
        self.sharding().parts() as u64
    }

    /// Elements of the slices that a rank updates, on the rank that has most.
    pub(super) fn sliced(&self) -> u64 {
        self.slices_of(&self.plan.trained_by_stage())
    }

    /// Elements of the slices of these parameters, on the rank that has most.
    pub(super) fn slices_of(&self, stages: &[Vec<u64>]) -> u64 {
        let parts = self.parts() as usize;
        let most = |elements: &u64| slice_range(*elements as usize, parts - 1, parts).len() as u64;
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
        // A GPU's copy lies on the host.
        let is_here = !experiment.host.computes_on_gpus();
        match self.plan.is_shared(self.sharding()) {
            _ if !experiment.background_saves || !is_here => 0,
            true => bytes / self.world(),
            false if self.is_writer => bytes,
            false => 0,
        }
    }

    pub(super) fn world(&self) -> u64 {
        self.here + self.elsewhere
    }
}
