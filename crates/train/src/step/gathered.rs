//! Weights of which a process holds a share: those of a stage are gathered before it runs, and dropped after it.
//!
//! Every rank gathers from those of its number in the other holders, so that what a process gathers crosses to it once; the ranks of a
//! process put together what they have (ZeRO stage 3, Rajbhandari et al. 2020, arXiv 1910.02054). The next stage's are on their way meanwhile.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use annulus_comm::{AllGather, Label};
use annulus_memory::{Class, scope};
use annulus_model::Weights;
use annulus_trace::{Doing, begin};
use candle_core::{Result as Made, Tensor};

use crate::step::division::Division;
use crate::step::meeting::Meeting;
use crate::step::parameters::RankParameters;
use crate::step::rank::Rank;
use crate::{Result, TrainError};

/// What travels under this pass are weights.
pub(crate) const PASS: &str = "weights";

/// Of every parameter of a stage, a rank's piece of it in the order of elements.
type Pieces = Vec<Vec<Tensor>>;
/// Where the ranks of a process put a stage together.
pub(crate) type Table = Meeting<Pieces, Made<Arc<Weights>>>;

/// Where a pass has the weights of a stage from.
pub(crate) enum WeightSource<'a> {
    /// The process holds all.
    Whole(&'a Weights),
    /// It holds a shard.
    Sharded(Gathering<'a>),
}

/// The weights of a stage, or all.
pub(crate) enum StageWeights<'a> {
    All(&'a Weights),
    Stage(Arc<Weights>),
    /// None are read.
    Nothing(Weights),
}

impl<'a> WeightSource<'a> {
    /// The weights of a stage, by its number; `next` is wanted after it.
    pub(crate) fn of(&mut self, stage: usize, next: Option<usize>) -> Result<StageWeights<'a>> {
        match self {
            WeightSource::Whole(weights) => Ok(StageWeights::All(weights)),
            WeightSource::Sharded(gathering) => Ok(StageWeights::Stage(gathering.of(stage, next)?)),
        }
    }

    /// Whether another micro-batch follows the one that runs next: backward then asks for the first stage ahead of its forward pass.
    pub(crate) fn goes_on(&mut self, on: bool) {
        if let WeightSource::Sharded(gathering) = self {
            gathering.goes_on = on;
        }
    }

    /// Has all that a forward pass has, for others: all ranks gather alike.
    pub(crate) fn pass_by(&mut self, rank: &Rank) -> Result<()> {
        let stages = rank.model.stages.len();
        if let WeightSource::Sharded(_) = self {
            for stage in 0..stages {
                rank.progress()?;
                self.of(stage, Some(stage + 1).filter(|next| *next < stages))?;
            }
        }
        Ok(())
    }

    /// The weights of a stage in backward, where it may read none. The first never does.
    pub(crate) fn back(&mut self, rank: &Rank, stage: usize) -> Result<StageWeights<'a>> {
        let goes_on = matches!(self, WeightSource::Sharded(gathering) if gathering.goes_on);
        if rank.model.stages[stage].reads_weights_back() {
            self.of(stage, stage.checked_sub(1).filter(|next| *next > 0 || goes_on))
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

/// Gathers stages one after the other. All ranks ask for the same ones in the same order.
pub(crate) struct Gathering<'a> {
    rank: &'a Rank,
    stake: &'a RankParameters,
    step: u64,
    /// How many calls there were.
    hops: usize,
    goes_on: bool,
    posted: Option<(usize, AllGather)>,
    held: Option<(usize, Arc<Weights>)>,
}

impl<'a> Gathering<'a> {
    pub(crate) fn new(rank: &'a Rank, stake: &'a RankParameters, step: u64) -> Gathering<'a> {
        Gathering { rank, stake, step, hops: 0, goes_on: false, posted: None, held: None }
    }

    fn of(&mut self, stage: usize, next: Option<usize>) -> Result<Arc<Weights>> {
        // Another is dropped before this one is put together.
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
        let first = rank.comm.rank() - division.crew().own + division.sharers().first;
        let make = |all: Vec<Pieces>| {
            let places: BTreeMap<&String, usize> = names.iter().zip(0..).collect();
            let pieces = |name: &String| {
                Ok(all.iter().flat_map(|all| &all[places[name]]).cloned().collect())
            };
            self.stake.parameters.assembled(&names.iter().collect(), first, pieces).map(Arc::new)
        };
        let made = rank.meet((&self.stake.table, division.sharers()), pieces, make, label)?;
        waiting.end(|| of_weights(names, bytes, division));
        match made.as_ref() {
            Ok(weights) => Ok(weights.clone()),
            Err(why) => Err(TrainError::Internal(why.to_string())),
        }
    }

    /// Posts this rank's pieces of a stage.
    fn post(&mut self, stage: usize) -> Result<AllGather> {
        let names = self.rank.model.stages[stage].parameters();
        let label = self.label(stage);
        post(self.rank, self.stake, names, label)
    }

    fn label(&mut self, stage: usize) -> Label {
        self.hops += 1;
        Label { step: self.step, pass: PASS, layer: stage, hop: self.hops - 1 }
    }
}

/// Posts what this rank updates of these parameters for the other holders.
fn post(rank: &Rank, stake: &RankParameters, names: &[String], label: Label) -> Result<AllGather> {
    let _weights = scope(Class::Weights);
    let (division, parameters) = (&rank.division, &stake.parameters);
    let own = |name: &String| match stake.optimizer().and_then(|own| own.share(name)) {
        Some(share) => Ok(share.clone()),
        None => Tensor::zeros(0, parameters.dtype, &parameters.device),
    };
    let own = names.iter().map(own).collect::<candle_core::Result<Vec<_>>>()?;
    let elements: Vec<usize> =
        names.iter().map(|name| parameters.shapes[name].elem_count()).collect();
    let count = |index: usize, holder| division.gathered(elements[index], holder).len();
    Ok(AllGather::post(division.holders.as_ref(), label, own, count)?)
}

/// What is waited for: the weights of a stage, which is called by its first parameter; of which so many bytes were sent.
fn of_weights(names: &[String], bytes: u64, division: &Division) -> Doing {
    let name = format!("weights of {}", names[0]);
    Doing::Sum { name, bytes, among: Some(division.holders.ends()) }
}

/// Brings what the other holders have updated into the weights that this process holds whole: stage by stage, the next under way meanwhile.
pub(crate) fn spread(
    rank: &Rank,
    stake: &RankParameters,
    stages: &[Vec<String>],
    step: u64,
) -> Result<()> {
    let own = rank.division.holders.rank();
    let label = |stage| Label { step, pass: PASS, layer: stage, hop: 0 };
    let named = || stages.iter().enumerate().filter(|(_, names)| !names.is_empty());
    let mut posted = None;
    let put = |(names, posted): (&Vec<String>, AllGather)| -> Result<()> {
        let (waiting, bytes) = (begin(), posted.sent());
        for (name, pieces) in names.iter().zip(posted.pieces()?) {
            let whole = stake.parameters.weights[name].flatten_all()?;
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
        let next = post(rank, stake, names, label(stage))?;
        if let Some(last) = posted.replace((names, next)) {
            put(last)?;
        }
    }
    posted.map_or(Ok(()), put)
}
