//! The texts that lie beside a checkpoint's weights: configurations and the tokenizer.
//!
//! They are read once, before training: what is moved or changed meanwhile is saved as it was trained with.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use annulus_data::Tokenizer;
use annulus_experiment::{
    ADAPTED, BYTES, Experiment, ModelSource, Shape, WeightsFrom, write_adapter, write_config,
};
use annulus_files::hugging_face::{
    ADAPTER_CONFIG, BESIDE_TOKENIZER, CONFIG, GENERATION_CONFIG, LARGEST, TOKENIZER,
    TOKENIZER_CONFIG,
};
use annulus_plan::Plan;
use serde_json::{Map, Value, json};

use super::templates::templates;
use super::tokenizer::{for_both_versions, missing};
use crate::Result;
use crate::error::failure;

/// The keys of special tokens in config.json and in the generation settings.
const SPECIAL: [&str; 3] = ["bos_token_id", "eos_token_id", "pad_token_id"];

/// The texts of a run's checkpoints, by file name.
#[derive(Clone, Debug)]
pub(crate) struct Texts(Arc<BTreeMap<Cow<'static, str>, Vec<u8>>>);

impl Texts {
    /// The texts of `plan`.
    ///
    /// # Errors
    /// A tokenizer or settings that cannot be read.
    pub(crate) fn of(plan: &Plan) -> Result<Texts> {
        let texts = texts(plan);
        let texts = texts
            .map_err(|error| failure("keep the tokenizer for", &plan.experiment.output, &error))?;
        Ok(Texts(Arc::new(texts)))
    }

    /// Writes all of them into `folder`, which must be there.
    pub(crate) fn write(&self, folder: &Path) -> io::Result<()> {
        self.0.iter().try_for_each(|(name, text)| {
            let path = folder.join(&**name);
            match path.parent().filter(|parent| *parent != folder).map(fs::create_dir) {
                Some(Err(error)) if error.kind() != ErrorKind::AlreadyExists => Err(error),
                _ => fs::write(path, text),
            }
        })
    }
}

fn texts(plan: &Plan) -> io::Result<BTreeMap<Cow<'static, str>, Vec<u8>>> {
    let experiment = &plan.experiment;
    let tokenizer = tokenizer_of(experiment);
    let shape = with_ends(&plan.shape, experiment, tokenizer.as_deref())?;
    let mut texts = BTreeMap::new();
    let name = if experiment.lora.is_some() { ADAPTED } else { CONFIG };
    texts.insert(name.into(), write_config(&shape, experiment.model.dtype).into_bytes());
    if let Some(lora) = &experiment.lora {
        let (base, revision) = name_of(&experiment.model.source)?;
        let adapter = write_adapter(lora, &base, revision.as_deref(), &shape);
        texts.insert(ADAPTER_CONFIG.into(), adapter.into_bytes());
    }
    texts.insert(GENERATION_CONFIG.into(), generation(plan, &shape)?);
    if let Some(tokenizer) = &tokenizer {
        texts.insert(TOKENIZER.into(), annulus_files::read(tokenizer, LARGEST)?);
        let beside = tokenizer.parent().unwrap_or(Path::new(""));
        let templates = templates(beside)?.into_iter().map(Cow::Owned);
        for name in BESIDE_TOKENIZER.into_iter().map(Cow::Borrowed).chain(templates) {
            if let Some(text) = found(beside, &name)? {
                texts.insert(name, text);
            }
        }
        if let Some(text) = texts.get_mut(TOKENIZER_CONFIG) {
            let long = raised(std::mem::take(text), "model_max_length", plan, 0);
            *text = for_both_versions(long);
        }
    }
    let is_said = texts.contains_key(TOKENIZER_CONFIG);
    let missing = missing(tokenizer.as_deref(), is_said, experiment, &plan.shape)?;
    texts.extend(missing.into_iter().map(|(name, text)| (name.into(), text.into_bytes())));
    Ok(texts)
}

/// The tokenizer.json that is saved with the weights: the one that texts are read with or, where that is bytes, the model's own, which has
/// its chat template.
fn tokenizer_of(experiment: &Experiment) -> Option<PathBuf> {
    let named = Some(experiment.data.tokenizer()).filter(|named| *named != BYTES);
    let own = || match &experiment.model.source {
        ModelSource::Folder { path, weights: WeightsFrom::Pretrained, .. } => {
            annulus_files::within(path, TOKENIZER).ok().filter(|own| own.is_file())
        }
        _ => None,
    };
    named.map(PathBuf::from).or_else(own)
}

/// `shape` with the tokens that begin and end the tokenizer's documents, where config.json names none: `generate` in `transformers` stops
/// at the end that it finds there.
fn with_ends(
    shape: &Shape,
    experiment: &Experiment,
    tokenizer: Option<&Path>,
) -> io::Result<Shape> {
    let mut shape = shape.clone();
    if matches!(experiment.model.source, ModelSource::Folder { weights: WeightsFrom::Random, .. }) {
        // Ids of the tokenizer that the weights were trained with.
        shape.special_tokens.clear();
    }
    if !shape.special("eos_token_id").is_empty() || !experiment.data.format.is_text() {
        return Ok(shape);
    }
    let name = tokenizer.map_or(BYTES.into(), Path::to_string_lossy);
    let tokenizer = Tokenizer::open(&name).map_err(io::Error::other)?;
    let rows = shape.vocab_size.unwrap_or_default();
    let end = tokenizer.ends().first().filter(|id| (**id as usize) < rows);
    let ends = [tokenizer.before().last(), end];
    for (key, id) in SPECIAL.into_iter().zip(ends) {
        if let Some(id) = id {
            shape.special_tokens.entry(key.to_owned()).or_insert_with(|| json!(id));
        }
    }
    Ok(shape)
}

/// The name by which PEFT finds a model: its name and revision on the hub, or its absolute folder.
fn name_of(source: &ModelSource) -> io::Result<(String, Option<String>)> {
    if let Some((name, revision)) = source.on_hub() {
        return Ok((name.to_owned(), Some(revision.to_owned())));
    }
    match source {
        ModelSource::Folder { path, .. } => {
            Ok((std::path::absolute(path)?.display().to_string(), None))
        }
        ModelSource::Inline(_) => Ok((String::new(), None)),
    }
}

/// The generation settings: the pretrained model's, or the special tokens of `shape`. Where the file exists, `transformers` reads no
/// special token in config.json.
fn generation(plan: &Plan, shape: &Shape) -> io::Result<Vec<u8>> {
    if let ModelSource::Folder { path, weights: WeightsFrom::Pretrained, .. } =
        &plan.experiment.model.source
        && let Some(own) = found(path, GENERATION_CONFIG)?
    {
        let least = plan.model.max_position_embeddings.unwrap_or_default();
        return Ok(with_special(raised(own, "max_length", plan, least), shape));
    }
    Ok(with_special(br#"{ "_from_model_config": true }"#.to_vec(), shape))
}

/// Generation settings with the special tokens of `shape` that they lack.
fn with_special(text: Vec<u8>, shape: &Shape) -> Vec<u8> {
    let Ok(mut settings) = serde_json::from_slice::<Map<String, Value>>(&text) else { return text };
    for key in SPECIAL {
        let own = shape.special_tokens.get(key);
        if let Some(ids) = own.filter(|_| settings.get(key).is_none_or(Value::is_null)) {
            settings.insert(key.to_owned(), ids.clone());
        }
    }
    format!("{:#}\n", Value::Object(settings)).into_bytes()
}

/// A JSON text whose number `key`, if it is `least` or more, is no less than the model's length, where that has grown.
fn raised(text: Vec<u8>, key: &str, plan: &Plan, least: usize) -> Vec<u8> {
    let (own, now) = (plan.model.max_position_embeddings, plan.shape.max_position_embeddings);
    let longest = now.max(plan.experiment.extend.as_ref().map(|extend| extend.tokens));
    let Some(longest) = longest.filter(|_| own.is_some() && longest > own) else { return text };
    let Ok(mut settings) = serde_json::from_slice::<Map<String, Value>>(&text) else { return text };
    let is_short =
        |of: &Value| of.as_u64().is_some_and(|of| (least as u64..longest as u64).contains(&of));
    match settings.get_mut(key).filter(|of| is_short(of)) {
        Some(number) => *number = json!(longest),
        None => return text,
    }
    format!("{:#}\n", Value::Object(settings)).into_bytes()
}

/// The text of `name` in a folder that somebody else may have made, if it is there. A link that leads out of the folder is refused: its
/// target would be published with the checkpoint.
fn found(folder: &Path, name: &str) -> io::Result<Option<Vec<u8>>> {
    if fs::symlink_metadata(folder.join(name)).is_err() {
        return Ok(None);
    }
    let named = |error: io::Error| {
        io::Error::new(error.kind(), format!("`{}`: {error}", folder.join(name).display()))
    };
    let path = annulus_files::within(folder, name).map_err(named)?;
    annulus_files::read(&path, LARGEST).map(Some).map_err(named)
}
