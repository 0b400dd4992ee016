//! Errors of a folder of weights.

use std::fmt;
use std::path::PathBuf;

use annulus_tensors::{TensorsError, shown};
use safetensors::Dtype;

use super::load::LAST_PROJECTION;

/// The most flaws that are spelled out; a file for another model has hundreds.
const SHOWN: usize = 20;

/// An error of a folder of weights: names the file, the tensor, what was found and what was wanted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The folder holds no weights.
    #[error(
        "`{}` holds neither `model.safetensors` nor `model.safetensors.index.json`",
        folder.display()
    )]
    Absent {
        /// The folder.
        folder: PathBuf,
    },
    /// The folder holds no adapter.
    #[error("no `adapter_model.safetensors` in `{}`", folder.display())]
    NoAdapter {
        /// The folder.
        folder: PathBuf,
    },
    /// A file or folder cannot be read.
    #[error("cannot read `{}`: {source}", file.display())]
    Read {
        /// The file or folder.
        file: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write `{}`: {source}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A file is not a safetensors file, or cannot be read.
    #[error(transparent)]
    File(#[from] TensorsError),
    /// A link leads out of the folder.
    #[error("`{}` is a link to `{}`, outside of the folder", file.display(), target.display())]
    Outside {
        /// The link.
        file: PathBuf,
        /// The target of the link.
        target: PathBuf,
    },
    /// The tensors do not fit the model.
    #[error("the weights in `{}` are not those of the model:{}", folder.display(), List(flaws))]
    Unfit {
        /// The folder of the tensors.
        folder: PathBuf,
        /// All flaws, in the order of names.
        flaws: Vec<Flaw>,
    },
    /// A tensor cannot be made or taken apart.
    #[error("tensor `{tensor}` of `{}`: {source}", file.display())]
    Tensor {
        /// The file that the tensor is in, or was to be written to.
        file: PathBuf,
        /// The name of the tensor.
        tensor: String,
        /// Candle's error.
        source: Box<candle_core::Error>,
    },
}

/// One way in which files do not fit the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Flaw {
    /// A parameter is in no file.
    #[error("`{}` is missing (expected {wanted:?})", shown(tensor))]
    Missing {
        /// The parameter.
        tensor: String,
        /// Its shape in the model.
        wanted: Vec<usize>,
    },
    /// A tensor is not a parameter.
    #[error("`{}` {found:?} in `{}` is not a parameter of the model", shown(tensor), shown(file))]
    Surplus {
        /// The tensor.
        tensor: String,
        /// The file that has it.
        file: String,
        /// Its shape in the file.
        found: Vec<usize>,
    },
    /// A parameter has a wrong shape.
    #[error("`{}` in `{}` is {found:?} (expected {wanted:?})", shown(tensor), shown(file))]
    Shape {
        /// The parameter.
        tensor: String,
        /// The file that has it.
        file: String,
        /// Its shape in the file.
        found: Vec<usize>,
        /// Its shape in the model.
        wanted: Vec<usize>,
    },
    /// A parameter has no floating-point dtype, or one too narrow to train from.
    #[error("`{}` in `{}` is {found} (expected F32, BF16, F16 or F64)", shown(tensor), shown(file))]
    Dtype {
        /// The parameter.
        tensor: String,
        /// The file that has it.
        file: String,
        /// Its dtype in the file.
        found: Dtype,
    },
    /// The model ties its output projection to the embedding, but the file has a different output projection.
    #[error(
        "`{tensor}` in `{}` differs from `model.embed_tokens.weight`, which a tied model uses",
        shown(file)
    )]
    Untied {
        /// `lm_head.weight`.
        tensor: String,
        /// The file that has it.
        file: String,
    },
    /// The index lists a tensor in a shard that does not have it.
    #[error("`{}` is not in `{}`, where the index has it", shown(tensor), shown(file))]
    NotInShard {
        /// The tensor.
        tensor: String,
        /// The shard.
        file: String,
    },
    /// A shard has a tensor that the index does not list there.
    #[error("`{}` is in `{}`, where the index does not have it", shown(tensor), shown(file))]
    NotInIndex {
        /// The tensor.
        tensor: String,
        /// The shard.
        file: String,
    },
    /// The index names a shard by more than a plain file name.
    #[error("the index has `{}` in `{}` (expected a plain file name)", shown(tensor), shown(file))]
    ShardName {
        /// A tensor that the index lists there.
        tensor: String,
        /// The shard's name.
        file: String,
    },
    /// The index names a shard that does not exist.
    #[error("the shard `{}` does not exist; the index has `{}` in it", shown(file), shown(tensor))]
    NoShard {
        /// A tensor that the index lists there.
        tensor: String,
        /// The shard's name.
        file: String,
    },
}

impl WeightsError {
    /// What the user can do, where something can be done.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            WeightsError::Absent { folder } if folder.join("pytorch_model.bin").exists() => {
                "convert `pytorch_model.bin`, with transformers: `AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(FOLDER, \
                 safe_serialization=True)`"
            }
            WeightsError::Absent { folder } if folder.join("adapter_config.json").exists() => {
                "these are adapters: `annulus export --merge` makes a whole model of them, and `lora.path` continues from them beside their \
                 base"
            }
            WeightsError::NoAdapter { folder } if folder.join("adapter_model.bin").exists() => {
                "save `adapter_model.bin` as safetensors with PEFT's `save_pretrained` first"
            }
            WeightsError::NoAdapter { .. } => {
                "give the folder that holds adapter_config.json and adapter_model.safetensors"
            }
            WeightsError::Absent { .. } => "give the folder that holds config.json and safetensors",
            WeightsError::File(error) => error.hint()?,
            WeightsError::Outside { .. } => "copy the file itself into the folder",
            WeightsError::Unfit { flaws, .. } => hint(flaws)?,
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

/// A hint for the first flaw: the others usually have the same cause.
fn hint(flaws: &[Flaw]) -> Option<&'static str> {
    let hint = match flaws.first()? {
        Flaw::Missing { tensor, .. } if flaws.len() == 1 && tensor == LAST_PROJECTION => {
            "if the embedding serves as the last projection, set `tie_word_embeddings: true`"
        }
        Flaw::Untied { .. } => "set `tie_word_embeddings: false`",
        Flaw::NoShard { .. } => "fetch the missing shard, or save the weights again",
        Flaw::ShardName { .. } | Flaw::NotInShard { .. } | Flaw::NotInIndex { .. } => {
            "save the weights and their index again"
        }
        Flaw::Missing { .. } | Flaw::Surplus { .. } | Flaw::Shape { .. } => {
            "config.json must describe the model whose weights these are"
        }
        Flaw::Dtype { .. } => "save the weights in f32 or bf16 first",
    };
    Some(hint)
}

struct List<'a>(&'a [Flaw]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.0 {
            return write!(f, " {only}");
        }
        for flaw in self.0.iter().take(SHOWN) {
            write!(f, "\n  {flaw}")?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}
