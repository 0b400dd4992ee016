//! What an experiment means: every cross-check made, every number derived, nothing optional.

use annulus_sequence::{
    Bytes, Heads, Mask, Positions, Proof, Schedule, Split, StrategyError, pairs_between,
    pairs_per_hop, prove,
};

use serde::Serialize;

use crate::cost::Share;
use crate::mask::mask_of;
use crate::{
    Attention, Back, Choice, Cluster, Experiment, ModelSource, Packed, Problem, Problems,
    Recompute, Settled, Shape, machine, read_config, rules,
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
    /// The model's shape, with the vocabulary and `rope_theta` settled.
    pub shape: Shape,
    /// The mask.
    pub mask: Mask,
    /// Sequences per rank and micro-batch.
    pub micro_batch: usize,
    /// What is traded for memory. [`Plan::experiment`] says the same.
    pub memory: Settled,
    /// Micro-batches per optimizer step and rank.
    pub micro_batches: usize,
    /// Visible (query, key) pairs of one sequence, per head and layer, that the slowest rank of
    /// every hop computes, summed over the hops: what a forward pass takes when ranks wait for each
    /// other.
    pub slowest_pairs: u64,
    /// By rank of the world.
    pub ranks: Vec<RankPlan>,
    /// What travels backward. [`Plan::experiment`] says the same.
    pub back: Back,
    /// What one should know before it runs.
    pub doubts: Vec<String>,
    /// What `strategy: auto` chose from; `None` where the strategy was written.
    pub choice: Option<Choice>,
}

/// What one rank will hold and hand over, per optimizer step.
#[derive(Clone, Debug, PartialEq)]
pub struct RankPlan {
    /// Its place in the world: replica `rank / mesh.sequence`, part `rank % mesh.sequence` of its
    /// sequences.
    pub rank: usize,
    /// The positions it holds of each of its sequences.
    pub positions: Positions,
    /// Visible (query, key) pairs of its queries, for one head of one layer, over all its sequences
    /// of the step.
    pub pairs: u64,
    /// Attention's forward bytes of all layers and micro-batches: keys and values in the model's
    /// dtype. With `recompute` attention is not run again, so this is all.
    pub forward: u64,
    /// Attention's backward bytes, the way [`Plan::back`] says: queries, keys and values in the
    /// model's dtype, gradients in f32.
    pub backward: u64,
    /// Bytes of the gradient sum. The trainer hands to `comm` one `all_reduce` over data and
    /// sequence per parameter in name order, f32, and one of an f64 tensor of 2 elements, the sum
    /// of losses and the count of targets. With one rank nothing is called, and this is 0.
    pub gradients: u64,
    /// Peak memory by class, bytes.
    pub peak: Peak,
    /// Peak memory of all classes at once, bytes: less than their sum, because they do not peak
    /// together.
    pub together: u64,
}

/// Peak memory of a rank by class, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Peak {
    /// Weights (and f32 masters where weights are bf16).
    pub weights: u64,
    /// f32 gradients.
    pub gradients: u64,
    /// Moments.
    pub optimizer: u64,
    /// Activations.
    pub activations: u64,
    /// Keys, values and their gradients in flight; a rank's own keys and values are activations.
    pub key_value: u64,
    /// What attention needs while it runs: its running state, packed operands, who sees whom.
    pub workspace: u64,
    /// Token ids.
    pub data: u64,
}

impl Peak {
    /// All classes.
    pub fn total(&self) -> u64 {
        self.classes().into_iter().fold(0, |sum, (_, bytes)| sum.saturating_add(bytes))
    }

    /// Every class by its name.
    pub fn classes(&self) -> [(&'static str, u64); 7] {
        [
            ("weights", self.weights),
            ("gradients", self.gradients),
            ("optimizer", self.optimizer),
            ("activations", self.activations),
            ("key_value", self.key_value),
            ("workspace", self.workspace),
            ("data", self.data),
        ]
    }
}

impl Plan {
    /// Checks what spans sections. `vocabulary` is what the tokenizer has, where it is known.
    ///
    /// Reads the model's config.json where `model.path` is given, and the cluster's file where a
    /// strategy is chosen for one; allocates nothing of the model's size. Where a strategy is chosen
    /// for this machine, its typical rates decide: [`Plan::measured`] takes others.
    pub fn new(experiment: Experiment, vocabulary: Option<usize>) -> Result<Plan, Problems> {
        Plan::measured(experiment, vocabulary, |ranks| Cluster::threads(ranks, machine::cores()))
    }

    /// The same. `measure` is told how many ranks there are and says what this machine achieves with
    /// them; it is asked only where `strategy: auto` needs it, and no cluster is described.
    pub fn measured(
        experiment: Experiment,
        vocabulary: Option<usize>,
        measure: impl FnOnce(usize) -> Cluster,
    ) -> Result<Plan, Problems> {
        if !experiment.attention.automatic {
            return Plan::of(experiment, vocabulary);
        }
        let broken = rules::check(&experiment);
        if !broken.is_empty() {
            return Err(Problems(broken));
        }
        let cluster = match &experiment.mesh.cluster {
            Some(path) => Cluster::load(path)?,
            None => this_machine(&experiment, measure),
        };
        let choice = Choice::among(&experiment, vocabulary, &cluster)?;
        let Some(strategy) = choice.chosen else { return Err(choice.none(&experiment).into()) };
        let attention = Attention { strategy, automatic: false, ..experiment.attention.clone() };
        let plan = Plan::of(Experiment { attention, ..experiment }, vocabulary)?;
        Ok(Plan { choice: Some(choice), ..plan })
    }

    /// The plan of an experiment that names its strategy.
    pub(crate) fn of(experiment: Experiment, vocabulary: Option<usize>) -> Result<Plan, Problems> {
        let mut plan = Plan::outline(experiment, vocabulary)?;
        let passes = plan.passes()?;
        plan.memory = plan.settled(&passes);
        plan.experiment.memory = plan.experiment.memory.with(plan.memory);
        plan.slowest_pairs = pairs_per_hop(&passes.forward.0)
            .iter()
            .filter_map(|ranks| ranks.iter().max())
            .fold(0, |sum: u64, pairs| sum.saturating_add(*pairs))
            .div_ceil(plan.shape.num_attention_heads as u64);
        plan.ranks = plan.rank_plans(&passes);
        plan.doubts = plan.doubts([&passes.forward.0, &passes.backward.0]);
        Ok(plan)
    }

    /// What follows from the experiment without a proof: no rank has numbers yet.
    pub(crate) fn outline(
        experiment: Experiment,
        vocabulary: Option<usize>,
    ) -> Result<Plan, Problems> {
        let broken = rules::check(&experiment);
        if !broken.is_empty() {
            return Err(Problems(broken));
        }
        let shape = settled_shape(&experiment, vocabulary)?;
        let mask = mask_of(&experiment.attention);
        let per_replica = experiment.data.batch / experiment.mesh.data;
        let micro_batch = experiment.memory.micro_batch.unwrap_or(per_replica);
        let mut plan = Plan {
            micro_batches: per_replica / micro_batch,
            experiment,
            shape,
            mask,
            micro_batch,
            memory: Settled { recompute: Recompute::Layer, loss_chunk: 1, mlp_chunk: 1 },
            slowest_pairs: 0,
            ranks: Vec::new(),
            back: Back::default(),
            doubts: Vec::new(),
            choice: None,
        };
        plan.back = plan.ways_back()?;
        plan.experiment.attention.backward = Some(plan.back.how);
        Ok(plan)
    }

    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.experiment.mesh.data * self.experiment.mesh.sequence
    }

    /// Tokens of the vocabulary.
    pub fn vocabulary(&self) -> usize {
        // Settled in `new`.
        self.shape.vocab_size.unwrap_or_default()
    }

    /// The schedules of both passes, forward first, not proved.
    pub(crate) fn schedules(&self) -> Result<[Schedule; 2], Problems> {
        let strategy = self.experiment.attention.strategy;
        let split = self.split()?;
        let forward = strategy.forward(&split).map_err(|error| self.refused(&error))?;
        let backward = strategy.backward(&split, self.back.how);
        Ok([forward, backward.map_err(|error| self.refused(&error))?])
    }

    /// The schedules of both passes, proved.
    pub(crate) fn passes(&self) -> Result<Passes, Problems> {
        let [forward, backward] = self.schedules()?;
        let proof = |schedule: &Schedule| {
            prove(schedule).map_err(|flaw| {
                let strategy = schedule.strategy;
                let message = format!("the schedule of `{strategy}` is wrong: {flaw}");
                Problems::from(self.experiment.places.problem("attention.strategy", message))
            })
        };
        let proofs = (proof(&forward)?, proof(&backward)?);
        Ok(Passes { forward: (forward, proofs.0), backward: (backward, proofs.1) })
    }

    /// That the strategy cannot run so, at the key that asks for it.
    pub(crate) fn refused(&self, error: &StrategyError) -> Problems {
        let places = &self.experiment.places;
        let key = match error {
            StrategyError::Shape { .. } => "attention.shape",
            StrategyError::Groups { .. } => "attention.groups",
            _ => "attention.strategy",
        };
        let key = if places.contains(key) { key } else { "attention.strategy" };
        let problem = places.problem(key, error.to_string());
        match error.hint() {
            Some(hint) => problem.hint(hint).into(),
            None => problem.into(),
        }
    }

    pub(crate) fn heads(&self) -> Heads {
        let (query, key_value) = (self.shape.num_attention_heads, self.shape.num_key_value_heads);
        Heads { query, key_value }
    }

    /// The sequence, dealt to the ranks in proportion to their weights.
    pub(crate) fn split(&self) -> Result<Split, Problems> {
        let Experiment { mesh, data, attention, .. } = &self.experiment;
        let refused = |error: &StrategyError| self.refused(error);
        attention.strategy.check(mesh.sequence, self.heads()).map_err(|e| refused(&e))?;
        let layout = self.experiment.layout();
        let weights = mesh.weights.clone().unwrap_or_else(|| vec![1; mesh.sequence]);
        // Of documents that only the data knows, what is made must hold for all.
        let by_data = attention.documents == Some(Packed::ByData);
        let mask = if by_data { self.mask.of_any_documents() } else { self.mask.clone() };
        let dealt = layout.deal_weighted(&mask, data.tokens, &weights);
        let dealt = dealt.map_err(|error| refused(&StrategyError::Deal(error)))?;
        Ok(Split::new(&mask, layout, dealt, self.heads()))
    }

    /// What is traded for memory: chosen by what the ranks would hold.
    fn settled(&self, passes: &Passes) -> Settled {
        let needs = |memory: Settled| {
            let peak = |place| {
                let share = Share::new(self, memory, [&passes.forward, &passes.backward], place);
                share.together(&share.peak())
            };
            let all = (0..self.experiment.mesh.sequence).map(peak).fold(0, u64::saturating_add);
            all.saturating_mul(self.experiment.mesh.data as u64)
        };
        let longest = passes.forward.0.positions.iter().map(Positions::tokens).max();
        self.experiment.memory.settle(self.micro_batch * longest.unwrap_or_default(), needs)
    }

    /// Rows of a micro-batch on the rank that has most; all ranks of an even deal have as many.
    pub fn rows(&self) -> usize {
        let longest = self.ranks.iter().map(|rank| rank.positions.tokens()).max();
        self.micro_batch * longest.unwrap_or_default()
    }

    fn rank_plans(&self, passes: &Passes) -> Vec<RankPlan> {
        let block = self.block();
        let times = (self.shape.num_hidden_layers * self.micro_batches) as u64;
        let (forward, backward) =
            (Bytes::of(&passes.forward.0, block).0, Bytes::of(&passes.backward.0, block).0);
        let everything = Positions::all(self.experiment.data.tokens);
        let sequences = (self.micro_batch * self.micro_batches) as u64;
        let pairs: Vec<u64> = (passes.forward.0.positions.iter())
            .map(|own| pairs_between(&self.mask, own, &everything).saturating_mul(sequences))
            .collect();
        let rank_plan = |rank: usize| {
            let place = rank % self.experiment.mesh.sequence;
            let share = Share::new(self, self.memory, [&passes.forward, &passes.backward], place);
            let peak = share.peak();
            RankPlan {
                rank,
                positions: passes.forward.0.positions[place].clone(),
                pairs: pairs[place],
                forward: forward[place].saturating_mul(times),
                backward: backward[place].saturating_mul(times),
                gradients: if self.world() == 1 { 0 } else { share.gradient_sum() },
                peak,
                together: share.together(&peak),
            }
        };
        (0..self.world()).map(rank_plan).collect()
    }
}

/// A schedule and what is proved of it, for each pass.
pub(crate) struct Passes {
    pub(crate) forward: (Schedule, Proof),
    pub(crate) backward: (Schedule, Proof),
}

/// What `measure` says of this machine, its budget shared evenly by the ranks.
fn this_machine(experiment: &Experiment, measure: impl FnOnce(usize) -> Cluster) -> Cluster {
    let ranks = experiment.mesh.data * experiment.mesh.sequence;
    let memory = Some(experiment.memory.budget() / ranks as u64);
    Cluster { memory, ..measure(ranks) }
}

/// The shape with nothing left open.
fn settled_shape(experiment: &Experiment, vocabulary: Option<usize>) -> Result<Shape, Problems> {
    let mut shape = match &experiment.model.source {
        ModelSource::Folder { path, .. } => read_config(path)?,
        ModelSource::Inline(shape) => shape.clone(),
    };
    shape.rope_theta = experiment.model.rope_theta.unwrap_or(shape.rope_theta);
    let tokens = experiment.data.tokens;
    let longest = shape.max_position_embeddings.map_or(tokens, |longest| longest.max(tokens));
    shape.max_position_embeddings = Some(longest);
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
