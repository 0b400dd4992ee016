//! Arguments of commands that run a model.

use std::path::PathBuf;

use annulus_experiment::Override;
use clap::Args;

use super::{replacement, tokens};

#[derive(Args, Debug)]
pub(crate) struct Evaluate {
    /// A run's folder, a `step-N` in it, a Hugging Face folder or `hf://owner/name`, or an experiment
    pub(crate) path: PathBuf,
    /// Values that replace those of the run or the experiment, as in `evaluation.lengths=[1k,8k]`
    #[arg(value_name = "KEY=VALUE", value_parser = replacement)]
    pub(crate) replacements: Vec<Override>,
    /// Where files are written [default: `evaluation` in the run's folder]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    /// Reads texts and token caches and holds them to their hashes, though nothing says that they have changed
    #[arg(long)]
    pub(crate) verify_cache: bool,
    /// For programs
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Generate {
    /// A run's folder, a `step-N` in it, a Hugging Face folder or `hf://owner/name`, or an experiment
    pub(crate) path: PathBuf,
    /// Values that replace those of the run or the experiment, as in `mesh.sequence=2`
    #[arg(value_name = "KEY=VALUE", value_parser = replacement)]
    pub(crate) replacements: Vec<Override>,
    /// The text to continue
    #[arg(long, required_unless_present = "file")]
    pub(crate) prompt: Option<String>,
    /// A file with it
    #[arg(long, value_name = "PATH", conflicts_with = "prompt")]
    pub(crate) file: Option<PathBuf>,
    /// The most tokens to add
    #[arg(long, value_parser = tokens, default_value_t = 128)]
    pub(crate) tokens: usize,
    /// Divisor of the logits; 0: always the most likely token
    #[arg(long, default_value_t = 0.8, value_parser = at_least_zero, allow_negative_numbers = true)]
    pub(crate) temperature: f64,
    /// Draw from the N most likely tokens
    #[arg(long, value_name = "N")]
    pub(crate) top_k: Option<usize>,
    /// Draw from the most likely tokens that together have this probability
    #[arg(long, value_name = "P", default_value_t = 0.95, value_parser = probability, allow_negative_numbers = true)]
    pub(crate) top_p: f64,
    /// Seed of the draws
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// For programs
    #[arg(long)]
    pub(crate) json: bool,
}

fn at_least_zero(word: &str) -> Result<f64, String> {
    let number = word.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "a number of at least 0 is wanted".to_owned())
}

fn probability(word: &str) -> Result<f64, String> {
    let number = word.parse().ok().filter(|number| (0.0..=1.0).contains(number));
    number.ok_or_else(|| "a number from 0 to 1 is wanted".to_owned())
}
