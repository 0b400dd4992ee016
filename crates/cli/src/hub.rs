//! Fetches models of the Hugging Face Hub that an experiment or a flag names.

use std::path::{Path, PathBuf};

use annulus_experiment::{Experiment, ModelSource, Places, WeightsFrom};
use annulus_files::hugging_face::TOKENIZER;
use annulus_hub::{Event, Fetched, HubError, Name, Options, Want, fetch};
use annulus_text::size;
use annulus_train::Exit;

use crate::console::{Meter, Unit};
use crate::failure::Failure;
use crate::{print, stop};

/// Fetches the description of the model that `key` names; returns its name with the commit, and its folder.
pub(crate) fn description(
    places: &Places,
    key: &str,
    text: &str,
) -> Result<(String, PathBuf), Failure> {
    let name = text.parse().map_err(|message: String| {
        let message = format!("`{text}` is not a model of the hub: {message}");
        Failure { exit: Exit::Usage, problems: places.problem(key, message).into() }
    })?;
    let Fetched { name, folder } = fetched(&name, Want::Description, false)?;
    Ok((name.to_string(), folder))
}

/// Fetches the weights that a resolved experiment starts from; with `verify` files that are there already are checked by their hashes.
pub(crate) fn weights(experiment: &Experiment, verify: bool) -> Result<(), Failure> {
    match &experiment.model.source {
        ModelSource::Folder { hub: Some(hub), weights: WeightsFrom::Pretrained, .. } => {
            fetched(&parsed(hub)?, Want::Weights, verify).map(drop)
        }
        ModelSource::Folder { .. } | ModelSource::Inline(_) => Ok(()),
    }
}

/// The folder that a flag means: a model of the hub with its weights, a run's newest checkpoint, or a folder.
pub(crate) fn folder(path: &Path) -> Result<PathBuf, Failure> {
    match path.to_str().filter(|text| ModelSource::is_of_hub(text)) {
        Some(text) => Ok(fetched(&parsed(text)?, Want::Weights, false)?.folder),
        None => Ok(annulus_train::model_folder(path)?),
    }
}

/// The tokenizer that a flag means: a model's of the hub, a path, or `bytes`.
pub(crate) fn tokenizer(text: &str) -> Result<String, Failure> {
    if !ModelSource::is_of_hub(text) {
        return Ok(text.to_owned());
    }
    let fetched = fetched(&parsed(text)?, Want::Description, false)?;
    Ok(fetched.folder.join(TOKENIZER).display().to_string())
}

fn parsed(text: &str) -> Result<Name, Failure> {
    text.parse().map_err(|message| {
        Failure::new(Exit::Usage, format!("`{text}` is not a model of the hub: {message}"), None)
    })
}

/// Fetches a model, and says so if something has to be downloaded.
fn fetched(name: &Name, want: Want, verify: bool) -> Result<Fetched, Failure> {
    let failed = |error: HubError| {
        let exit = if matches!(error, HubError::Stopped) { Exit::Preempted } else { Exit::Data };
        Failure::new(exit, error.to_string(), error.hint())
    };
    let options = Options { verify, ..Options::from_environment().map_err(failed)? };
    options.warning().iter().for_each(print::warn);
    let (meter, mut said) = (Meter::new(Unit::Bytes), false);
    let fetched = fetch(name, want, &options, &mut |event| {
        match event {
            Event::Waiting => {}
            Event::Locked(lock) => {
                meter.say(&format!(
                    "another program fetches {name}: waiting for `{}`",
                    lock.display()
                ));
            }
            Event::Unasked(why) => meter.say(&format!(
                "note: the hub cannot be asked ({why}): taking {name} as it is in the cache"
            )),
            Event::Arrived { bytes, total } => {
                if !std::mem::replace(&mut said, true) {
                    meter.say(&format!("fetching {name}: {}", size(total)));
                }
                meter.show("fetching", bytes, total);
            }
        }
        !stop::is_requested()
    });
    meter.finish();
    fetched.map_err(failed)
}
