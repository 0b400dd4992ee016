//! What an experiment means: every cross-check made, every number derived, nothing optional.

use std::sync::Arc;

use annulus_architecture::turning;
use annulus_sequence::{Bytes, Pass, Positions, Schedules, busiest_pairs, pairs_between};

use crate::cluster::label;
use crate::cost::Share;
use crate::passes::Draft;
use crate::sliding::kinds;
use crate::{
    Choice, Cluster, Experiment, Host, LayerKind, Peak, Problem, Problems, RankPlan, Recompute,
    Settled, Shape, rules,
};

/// The tokenizer whose ids are the bytes, and one more between documents.
const BYTES: &str = "bytes";
/// How many bytes there are.
const BYTE_VALUES: usize = 256;

/// An experiment that can run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// As written, with defaults and with what was chosen.
    pub experiment: Experiment,
    /// The model's shape, with the vocabulary and the rotary embedding settled: extended, where it is.
    pub shape: Shape,
    /// The kinds of layers, those of most keys first: one, unless some layers slide.
    pub kinds: Vec<LayerKind>,
    /// Sequences per rank and micro-batch.
    pub micro_batch: usize,
    /// What is traded for memory. [`Plan::experiment`] says the same.
    pub memory: Settled,
    /// Micro-batches per optimizer step and rank.
    pub micro_batches: usize,
    /// By rank of the world.
    pub ranks: Vec<RankPlan>,
    /// What one should know before it runs.
    pub doubts: Vec<String>,
    /// What `strategy: auto` chose from; `None` where the strategy was written.
    pub choice: Option<Choice>,
    /// The schedules of every kind; none before they are proved.
    pub passes: Vec<Arc<Schedules>>,
    /// Schedules that are not proved yet.
    pub(crate) drafts: Vec<Draft>,
}

impl Plan {
    /// Checks what spans sections. `vocabulary` is what the tokenizer has, where it is known.
    ///
    /// Reads the model's config.json where `model.path` is given, and the cluster's file where a
    /// strategy is chosen for one; allocates nothing of the model's size. Where a strategy is chosen
    /// for this machine, its typical rates decide: [`Plan::measured`] takes others. Of several stages it gives the last:
    /// [`Plan::all`] has all.
    pub fn new(experiment: Experiment, vocabulary: Option<usize>) -> Result<Plan, Problems> {
        Plan::measured(experiment, vocabulary, |ranks| {
            Cluster::threads(ranks, annulus_machine::cores())
        })
    }

    /// The same. `measure` is told how many ranks there are and says what this machine achieves with
    /// them; it is asked only where `strategy: auto` needs it, and no cluster is described.
    pub fn measured(
        experiment: Experiment,
        vocabulary: Option<usize>,
        measure: impl FnOnce(usize) -> Cluster,
    ) -> Result<Plan, Problems> {
        if !experiment.stages.is_empty() {
            let mut plans = Plan::all_measured(experiment, vocabulary, measure)?;
            return Ok(plans.swap_remove(plans.len() - 1));
        }
        let mut experiment = experiment.of_model()?;
        let described = experiment.mesh.cluster.as_deref().map(Cluster::load).transpose()?;
        if let Some(cluster) = &described {
            cluster.settle(&mut experiment);
        }
        if !experiment.attention.is_open() {
            return Plan::of(experiment, vocabulary);
        }
        let broken = rules::check(&experiment);
        if !broken.is_empty() {
            return Err(Problems(broken));
        }
        let cluster = described.unwrap_or_else(|| this_machine(&experiment, measure));
        let choice = Choice::among(&experiment, vocabulary, &cluster)?;
        let Some(chosen) = choice.settled(&experiment) else {
            return Err(choice.none(&experiment).into());
        };
        let plan = Plan::of(chosen, vocabulary)?;
        Ok(Plan { choice: Some(choice), ..plan })
    }

    /// The plan of an experiment that names its strategies.
    pub(crate) fn of(experiment: Experiment, vocabulary: Option<usize>) -> Result<Plan, Problems> {
        Plan::outline(experiment, vocabulary, None)?.proved()
    }

    /// The plan as if there were no layers but those of the kind of this number.
    pub(crate) fn part(
        experiment: Experiment,
        vocabulary: Option<usize>,
        kind: usize,
    ) -> Result<Plan, Problems> {
        Plan::outline(experiment, vocabulary, Some(kind))?.proved()
    }

    /// What the kinds of layers of an experiment are called.
    pub(crate) fn titles(
        experiment: &Experiment,
        vocabulary: Option<usize>,
    ) -> Result<Vec<String>, Problems> {
        let shape = settled_shape(experiment, vocabulary)?;
        Ok(kinds(experiment, &shape)?.iter().map(LayerKind::title).collect())
    }

    /// An outline with its numbers.
    fn proved(mut self) -> Result<Plan, Problems> {
        let drafts = std::mem::take(&mut self.drafts);
        let passes = self.kinds.iter().zip(drafts);
        let passes = passes.map(|(kind, draft)| Ok(Arc::new(self.passes_of(kind, draft)?)));
        self.passes = passes.collect::<Result<_, Problems>>()?;
        self.memory = self.settled();
        self.experiment.memory = self.experiment.memory.with(self.memory);
        let heads = self.shape.num_attention_heads as u64;
        for (kind, passes) in self.kinds.iter_mut().zip(&self.passes) {
            kind.slowest_pairs = busiest_pairs(passes.of(Pass::Forward)).div_ceil(heads);
        }
        self.ranks = self.rank_plans();
        self.doubts = self.doubts();
        self.doubts.extend(self.too_long());
        Ok(self)
    }

    /// What follows from the experiment without a proof, of all kinds of layers or of one: no rank has
    /// numbers yet.
    pub(crate) fn outline(
        experiment: Experiment,
        vocabulary: Option<usize>,
        only: Option<usize>,
    ) -> Result<Plan, Problems> {
        let broken = rules::check(&experiment);
        if !broken.is_empty() {
            return Err(Problems(broken));
        }
        let shape = settled_shape(&experiment, vocabulary)?;
        let mut kinds = kinds(&experiment, &shape)?;
        if let Some(only) = only {
            kinds = vec![kinds.swap_remove(only)];
        }
        let per_replica = experiment.data.batch / experiment.mesh.data;
        let micro_batch = experiment.memory.micro_batch.unwrap_or(per_replica);
        let mut plan = Plan {
            micro_batches: per_replica / micro_batch,
            experiment,
            shape,
            kinds: Vec::new(),
            micro_batch,
            memory: Settled { recompute: Recompute::Layer, loss_chunk: 1, mlp_chunk: 1 },
            ranks: Vec::new(),
            doubts: Vec::new(),
            choice: None,
            passes: Vec::new(),
            drafts: Vec::new(),
        };
        for mut kind in kinds {
            let draft = plan.draft(&mut kind)?;
            plan.drafts.push(draft);
            *plan.experiment.attention.backward_of(&kind) = Some(kind.route.how);
            plan.kinds.push(kind);
        }
        Ok(plan)
    }

    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.experiment.mesh.data * self.experiment.mesh.sequence
    }

    /// How its layers are split, in words: `ring`, or `megatron and halo`.
    pub fn strategies(&self) -> String {
        let mut labels: Vec<String> = self.kinds.iter().map(|kind| label(kind.strategy)).collect();
        labels.dedup();
        labels.join(" and ")
    }

    /// Tokens of the vocabulary.
    pub fn vocabulary(&self) -> usize {
        // Settled in `new`.
        self.shape.vocab_size.unwrap_or_default()
    }

    /// What is traded for memory: chosen by what the ranks would hold.
    fn settled(&self) -> Settled {
        let needs = |memory: Settled| {
            let together = |place| self.held(memory, place).1;
            let all = (0..self.experiment.mesh.sequence).map(together).fold(0, u64::saturating_add);
            all.saturating_mul(self.experiment.mesh.data as u64)
        };
        let longest = self.positions().iter().map(Positions::tokens).max();
        self.experiment.memory.settle(
            &self.experiment.host,
            self.micro_batch * longest.unwrap_or_default(),
            needs,
        )
    }

    /// Peak memory of the rank at `place` of a sequence: by class, of all classes at once, and of one more worker, of attention
    /// and of products. What is held while attention runs is the most of any kind of layers.
    fn held(&self, memory: Settled, place: usize) -> (Peak, u64, [u64; 2]) {
        let workers = self.experiment.host.workers;
        let (peak, together, worker) = self.held_by(memory, place, workers);
        let lent = self.attending(worker[0], workers);
        let peak = Peak { workspace: peak.workspace.saturating_add(lent), ..peak };
        (peak, together.saturating_add(lent), worker)
    }

    /// What more workers of attention than one take, each `worker`.
    fn attending(&self, worker: u64, workers: usize) -> u64 {
        let apart = self.experiment.host.device.is_some();
        if apart { 0 } else { worker.saturating_mul(workers.saturating_sub(1) as u64) }
    }

    /// The same with so many workers of its products, and one of its attention.
    fn held_by(&self, memory: Settled, place: usize, workers: usize) -> (Peak, u64, [u64; 2]) {
        let of_kind = |passes: &Arc<Schedules>| {
            let share = Share::new(self, memory, passes, (place, workers));
            let peak = share.peak();
            (peak, share.together(&peak), [share.scratch(), share.packing_of_worker()])
        };
        self.passes
            .iter()
            .map(of_kind)
            .reduce(|one, other| {
                let worker = [one.2[0].max(other.2[0]), one.2[1].max(other.2[1])];
                (one.0.most(other.0), one.1.max(other.1), worker)
            })
            .unwrap_or_default()
    }

    /// What ranks do and hold where they share so many cores: workers of their own compute their products, and for its attention a
    /// rank is lent the others', too.
    pub fn with_cores(&self, cores: usize) -> Vec<RankPlan> {
        let workers = annulus_machine::share(cores, self.world());
        let of_rank = |rank: &RankPlan| {
            let place = rank.rank % self.experiment.mesh.sequence;
            let (peak, together, _) = self.held_by(self.memory, place, workers);
            let lent = self.attending(rank.worker, cores);
            let peak = Peak { workspace: peak.workspace.saturating_add(lent), ..peak };
            RankPlan { peak, together: together.saturating_add(lent), ..rank.clone() }
        };
        self.ranks.iter().map(of_rank).collect()
    }

    /// Rows of a micro-batch on the rank that has most; all ranks of an even deal have as many.
    pub fn rows(&self) -> usize {
        let longest = self.ranks.iter().map(|rank| rank.positions.tokens()).max();
        self.micro_batch * longest.unwrap_or_default()
    }

    fn rank_plans(&self) -> Vec<RankPlan> {
        let everything = Positions::all(self.experiment.data.tokens);
        let sequences = (self.micro_batch * self.micro_batches) as u64;
        let pairs = |own: &Positions| -> Vec<u64> {
            let of_kind = |kind: &LayerKind| pairs_between(&kind.mask, own, &everything);
            self.kinds.iter().map(|kind| of_kind(kind).saturating_mul(sequences)).collect()
        };
        let of_place = |(place, positions): (usize, &Positions)| {
            let (peak, together, [worker, packing]) = self.held(self.memory, place);
            RankPlan {
                rank: place,
                positions: positions.clone(),
                pairs: pairs(positions),
                forward: 0,
                backward: 0,
                gradients: if self.world() == 1 { 0 } else { self.gradient_sum() },
                peak,
                together,
                worker: if self.experiment.host.device.is_some() { 0 } else { worker },
                packing,
            }
        };
        let mut places: Vec<RankPlan> = self.positions().iter().enumerate().map(of_place).collect();
        for (kind, passes) in self.kinds.iter().zip(&self.passes) {
            let times = (kind.layers.len() * self.micro_batches) as u64;
            let bytes = |schedule| Bytes::of(schedule, self.block()).0;
            let (forward, backward) =
                (bytes(passes.of(Pass::Forward)), bytes(passes.of(Pass::Backward)));
            for (place, (forward, backward)) in places.iter_mut().zip(forward.iter().zip(backward))
            {
                place.forward = place.forward.saturating_add(forward.saturating_mul(times));
                place.backward = place.backward.saturating_add(backward.saturating_mul(times));
            }
        }
        let of_rank = |rank: usize| RankPlan { rank, ..places[rank % places.len()].clone() };
        (0..self.world()).map(of_rank).collect()
    }

    /// Who holds what of a sequence, the same in all layers.
    fn positions(&self) -> &[Positions] {
        self.passes.first().map_or(&[], |passes| &*passes.of(Pass::Forward).positions)
    }
}

/// What `measure` says of this machine, its budget shared evenly by the ranks.
fn this_machine(experiment: &Experiment, measure: impl FnOnce(usize) -> Cluster) -> Cluster {
    let ranks = experiment.mesh.data * experiment.mesh.sequence;
    let memory = Some(experiment.memory.budget(&experiment.host) / ranks as u64);
    let Host { core, workers: cores, .. } = experiment.host;
    Cluster { memory, cores, core, ..measure(ranks) }
}

/// The shape with nothing left open.
fn settled_shape(experiment: &Experiment, vocabulary: Option<usize>) -> Result<Shape, Problems> {
    let mut shape = experiment.model.source.shape()?;
    shape.rope.theta = experiment.model.rope_theta.unwrap_or(shape.rope.theta);
    if let Some(extension) = &experiment.extend {
        shape = extension.apply(shape, &experiment.places)?;
        if let Some(broken) = turning(&shape, &experiment.places, "extend") {
            return Err(broken.into());
        }
    }
    shape.max_position_embeddings = Some(shape.longest(experiment.data.tokens));
    shape.vocab_size = Some(settled_vocabulary(experiment, &shape, vocabulary)?);
    Ok(shape)
}

fn settled_vocabulary(
    experiment: &Experiment,
    shape: &Shape,
    vocabulary: Option<usize>,
) -> Result<usize, Problem> {
    let (places, tokenizer) = (&experiment.places, &experiment.data.tokenizer);
    // Only a second document needs more than the bytes: the data says so when it is opened.
    let spare = |rows| tokenizer == BYTES && rows >= BYTE_VALUES;
    match (shape.vocab_size, vocabulary) {
        (Some(rows), Some(words)) if rows < words && !spare(rows) => {
            let message =
                format!("the model has {rows} tokens, but the tokenizer `{tokenizer}` has {words}");
            let key = if places.contains("model.path") { "model.path" } else { "model.vocab_size" };
            let hint = format!("a vocabulary of at least {words}, or the model's own tokenizer");
            Err(places.problem(key, message).hint(hint))
        }
        (Some(rows), _) => Ok(rows),
        (None, Some(words)) => Ok(words),
        (None, None) => {
            let message = "`model.vocab_size` is missing, and no tokenizer says it";
            Err(places.problem("model", message).hint("add `vocab_size:` under `model:`"))
        }
    }
}
