//! What is wrong with a folder of weights.

use std::fmt;
use std::path::PathBuf;

use annulus_tensors::{TensorsError, shown};
use safetensors::Dtype;

use super::load::LAST_PROJECTION;

/// How many flaws are spelled out; a file for another model has hundreds.
const SHOWN: usize = 20;

/// What is wrong with a folder of weights: names the file, the tensor, what was found and what was
/// wanted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The folder holds no weights.
    #[error(
        "`{}` holds neither `model.safetensors` nor `model.safetensors.index.json`",
        folder.display()
    )]
    Absent {
        /// Which.
        folder: PathBuf,
    },
    /// There is no adapter.
    #[error("no `adapter_model.safetensors` in `{}`", folder.display())]
    NoAdapter {
        /// Which folder.
        folder: PathBuf,
    },
    /// A file or folder cannot be read.
    #[error("cannot read `{}`: {source}", file.display())]
    Read {
        /// Which.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write `{}`: {source}", file.display())]
    Write {
        /// Which.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file of tensors is not one, or cannot be read.
    #[error(transparent)]
    File(#[from] TensorsError),
    /// A link that leaves the folder.
    #[error("`{}` is a link to `{}`, outside of the folder", file.display(), target.display())]
    Outside {
        /// The link.
        file: PathBuf,
        /// Where it leads.
        target: PathBuf,
    },
    /// The tensors are not those of the model.
    #[error("the weights in `{}` are not those of the model:{}", folder.display(), List(flaws))]
    Unfit {
        /// Where they are.
        folder: PathBuf,
        /// All that is wrong, in the order of names.
        flaws: Vec<Flaw>,
    },
    /// A tensor cannot be made or taken apart.
    #[error("tensor `{tensor}` of `{}`: {source}", file.display())]
    Tensor {
        /// Where it is, or was to be.
        file: PathBuf,
        /// Which.
        tensor: String,
        /// Why.
        source: Box<candle_core::Error>,
    },
}

/// One way in which files do not hold the weights of the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Flaw {
    /// A parameter is in no file.
    #[error("`{}` is missing (wanted {wanted:?})", shown(tensor))]
    Missing {
        /// The parameter.
        tensor: String,
        /// Its shape.
        wanted: Vec<usize>,
    },
    /// A tensor is no parameter.
    #[error("`{}` {found:?} in `{}` is no parameter of the model", shown(tensor), shown(file))]
    Surplus {
        /// The tensor.
        tensor: String,
        /// Where it is.
        file: String,
        /// Its shape.
        found: Vec<usize>,
    },
    /// A parameter has another shape.
    #[error("`{}` in `{}` is {found:?} (wanted {wanted:?})", shown(tensor), shown(file))]
    Shape {
        /// The parameter.
        tensor: String,
        /// Where it is.
        file: String,
        /// Its shape there.
        found: Vec<usize>,
        /// Its shape in the model.
        wanted: Vec<usize>,
    },
    /// A parameter is not in floating point, or in one too narrow to train from.
    #[error("`{}` in `{}` is {found} (wanted F32, BF16, F16 or F64)", shown(tensor), shown(file))]
    Dtype {
        /// The parameter.
        tensor: String,
        /// Where it is.
        file: String,
        /// What its elements are.
        found: Dtype,
    },
    /// The model's embedding is its last projection, but the file has another last projection.
    #[error(
        "`{tensor}` in `{}` differs from `model.embed_tokens.weight`, which a tied model uses",
        shown(file)
    )]
    Untied {
        /// `lm_head.weight`.
        tensor: String,
        /// Where it is.
        file: String,
    },
    /// The index says that a tensor is in a shard, but it is not.
    #[error("`{}` is not in `{}`, where the index has it", shown(tensor), shown(file))]
    NotInShard {
        /// The tensor.
        tensor: String,
        /// The shard.
        file: String,
    },
    /// A shard holds a tensor that the index does not have there.
    #[error("`{}` is in `{}`, where the index does not have it", shown(tensor), shown(file))]
    NotInIndex {
        /// The tensor.
        tensor: String,
        /// The shard.
        file: String,
    },
    /// The index names a shard by something other than a plain file name.
    #[error("the index has `{}` in `{}` (wanted a plain file name)", shown(tensor), shown(file))]
    ShardName {
        /// A tensor that is said to be in it.
        tensor: String,
        /// The name.
        file: String,
    },
    /// The index names a shard that does not exist.
    #[error("the shard `{}` does not exist; the index has `{}` in it", shown(file), shown(tensor))]
    NoShard {
        /// A tensor that is said to be in it.
        tensor: String,
        /// Its name.
        file: String,
    },
}

impl WeightsError {
    /// The way out, where there is one.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            WeightsError::Absent { folder } if folder.join("pytorch_model.bin").exists() => {
                "save `pytorch_model.bin` as safetensors with transformers' `save_pretrained` first"
            }
            WeightsError::Absent { folder } if folder.join("adapter_config.json").exists() => {
                "these are adapters: `annulus export --merge` makes a whole model of them, and `lora.path` goes on from them beside their \
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

/// The way out of the first flaw: the others have the same cause as a rule.
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
