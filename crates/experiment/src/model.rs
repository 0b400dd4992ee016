//! The section `model`: a folder, a model of the hub, or the keys of a config.json.

use std::path::PathBuf;

use annulus_architecture::{Dtype, Shape, ShapeKeys, TopLevelKeys, shape_of};
use annulus_yaml::Absent::{Is, Means};
use annulus_yaml::Interval::AboveZero;
use annulus_yaml::Kind::{Path as Folder, Real, Truth, Word, WordOr};
use annulus_yaml::{
    Field, Lines, Node, OneOf, Path, Places, Problem, Report, Section, Side, Span, Values, section,
    words,
};

/// The section `model`.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Where the shape and the weights come from: a folder, or the file itself.
    pub source: ModelSource,
    /// The dtype of weights and activations, `f32 | bf16`; default f32.
    pub dtype: Dtype,
    /// The base of the rotary frequencies, in place of the model's own.
    pub rope_theta: Option<f64>,
    /// Whether pretrained weights may take longer sequences than they were trained for without rescaled frequencies; default false.
    pub allow_longer: bool,
}

/// Where a model's shape and weights come from.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelSource {
    /// The keys `path`, a Hugging Face folder or a model of the hub, and `weights: pretrained | random` (default pretrained).
    Folder {
        /// The folder. For a model of the hub `hf://…` until it has been downloaded.
        path: PathBuf,
        /// The `hf://owner/name@revision` that the folder was named by, if it is of the hub.
        hub: Option<String>,
        /// Whether the folder's weights are read.
        weights: WeightsFrom,
    },
    /// The keys of a config.json inline; weights are random.
    Inline(Box<Shape>),
}

/// The key `weights`: where weights come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightsFrom {
    /// Weights are read from the folder.
    Pretrained,
    /// Weights are initialized at random.
    Random,
}

words!(WeightsFrom { Pretrained = "pretrained", Random = "random" });

section! {
    /// The keys of a model in a folder.
    #[derive(Clone, Debug, PartialEq)]
    pub struct FolderKeys {
        path: Option<String> = Folder, Means("none: the keys below describe the model"),
            "a Hugging Face folder (config.json, *.safetensors), or a model of the hub: `hf://owner/name@revision`";
        weights: Option<WeightsFrom> = Word(WeightsFrom::WORDS), Means("pretrained"),
            "whether the folder's weights are loaded or drawn at random";
        dtype: Dtype = WordOr(Dtype::WORDS, narrower), Is("f32"), "dtype of weights and activations; the optimizer's masters are f32";
        rope_theta: Option<f64> = Real(AboveZero), Means("the folder's, or 10000 (smollm3: 2000000)"),
            "base of the rotary frequencies";
        allow_longer: bool = Truth, Is("false"),
            "allow sequences longer than the model was trained for without `extend`";
    }
}

/// The way out of a dtype that weights cannot have.
fn narrower(word: &str) -> Option<String> {
    let word = word.to_lowercase();
    let name = match word.as_str() {
        "f16" | "fp16" | "float16" | "half" => "f16",
        fp8 if ["fp8", "f8", "float8"].iter().any(|name| fp8.starts_with(name)) => "fp8",
        _ => return None,
    };
    Some(format!("weights in {name} are not supported: use `bf16`"))
}

/// The keys of `model`: those of a folder, or those of a shape.
pub(crate) const MODEL: OneOf =
    OneOf { keys: FolderKeys::OWN, instead: &[ShapeKeys::OWN], written: side };

/// The keys of `model` as written: a folder's, or a shape's beside `dtype` and `rope_theta`.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelKeys {
    folder: FolderKeys,
    shape: Option<ShapeKeys>,
}

impl ModelKeys {
    pub(crate) fn read(values: &Values, path: &str) -> Option<ModelKeys> {
        let folder = <FolderKeys as Section>::read(values, path)?;
        let shape = match folder.path {
            Some(_) => None,
            None => Some(<ShapeKeys as Section>::read(values, path)?),
        };
        Some(ModelKeys { folder, shape })
    }

    /// The model that the keys mean.
    ///
    /// # Errors
    /// Contradictions within a shape.
    pub(crate) fn meant(&self, places: &Places) -> Result<Model, Vec<Problem>> {
        let FolderKeys { path, weights, dtype, rope_theta, allow_longer } = self.folder.clone();
        let (source, rope_theta) = match (&self.shape, path) {
            (Some(keys), _) => {
                let beside = TopLevelKeys { rope_theta, ..TopLevelKeys::default() };
                (ModelSource::Inline(Box::new(shape_of(keys, &beside, "model.", places)?)), None)
            }
            (None, path) => {
                let path = path.unwrap_or_default();
                let weights = weights.unwrap_or(WeightsFrom::Pretrained);
                let hub = of_hub(&path);
                (ModelSource::Folder { path: PathBuf::from(path), hub, weights }, rope_theta)
            }
        };
        Ok(Model { source, dtype, rope_theta, allow_longer })
    }
}

impl Field for ModelKeys {
    fn read(values: &Values, path: &str) -> Option<ModelKeys> {
        ModelKeys::read(values, path)
    }

    fn is_there(values: &Values, path: &str) -> bool {
        values.is_written(path)
    }

    fn write(&self, path: &Path, lines: &mut Lines) {
        Section::write(&self.folder, path, lines);
        Field::write(&self.shape, path, lines);
    }
}

impl Model {
    pub(crate) fn keys(&self) -> ModelKeys {
        let own = FolderKeys {
            path: None,
            weights: None,
            dtype: self.dtype,
            rope_theta: self.rope_theta,
            allow_longer: self.allow_longer,
        };
        match &self.source {
            ModelSource::Folder { path, hub, weights } => {
                let path = hub.clone().unwrap_or_else(|| path.to_string_lossy().into_owned());
                let folder = FolderKeys { path: Some(path), weights: Some(*weights), ..own };
                ModelKeys { folder, shape: None }
            }
            ModelSource::Inline(shape) => {
                let folder = FolderKeys { rope_theta: Some(shape.rope.theta), ..own };
                ModelKeys { folder, shape: Some(shape.keys()) }
            }
        }
    }
}

/// How the name of a model of the hub begins: `hf://owner/name@revision`.
const OF_HUB: &str = "hf://";

impl ModelSource {
    /// Whether a path names a model of the hub.
    pub fn is_of_hub(path: &str) -> bool {
        path.starts_with(OF_HUB)
    }

    /// The repository (`owner/name`) and the revision of a model of the hub; `None`: the model is not of the hub.
    pub fn on_hub(&self) -> Option<(&str, &str)> {
        let ModelSource::Folder { hub: Some(name), .. } = self else { return None };
        let name = name.strip_prefix(OF_HUB)?;
        Some(name.split_once('@').unwrap_or((name, "main")))
    }
}

/// The path, if it names a model of the hub.
pub(crate) fn of_hub(path: &str) -> Option<String> {
    ModelSource::is_of_hub(path).then(|| path.to_owned())
}

/// Which keys a `model` section must have: a folder's, or a shape's.
fn side(node: &Node, at: Span, report: &mut Report) -> Side {
    let shape = ShapeKeys::OWN.iter().find_map(|key| node.entry(key.name));
    match (node.entry("path"), shape) {
        (Some(_), None) => Side::First,
        (Some(_), Some(inline)) => {
            report.at(inline.key_span, || {
                let message = format!("`model.{}` is given beside `model.path`", inline.key);
                let hint = "the folder's config.json has it: drop one of them; on the command line, \
                            `model=null model.path=FOLDER` drops the shape";
                (message, Some(hint.to_owned()))
            });
            Side::First
        }
        (None, None) => {
            report.at(at, || {
                let hint = "give `path`, a Hugging Face folder, or config.json's keys, \
                            from `hidden_size` on";
                ("`model` says neither `path` nor a shape".to_owned(), Some(hint.to_owned()))
            });
            Side::Neither
        }
        (None, Some(_)) => {
            weights_without_folder(node, report);
            Side::Instead
        }
    }
}

fn weights_without_folder(node: &Node, report: &mut Report) {
    if let Some(weights) = node.entry("weights")
        && !weights.value.value.is_word("random")
    {
        report.at(weights.key_span, || {
            let hint = "without a folder weights are random: drop the key, or give `path`";
            let message = "`model.weights` is given without `model.path`";
            (message.to_owned(), Some(hint.to_owned()))
        });
    }
}
