//! What an experiment means: every cross-check made, every number derived, nothing optional.

use std::ops::Range;
use std::sync::Arc;

use annulus_architecture::Shape;
use annulus_experiment::{Experiment, Memory, Parallel, Recompute, Resolved, Settled, State};
use annulus_sequence::{Bytes, Pass, Positions, Schedules, Strategy, busiest_pairs, pairs_between};
use annulus_yaml::Problems;
use serde_json::Value;

use crate::cost::{Share, sum};
use crate::groups::groups;
use crate::processes::{self, RankKind, RankKinds};
use crate::rank::RankMemory;
use crate::schedules::Draft;
use crate::{LayerGroup, RankPlan, tensor};

/// A checked experiment that can run: its layer groups, schedules, memory and bytes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The experiment as written, with defaults and the plan's choices filled in.
    pub experiment: Experiment,
    /// The model's shape as config.json or the file has it.
    pub model: Shape,
    /// The shape that is trained: extended, and with the size of its vocabulary.
    pub shape: Shape,
    /// The shape that one rank computes with: `shape`, or with tensor parallelism the rank's part.
    pub(crate) own: Shape,
    /// The layer groups, the one without a sliding window first; a single group unless some layers slide.
    pub groups: Vec<LayerGroup>,
    /// Sequences per rank and micro-batch.
    pub micro_batch: usize,
    /// The settings that trade time for memory, nothing left open. [`Plan::experiment`] has the same.
    pub memory: Settled,
    /// The sections `memory` and `parallel` as written, where settings may be open.
    pub(crate) written: (Memory, Parallel),
    /// Micro-batches per optimizer step and rank.
    pub micro_batches: usize,
    /// What each rank holds and sends, by its number in the world.
    pub ranks: Vec<RankPlan>,
    /// Remarks that the user should read before the run starts.
    pub warnings: Vec<String>,
    /// Why the strategies were chosen; `None` where the file names them.
    pub choice: Option<Chosen>,
    /// The proved schedules of every layer group; empty in an outline.
    pub schedules: Vec<Arc<Schedules>>,
    /// The schedules of every layer group that are not proved yet.
    pub(crate) drafts: Vec<Draft>,
}

/// Why `strategy: auto` became what it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// For people: the best strategies.
    pub text: String,
    /// For people who want details: every strategy.
    pub whole: String,
    /// For programs: the same as JSON.
    pub json: Value,
}

/// The memory settings of an outline, before they are chosen.
const UNSETTLED: Settled =
    Settled { state: State::Replicated, recompute: Recompute::Layer, loss_chunk: 1, mlp_chunk: 1 };

impl Plan {
    /// The plan of an experiment that names its strategies; of one with several phases, of the last. Reads no file and allocates nothing of
    /// the model's size.
    ///
    /// # Errors
    /// Everything that is wrong with the experiment, and a strategy that is left open.
    pub fn new(resolved: &Resolved) -> Result<Plan, Problems> {
        resolved.experiment.check()?;
        Plan::sketch(resolved.phases().last().unwrap_or(resolved), None)?.proved()
    }

    /// The plan of every training phase, in order.
    ///
    /// # Errors
    /// What is wrong with any phase.
    pub fn phases(resolved: &Resolved) -> Result<Vec<Plan>, Problems> {
        resolved.experiment.check()?;
        resolved.phases().iter().map(|phase| Plan::sketch(phase, None)?.proved()).collect()
    }

    /// The plan as if layer group number `group` were the only one.
    ///
    /// # Errors
    /// Everything that is wrong with the experiment.
    pub fn of_group(resolved: &Resolved, group: usize) -> Result<Plan, Problems> {
        Plan::outline_of_group(resolved, group)?.proved()
    }

    /// The outline of [`Plan::of_group`]: without proofs, schedules, and numbers of ranks.
    ///
    /// # Errors
    /// As there.
    pub fn outline_of_group(resolved: &Resolved, group: usize) -> Result<Plan, Problems> {
        resolved.experiment.check()?;
        Plan::sketch(resolved, Some(group))
    }

    /// The titles of an experiment's layer groups.
    ///
    /// # Errors
    /// When `sliding` names layers that the model does not have, or all of them.
    pub fn titles(resolved: &Resolved) -> Result<Vec<String>, Problems> {
        let groups = groups(&resolved.experiment, &resolved.shape()?)?;
        Ok(groups.iter().map(LayerGroup::title).collect())
    }

    /// The experiment and model that this plan is of, with the plan's choices written out.
    pub fn resolved(&self) -> Resolved {
        let (experiment, model) = (self.experiment.clone(), self.model.clone());
        Resolved { experiment, model, vocabulary: Some(self.vocabulary()) }
    }

    /// Completes an outline: proves its schedules and computes every rank's numbers.
    fn proved(mut self) -> Result<Plan, Problems> {
        let drafts = std::mem::take(&mut self.drafts);
        let schedules = self.groups.iter().zip(drafts);
        let schedules =
            schedules.map(|(group, draft)| Ok(Arc::new(self.schedules_of(group, draft)?)));
        self.schedules = schedules.collect::<Result<_, Problems>>()?;
        self.settle();
        let heads = self.own.num_attention_heads as u64;
        for (group, schedules) in self.groups.iter_mut().zip(&self.schedules) {
            group.slowest_pairs = busiest_pairs(schedules.of(Pass::Forward)).div_ceil(heads);
        }
        self.warnings = self.narrow_sums();
        self.warnings.extend(self.warnings_of_keys());
        Ok(self)
    }

    /// An outline: what follows from the experiment without a proof. Ranks have no numbers yet.
    pub(crate) fn outline(resolved: &Resolved) -> Result<Plan, Problems> {
        resolved.experiment.check()?;
        Plan::sketch(resolved, None)
    }

    /// The outline of all layer groups, or of group number `only`.
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
            written: (experiment.memory.clone(), experiment.parallel),
            ranks: Vec::new(),
            warnings: Vec::new(),
            choice: None,
            schedules: Vec::new(),
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

    /// The ranks of the world that are on this machine.
    pub(crate) fn here(&self) -> Range<usize> {
        self.experiment.host.here.clone().unwrap_or(0..self.world())
    }

    /// The number of ranks, replicas and tensor-parallel ones included.
    pub fn world(&self) -> usize {
        self.experiment.mesh.ranks()
    }

    /// The ranks that share the first sequence, in the order of their positions.
    pub fn of_sequence(&self) -> impl ExactSizeIterator<Item = &RankPlan> + Clone {
        self.experiment.mesh.replica(0).ranks().map(|rank| &self.ranks[rank])
    }

    /// The strategies of all layer groups, each as `word` writes it: `ring`, or `megatron and halo`.
    pub fn strategies<W: Into<String>>(&self, word: impl Fn(Strategy) -> W) -> String {
        let words = self.groups.iter().map(|group| word(group.strategy).into());
        let mut words: Vec<String> = words.collect();
        words.dedup();
        words.join(" and ")
    }

    /// Tokens of the vocabulary.
    pub fn vocabulary(&self) -> usize {
        // `new` has settled it.
        self.shape.vocab_size.unwrap_or_default()
    }

    /// The most bytes held together by ranks that share a memory, where rank `r` holds `held(r)`: all ranks here, or those of one GPU.
    pub(crate) fn fullest(&self, held: impl Fn(usize) -> u64) -> u64 {
        let here: Vec<u64> = self.here().map(held).collect();
        let host = &self.experiment.host;
        let on_gpus = host.gpu_memory.is_some();
        let beside = if on_gpus { self.ranks_of_device() } else { here.len().max(1) };
        let together = |ranks: &[u64]| sum(ranks.iter().copied());
        here.chunks(beside).map(together).max().unwrap_or_default()
    }

    /// Peak memory of a rank of `kind`: by class, of all classes at the same moment, and what one more worker adds in attention and in
    /// matrix products. What is held while attention runs is the most of any layer group.
    pub(crate) fn held(&self, memory: Settled, kind: &RankKind) -> RankMemory {
        let workers = self.experiment.host.workers;
        let held = self.held_by(memory, kind, workers);
        held.and_workspace(self.attending(held.worker, workers))
    }

    /// Bytes that attention workers beyond the first take, `worker` bytes each.
    pub(crate) fn attending(&self, worker: u64, workers: usize) -> u64 {
        let on_gpus = self.experiment.host.gpu_memory.is_some();
        if on_gpus { 0 } else { worker.saturating_mul(workers.saturating_sub(1) as u64) }
    }

    /// Peak memory of a rank of `kind` with `workers` for its matrix products, and one for its attention: as [`Plan::held`] returns it.
    fn held_by(&self, memory: Settled, kind: &RankKind, workers: usize) -> RankMemory {
        let of_group = |(group, schedules): (usize, &Arc<Schedules>)| {
            let share = Share::new(self, memory, group, schedules, kind, workers);
            let peak_by_class = share.peak_by_class();
            let (peak, packing) =
                (share.peak(&peak_by_class, share.key_values()), share.packing_of_worker());
            RankMemory { peak_by_class, peak, worker: share.scratch(), packing }
        };
        self.schedules.iter().enumerate().map(of_group).reduce(RankMemory::most).unwrap_or_default()
    }

    /// What ranks do and hold where the processes on this machine share `cores`: a rank's own workers compute its matrix products, and for
    /// its attention it also borrows the workers of its process's other ranks.
    pub fn with_cores(&self, cores: usize) -> Vec<RankPlan> {
        let each = self.ranks_of_process();
        let cores = annulus_machine::share(cores, self.here().len() / each);
        let (workers, kinds) = (annulus_machine::share(cores, each), self.rank_kinds());
        let held: Vec<_> =
            kinds.all.iter().map(|kind| self.held_by(self.memory, kind, workers)).collect();
        let of_rank = |rank: &RankPlan| {
            let lent = self.attending(rank.worker, cores);
            let RankMemory { peak_by_class, peak, .. } =
                held[kinds.number(rank.rank)].and_workspace(lent);
            RankPlan { peak_by_class, peak, ..rank.clone() }
        };
        self.ranks.iter().map(of_rank).collect()
    }

    /// Rows of a micro-batch on the rank that has most; even sharding gives all ranks as many.
    pub fn rows(&self) -> usize {
        let longest = self.positions().iter().map(Positions::tokens).max();
        self.micro_batch * longest.unwrap_or_default()
    }

    pub(crate) fn rank_plans(&self, kinds: &RankKinds) -> Vec<RankPlan> {
        let everything = Positions::all(self.experiment.data.tokens);
        let sequences = (self.micro_batch * self.micro_batches) as u64;
        let pairs = |own: &Positions| -> Vec<u64> {
            let of_group = |group: &LayerGroup| pairs_between(&group.mask, own, &everything);
            self.groups.iter().map(|group| of_group(group).saturating_mul(sequences)).collect()
        };
        let held: Vec<_> = kinds.all.iter().map(|kind| self.held_there(kind)).collect();
        let (mesh, own) = (&self.experiment.mesh, self.experiment.mesh.replica(0));
        let of_place = |(place, positions): (usize, &Positions)| {
            let rank = own.rank(place);
            let RankMemory { peak_by_class, peak, worker, packing } = held[kinds.number(rank)];
            RankPlan {
                rank,
                positions: positions.clone(),
                pairs: pairs(positions),
                forward: 0,
                backward: 0,
                tensor: 0,
                gradients: 0,
                weights: 0,
                peak_by_class,
                peak,
                worker: if self.experiment.host.gpu_memory.is_some() { 0 } else { worker },
                packing,
            }
        };
        let mut places: Vec<RankPlan> = self.positions().iter().enumerate().map(of_place).collect();
        self.add_bytes(&mut places);
        let of_rank = |(rank, (gradients, weights)): (usize, (u64, u64))| {
            let RankMemory { peak_by_class, peak, .. } = held[kinds.number(rank)];
            let place = places[mesh.place_of(rank)].clone();
            let tensor = self.tensor_bytes(place.positions.tokens());
            RankPlan { rank, tensor, gradients, weights, peak_by_class, peak, ..place }
        };
        self.gradient_sums().into_iter().zip(self.gathers()).enumerate().map(of_rank).collect()
    }

    /// Memory of a rank of `kind`, which shares its process's or, on a described cluster, has a device of its own.
    fn held_there(&self, kind: &RankKind) -> RankMemory {
        let held = self.held(self.memory, kind);
        if self.experiment.host.cluster.is_none() {
            return held;
        }
        let (peak_by_class, peak) = self.held_apart(self.memory, kind);
        RankMemory { peak_by_class, peak, ..held }
    }

    /// Adds what attention sends to the ranks of a sequence, by place.
    fn add_bytes(&self, places: &mut [RankPlan]) {
        for (group, schedules) in self.groups.iter().zip(&self.schedules) {
            let times = (group.layers.len() * self.micro_batches) as u64;
            let bytes = |pass| Bytes::of(schedules.of(pass), self.block()).0;
            let [forward, backward] = [Pass::Forward, Pass::Backward].map(bytes);
            let both = forward.into_iter().zip(backward);
            for (place, (forward, backward)) in places.iter_mut().zip(both) {
                place.forward = place.forward.saturating_add(forward.saturating_mul(times));
                place.backward = place.backward.saturating_add(backward.saturating_mul(times));
            }
        }
    }

    /// Which positions every rank of a sequence holds, the same in all layers.
    pub(crate) fn positions(&self) -> &[Positions] {
        self.schedules.first().map_or(&[], |schedules| &*schedules.of(Pass::Forward).positions)
    }
}
