//! AdamW's moments of the slices that a rank updates: in memory, or offloaded between updates.

use std::collections::BTreeMap;
use std::sync::Arc;

use annulus_comm::Communicator;
use annulus_ops::Moments;
use parking_lot::{Mutex, MutexGuard};

use crate::step::state::offload::{Offload, Offloaded};
use crate::{Result, TrainError};

/// The moments of a rank's slices, by parameter: in memory, or offloaded.
#[derive(Debug)]
pub(crate) enum Held {
    InMemory(BTreeMap<String, Moments>),
    Offloaded(Box<OffloadedMoments>),
}

/// Where moments are offloaded, and how the rank says meanwhile that it is alive.
#[derive(Debug)]
pub(crate) struct OffloadedMoments {
    offload: Box<dyn Offload>,
    comm: Arc<dyn Communicator>,
    moments: Mutex<BTreeMap<String, Box<dyn Offloaded>>>,
}

impl OffloadedMoments {
    /// No moments yet; they will be offloaded by `offload`.
    pub(crate) fn new(offload: Box<dyn Offload>, comm: Arc<dyn Communicator>) -> OffloadedMoments {
        OffloadedMoments { offload, comm, moments: Mutex::default() }
    }

    fn moments(&self) -> MutexGuard<'_, BTreeMap<String, Box<dyn Offloaded>>> {
        self.moments.lock()
    }

    /// Says that the rank is alive while moments are read and written. It does not ask whether to stop: a step is applied whole or not at
    /// all.
    fn alive(&self) -> impl Fn() -> Result<()> {
        || {
            let _ = self.comm.progress();
            Ok(())
        }
    }
}

impl Held {
    /// No moments yet; they will be offloaded, if that is given.
    pub(crate) fn new(offloaded: Option<OffloadedMoments>) -> Held {
        let in_memory = || Held::InMemory(BTreeMap::new());
        offloaded.map_or_else(in_memory, |all| Held::Offloaded(Box::new(all)))
    }

    /// Adds the moments of a parameter that had none.
    pub(crate) fn insert(&mut self, name: &str, moments: Moments) -> Result<()> {
        match self {
            Held::InMemory(all) => {
                all.insert(name.to_owned(), moments);
            }
            Held::Offloaded(all) => {
                let Moments { first, second } = moments;
                let offloaded = all.offload.write(vec![first, second], &all.alive())?;
                all.moments().insert(name.to_owned(), offloaded);
            }
        }
        Ok(())
    }

    /// A copy of the moments of a parameter.
    pub(crate) fn of(&self, name: &str) -> Result<Option<Moments>> {
        match self {
            Held::InMemory(all) => Ok(all.get(name).cloned()),
            Held::Offloaded(all) => {
                let alive = all.alive();
                let moments = all.moments();
                moments.get(name).map(|one| pair(one.peek(&alive)?)).transpose()
            }
        }
    }

    /// Updates the moments of parameters one after the other, or all at once where they are in memory.
    pub(crate) fn update(
        &self,
        names: &[&String],
        update: &dyn Fn(&[(&String, &Moments)]) -> Result<()>,
    ) -> Result<()> {
        let offloaded = match self {
            Held::InMemory(all) => {
                let all: Vec<_> = names.iter().map(|name| (*name, &all[*name])).collect();
                return update(&all);
            }
            Held::Offloaded(all) => all,
        };
        let (alive, mut all) = (offloaded.alive(), offloaded.moments());
        for (number, name) in names.iter().enumerate() {
            // The next parameter's moments are read while these are updated.
            let mut next = names.iter().skip(number).take(2).filter_map(|name| all.get(*name));
            next.try_for_each(|one| one.prefetch())?;
            let one = all
                .get_mut(*name)
                .ok_or_else(|| TrainError::Internal(format!("there are no moments of `{name}`")))?;
            let moments = pair(one.restore(&alive)?)?;
            update(&[(*name, &moments)])?;
            let Moments { first, second } = moments;
            one.rewrite(vec![first, second], &alive)?;
        }
        Ok(())
    }
}

fn pair(tensors: Vec<candle_core::Tensor>) -> Result<Moments> {
    let [first, second] = tensors.try_into().map_err(|all: Vec<_>| {
        TrainError::Internal(format!("{} tensors are kept as moments, expected 2", all.len()))
    })?;
    Ok(Moments { first, second })
}
