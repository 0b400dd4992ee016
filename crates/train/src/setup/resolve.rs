//! The beginning of every command: an experiment, and the model and the tokenizer that it names, each opened once.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use annulus_comm::World;
use annulus_data::{DataError, MadeUp, Source, Synthetic, Tokenizer, byte_tokenizer};
use annulus_experiment::{
    BYTES, Data, Experiment, Format, ModelSource, Places, Problem, Problems, Resolved, Shape,
    WeightsFrom, read_config,
};
use annulus_files::hugging_face::{ADAPTER_CONFIG, CONFIG, TOKENIZER};
use annulus_plan::Plan;

use crate::checkpoint::step_of;
use crate::folder::is_run;
use crate::setup::texts::records_of;
use crate::setup::trained::Saved;
use crate::setup::{begun, device, open};
use crate::{Result, TrainError};

/// The vocabulary of a byte-level model, without and with the token between documents.
const BYTE_VOCABULARIES: [usize; 2] = [256, 257];

/// The folder of runs where no `output` is set, and that of models in our pages.
const RUNS: &str = "runs";
const MADE_HERE: [&str; 2] = [RUNS, "models"];

/// A resolved experiment, and its tokenizer.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The resolved experiment, from which plans are made.
    pub resolved: Resolved,
    /// The tokenizer; `None` where the data are synthetic, or token ids.
    pub tokenizer: Option<Arc<Tokenizer>>,
}

/// Fetches the description of a model on the hub: given the experiment's places, the key that names it and the name
/// (`hf://owner/name@revision`), returns the name with its commit and the folder.
pub type Bring<'a, E> =
    &'a mut dyn FnMut(&Places, &str, &str) -> std::result::Result<(String, PathBuf), E>;

/// Opens what an experiment names: models on the hub through `bring`, config.json and the tokenizer.
///
/// # Errors
/// Those of `bring`, and what is wrong with the model's config.json (as an error of data), with the tokenizer, or with how they fit
/// together.
pub fn resolve<E>(experiment: Experiment, bring: Bring<'_, E>) -> std::result::Result<Opened, E>
where
    E: From<TrainError>,
{
    let mut experiment = described(experiment, bring)?;
    let continued = begun::continued_adapters(&mut experiment);
    let mut opened = opened(experiment, None)?;
    if let (Some(lora), Some(path)) = (&mut opened.resolved.experiment.lora, continued) {
        lora.path = Some(path);
    }
    Ok(opened)
}

/// [`resolve`] for the weights of `checkpoint`: model and tokenizer are those that it was trained with, whatever has become of their files
/// since. Only adapters need the folder of their base.
///
/// # Errors
/// Those of [`resolve`].
pub fn resolve_trained<E>(
    experiment: Experiment,
    checkpoint: &Saved,
    bring: Bring<'_, E>,
) -> std::result::Result<Opened, E>
where
    E: From<TrainError>,
{
    let experiment = checkpoint.in_place(experiment);
    let model = checkpoint.model_of(&experiment)?;
    Ok(opened(described(experiment, bring)?, model)?)
}

/// The experiment with its models on the hub fetched, and their names completed with the commits.
fn described<E>(
    mut experiment: Experiment,
    bring: Bring<'_, E>,
) -> std::result::Result<Experiment, E>
where
    E: From<TrainError>,
{
    let Experiment { model, data, places, output, .. } = &mut experiment;
    if let Some(problem) = no_tokenizer(places, data) {
        return Err(TrainError::Config(Problems::from(problem)).into());
    }
    let mut fetched = None;
    if let ModelSource::Folder { path, hub: None, .. } = &mut model.source {
        if let Some(problem) = no_folder(places, path) {
            return Err(TrainError::Config(Problems::from(problem)).into());
        }
        *path = begun::model_of(path, output)?;
    }
    if let ModelSource::Folder { path, hub: Some(hub), .. } = &mut model.source {
        let (name, folder) = bring(places, "model.path", hub)?;
        fetched = Some((hub.clone(), name.clone()));
        (*path, *hub) = (folder, name);
    }
    if let Some(hub) = &mut data.tokenizer_hub {
        // If the tokenizer is the model's own, the same commit as the model's.
        let same = fetched.filter(|(written, _)| written == hub).map(|(_, name)| name);
        let (name, folder) = bring(places, "data.tokenizer", same.as_ref().unwrap_or(hub))?;
        data.tokenizer = Some(folder.join(TOKENIZER).display().to_string());
        *hub = name;
    }
    Ok(experiment)
}

/// The problem of a model's path that is no folder; `None`: it is one.
fn no_folder(places: &Places, path: &Path) -> Option<Problem> {
    let name = path.display().to_string();
    if path.is_file() {
        let problem =
            places.problem("model.path", format!("`{name}` is a file, expected a folder"));
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).display();
        return Some(problem.hint(format!("name the model's folder: `model.path: {folder}`")));
    }
    let has = |file: &str| fs::symlink_metadata(path.join(file)).is_ok();
    if path.is_dir() && !has(CONFIG) && !has(ADAPTER_CONFIG) && !is_run(path) {
        let message = format!("`{name}` is not a model's folder: it has no {CONFIG}");
        let hint = "set `model.path` to a Hugging Face folder, a run, or a `step-N` in it";
        return Some(places.problem("model.path", message).hint(hint));
    }
    if path.exists() {
        return None;
    }
    let problem = places.problem("model.path", format!("there is no folder `{name}`"));
    Some(problem.hint(way_to_model(&name)))
}

/// The problem of a tokenizer's path where nothing is; `None`: something is there, or the tokenizer is of the hub or of bytes.
fn no_tokenizer(places: &Places, data: &Data) -> Option<Problem> {
    let name = data.tokenizer();
    if name == BYTES || data.tokenizer_hub.is_some() || Path::new(name).exists() {
        return None;
    }
    let problem = places.problem("data.tokenizer", format!("there is no file `{name}`"));
    let is_file = Path::new(name).extension().is_some_and(|ending| ending == "json");
    let hint = if could_be_of_hub(name) && !is_file {
        format!("the tokenizer of a model of the hub is `hf://{name}`")
    } else {
        let of_hub = if is_file { "" } else { "; one of the hub is `hf://owner/name`" };
        format!(
            "name a `tokenizer.json`, or make one: `annulus tokenizer train TEXT --out {name}`{of_hub}"
        )
    };
    Some(problem.hint(hint))
}

/// The way to a model where `name` is no folder.
fn way_to_model(name: &str) -> String {
    if let Some(model) = of_page(name) {
        return format!("a model of the hub is `hf://{model}`");
    }
    let path = Path::new(name);
    let is_of_runs = path.parent().is_some_and(|parent| parent.ends_with(RUNS) || is_run(parent));
    if step_of(path).is_some() || is_of_runs {
        return "train that run first, or set `model.path` to another model's folder".to_owned();
    }
    let of_hub = if could_be_of_hub(name) {
        format!("; a model of the hub is `hf://{name}`")
    } else {
        String::new()
    };
    format!(
        "set `model.path` to a model's folder, or make this one: `annulus export RUN --out {name}`{of_hub}"
    )
}

/// `owner/name`, where a name is the address of a model's page on the hub, or nearly that of a model of the hub.
fn of_page(name: &str) -> Option<String> {
    let plain = ["https://", "http://"].iter().find_map(|scheme| name.strip_prefix(scheme));
    let page = ["huggingface.co/", "hf.co/"];
    let rest = page.iter().find_map(|host| plain.unwrap_or(name).strip_prefix(host));
    let mut parts = rest.or_else(|| name.strip_prefix("hf:"))?.trim_start_matches('/').split('/');
    let (owner, model) = (parts.next()?, parts.next()?);
    (!owner.is_empty() && !model.is_empty()).then(|| format!("{owner}/{model}"))
}

/// Whether a name may be that of a model of the hub, and not of a folder that is yet to be made.
fn could_be_of_hub(name: &str) -> bool {
    let of = |(owner, model): (&str, &str)| {
        !owner.is_empty()
            && !owner.starts_with(['.', '~'])
            && !MADE_HERE.contains(&owner)
            && !model.is_empty()
            && !model.contains('/')
    };
    name.split_once('/').is_some_and(of)
}

/// `model`: its shape, where that is not what the experiment's folder says.
fn opened(experiment: Experiment, model: Option<Shape>) -> Result<Opened> {
    let model = match (model, &experiment.model.source) {
        (Some(model), _) => model,
        (None, ModelSource::Folder { path, .. }) => {
            read_config(path).map_err(TrainError::Config)?
        }
        (None, ModelSource::Inline(shape)) => Shape::clone(shape),
    };
    let resolved = Resolved::new(experiment, model, None)?;
    let Resolved { mut experiment, model, .. } = resolved;
    let reads = records_of(experiment.data.format).is_some();
    let tokenizer = match &experiment.data.tokenizer {
        _ if reads => Some(tokenizer(&mut experiment, model.vocab_size)?),
        // Its data are token ids; what it is asked and answers is text.
        Some(named) => Some(Tokenizer::open(named)?),
        None => None,
    };
    let tokenizer = tokenizer.map(Arc::new);
    if let (Some(tokenizer), ModelSource::Folder { path, .. }) =
        (&tokenizer, &experiment.model.source)
    {
        let [begin, end] = [model.special("bos_token_id"), model.special("eos_token_id")];
        tokenizer.check_special(&path.join(CONFIG), &begin, &end)?;
    }
    if reads {
        experiment.data.tokenizer.get_or_insert_with(|| BYTES.to_owned());
    }
    let vocabulary = match &tokenizer {
        Some(tokenizer) if reads => Some(tokenizer.vocabulary()),
        _ => made_up(&experiment)?,
    };
    Ok(Opened { resolved: Resolved { experiment, model, vocabulary }, tokenizer })
}

/// Opens the tokenizer of the data. If the experiment names none, it is that of the pretrained model, where the folder has one that is not
/// of bytes; the experiment then names it. `vocabulary`: the size of the model's.
fn tokenizer(experiment: &mut Experiment, vocabulary: Option<usize>) -> Result<Tokenizer> {
    let Experiment { data, model, places, .. } = experiment;
    if let ModelSource::Folder { path, hub, weights: WeightsFrom::Pretrained } = &model.source {
        let own = path.join(TOKENIZER);
        if std::fs::symlink_metadata(&own).is_ok() {
            // Somebody else may have made the folder, and its tokenizer is copied into every checkpoint.
            let read = |source| DataError::Read { path: own.clone(), source };
            annulus_files::within(path, TOKENIZER).map_err(read)?;
        }
        if data.tokenizer() == BYTES && own.is_file() {
            let name = own.display().to_string();
            let tokenizer = Tokenizer::open(&name)?;
            // The tokenizer's chat template turns conversations into bytes.
            let speaks = data.formats().any(|format| format == Format::Chat);
            if speaks || !is_of_bytes(&tokenizer) {
                if data.tokenizer.is_some() {
                    return refuse_other(places, &own);
                }
                data.tokenizer_hub.clone_from(hub);
                data.tokenizer = Some(name);
                return Ok(tokenizer);
            }
        } else if data.tokenizer.is_none() {
            refuse_bytes(places, path, vocabulary)?;
        } else {
            let tokenizer = Tokenizer::open(data.tokenizer())?;
            check_same_tokens(places, &tokenizer, data.tokenizer(), &own)?;
            return Ok(tokenizer);
        }
    }
    Ok(Tokenizer::open(data.tokenizer())?)
}

/// An error if `tokenizer`, which is the one in `named`, has other ids for tokens than `own`, the pretrained model's, where there is one that
/// can be read: the model would read other texts than those of the data.
fn check_same_tokens(
    places: &Places,
    tokenizer: &Tokenizer,
    named: &str,
    own: &Path,
) -> Result<()> {
    let is_own = || std::fs::read(own).is_ok_and(|text| tokenizer.is_of(&text));
    if Path::new(named) == own || !own.is_file() || is_own() {
        return Ok(());
    }
    let own = own.display().to_string();
    let models = Tokenizer::open(&own).ok();
    let Some(differing) = models.and_then(|models| models.contradiction(tokenizer)) else {
        return Ok(());
    };
    let message = format!("`{named}` is not the tokenizer of the model, `{own}`: {differing}");
    let problem = places.problem("data.tokenizer", message);
    let hint = "remove `data.tokenizer`; to train the model on other tokens all the same, name a copy of its folder with that file as `tokenizer.json`";
    Err(Problems::from(problem.hint(hint)).into())
}

/// The error that an experiment asks for bytes with a model that has another tokenizer.
fn refuse_other<T>(places: &Places, own: &Path) -> Result<T> {
    let own = own.display();
    let message = format!("`data.tokenizer` is `{BYTES}`, but the model reads with `{own}`");
    let problem = places.problem("data.tokenizer", message);
    let hint = format!("remove it, or write `{own}`; with `model.weights: random` any will do");
    Err(Problems::from(problem.hint(hint)).into())
}

/// An error if bytes, which the experiment did not ask for, would be read by a model in `folder` that learned other tokens.
fn refuse_bytes(places: &Places, folder: &Path, vocabulary: Option<usize>) -> Result<()> {
    let Some(vocabulary) = vocabulary.filter(|size| !BYTE_VOCABULARIES.contains(size)) else {
        return Ok(());
    };
    let folder = folder.display();
    let message = format!(
        "`{folder}` has no `{TOKENIZER}`, and its vocabulary of {vocabulary} tokens is not that of `{BYTES}`"
    );
    let problem = places.problem("model.path", message);
    let hint = "set `data.tokenizer` to the model's; transformers makes one of a SentencePiece `tokenizer.model`: \
                `AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)`";
    Err(Problems::from(problem.hint(String::from(hint))).into())
}

/// Whether this is the tokenizer that is saved for byte-level models.
fn is_of_bytes(tokenizer: &Tokenizer) -> bool {
    BYTE_VOCABULARIES
        .into_iter()
        .filter_map(byte_tokenizer)
        .any(|bytes| tokenizer.is_of(bytes.text.as_bytes()))
}

/// The vocabulary of synthetic tasks; `None`: the data are ids in a file.
fn made_up(experiment: &Experiment) -> Result<Option<usize>> {
    let Experiment { data, seed, .. } = experiment;
    let by = match data.format {
        Format::Recall => Synthetic::Recall,
        Format::Needles => Synthetic::Needles,
        _ => return Ok(None),
    };
    Ok(Some(MadeUp::new(by, data.tokens, data.batch, *seed)?.vocabulary()))
}

impl Opened {
    /// The experiment on this machine's devices.
    #[must_use]
    pub fn here(&self) -> Resolved {
        let mut resolved = self.resolved.clone();
        device::place_on_devices(&mut resolved.experiment);
        resolved
    }

    /// The plan on this machine; of several phases, the last's. A strategy that is left open is chosen by this machine's speed now, or as
    /// the run's folder says that it was before.
    ///
    /// # Errors
    /// A bad experiment, or a device that cannot be used.
    pub fn plan(&self, cores: usize) -> Result<Plan> {
        let mut plans = self.plans(cores)?;
        Ok(plans.swap_remove(plans.len() - 1))
    }

    /// The plans of all phases.
    ///
    /// # Errors
    /// Those of [`Opened::plan`].
    pub fn plans(&self, cores: usize) -> Result<Vec<Plan>> {
        self.plans_over(cores, &World::alone())
    }

    /// The plans of all phases for the processes of `world`, called by the first. Where a strategy is chosen by their measured speed, the
    /// others get the experiment with its strategy open, and must call [`measured`](crate::measured) with it.
    ///
    /// # Errors
    /// Those of [`Opened::plan`], and a process that is late or gone.
    pub fn plans_over(&self, cores: usize, world: &World) -> Result<Vec<Plan>> {
        open::plans(&self.here(), cores, world)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_a_model_depends_on_what_was_named() {
        let train = "train that run first";
        let make = "`annulus export RUN --out models/base`";
        for (name, wanted, unwanted) in [
            ("runs/quickstart/step-400", train, "hf://"),
            ("runs/quickstart", train, "hf://"),
            ("elsewhere/step-4", train, "hf://"),
            ("models/base", make, "hf://"),
            ("owner/name", "`hf://owner/name`", train),
            ("./owner/name", "annulus export", "hf://"),
            ("https://huggingface.co/owner/name", "is `hf://owner/name`", "export"),
            ("huggingface.co/owner/name/tree/main", "is `hf://owner/name`", "export"),
            ("hf:/owner/name", "is `hf://owner/name`", "export"),
        ] {
            let hint = way_to_model(name);
            assert!(hint.contains(wanted) && !hint.contains(unwanted), "{name}: {hint}");
        }
    }
}
