//! What the ranks of a device share: the weights that layers compute with; and of each what it keeps for the slices that it updates.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use annulus_experiment::Optimizer as Settings;
use annulus_memory::{Class, on_behalf_of};
use annulus_model::{Config, Llama, Placement, Weights};
use candle_core::{DType, Device, Shape, Tensor};

use crate::setup::start::Start;
use crate::setup::weights::InitialWeights;
use crate::step::division::Division;
use crate::step::gathered::Table;
use crate::step::meeting::Meeting;
use crate::step::moments::Disk;
use crate::step::optimizer::Optimizer;
use crate::step::side_by_side::SideBySide;
use crate::{Result, Setup, TrainError};

/// Weights as layers take them.
#[derive(Debug)]
pub(crate) struct Parameters {
    /// The names of those that are trained.
    pub(crate) trained: BTreeSet<String>,
    /// The shapes of what a rank has of all.
    pub(crate) shapes: BTreeMap<String, Shape>,
    /// Those of whole parameters, and who has what of them, where ranks are tensor-parallel.
    pub(crate) placed: BTreeMap<String, (Vec<usize>, Placement)>,
    /// Of which they all have everything, the names; else none.
    pub(crate) whole: BTreeSet<String>,
    /// Which part these are of, of how many.
    pub(crate) part: (usize, usize),
    pub(crate) dtype: DType,
    pub(crate) device: Device,
    side_by_side: SideBySide,
    /// What a rank computes with; none where a process holds a share of each. Updates change those that are trained in place.
    pub(crate) weights: Weights,
}

/// The names of what is trained of a model.
pub(crate) fn trained(config: &Config) -> BTreeSet<String> {
    let all = Llama::specification(config).into_iter();
    all.filter(|parameter| parameter.trained).map(|parameter| parameter.name).collect()
}

impl Parameters {
    /// A part of `initial`, as the model computes with it, on a device; counted to rank `owner`.
    pub(crate) fn new(
        initial: &InitialWeights,
        (setup, device): (&Setup, Device),
        (part, owner): (usize, usize),
    ) -> Result<Parameters> {
        let parameters = Parameters::without(initial, (setup, device), part);
        let own = |name: &String| {
            let whole = 0..parameters.shapes[name].elem_count();
            let read = initial.elements(name, &parameters.runs(name, whole))?;
            let own = on_behalf_of(owner, Class::Weights, || {
                own_copy(&read.to_dtype(parameters.dtype)?, &parameters.device)
            });
            Ok::<_, TrainError>(vec![own?])
        };
        let names = parameters.shapes.keys().collect();
        let weights = parameters.assembled(&names, owner, own)?;
        Ok(Parameters { weights, ..parameters })
    }

    /// Weights of these names, of flat pieces of each; counted to rank `owner`.
    pub(crate) fn assembled<E: From<candle_core::Error>>(
        &self,
        names: &BTreeSet<&String>,
        owner: usize,
        pieces: impl Fn(&String) -> std::result::Result<Vec<Tensor>, E>,
    ) -> std::result::Result<Weights, E> {
        let join =
            |pieces: &[Tensor]| on_behalf_of(owner, Class::Weights, || Tensor::cat(pieces, 0));
        self.side_by_side.weights(names, |name| self.shapes[name].clone(), pieces, join)
    }

    /// What there is to know of them without them.
    fn without(
        initial: &InitialWeights,
        (setup, device): (&Setup, Device),
        part: usize,
    ) -> Parameters {
        let part = (part, setup.tensor);
        let placed: BTreeMap<_, _> = Llama::specification(&setup.config)
            .into_iter()
            .filter(|parameter| initial.shapes().contains_key(&parameter.name))
            .map(|parameter| (parameter.name, (parameter.shape, parameter.placement)))
            .collect();
        let shape = |(name, (shape, placement)): (&String, &(Vec<usize>, Placement))| {
            (name.clone(), placement.cut_shape(shape, part).into())
        };
        let is_whole = |placement| setup.tensor > 1 && placement == Placement::Replicated;
        let whole = placed.iter().filter(|(_, (_, placement))| is_whole(*placement));
        Parameters {
            trained: trained(&setup.config),
            shapes: placed.iter().map(shape).collect(),
            whole: whole.map(|(name, _)| name.clone()).collect(),
            part,
            placed,
            dtype: setup.config.dtype,
            device,
            side_by_side: SideBySide::of(setup),
            weights: Weights::new(),
        }
    }

    /// Where some elements of the part of a parameter lie in the whole.
    pub(crate) fn runs(&self, name: &str, part: Range<usize>) -> Vec<(usize, usize)> {
        let (whole, placement) = &self.placed[name];
        placement.runs(whole, self.part, part)
    }

    /// The names of what is trained, in order.
    pub(crate) fn trained(&self) -> impl Iterator<Item = &str> {
        self.trained.iter().map(String::as_str)
    }
}

/// What the ranks of a process hold together while they train, those of a device everything once: made before they begin.
#[derive(Debug)]
pub struct Store {
    /// By device, and of tensor-parallel ranks by the part of parameters that they have.
    parts: Vec<Part>,
    /// Where they decide whether a step is applied.
    commit: Meeting<(), ()>,
}

/// What ranks of a device hold that have the same part of parameters: all of them, unless they are tensor-parallel.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) parameters: Parameters,
    /// By rank.
    optimizers: Vec<OnceLock<Optimizer>>,
    /// Where they put gathered weights together.
    pub(crate) table: Table,
}

impl Store {
    /// That of the ranks `here` of `setup`, whose weights begin as those of `initial`. Each part is counted to the first of the ranks that have it.
    ///
    /// # Errors
    /// Weights that cannot be read, and what Candle, or the device, says.
    pub fn new(setup: &Setup, initial: &InitialWeights, here: Range<usize>) -> Result<Arc<Store>> {
        let commit = Meeting::new(here.len());
        let (parts, beside) = (setup.parts(), setup.ranks_of_device());
        let part = |number: usize| {
            let device = number / parts;
            // Neighbours have different parts.
            let first = device * beside + number % parts;
            let owner = here.start + first;
            let (own, place) = (owner % setup.tensor, (setup, setup.processors.device(device)));
            let parameters = if setup.shards_weights() {
                Parameters::without(initial, place, own)
            } else {
                Parameters::new(initial, place, (own, owner))?
            };
            let ranks = beside / parts;
            let optimizers = (0..ranks).map(|_| OnceLock::new()).collect();
            let table = Meeting::new(ranks);
            Ok(Part { parameters, optimizers, table })
        };
        let all = setup.processors.devices() * parts;
        let parts = (0..all).map(part).collect::<Result<_>>()?;
        Ok(Arc::new(Store { parts, commit }))
    }

    /// A rank will not come to meetings any more.
    fn leave(&self) {
        self.commit.leave();
        self.parts.iter().for_each(|part| part.table.leave());
    }
}

impl Part {
    /// Those of all ranks of the device that have begun.
    pub(crate) fn optimizers(&self) -> Vec<&Optimizer> {
        self.optimizers.iter().filter_map(OnceLock::get).collect()
    }
}

/// What a rank has of a store: it leaves the others' commit when it is dropped, however that comes.
#[derive(Debug)]
pub(crate) struct RankParameters {
    store: Arc<Store>,
    /// Which of the store's parts, and which of the ranks that have it.
    part: usize,
    own: usize,
}

impl RankParameters {
    /// The slices that `division` says, of what `start` has.
    pub(crate) fn take(
        store: &Arc<Store>,
        (settings, disk): (&Settings, Option<Disk>),
        start: &Start,
        division: &Division,
    ) -> Result<RankParameters> {
        let stake = RankParameters::of(store, division);
        let optimizer = Optimizer::new((settings, disk), &stake.parameters, start, division)?;
        // Every rank takes its own once.
        stake.optimizers[stake.own].get_or_init(|| optimizer);
        Ok(stake)
    }

    /// What this rank has taken before.
    pub(crate) fn of(store: &Arc<Store>, division: &Division) -> RankParameters {
        RankParameters { store: store.clone(), part: division.part(), own: division.own().0 }
    }

    /// Where all ranks of the process decide whether a step is applied.
    pub(crate) fn commit(&self) -> &Meeting<(), ()> {
        &self.store.commit
    }

    /// This rank will not come to meetings any more.
    pub(crate) fn leave(&self) {
        self.store.leave();
    }

    /// This rank's own.
    pub(crate) fn optimizer(&self) -> Option<&Optimizer> {
        self.optimizers[self.own].get()
    }
}

impl std::ops::Deref for RankParameters {
    type Target = Part;
    fn deref(&self) -> &Part {
        &self.store.parts[self.part]
    }
}

impl Drop for RankParameters {
    fn drop(&mut self) {
        self.store.leave();
    }
}

/// A copy on `device` that nobody else has, of these elements alone.
pub(crate) fn own_copy(tensor: &Tensor, device: &Device) -> candle_core::Result<Tensor> {
    tensor.force_contiguous()?.to_device(device)
}
