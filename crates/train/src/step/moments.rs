//! AdamW's moments of the slices that a rank updates: in memory, or on a disk between two updates.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use annulus_ops::Moments;

use crate::step::offload::{Away, Offload};
use crate::{Result, TrainError};

/// Moments by parameter.
#[derive(Debug)]
pub(crate) enum Kept {
    Here(BTreeMap<String, Moments>),
    Away(Offload, Mutex<BTreeMap<String, Away>>),
}

/// Nothing asks whether to stop while moments come and go: a step is applied whole or not at all.
const ALIVE: &dyn Fn() -> Result<()> = &|| Ok(());

impl Kept {
    /// None yet, to be kept where `offload` puts things.
    pub(crate) fn new(offload: Option<Offload>) -> Kept {
        match offload {
            Some(offload) => Kept::Away(offload, Mutex::default()),
            None => Kept::Here(BTreeMap::new()),
        }
    }

    /// Those of a parameter that had none.
    pub(crate) fn insert(&mut self, name: &str, moments: Moments) -> Result<()> {
        match self {
            Kept::Here(all) => {
                all.insert(name.to_owned(), moments);
            }
            Kept::Away(offload, all) => {
                let Moments { first, second } = moments;
                let away = offload.put(vec![first, second], ALIVE)?;
                all.get_mut().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), away);
            }
        }
        Ok(())
    }

    /// Those of a parameter, to look at.
    pub(crate) fn of(&self, name: &str) -> Result<Option<Moments>> {
        match self {
            Kept::Here(all) => Ok(all.get(name).cloned()),
            Kept::Away(offload, all) => {
                let away = all.lock().unwrap_or_else(PoisonError::into_inner);
                let away = away.get(name).map(Away::again);
                away.map(|away| pair(offload.take(&away, ALIVE)?)).transpose()
            }
        }
    }

    /// Updates the moments of parameters one after the other, or of all at once where they are in memory.
    pub(crate) fn update(
        &self,
        names: &[&String],
        update: &dyn Fn(&[(&String, &Moments)]) -> Result<()>,
    ) -> Result<()> {
        let (offload, all) = match self {
            Kept::Here(all) => {
                let all: Vec<_> = names.iter().map(|name| (*name, &all[*name])).collect();
                return update(&all);
            }
            Kept::Away(offload, all) => (offload, all),
        };
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, name) in names.iter().enumerate() {
            // The next come while these are updated.
            names
                .iter()
                .skip(number)
                .take(2)
                .filter_map(|name| all.get(*name))
                .for_each(|away| offload.ask(away));
            let Some(away) = all.get_mut(*name) else { continue };
            let moments = pair(offload.take(away, ALIVE)?)?;
            update(&[(*name, &moments)])?;
            let Moments { first, second } = moments;
            offload.put_back(away, vec![first, second], ALIVE)?;
        }
        Ok(())
    }
}

fn pair(tensors: Vec<candle_core::Tensor>) -> Result<Moments> {
    let [first, second] = tensors.try_into().map_err(|all: Vec<_>| {
        TrainError::Internal(format!("{} tensors are kept as moments, wanted 2", all.len()))
    })?;
    Ok(Moments { first, second })
}
