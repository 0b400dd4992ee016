//! The sums of gradients over ranks: what they send, and what they hold meanwhile.
//!
//! Backward posts the sums of a stage when it has gone through it, and goes on. Of N ranks each sums a slice of every parameter
//! ([`slice`]). Of the T ranks of a process each updates a slice of T, and is sent by its twins in other processes what they have
//! summed of it.

use std::ops::RangeInclusive;

use annulus_architecture::{Besides, Target, slice};

use super::{F32, Share};
use crate::Plan;

/// Stages whose sums are on their way at once, beside the one that backward is in.
pub const SUMS_IN_FLIGHT: usize = 1;
/// What is summed beside the gradients: the sum of losses and the count of targets, and the square of the norm, f64.
const NUMBERS: u64 = 3 * 8;

impl Plan {
    /// Elements of the parameters that are trained, of every stage of the model in order: the embedding, the two halves of each layer,
    /// the loss. Tied weights are the embedding's.
    pub(crate) fn trained_by_stage(&self) -> Vec<Vec<u64>> {
        let (shape, lora) = (&self.shape, self.experiment.lora.as_ref());
        let [h, m] = [shape.hidden_size, shape.intermediate_size].map(|size| size as u64);
        let (a, k, dim) = (shape.query_width(), shape.key_value_width(), shape.head_dim as u64);
        let trains = |part| lora.is_none_or(|lora| lora.trains(part));
        let only = |is_there: bool, sizes: &[u64]| if is_there { sizes.to_vec() } else { vec![] };
        let norms = |of_heads| {
            let all = [only(true, &[h]), only(of_heads, &[dim, dim])].concat();
            only(trains(Besides::Norms), &all)
        };
        let weights = |sizes: Vec<u64>| if lora.is_none() { sizes } else { Vec::new() };
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
        let table = self.vocabulary() as u64 * h;
        let has_head = !shape.tie_word_embeddings && trains(Besides::Head);
        let mut stages = vec![only(trains(Besides::Embeddings), &[table])];
        for _ in 0..shape.num_hidden_layers {
            stages.extend([attention.clone(), feed_forward.clone()]);
        }
        stages.push([norms(false), only(has_head, &[table])].concat());
        debug_assert_eq!(stages.iter().flatten().sum::<u64>(), self.counts().trained);
        stages
    }

    /// Elements of the adapters of these projections of a layer.
    fn adapters(&self, targets: &[Target]) -> Vec<u64> {
        let Some(lora) = &self.experiment.lora else { return Vec::new() };
        let own = targets.iter().filter(|target| lora.targets.contains(target));
        let sizes = own.flat_map(|target| target.sizes(&self.shape));
        sizes.map(|size| lora.rank as u64 * size).collect()
    }

    /// The share of all gradients that is summed last, when backward is over.
    pub fn summed_last(&self) -> f64 {
        let sums = self.trained_by_stage().into_iter().map(|sizes| sizes.into_iter().sum::<u64>());
        let sums: Vec<u64> = sums.collect();
        let last = sums.iter().find(|sum| **sum > 0).copied().unwrap_or_default();
        last as f64 / sums.iter().sum::<u64>().max(1) as f64
    }

    /// What each rank hands over to sum gradients, bytes; nothing where there is one.
    pub(crate) fn gradient_sums(&self) -> Vec<u64> {
        let (world, here) = (self.world(), self.ranks_of_process());
        if world == 1 {
            return vec![0];
        }
        let (stages, twins) = (self.trained_by_stage(), world / here);
        let of_rank = |rank: usize| {
            let slot = rank % here * twins + rank / here;
            let sent = |elements: &u64| {
                let own = slice(*elements as usize, slot, world).len() as u64;
                elements - own + own * (twins as u64 - 1)
            };
            F32 * stages.iter().flatten().map(sent).sum::<u64>() + NUMBERS
        };
        (0..world).map(of_rank).collect()
    }
}

impl Share<'_> {
    /// Elements of the slices that a rank updates, of the rank that has most.
    pub(super) fn sliced(&self) -> u64 {
        let here = self.here as usize;
        let most = |elements: u64| slice(elements as usize, here - 1, here).len() as u64;
        self.plan.trained_by_stage().into_iter().flatten().map(most).sum()
    }

    /// Gradients at their fullest, and their sums: while backward is in a layer or in the loss, and ever. No rank is more than a stage
    /// ahead.
    pub(super) fn gradients(&self) -> [u64; 2] {
        let stages = self.plan.trained_by_stage();
        let stages: Vec<u64> = stages.iter().map(|sizes| F32 * sizes.iter().sum::<u64>()).collect();
        let (all, world) = (stages.iter().sum::<u64>(), self.plan.world() as u64);
        if world == 1 {
            return [all; 2];
        }
        let last = stages.len() - 1;
        let of = |some: RangeInclusive<usize>| stages[some].iter().sum::<u64>();
        let within = |stage: usize| {
            // Of one more the others may not have read theirs yet.
            let oldest = (stage + SUMS_IN_FLIGHT + 1).min(last);
            // What the loss gives to tied weights waits for the rest of their gradient; what earlier micro-batches gave, for the last.
            let whole = match (self.plan.micro_batches, self.plan.shape.tie_word_embeddings) {
                (1, true) if stage > 0 => of(stage..=oldest) + stages[0],
                (1, _) => of(stage..=oldest),
                _ => of(0..=oldest),
            };
            let summed = of(oldest.min(stage + 1)..=last) / self.here;
            whole + summed + of(stage..=oldest) / world * self.elsewhere
        };
        let backward = (1..=last).map(within).max().unwrap_or_default();
        // The last are whole while they are summed; then what the twins have summed is put together.
        let largest = stages.iter().max().copied().unwrap_or_default();
        let ends = [stages[0], largest / self.here].map(|beside| all / self.here + beside);
        [backward, ends.into_iter().chain([backward, within(0)]).max().unwrap_or_default()]
    }
}
