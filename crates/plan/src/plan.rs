//! What an experiment means: every cross-check made, every number derived, nothing optional.

use std::ops::Range;
use std::sync::Arc;

use annulus_architecture::Shape;
use annulus_experiment::{Apart, Experiment, Recompute, Resolved, Settled, State};
use annulus_memory::{ByClass, Class};
use annulus_sequence::{Bytes, Pass, Positions, Schedules, busiest_pairs, pairs_between};
use annulus_yaml::Problems;
use serde_json::Value;

use crate::cost::Share;
use crate::groups::groups;
use crate::passes::Draft;
use crate::processes::{self, Kind, Kinds};
use crate::{LayerGroup, RankPlan, label, tensor};

/// An experiment that can run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// As written, with defaults and with what was chosen.
    pub experiment: Experiment,
    /// The model's shape as it was read.
    pub model: Shape,
    /// The shape that is trained: extended, with its vocabulary.
    pub shape: Shape,
    /// What a rank computes with of it: the shape itself, unless ranks are tensor-parallel.
    pub(crate) own: Shape,
    /// The layer groups, those of most keys first: one, unless some layers slide.
    pub groups: Vec<LayerGroup>,
    /// Sequences per rank and micro-batch.
    pub micro_batch: usize,
    /// What is traded for memory. [`Plan::experiment`] says the same.
    pub memory: Settled,
    /// Micro-batches per optimizer step and rank.
    pub micro_batches: usize,
    /// By rank of the world.
    pub ranks: Vec<RankPlan>,
    /// What one should know before it runs.
    pub warnings: Vec<String>,
    /// Why its strategies were chosen; `None` where they were written.
    pub choice: Option<Chosen>,
    /// The schedules of every group; none before they are proved.
    pub passes: Vec<Arc<Schedules>>,
    /// Schedules that are not proved yet.
    pub(crate) drafts: Vec<Draft>,
}

/// Why `strategy: auto` became what it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// For people: the best strategies.
    pub text: String,
    /// For people who ask: every strategy.
    pub whole: String,
    /// For programs.
    pub json: Value,
}

/// What an outline has for what is traded for memory.
const UNSETTLED: Settled =
    Settled { state: State::Replicated, recompute: Recompute::Layer, loss_chunk: 1, mlp_chunk: 1 };

impl Plan {
    /// The plan of an experiment that names its strategies; of several phases the last. Reads no file
    /// and allocates nothing of the model's size.
    ///
    /// # Errors
    /// Everything that is wrong with the experiment, and a strategy that is left open.
    pub fn new(resolved: &Resolved) -> Result<Plan, Problems> {
        resolved.experiment.check()?;
        Plan::sketch(resolved.phases().last().unwrap_or(resolved), None)?.proved()
    }

    /// The plans of all phases.
    ///
    /// # Errors
    /// What is wrong with any of them.
    pub fn phases(resolved: &Resolved) -> Result<Vec<Plan>, Problems> {
        resolved.experiment.check()?;
        resolved.phases().iter().map(|phase| Plan::sketch(phase, None)?.proved()).collect()
    }

    /// The plan as if there were no layers but those of the group of this number, proved or not.
    ///
    /// # Errors
    /// Everything that is wrong with the experiment.
    pub fn of_group(resolved: &Resolved, group: usize, proved: bool) -> Result<Plan, Problems> {
        resolved.experiment.check()?;
        let plan = Plan::sketch(resolved, Some(group))?;
        if proved { plan.proved() } else { Ok(plan) }
    }

    /// What the layer groups of an experiment are called.
    ///
    /// # Errors
    /// When other layers are to slide than there are.
    pub fn titles(resolved: &Resolved) -> Result<Vec<String>, Problems> {
        let groups = groups(&resolved.experiment, &resolved.shape()?)?;
        Ok(groups.iter().map(LayerGroup::title).collect())
    }

    /// What the plan was made of, its choices written out.
    pub fn resolved(&self) -> Resolved {
        let (experiment, model) = (self.experiment.clone(), self.model.clone());
        Resolved { experiment, model, vocabulary: Some(self.vocabulary()) }
    }

    /// An outline with its numbers.
    fn proved(mut self) -> Result<Plan, Problems> {
        let drafts = std::mem::take(&mut self.drafts);
        let passes = self.groups.iter().zip(drafts);
        let passes = passes.map(|(group, draft)| Ok(Arc::new(self.passes_of(group, draft)?)));
        self.passes = passes.collect::<Result<_, Problems>>()?;
        let kinds = self.kinds();
        self.memory = self.settled(&kinds);
        self.experiment.memory = self.experiment.memory.with(self.memory);
        self.experiment.parallel.state = self.memory.state;
        let heads = self.own.num_attention_heads as u64;
        for (group, passes) in self.groups.iter_mut().zip(&self.passes) {
            group.slowest_pairs = busiest_pairs(passes.of(Pass::Forward)).div_ceil(heads);
        }
        self.ranks = self.rank_plans(&kinds);
        self.warnings = self.narrow_sums();
        self.warnings.extend(self.warnings_of_keys());
        Ok(self)
    }

    /// What follows from the experiment without a proof: no rank has numbers yet.
    pub(crate) fn outline(resolved: &Resolved) -> Result<Plan, Problems> {
        resolved.experiment.check()?;
        Plan::sketch(resolved, None)
    }

    /// The outline of all layer groups, or of one.
    fn sketch(resolved: &Resolved, only: Option<usize>) -> Result<Plan, Problems> {
        let Resolved { experiment, model, .. } = resolved;
        if only.is_none() && experiment.attention.is_open() {
            let problem = experiment.places.problem("attention.strategy", "the strategy is open");
            return Err(problem.hint("name one, or have one chosen first").into());
        }
        processes::check(experiment)?;
        let shape = resolved.shape()?;
        let own = tensor::part(experiment, &shape)?;
        let mut groups = groups(experiment, &shape)?;
        if let Some(only) = only {
            groups = vec![groups.swap_remove(only)];
        }
        let per_replica = experiment.data.batch / experiment.mesh.data;
        let micro_batch = experiment.memory.micro_batch.unwrap_or(per_replica);
        let mut plan = Plan {
            micro_batches: per_replica / micro_batch,
            experiment: experiment.clone(),
            model: model.clone(),
            shape,
            own,
            groups: Vec::new(),
            micro_batch,
            memory: UNSETTLED,
            ranks: Vec::new(),
            warnings: Vec::new(),
            choice: None,
            passes: Vec::new(),
            drafts: Vec::new(),
        };
        for mut group in groups {
            let draft = plan.draft(&mut group)?;
            plan.drafts.push(draft);
            *plan.experiment.attention.backward_of(group.slides()) = Some(group.route.how);
            plan.groups.push(group);
        }
        Ok(plan)
    }

    /// The ranks that are on this machine.
    pub(crate) fn here(&self) -> Range<usize> {
        self.experiment.host.here.clone().unwrap_or(0..self.world())
    }

    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.experiment.mesh.ranks()
    }

    /// The ranks of a sequence, in the order of their places in it.
    pub fn of_sequence(&self) -> impl ExactSizeIterator<Item = &RankPlan> + Clone {
        self.experiment.mesh.replica(0).ranks().map(|rank| &self.ranks[rank])
    }

    /// How its layers are split, in words: `ring`, or `megatron and halo`.
    pub fn strategies(&self) -> String {
        let mut labels: Vec<String> =
            self.groups.iter().map(|group| label(group.strategy)).collect();
        labels.dedup();
        labels.join(" and ")
    }

    /// Tokens of the vocabulary.
    pub fn vocabulary(&self) -> usize {
        // Settled in `new`.
        self.shape.vocab_size.unwrap_or_default()
    }

    /// What is traded for memory: chosen by what the ranks would hold.
    fn settled(&self, kinds: &Kinds) -> Settled {
        let needs = |memory: Settled| {
            // Every device has room for the fullest rank.
            let apart = || {
                let ranks = self.experiment.mesh.replica(0).ranks();
                ranks.map(|rank| self.held_apart(memory, kinds.of(rank)).1).max()
            };
            let together = || {
                let of_kind = |kind| self.held(memory, kind).1;
                let held: Vec<u64> = kinds.all.iter().map(of_kind).collect();
                self.fullest(|rank| held[kinds.number(rank)])
            };
            match self.experiment.host.apart {
                Some(Apart { ranks, .. }) => {
                    apart().unwrap_or_default().saturating_mul(ranks as u64)
                }
                None => together(),
            }
        };
        let longest = self.positions().iter().map(Positions::tokens).max();
        self.experiment.memory.settle(
            &self.experiment.host,
            (self.experiment.parallel.state, self.micro_batch * longest.unwrap_or_default()),
            needs,
        )
    }

    /// What ranks that hold so much each hold together at most: all that are here, or on a GPU those that share it.
    pub(crate) fn fullest(&self, held: impl Fn(usize) -> u64) -> u64 {
        let here: Vec<u64> = self.here().map(held).collect();
        let host = &self.experiment.host;
        let beside = if host.device.is_some() { self.ranks_of_device() } else { here.len().max(1) };
        let together =
            |ranks: &[u64]| ranks.iter().fold(0, |sum: u64, one| sum.saturating_add(*one));
        here.chunks(beside).map(together).max().unwrap_or_default()
    }

    /// Peak memory of a rank of a kind: by class, of all classes at once, and of one more worker, of attention
    /// and of products. What is held while attention runs is the most of any group of layers.
    fn held(&self, memory: Settled, kind: &Kind) -> (ByClass, u64, [u64; 2]) {
        let workers = self.experiment.host.workers;
        let (peak, together, worker) = self.held_by(memory, kind, workers);
        let lent = self.attending(worker[0], workers);
        let peak = add_workspace(peak, lent);
        (peak, together.saturating_add(lent), worker)
    }

    /// What more workers of attention than one take, each `worker`.
    pub(crate) fn attending(&self, worker: u64, workers: usize) -> u64 {
        let apart = self.experiment.host.device.is_some();
        if apart { 0 } else { worker.saturating_mul(workers.saturating_sub(1) as u64) }
    }

    /// The same with so many workers of its products, and one of its attention.
    fn held_by(&self, memory: Settled, kind: &Kind, workers: usize) -> (ByClass, u64, [u64; 2]) {
        let of_group = |(group, passes): (usize, &Arc<Schedules>)| {
            let share = Share::new(self, memory, (group, passes), (kind, workers));
            let peak = share.peak();
            (peak, share.together(&peak), [share.scratch(), share.packing_of_worker()])
        };
        self.passes
            .iter()
            .enumerate()
            .map(of_group)
            .reduce(|one, other| {
                let worker = [one.2[0].max(other.2[0]), one.2[1].max(other.2[1])];
                (one.0.most(other.0), one.1.max(other.1), worker)
            })
            .unwrap_or_default()
    }

    /// What ranks do and hold where the processes on this machine share so many cores: workers of their own compute their
    /// products, and for its attention a rank is lent the others' of its process, too.
    pub fn with_cores(&self, cores: usize) -> Vec<RankPlan> {
        let each = self.ranks_of_process();
        let cores = annulus_machine::share(cores, self.here().len() / each);
        let (workers, kinds) = (annulus_machine::share(cores, each), self.kinds());
        let held: Vec<_> =
            kinds.all.iter().map(|kind| self.held_by(self.memory, kind, workers)).collect();
        let of_rank = |rank: &RankPlan| {
            let (peak, together, _) = held[kinds.number(rank.rank)];
            let lent = self.attending(rank.worker, cores);
            let peak = add_workspace(peak, lent);
            RankPlan { peak, together: together.saturating_add(lent), ..rank.clone() }
        };
        self.ranks.iter().map(of_rank).collect()
    }

    /// Rows of a micro-batch on the rank that has most; all ranks of even sharding have as many.
    pub fn rows(&self) -> usize {
        let longest = self.ranks.iter().map(|rank| rank.positions.tokens()).max();
        self.micro_batch * longest.unwrap_or_default()
    }

    pub(crate) fn rank_plans(&self, kinds: &Kinds) -> Vec<RankPlan> {
        let everything = Positions::all(self.experiment.data.tokens);
        let sequences = (self.micro_batch * self.micro_batches) as u64;
        let pairs = |own: &Positions| -> Vec<u64> {
            let of_group = |group: &LayerGroup| pairs_between(&group.mask, own, &everything);
            self.groups.iter().map(|group| of_group(group).saturating_mul(sequences)).collect()
        };
        let held: Vec<_> = kinds.all.iter().map(|kind| self.held(self.memory, kind)).collect();
        let (mesh, own) = (&self.experiment.mesh, self.experiment.mesh.replica(0));
        let of_place = |(place, positions): (usize, &Positions)| {
            let rank = own.rank(place);
            let (peak, together, [worker, packing]) = held[kinds.number(rank)];
            RankPlan {
                rank,
                positions: positions.clone(),
                pairs: pairs(positions),
                forward: 0,
                backward: 0,
                tensor: 0,
                gradients: 0,
                weights: 0,
                peak,
                together,
                worker: if self.experiment.host.device.is_some() { 0 } else { worker },
                packing,
            }
        };
        let mut places: Vec<RankPlan> = self.positions().iter().enumerate().map(of_place).collect();
        self.add_bytes(&mut places);
        let of_rank = |(rank, (gradients, weights)): (usize, (u64, u64))| {
            let (peak, together, _) = held[kinds.number(rank)];
            let place = places[mesh.place_of(rank)].clone();
            let tensor = self.tensor_bytes(place.positions.tokens());
            RankPlan { rank, tensor, gradients, weights, peak, together, ..place }
        };
        self.gradient_sums().into_iter().zip(self.gathers()).enumerate().map(of_rank).collect()
    }

    /// What attention sends, by place of a sequence.
    fn add_bytes(&self, places: &mut [RankPlan]) {
        for (group, passes) in self.groups.iter().zip(&self.passes) {
            let times = (group.layers.len() * self.micro_batches) as u64;
            let bytes = |pass| Bytes::of(passes.of(pass), self.block()).0;
            let [forward, backward] = [Pass::Forward, Pass::Backward].map(bytes);
            let both = forward.into_iter().zip(backward);
            for (place, (forward, backward)) in places.iter_mut().zip(both) {
                place.forward = place.forward.saturating_add(forward.saturating_mul(times));
                place.backward = place.backward.saturating_add(backward.saturating_mul(times));
            }
        }
    }

    /// Who holds what of a sequence, the same in all layers.
    fn positions(&self) -> &[Positions] {
        self.passes.first().map_or(&[], |passes| &*passes.of(Pass::Forward).positions)
    }
}

/// A peak with more workspace.
pub(crate) fn add_workspace(peak: ByClass, bytes: u64) -> ByClass {
    peak.with(Class::Workspace, peak[Class::Workspace].saturating_add(bytes))
}
