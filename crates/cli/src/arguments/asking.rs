//! Arguments of commands that run a model.

use std::path::PathBuf;

use annulus_experiment::Override;
use clap::Args;

use super::{replacement, tokens};

#[derive(Args, Debug)]
pub(crate) struct Evaluate {
    /// A run's folder, a `step-N` in it, a Hugging Face folder or `hf://owner/name`, or an experiment
    pub(crate) path: PathBuf,
    /// Keys to replace, as in `evaluation.lengths=[1k,8k]`
    #[arg(value_name = "KEY=VALUE", value_parser = replacement)]
    pub(crate) replacements: Vec<Override>,
    /// Folder for the results [default: `evaluation` in the run's folder]
    #[arg(long, alias = "output", value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    /// Verify texts and token caches by their hashes, even if they look unchanged
    #[arg(long)]
    pub(crate) verify_cache: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Generate {
    /// A run's folder, a `step-N` in it, a Hugging Face folder or `hf://owner/name`, or an experiment
    pub(crate) path: PathBuf,
    /// Keys to replace, as in `mesh.sequence=2`
    #[arg(value_name = "KEY=VALUE", value_parser = replacement_or_prompt)]
    pub(crate) replacements: Vec<Override>,
    /// Prompt
    #[arg(long, required_unless_present = "file")]
    pub(crate) prompt: Option<String>,
    /// File with the prompt
    #[arg(long, value_name = "PATH", conflicts_with = "prompt")]
    pub(crate) file: Option<PathBuf>,
    /// Number of tokens to generate at most
    #[arg(long, value_parser = tokens, default_value_t = 128)]
    pub(crate) tokens: usize,
    /// Sampling temperature; 0: greedy
    #[arg(long, default_value_t = 0.8, value_parser = at_least_zero, allow_negative_numbers = true)]
    pub(crate) temperature: f64,
    /// Sample from the N most likely tokens
    #[arg(long, value_name = "N")]
    pub(crate) top_k: Option<usize>,
    /// Sample from the most likely tokens with this total probability (nucleus)
    #[arg(long, value_name = "P", default_value_t = 0.95, value_parser = probability, allow_negative_numbers = true)]
    pub(crate) top_p: f64,
    /// Seed of the sampling
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn replacement_or_prompt(word: &str) -> Result<Override, String> {
    let hint = "the text to continue is `--prompt TEXT`";
    replacement(word).map_err(|wrong| format!("{wrong}; {hint}"))
}

fn at_least_zero(word: &str) -> Result<f64, String> {
    let number = word.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "a number of at least 0 is wanted".to_owned())
}

fn probability(word: &str) -> Result<f64, String> {
    let number = word.parse().ok().filter(|number| (0.0..=1.0).contains(number));
    number.ok_or_else(|| "a number from 0 to 1 is wanted".to_owned())
}
