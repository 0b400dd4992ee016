//! AdamW's moments of the slices that a rank updates: in memory, or on a disk between updates.

use std::collections::BTreeMap;
use std::sync::Arc;

use annulus_comm::Communicator;
use annulus_ops::Moments;
use parking_lot::{Mutex, MutexGuard};

use crate::step::state::offload::{Offload, OffloadHandle};
use crate::{Result, TrainError};

/// The moments of a rank's slices, by parameter: in memory, or offloaded.
#[derive(Debug)]
pub(crate) enum Held {
    InMemory(BTreeMap<String, Moments>),
    Offloaded(Box<Disk>),
}

/// Where moments are offloaded, and how the rank says meanwhile that it is alive.
#[derive(Debug)]
pub(crate) struct Disk {
    offload: Offload,
    comm: Arc<dyn Communicator>,
    moments: Mutex<BTreeMap<String, OffloadHandle>>,
}

impl Disk {
    /// A disk that holds no moments yet.
    pub(crate) fn new(offload: Offload, comm: Arc<dyn Communicator>) -> Disk {
        Disk { offload, comm, moments: Mutex::default() }
    }

    fn moments(&self) -> MutexGuard<'_, BTreeMap<String, OffloadHandle>> {
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
    /// No moments yet; they will be kept on `disk`, if there is one.
    pub(crate) fn new(disk: Option<Disk>) -> Held {
        match disk {
            Some(disk) => Held::Offloaded(Box::new(disk)),
            None => Held::InMemory(BTreeMap::new()),
        }
    }

    /// Adds the moments of a parameter that had none.
    pub(crate) fn insert(&mut self, name: &str, moments: Moments) -> Result<()> {
        match self {
            Held::InMemory(all) => {
                all.insert(name.to_owned(), moments);
            }
            Held::Offloaded(disk) => {
                let Moments { first, second } = moments;
                let handle = disk.offload.write(vec![first, second], &disk.alive())?;
                disk.moments().insert(name.to_owned(), handle);
            }
        }
        Ok(())
    }

    /// A copy of the moments of a parameter.
    pub(crate) fn of(&self, name: &str) -> Result<Option<Moments>> {
        match self {
            Held::InMemory(all) => Ok(all.get(name).cloned()),
            Held::Offloaded(disk) => {
                let all = disk.moments();
                let peek = |handle| pair(disk.offload.peek(handle, &disk.alive())?);
                all.get(name).map(peek).transpose()
            }
        }
    }

    /// Updates the moments of parameters one after the other, or all at once where they are in memory.
    pub(crate) fn update(
        &self,
        names: &[&String],
        update: &dyn Fn(&[(&String, &Moments)]) -> Result<()>,
    ) -> Result<()> {
        let disk = match self {
            Held::InMemory(all) => {
                let all: Vec<_> = names.iter().map(|name| (*name, &all[*name])).collect();
                return update(&all);
            }
            Held::Offloaded(disk) => disk,
        };
        let (offload, alive, mut all) = (&disk.offload, disk.alive(), disk.moments());
        for (number, name) in names.iter().enumerate() {
            // The next parameter's moments are read while these are updated.
            let next = names.iter().skip(number).take(2);
            next.filter_map(|name| all.get(*name)).for_each(|handle| offload.prefetch(handle));
            let handle = all
                .get_mut(*name)
                .ok_or_else(|| TrainError::Internal(format!("there are no moments of `{name}`")))?;
            let moments = pair(offload.restore(handle, &alive)?)?;
            update(&[(*name, &moments)])?;
            let Moments { first, second } = moments;
            offload.rewrite(handle, vec![first, second], &alive)?;
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
