//! Gradients and their sums at their peaks, and at the stages of backward.

use std::ops::RangeInclusive;

use super::{F32, SUMS_IN_FLIGHT, Share};

/// Bytes of gradients and their sums at their peaks. No rank is more than one stage ahead of another.
pub(super) struct Peaks {
    /// While backward is in a layer or the loss.
    pub(super) backward: u64,
    /// Over the whole step.
    pub(super) most: u64,
    /// While backward is in the last layer: before its feed-forward half has gradients, in this half, and in the attention half.
    pub(super) in_last: [u64; 3],
}

/// Bytes of gradients by model stage.
struct Stages<'a> {
    share: &'a Share<'a>,
    /// As they come from backward.
    whole: Vec<u64>,
    /// As sums of all micro-batches, from each stage on to the last.
    summed_from: Vec<u64>,
    is_accumulated: bool,
}

impl Share<'_> {
    /// Bytes of gradients and their sums at their peaks.
    pub(super) fn gradients(&self) -> Peaks {
        let stages = self.stages();
        let last = stages.last();
        let in_last = [0, 1, 2].map(|back| stages.held(last - back));
        let (all, parts) = (stages.summed_from(0), self.parts());
        if self.world() == 1 {
            let backward = (0..=last).map(|stage| stages.most_in(stage)).max().unwrap_or_default();
            return Peaks { backward, most: backward, in_last };
        }
        let backward = (1..=last).map(|stage| stages.most_in(stage)).max().unwrap_or_default();
        // The last stages' gradients are whole while they are summed; then the mirrors' sums are joined.
        let largest = stages.whole.iter().max().copied().unwrap_or_default();
        let joined = if self.sharding().mirrors == 1 { 0 } else { largest / parts };
        let ends = [stages.whole[0], joined].map(|beside| all / parts + beside);
        let most = ends.into_iter().chain([backward, stages.within(0)]).max();
        Peaks { backward, most: most.unwrap_or_default(), in_last }
    }

    fn stages(&self) -> Stages<'_> {
        let plan = self.plan;
        let stages = plan.trained_by_stage();
        let of_stage = |sizes: &Vec<u64>| sizes.iter().map(|size| plan.gradient(*size)).sum();
        let is_accumulated = plan.micro_batches > 1;
        // Without accumulation, order-free sums are read as f32 as soon as they are complete.
        let summed = |sizes: &Vec<u64>| {
            if is_accumulated { of_stage(sizes) } else { F32 * sizes.iter().sum::<u64>() }
        };
        let whole = stages.iter().map(of_stage).collect();
        let mut summed_from: Vec<u64> = stages.iter().map(summed).collect();
        for stage in (1..summed_from.len()).rev() {
            summed_from[stage - 1] += summed_from[stage];
        }
        Stages { share: self, whole, summed_from, is_accumulated }
    }
}

impl Stages<'_> {
    /// The last stage: the loss.
    fn last(&self) -> usize {
        self.whole.len() - 1
    }

    /// The sums of `stage` and those behind it.
    fn summed_from(&self, stage: usize) -> u64 {
        self.summed_from.get(stage).copied().unwrap_or_default()
    }

    fn of(&self, some: RangeInclusive<usize>) -> u64 {
        self.whole[some].iter().sum()
    }

    /// Bytes of the loss's gradient of tied weights, which waits for the embedding's.
    fn waits(&self, stage: usize) -> u64 {
        let is_tied = self.share.plan.shape.tie_word_embeddings;
        if is_tied && stage > 0 { self.whole[0] } else { 0 }
    }

    /// Whether gradients are held beside the sums that they are added to, or read as.
    fn are_beside_sums(&self) -> bool {
        self.is_accumulated || self.share.plan.experiment.block().is_some()
    }

    /// Bytes at most while backward is in `stage`.
    fn most_in(&self, stage: usize) -> u64 {
        if self.share.world() > 1 {
            return self.within(stage);
        }
        let all = self.summed_from(0);
        if self.are_beside_sums() { all + self.two(stage) } else { self.alone(stage) }
    }

    /// Bytes while backward is in `stage`, one of the last three.
    fn held(&self, stage: usize) -> u64 {
        if self.share.world() > 1 { self.within(stage) } else { self.alone(stage) }
    }

    /// Bytes of gradients of a single rank's stage that backward is in, and of the one before.
    fn two(&self, stage: usize) -> u64 {
        self.of(stage..=(stage + SUMS_IN_FLIGHT).min(self.last())) + self.waits(stage)
    }

    /// Bytes on a single rank while backward is in `stage`.
    fn alone(&self, stage: usize) -> u64 {
        let first = match (self.is_accumulated, self.are_beside_sums()) {
            (true, _) => 0,
            (false, true) => stage + SUMS_IN_FLIGHT,
            (false, false) => stage + SUMS_IN_FLIGHT + 1,
        };
        self.summed_from(first) + self.two(stage)
    }

    /// Bytes on one of several ranks while backward is in `stage`.
    fn within(&self, stage: usize) -> u64 {
        let (share, last) = (self.share, self.last());
        // Other ranks may not yet have read their slices of one stage more.
        let oldest = (stage + SUMS_IN_FLIGHT + 1).min(last);
        let whole = self.of(stage..=oldest) + self.waits(stage);
        // Sums of earlier micro-batches are all held, and a stage's new ones until they are added.
        let summed = if self.is_accumulated {
            (self.summed_from(0) + self.whole[oldest]) / share.parts()
        } else {
            self.summed_from(oldest.min(stage + 1)) / share.parts()
        };
        whole + summed + self.of(stage..=oldest) / share.world() * share.elsewhere
    }
}
