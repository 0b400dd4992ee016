//! What a model is asked.

use std::path::PathBuf;

use annulus_experiment::Override;
use clap::Args;

use super::replacement;

#[derive(Args, Debug)]
pub(crate) struct Evaluate {
    /// A run's folder, or an experiment whose `model.path` is a Hugging Face folder
    pub(crate) path: PathBuf,
    /// Values that replace those of the run or the experiment, as in `evaluation.lengths=[1k,8k]`
    #[arg(value_name = "KEY=VALUE", value_parser = replacement)]
    pub(crate) replacements: Vec<Override>,
    /// Where files are written [default: `evaluation` in the run's folder]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    /// For programs
    #[arg(long)]
    pub(crate) json: bool,
}
