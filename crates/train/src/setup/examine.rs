//! Everything that `train` would refuse before its first step, found without it: for `check` and `plan`.

use annulus_comm::World;
use annulus_data::{Chat, DataError, Records, Tokenizer, list};
use annulus_experiment::{Experiment, ModelSource};
use annulus_plan::Plan;
use annulus_sequence::Pass;

use crate::setup::assemble::planned_config;
use crate::setup::checked_data::of_data;
use crate::setup::data::named;
use crate::setup::device;
use crate::setup::initial::check_stored;
use crate::setup::texts::{by_source, excluded, records_of, texts};
use crate::setup::twice::shared_files;
use crate::{Opening, Result};

/// The most bytes of texts that are tokenised for a check, which takes no longer than a second.
const READ_WHOLE: u64 = 1 << 20;

/// Checks plans against this machine's memory and device; those of a file that names a cluster against the memory of its devices and nodes.
///
/// # Errors
/// The first thing that `train` would refuse, and a plan that does not fit on its cluster.
pub fn fits_here(plans: &[Plan]) -> Result<()> {
    for plan in plans {
        plan.misfit_of_file().map_or(Ok(()), Err)?;
        if plan.experiment.mesh.cluster.is_some() {
            continue;
        }
        let processors = device::open_planned(&plan.experiment, &World::alone())?;
        let strategies = plan.groups.iter().map(|group| group.strategy);
        let (block, config) = (plan.experiment.block(), planned_config(plan));
        device::check_all(strategies, block, &config, &processors)?;
        let shards = plan.schedules.first().map(|schedules| &schedules.of(Pass::Forward).positions);
        shards.map_or(Ok(()), |shards| device::check_tokens(shards, &processors))?;
    }
    Ok(())
}

/// Checks the weights that the first phase starts from against its model; those on the hub may not be here yet.
///
/// # Errors
/// Bad or unfitting files of weights.
pub fn weights_fit(plans: &[Plan]) -> Result<()> {
    let here = |plan: &&Plan| {
        matches!(plan.experiment.model.source, ModelSource::Folder { hub: None, .. })
    };
    plans.first().filter(here).map_or(Ok(()), |plan| check_stored(plan, &planned_config(plan)))
}

/// Checks the data of all phases. Texts larger than a megabyte are not tokenised: only whether they exist, and whether they can have as
/// many tokens as are needed, is checked. Returns how many sequences the phases train on and how many epochs their steps are, a line for
/// each source; `None` if not all were read.
///
/// # Errors
/// The first thing that `train` would refuse.
pub fn data_fits(plans: &[Plan], tokenizer: Option<&Tokenizer>) -> Result<Option<Vec<String>>> {
    let mut epochs = Some(Vec::new());
    for plan in plans {
        let read = examine_data(plan, tokenizer)?;
        epochs = epochs.zip(read).map(|(before, read)| [before, read].concat());
    }
    Ok(epochs)
}

fn examine_data(plan: &Plan, tokenizer: Option<&Tokenizer>) -> Result<Option<Vec<String>>> {
    let opening = Opening { tokenizer, temporary: true, ..Opening::default() };
    let experiment = &plan.experiment;
    let is_large = tokenizer.map(|tokenizer| examine_large(experiment, tokenizer)).transpose()?;
    if is_large == Some(true) {
        return Ok(None);
    }
    let data = of_data(plan, opening, &mut |_| {})?;
    Ok(Some(data.epochs_of(experiment, 0)))
}

/// Whether texts are too large to be tokenised here; those are checked by their size.
fn examine_large(experiment: &Experiment, tokenizer: &Tokenizer) -> Result<bool> {
    shared_files(experiment)?;
    let mut is_large = false;
    for part in by_source(experiment) {
        let Some(records) = records_of(part.data.format) else { continue };
        if records == Records::Chats {
            Chat::open(tokenizer)?;
        }
        let inputs = texts(&part)?;
        let bytes = list(&inputs, records, &excluded(&inputs, &part.output)?)?.bytes()?;
        if bytes > READ_WHOLE {
            is_large = true;
            examine_unread(&part, records, bytes, tokenizer)?;
        }
    }
    Ok(is_large)
}

fn examine_unread(
    part: &Experiment,
    records: Records,
    bytes: u64,
    tokenizer: &Tokenizer,
) -> Result<()> {
    // Other records may be compressed, or be made longer by a template.
    if records != Records::Text {
        return Ok(());
    }
    let (found, held_out) = (tokenizer.most_tokens(bytes), part.held_out() as u64);
    let wanted = part.data.tokens as u64 + 1;
    if found >= held_out + wanted {
        return Ok(());
    }
    let short = DataError::TooShort { found, is_most: true, held_out, wanted };
    Err(named(short, part).into())
}
