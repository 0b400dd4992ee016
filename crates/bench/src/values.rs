//! Words of the command line as values.

use annulus_experiment::{Device, Offload, Recompute};
use annulus_sequence::{Mask, Strategy};

use crate::arguments::NamedMask;

pub(crate) fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("expected a whole number from 1 on".to_owned()),
        Ok(number) => Ok(number),
    }
}

/// `4k` is 4096, `1M` is 1048576.
pub(crate) fn count(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.strip_suffix('k') {
        Some(digits) => (digits, 1 << 10),
        None => text.strip_suffix('M').map_or((text, 1), |digits| (digits, 1 << 20)),
    };
    positive(digits)?
        .checked_mul(unit)
        .ok_or_else(|| "no machine has memory for so many".to_owned())
}

pub(crate) fn mask(text: &str) -> Result<NamedMask, String> {
    let mask = Mask::from_name(text).map_err(|wrong| wrong.to_string())?;
    Ok(NamedMask { name: text.to_owned(), mask })
}

pub(crate) fn recompute(text: &str) -> Result<Recompute, String> {
    let known = [("none", Recompute::None), ("layer", Recompute::Layer)];
    let found = known.into_iter().find(|(word, _)| *word == text);
    found.map(|(_, value)| value).ok_or_else(|| "`none` and `layer` are known".to_owned())
}

pub(crate) fn offload(text: &str) -> Result<Offload, String> {
    Offload::from_word(text)
        .ok_or_else(|| "`none`, `activations`, `optimizer` and `both` are known".to_owned())
}

pub(crate) fn device(text: &str) -> Result<Device, String> {
    Device::from_word(text).ok_or_else(|| {
        "`auto`, `cpu`, `cuda`, `cuda:N` and several as `cuda:0-3` are known".to_owned()
    })
}

pub(crate) fn strategy(text: &str) -> Result<Strategy, String> {
    Strategy::from_name(text).ok_or_else(|| {
        let names = Strategy::ALL.map(|strategy| format!("`{}`", strategy.name()));
        format!("{} are known", names.join(", "))
    })
}
