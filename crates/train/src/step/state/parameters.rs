//! What the ranks of a device share, the weights that layers compute with, and what each rank keeps for the slices that it updates.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use annulus_experiment::Optimizer as Settings;
use annulus_memory::{Class, on_behalf_of};
use annulus_model::{Config, Llama, Placement, Weights};
use candle_core::{DType, Device, Shape, Tensor};

use crate::setup::start::Start;
use crate::setup::weights::InitialWeights;
use crate::step::state::division::Division;
use crate::step::state::gathered::Table;
use crate::step::state::meeting::Meeting;
use crate::step::state::moments::OffloadedMoments;
use crate::step::state::optimizer::Optimizer;
use crate::step::state::side_by_side::SideBySide;
use crate::{Result, Setup, TrainError};

/// The model's weights, or a tensor-parallel part of them, as layers take them.
#[derive(Debug)]
pub(crate) struct Parameters {
    /// The names of the parameters that are trained.
    pub(crate) trained: BTreeSet<String>,
    /// The shapes of all parameters, as this part has them.
    pub(crate) shapes: BTreeMap<String, Shape>,
    /// The shapes of whole parameters, and how tensor-parallel ranks hold them.
    pub(crate) placed: BTreeMap<String, (Vec<usize>, Placement)>,
    /// The names of the parameters that every tensor-parallel rank has whole; empty without tensor parallelism.
    pub(crate) whole: BTreeSet<String>,
    /// Which part these weights are, and of how many.
    pub(crate) part: (usize, usize),
    pub(crate) dtype: DType,
    pub(crate) device: Device,
    side_by_side: SideBySide,
    /// The weights that a rank computes with; empty where a process holds a shard of them. Updates change the trained ones in place.
    pub(crate) weights: Weights,
}

/// The names of a model's trained parameters.
pub(crate) fn trained(config: &Config) -> BTreeSet<String> {
    let all = Llama::specification(config).into_iter();
    all.filter(|parameter| parameter.trained).map(|parameter| parameter.name).collect()
}

impl Parameters {
    /// A part of the weights of `initial`, in the model's dtype, on a device; the memory counts to rank `owner`.
    pub(crate) fn new(
        initial: &InitialWeights,
        setup: &Setup,
        device: Device,
        part: usize,
        owner: usize,
    ) -> Result<Parameters> {
        let parameters = Parameters::without(setup, device, part);
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

    /// The weights `names`, each joined from its flat `pieces`; the memory counts to rank `owner`.
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

    /// Names, shapes and placements of a part's parameters, without the weights.
    fn without(setup: &Setup, device: Device, part: usize) -> Parameters {
        let part = (part, setup.tensor);
        let placed: BTreeMap<_, _> = Llama::specification(&setup.config)
            .into_iter()
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

    /// Where elements `part` of this part of a parameter lie in the whole parameter.
    pub(crate) fn runs(&self, name: &str, part: Range<usize>) -> Vec<(usize, usize)> {
        let (whole, placement) = &self.placed[name];
        placement.runs(whole, self.part, part)
    }

    /// The names of the trained parameters, in order.
    pub(crate) fn trained(&self) -> impl Iterator<Item = &str> {
        self.trained.iter().map(String::as_str)
    }
}

/// The state that the ranks of a process hold while they train, weights once per device; made before the ranks begin.
#[derive(Debug)]
pub struct Store {
    /// The parts by device and, of tensor-parallel ranks, by the part of parameters that they have.
    parts: Vec<Part>,
    /// Where the ranks decide whether a step is applied.
    commit: Meeting<(), ()>,
}

/// The state of the ranks of a device that have the same part of parameters: of all of them, unless they are tensor-parallel.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) parameters: Parameters,
    /// The optimizers by rank of the device with this part.
    optimizers: Vec<OnceLock<Optimizer>>,
    /// Where the ranks assemble gathered weights.
    pub(crate) table: Table,
}

impl Store {
    /// The store of the ranks `here` of `setup`, whose weights begin as those of `initial`. Each part counts to the first of the ranks that
    /// have it.
    ///
    /// # Errors
    /// Weights that are not those of the model, or cannot be read, a setup in which a count is 0, and failures of Candle or the device.
    pub fn new(setup: &Setup, initial: &InitialWeights, here: Range<usize>) -> Result<Arc<Store>> {
        setup.check()?;
        initial.check(&setup.config)?;
        let commit = Meeting::new(here.len());
        let (parts, beside) = (setup.parts(), setup.ranks_of_device());
        let part = |number: usize| {
            let device = number / parts;
            // Neighbouring ranks have different parts.
            let first = device * beside + number % parts;
            let owner = here.start + first;
            let (own, device) = (owner % setup.tensor, setup.processors.device(device));
            let parameters = if setup.shards_weights() {
                Parameters::without(setup, device, own)
            } else {
                Parameters::new(initial, setup, device, own, owner)?
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

    /// Checks that this is the store of as many ranks as this process has of `setup`, and that no rank has left it.
    pub(crate) fn check(&self, setup: &Setup) -> Result<()> {
        let (found, wanted) = (self.commit.ranks(), setup.ranks_of_process());
        if found == wanted {
            return if self.commit.has_ended() { Err(used()) } else { Ok(()) };
        }
        Err(TrainError::configuration(
            format!("a store of {found} ranks, expected one of the {wanted} of this process"),
            "give `Store::new` the ranks that `ranks_here` names",
        ))
    }

    /// Says that a rank, by number in the process, will not come to meetings any more.
    fn leave(&self, rank: usize) {
        self.commit.leave(rank);
        self.parts.iter().for_each(|part| part.table.leave(rank));
    }
}

/// The error for a store whose ranks have trained, or began to: its optimizers are those of that training, and its ranks meet no more.
fn used() -> TrainError {
    TrainError::configuration(
        "a store that ranks have trained with before",
        "make a new `Store`, and with it a new `Stepper` on every rank",
    )
}

impl Part {
    /// The optimizers of all ranks with this part that have begun.
    pub(crate) fn optimizers(&self) -> Vec<&Optimizer> {
        self.optimizers.iter().filter_map(OnceLock::get).collect()
    }
}

/// What a rank has in a store: the weights that it shares, and its own optimizer. When this is dropped, however that happens, the rank
/// leaves the others' meetings.
#[derive(Debug)]
pub(crate) struct RankParameters {
    store: Arc<Store>,
    /// The index of the rank's part in the store, and the rank's number among those that have it.
    part: usize,
    own: usize,
    /// The rank's number in its process.
    rank: usize,
}

impl RankParameters {
    /// Makes this rank's optimizer: its slices by `division`, as `start` has them. It is an error if the rank has one already.
    pub(crate) fn take(
        store: &Arc<Store>,
        settings: &Settings,
        offloaded: Option<OffloadedMoments>,
        start: &Start,
        division: &Division,
    ) -> Result<RankParameters> {
        // Asked first: who has one may be training with it, and a rank's state that is dropped leaves the meetings.
        if store.parts[division.part()].optimizers[division.own().0].get().is_some() {
            return Err(used());
        }
        let state = RankParameters::of(store, division);
        let optimizer = Optimizer::new(settings, offloaded, &state.parameters, start, division)?;
        state.optimizers[state.own].set(optimizer).map_err(|_| used())?;
        Ok(state)
    }

    /// What this rank has in a store in which its optimizer has been made before.
    pub(crate) fn of(store: &Arc<Store>, division: &Division) -> RankParameters {
        RankParameters {
            store: store.clone(),
            part: division.part(),
            own: division.own().0,
            rank: division.process_ranks().own,
        }
    }

    /// Where all ranks of the process decide whether a step is applied.
    pub(crate) fn commit(&self) -> &Meeting<(), ()> {
        &self.store.commit
    }

    /// Says that this rank will not come to meetings any more.
    pub(crate) fn leave(&self) {
        self.store.leave(self.rank);
    }

    /// This rank's own optimizer.
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
        self.leave();
    }
}

/// A copy on `device` of the elements of a tensor, with memory of its own.
pub(crate) fn own_copy(tensor: &Tensor, device: &Device) -> candle_core::Result<Tensor> {
    tensor.force_contiguous()?.to_device(device)
}
