//! Models of the hub, brought where an experiment or a flag names one.

use std::path::{Path, PathBuf};

use annulus_experiment::{Experiment, ModelSource, WeightsFrom, size};
use annulus_hub::{Event, Fetched, HubError, Name, Options, Want, fetch};

use crate::console::Bar;
use crate::failure::{DATA, Failure, PREEMPTED, USAGE};
use crate::{print, stop};

/// The file of a tokenizer in a model's folder.
pub(crate) const TOKENIZER: &str = "tokenizer.json";

/// The experiment with the descriptions of its models here, and their names with the commits that
/// they were; weights come when they are needed.
pub(crate) fn described(mut experiment: Experiment) -> Result<Experiment, Failure> {
    let places = experiment.places.clone();
    let bring = |key: &str, text: &str| {
        let name = text.parse().map_err(|message: String| Failure {
            code: USAGE,
            problems: places
                .problem(key, format!("`{text}` is no model of the hub: {message}"))
                .into(),
        })?;
        brought(&name, Want::Description, false)
    };
    let mut model = None;
    if let ModelSource::Folder { path, hub: Some(hub), .. } = &mut experiment.model.source {
        let Fetched { name, folder } = bring("model.path", hub)?;
        model = Some((hub.clone(), name.clone()));
        (*path, *hub) = (folder, name.to_string());
    }
    let data = &mut experiment.data;
    if let Some(hub) = &mut data.tokenizer_hub {
        // The very commit of the model, where it is the model's own.
        let same = model.filter(|(written, _)| written == hub).map(|(_, name)| name.to_string());
        let Fetched { name, folder } = bring("data.tokenizer", same.as_ref().unwrap_or(hub))?;
        data.tokenizer = folder.join(TOKENIZER).display().to_string();
        *hub = name.to_string();
    }
    Ok(experiment)
}

/// Brings the weights that an experiment which is [`described`] starts from; with `verify` what is there already is held to its hashes.
pub(crate) fn weights(experiment: &Experiment, verify: bool) -> Result<(), Failure> {
    match &experiment.model.source {
        ModelSource::Folder { hub: Some(hub), weights: WeightsFrom::Pretrained, .. } => {
            brought(&parsed(hub)?, Want::Weights, verify).map(drop)
        }
        ModelSource::Folder { .. } | ModelSource::Inline(_) => Ok(()),
    }
}

/// The folder that a flag means: a model of the hub with its weights, or a path.
pub(crate) fn folder(path: &Path) -> Result<PathBuf, Failure> {
    match path.to_str().filter(|text| ModelSource::is_of_hub(text)) {
        Some(text) => Ok(brought(&parsed(text)?, Want::Weights, false)?.folder),
        None => Ok(path.to_owned()),
    }
}

/// The tokenizer that a flag means: a model's of the hub, a path, or `bytes`.
pub(crate) fn tokenizer(text: &str) -> Result<String, Failure> {
    if !ModelSource::is_of_hub(text) {
        return Ok(text.to_owned());
    }
    let fetched = brought(&parsed(text)?, Want::Description, false)?;
    Ok(fetched.folder.join(TOKENIZER).display().to_string())
}

fn parsed(text: &str) -> Result<Name, Failure> {
    text.parse().map_err(|message| {
        Failure::new(USAGE, format!("`{text}` is no model of the hub: {message}"), None)
    })
}

/// Fetches, and says so where something has to come.
fn brought(name: &Name, want: Want, verify: bool) -> Result<Fetched, Failure> {
    let failed = |error: HubError| {
        let code = if matches!(error, HubError::Stopped) { PREEMPTED } else { DATA };
        Failure::new(code, error.to_string(), error.hint())
    };
    let options = Options { verify, ..Options::from_environment().map_err(failed)? };
    if let Some(warning) = options.warning() {
        print::say(&format!("warning: {warning}"));
    }
    let (mut bar, mut said) = (Bar::new("fetching"), false);
    let fetched = fetch(name, want, &options, &mut |event| {
        match event {
            Event::Waiting => {}
            Event::Locked(lock) => {
                bar.say(&format!(
                    "another program fetches {name}: waiting for `{}`",
                    lock.display()
                ));
            }
            Event::Arrived { bytes, total } => {
                if !std::mem::replace(&mut said, true) {
                    bar.say(&format!("fetching {name}: {}", size(total)));
                }
                bar.show(bytes, total);
            }
        }
        !stop::is_asked_for()
    });
    bar.finish();
    fetched.map_err(failed)
}
