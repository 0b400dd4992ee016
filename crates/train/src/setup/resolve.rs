//! What every command begins with: an experiment, the model and the tokenizer that it names, each
//! opened once.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use annulus_comm::World;
use annulus_data::{DataError, Needles, Recall, Source, Tokenizer, byte_tokenizer};
use annulus_experiment::{
    BYTES, Experiment, Format, ModelSource, Places, Problem, Problems, Resolved, Shape,
    WeightsFrom, read_config,
};
use annulus_plan::Plan;

use crate::ask::weights::model_folder;
use crate::setup::texts::records_of;
use crate::setup::{device, open};
use crate::{Result, TrainError};

/// The file of a tokenizer in a model's folder.
pub const TOKENIZER: &str = "tokenizer.json";
/// How many tokens a model of bytes knows, without and with what stands between documents.
const BYTE_VOCABULARIES: [usize; 2] = [256, 257];

/// A resolved experiment, and its tokenizer.
#[derive(Clone, Debug)]
pub struct Opened {
    /// What plans are made of.
    pub resolved: Resolved,
    /// `None` where the data are made up, or token ids.
    pub tokenizer: Option<Arc<Tokenizer>>,
}

/// Brings the description of a model of the hub: from the experiment's places, the key that names it
/// and the name (`hf://owner/name@revision`), the name with its commit and the folder.
pub type Bring<'a, E> =
    &'a mut dyn FnMut(&Places, &str, &str) -> std::result::Result<(String, PathBuf), E>;

/// Opens what an experiment names: models of the hub by `bring`, config.json and the tokenizer.
///
/// # Errors
/// What `bring` says, and what is wrong with the model's config.json (as of data), with the tokenizer,
/// or with how they fit each other.
pub fn resolve<E>(experiment: Experiment, bring: Bring<'_, E>) -> std::result::Result<Opened, E>
where
    E: From<TrainError>,
{
    let experiment = described(experiment, bring)?;
    Ok(opened(experiment)?)
}

/// The experiment with its models of the hub here, under their names with the commits that they were.
fn described<E>(
    mut experiment: Experiment,
    bring: Bring<'_, E>,
) -> std::result::Result<Experiment, E>
where
    E: From<TrainError>,
{
    let Experiment { model, data, places, .. } = &mut experiment;
    let mut fetched = None;
    if let ModelSource::Folder { path, hub: None, .. } = &mut model.source {
        if let Some(problem) = not_there(places, path) {
            return Err(TrainError::Config(Problems::from(problem)).into());
        }
        *path = model_folder(path)?;
    }
    if let ModelSource::Folder { path, hub: Some(hub), .. } = &mut model.source {
        let (name, folder) = bring(places, "model.path", hub)?;
        fetched = Some((hub.clone(), name.clone()));
        (*path, *hub) = (folder, name);
    }
    if let Some(hub) = &mut data.tokenizer_hub {
        // The very commit of the model, where it is the model's own.
        let same = fetched.filter(|(written, _)| written == hub).map(|(_, name)| name);
        let (name, folder) = bring(places, "data.tokenizer", same.as_ref().unwrap_or(hub))?;
        data.tokenizer = Some(folder.join(TOKENIZER).display().to_string());
        *hub = name;
    }
    Ok(experiment)
}

/// A model's folder that is not there.
fn not_there(places: &Places, path: &Path) -> Option<Problem> {
    if path.exists() {
        return None;
    }
    let name = path.display().to_string();
    let problem = places.problem("model.path", format!("there is no folder `{name}`"));
    let of_hub = if could_be_of_hub(&name) {
        format!("; a model of the hub is `hf://{name}`")
    } else {
        String::new()
    };
    let hint = format!(
        "set `model.path` to a model's folder, or make this one: `annulus export RUN --out {name}`{of_hub}"
    );
    Some(problem.hint(hint))
}

fn could_be_of_hub(name: &str) -> bool {
    let of = |(owner, model): (&str, &str)| {
        !owner.is_empty()
            && !owner.starts_with(['.', '~'])
            && !model.is_empty()
            && !model.contains('/')
    };
    name.split_once('/').is_some_and(of)
}

fn opened(experiment: Experiment) -> Result<Opened> {
    let model = match &experiment.model.source {
        ModelSource::Folder { path, .. } => read_config(path).map_err(TrainError::Config)?,
        ModelSource::Inline(shape) => Shape::clone(shape),
    };
    let resolved = Resolved::new(experiment, model, None)?;
    let Resolved { mut experiment, model, .. } = resolved;
    let reads = records_of(experiment.data.format).is_some();
    let tokenizer =
        if reads { Some(Arc::new(tokenizer(&mut experiment, model.vocab_size)?)) } else { None };
    if let (Some(tokenizer), ModelSource::Folder { path, .. }) =
        (&tokenizer, &experiment.model.source)
    {
        let [begin, end] = [model.special("bos_token_id"), model.special("eos_token_id")];
        tokenizer.check_special(&path.join("config.json"), &begin, &end)?;
    }
    experiment.data.tokenizer.get_or_insert_with(|| BYTES.to_owned());
    let vocabulary = match &tokenizer {
        Some(tokenizer) => Some(tokenizer.vocabulary()),
        None => made_up(&experiment)?,
    };
    Ok(Opened { resolved: Resolved { experiment, model, vocabulary }, tokenizer })
}

/// The tokenizer of the data. A pretrained model's own, where its folder has one that is not of bytes
/// and the experiment names no other: then the experiment names it, too. `vocabulary`: how many tokens the model knows.
fn tokenizer(experiment: &mut Experiment, vocabulary: Option<usize>) -> Result<Tokenizer> {
    let Experiment { data, model, places, .. } = experiment;
    if let ModelSource::Folder { path, hub, weights: WeightsFrom::Pretrained } = &model.source {
        let own = path.join(TOKENIZER);
        if std::fs::symlink_metadata(&own).is_ok() {
            // Somebody else may have made the folder: what it holds is copied into every checkpoint.
            let read = |source| DataError::Read { path: own.clone(), source };
            annulus_files::within(path, TOKENIZER).map_err(read)?;
        }
        if data.tokenizer() == BYTES && own.is_file() {
            let name = own.display().to_string();
            let tokenizer = Tokenizer::open(&name)?;
            // Its template is what makes conversations of bytes.
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
        }
    }
    Ok(Tokenizer::open(data.tokenizer())?)
}

/// Bytes that are asked for, of a model that reads with another tokenizer.
fn refuse_other<T>(places: &Places, own: &Path) -> Result<T> {
    let own = own.display();
    let message = format!("`data.tokenizer` is `{BYTES}`, but the model reads with `{own}`");
    let problem = places.problem("data.tokenizer", message);
    let hint = format!("drop it, or write `{own}`; with `model.weights: random` any will do");
    Err(Problems::from(problem.hint(hint)).into())
}

/// Bytes that nobody asked for, of a model in `folder` that learned other tokens.
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

/// Whether it is what is written of bytes.
fn is_of_bytes(tokenizer: &Tokenizer) -> bool {
    BYTE_VOCABULARIES
        .into_iter()
        .filter_map(byte_tokenizer)
        .any(|bytes| tokenizer.is_of(&bytes.text))
}

/// Tokens of tasks that are made up; `None`: of ids that a file has.
fn made_up(experiment: &Experiment) -> Result<Option<usize>> {
    let Experiment { data, seed, .. } = experiment;
    Ok(match data.format {
        Format::Recall => Some(Recall::new(data.tokens, data.batch, *seed)?.vocabulary()),
        Format::Needles => Some(Needles::new(data.tokens, data.batch, *seed)?.vocabulary()),
        _ => None,
    })
}

impl Opened {
    /// The experiment on this machine's devices.
    #[must_use]
    pub fn here(&self) -> Resolved {
        let mut resolved = self.resolved.clone();
        device::place(&mut resolved.experiment);
        resolved
    }

    /// The plan on this machine, of several phases the last's: a strategy that is left open is chosen
    /// by what this machine achieves now, or as before in the run's folder.
    ///
    /// # Errors
    /// What is wrong with the experiment, or a device that cannot be used.
    pub fn plan(&self, cores: usize) -> Result<Plan> {
        let mut plans = self.plans(cores)?;
        Ok(plans.swap_remove(plans.len() - 1))
    }

    /// The plans of all phases.
    ///
    /// # Errors
    /// As those of [`Opened::plan`].
    pub fn plans(&self, cores: usize) -> Result<Vec<Plan>> {
        self.plans_over(cores, &World::alone())
    }

    /// The same for the processes of `world`, called by the first. Where a strategy is chosen by what they achieve, the others are
    /// told the experiment as it is, its strategy open, and must call [`measured`](crate::measured) with it.
    ///
    /// # Errors
    /// As those of [`Opened::plan`], and a process that is late or gone.
    pub fn plans_over(&self, cores: usize, world: &World) -> Result<Vec<Plan>> {
        open::plans(&self.here(), cores, world)
    }
}
