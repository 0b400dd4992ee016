//! AdamW's moments of the slices that a rank updates: in memory, or on a disk between updates.

use std::collections::BTreeMap;
use std::sync::Arc;

use annulus_comm::Communicator;
use annulus_ops::Moments;
use parking_lot::{Mutex, MutexGuard};

use crate::step::state::offload::{Away, Offload};
use crate::{Result, TrainError};

/// The moments of a rank's slices, by parameter: in memory, or offloaded.
#[derive(Debug)]
pub(crate) enum Held {
    Here(BTreeMap<String, Moments>),
    Away(Box<Disk>),
}

/// Where moments are offloaded, and how the rank says meanwhile that it is alive.
#[derive(Debug)]
pub(crate) struct Disk {
    offload: Offload,
    comm: Arc<dyn Communicator>,
    moments: Mutex<BTreeMap<String, Away>>,
}

impl Disk {
    /// A disk that holds no moments yet.
    pub(crate) fn new(offload: Offload, comm: Arc<dyn Communicator>) -> Disk {
        Disk { offload, comm, moments: Mutex::default() }
    }

    fn moments(&self) -> MutexGuard<'_, BTreeMap<String, Away>> {
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
            Some(disk) => Held::Away(Box::new(disk)),
            None => Held::Here(BTreeMap::new()),
        }
    }

    /// Adds the moments of a parameter that had none.
    pub(crate) fn insert(&mut self, name: &str, moments: Moments) -> Result<()> {
        match self {
            Held::Here(all) => {
                all.insert(name.to_owned(), moments);
            }
            Held::Away(disk) => {
                let Moments { first, second } = moments;
                let away = disk.offload.put(vec![first, second], &disk.alive())?;
                disk.moments().insert(name.to_owned(), away);
            }
        }
        Ok(())
    }

    /// A copy of the moments of a parameter.
    pub(crate) fn of(&self, name: &str) -> Result<Option<Moments>> {
        match self {
            Held::Here(all) => Ok(all.get(name).cloned()),
            Held::Away(disk) => {
                let all = disk.moments();
                let look = |away| pair(disk.offload.look(away, &disk.alive())?);
                all.get(name).map(look).transpose()
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
            Held::Here(all) => {
                let all: Vec<_> = names.iter().map(|name| (*name, &all[*name])).collect();
                return update(&all);
            }
            Held::Away(disk) => disk,
        };
        let (offload, alive, mut all) = (&disk.offload, disk.alive(), disk.moments());
        for (number, name) in names.iter().enumerate() {
            // The next parameters' moments are read while these are updated.
            let next = names.iter().skip(number).take(2);
            next.filter_map(|name| all.get(*name)).for_each(|away| offload.ask(away));
            let away = all
                .get_mut(*name)
                .ok_or_else(|| TrainError::Internal(format!("there are no moments of `{name}`")))?;
            let moments = pair(offload.take(away, &alive)?)?;
            update(&[(*name, &moments)])?;
            let Moments { first, second } = moments;
            offload.put_back(away, vec![first, second], &alive)?;
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
