//! Weights of which a process holds a shard: those of a stage are gathered before it runs and dropped after it.
//!
//! Every rank gathers from the ranks with its number in the other holders, so that each shard is sent to a process once; the ranks of a
//! process put together what they gathered (ZeRO stage 3, Rajbhandari et al. 2020, arXiv 1910.02054). Meanwhile the next stage's weights
//! are under way.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use annulus_comm::{AllGather, Label, WEIGHTS, empty};
use annulus_memory::{Class, scope};
use annulus_model::Weights;
use annulus_trace::{Activity, begin};
use candle_core::{Result as Made, Tensor};

use crate::step::rank::Rank;
use crate::step::state::division::Division;
use crate::step::state::meeting::Meeting;
use crate::step::state::parameters::RankParameters;
use crate::{Result, TrainError};

/// By parameter of a stage, a rank's pieces of it in the order of elements.
type Pieces = Vec<Vec<Tensor>>;
/// Where the ranks of a process assemble the weights of a stage.
pub(crate) type Table = Meeting<Pieces, Made<Arc<Weights>>>;

/// Where a pass gets the weights of a stage.
pub(crate) enum WeightSource<'a> {
    /// The process holds all weights.
    Whole(&'a Weights),
    /// The process holds a shard of the weights.
    Sharded(Gathering<'a>),
}

/// Weights to run a stage with: its own, or those of the whole model.
pub(crate) enum StageWeights<'a> {
    All(&'a Weights),
    Stage(Arc<Weights>),
    /// An empty map, for a backward that reads no weights.
    Nothing(Weights),
}

impl<'a> WeightSource<'a> {
    /// The weights of stage number `stage`; `next` is the stage whose weights are wanted after it.
    pub(crate) fn of(&mut self, stage: usize, next: Option<usize>) -> Result<StageWeights<'a>> {
        match self {
            WeightSource::Whole(weights) => Ok(StageWeights::All(weights)),
            WeightSource::Sharded(gathering) => Ok(StageWeights::Stage(gathering.of(stage, next)?)),
        }
    }

    /// Sets whether another micro-batch follows the next one: backward then prefetches the first stage for its forward pass.
    pub(crate) fn prefetch_next_forward(&mut self, on: bool) {
        if let WeightSource::Sharded(gathering) = self {
            gathering.prefetch_next_forward = on;
        }
    }

    /// Gathers all that a forward pass gathers, without running it: every rank must take part in the others' gathers.
    pub(crate) fn gather_only(&mut self, rank: &Rank) -> Result<()> {
        let stages = rank.model.stages.len();
        if let WeightSource::Sharded(_) = self {
            for stage in 0..stages {
                rank.progress()?;
                self.of(stage, Some(stage + 1).filter(|next| *next < stages))?;
            }
        }
        Ok(())
    }

    /// The weights that the backward of a stage reads, which may be none; the first stage never reads any.
    pub(crate) fn of_backward(&mut self, rank: &Rank, stage: usize) -> Result<StageWeights<'a>> {
        let prefetch_next_forward =
            matches!(self, WeightSource::Sharded(gathering) if gathering.prefetch_next_forward);
        if rank.model.stages[stage].reads_weights_back() {
            self.of(stage, stage.checked_sub(1).filter(|next| *next > 0 || prefetch_next_forward))
        } else {
            Ok(StageWeights::Nothing(Weights::new()))
        }
    }
}

impl Deref for StageWeights<'_> {
    type Target = Weights;
    fn deref(&self) -> &Weights {
        match self {
            StageWeights::All(weights) => weights,
            StageWeights::Stage(weights) => weights,
            StageWeights::Nothing(none) => none,
        }
    }
}

/// Gathers the weights of stages one after the other. All ranks must ask for the same stages in the same order.
pub(crate) struct Gathering<'a> {
    rank: &'a Rank,
    state: &'a RankParameters,
    step: u64,
    /// How many gathers were posted: the next one's hop.
    hops: usize,
    prefetch_next_forward: bool,
    posted: Option<(usize, AllGather)>,
    held: Option<(usize, Arc<Weights>)>,
}

impl<'a> Gathering<'a> {
    pub(crate) fn new(rank: &'a Rank, state: &'a RankParameters, step: u64) -> Gathering<'a> {
        Gathering {
            rank,
            state,
            step,
            hops: 0,
            prefetch_next_forward: false,
            posted: None,
            held: None,
        }
    }

    fn of(&mut self, stage: usize, next: Option<usize>) -> Result<Arc<Weights>> {
        // Another stage's weights are dropped before this one's are assembled.
        let held = self.held.take().filter(|(of, _)| *of == stage);
        let held = held.map_or_else(|| self.gather(stage), |(_, held)| Ok(held))?;
        self.held = Some((stage, held.clone()));
        let is_posted = |stage| self.posted.as_ref().is_some_and(|(of, _)| *of == stage);
        if let Some(next) = next.filter(|next| *next != stage && !is_posted(*next)) {
            self.posted = Some((next, self.post(next)?));
        }
        Ok(held)
    }

    fn gather(&mut self, stage: usize) -> Result<Arc<Weights>> {
        let posted = self.posted.take().filter(|(of, _)| *of == stage);
        let posted = posted.map_or_else(|| self.post(stage), |(_, posted)| Ok(posted))?;
        let (waiting, bytes, label) = (begin(), posted.sent(), self.label(stage));
        let pieces = posted.pieces()?.into_iter();
        let pieces = pieces.map(|all| all.into_iter().map(|(_, piece)| piece).collect()).collect();
        let (rank, names) = (self.rank, self.rank.model.stages[stage].parameters());
        let division = &rank.division;
        let first = rank.comm.rank() - division.process_ranks().own + division.sharers().first;
        let make = |all: Vec<Pieces>| {
            let places: BTreeMap<&String, usize> = names.iter().zip(0..).collect();
            let pieces = |name: &String| {
                Ok(all.iter().flat_map(|all| &all[places[name]]).cloned().collect())
            };
            self.state.parameters.assembled(&names.iter().collect(), first, pieces).map(Arc::new)
        };
        let made = rank.meet(&self.state.table, division.sharers(), pieces, make, label)?;
        waiting.end(|| of_weights(names, bytes, division));
        match made.as_ref() {
            Ok(weights) => Ok(weights.clone()),
            Err(why) => Err(TrainError::Internal(why.to_string())),
        }
    }

    /// Posts this rank's pieces of the weights of a stage.
    fn post(&mut self, stage: usize) -> Result<AllGather> {
        let names = self.rank.model.stages[stage].parameters();
        let label = self.label(stage);
        post(self.rank, self.state, names, label)
    }

    fn label(&mut self, stage: usize) -> Label {
        self.hops += 1;
        Label { step: self.step, pass: WEIGHTS, layer: stage, hop: self.hops - 1 }
    }
}

/// Posts this rank's slices of these parameters for the other holders.
fn post(rank: &Rank, state: &RankParameters, names: &[String], label: Label) -> Result<AllGather> {
    let _weights = scope(Class::Weights);
    let (division, parameters) = (&rank.division, &state.parameters);
    let own = |name: &String| match state.optimizer().and_then(|own| own.share(name)) {
        Some(share) => Ok(share.clone()),
        None => empty(parameters.dtype, &parameters.device),
    };
    let own = names.iter().map(own).collect::<candle_core::Result<Vec<_>>>()?;
    let elements: Vec<usize> =
        names.iter().map(|name| parameters.shapes[name].elem_count()).collect();
    let count = |index: usize, holder| division.gathered(elements[index], holder).len();
    Ok(AllGather::post(division.holders.as_ref(), label, own, count)?)
}

/// The wait for a stage's weights, as traces name it: the stage by its first parameter, with `bytes` sent.
fn of_weights(names: &[String], bytes: u64, division: &Division) -> Activity {
    let name = format!("weights of {}", names[0]);
    Activity::Sum { name, bytes, among: Some(division.holders.ends()) }
}

/// Copies what the other holders updated into the weights, which this process holds whole: stage by stage, the next under way meanwhile.
pub(crate) fn spread(
    rank: &Rank,
    state: &RankParameters,
    stages: &[Vec<String>],
    step: u64,
) -> Result<()> {
    let own = rank.division.holders.rank();
    let label = |stage| Label { step, pass: WEIGHTS, layer: stage, hop: 0 };
    let named = || stages.iter().enumerate().filter(|(_, names)| !names.is_empty());
    let mut posted = None;
    let put = |(names, posted): (&Vec<String>, AllGather)| -> Result<()> {
        let (waiting, bytes) = (begin(), posted.sent());
        for (name, pieces) in names.iter().zip(posted.pieces()?) {
            let whole = state.parameters.weights[name].flatten_all()?;
            for (holder, piece) in pieces.into_iter().filter(|(holder, _)| *holder != own) {
                whole.slice_set(
                    &piece,
                    0,
                    rank.division.gathered(whole.elem_count(), holder).start,
                )?;
            }
        }
        waiting.end(|| of_weights(names, bytes, &rank.division));
        Ok(())
    };
    for (stage, names) in named() {
        let next = post(rank, state, names, label(stage))?;
        if let Some(last) = posted.replace((names, next)) {
            put(last)?;
        }
    }
    posted.map_or(Ok(()), put)
}
