//! The command line. No flag changes a run: what a run is, is in its file.

mod examples;
mod foreign_flags;

use clap::{Parser, Subcommand};

pub(crate) use self::foreign_flags::equivalent;
use crate::experiment_file::Inspection;
use crate::processes::Sharing;

/// Exact long-context training of Llama-style models, the sequence split over many ranks.
#[derive(Debug, Parser)]
#[command(name = "annulus", version, about, after_help = examples::of_all())]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Trains an experiment, or resumes it
    #[command(after_help = examples::TRAIN)]
    Train(crate::train::Train),
    /// Trains every run of a file with a `sweep:`, and prints their table; resumes after a stop or a kill
    #[command(after_help = examples::SWEEP)]
    Sweep(crate::sweep::Arguments),
    /// Checks an experiment, or all runs of a sweep: keys, model, memory and data
    #[command(after_help = examples::CHECK)]
    Check(Inspection),
    /// Plans an experiment: mesh, balance, bytes and memory per rank, also on a described cluster
    #[command(after_help = examples::PLAN)]
    Plan(crate::plan::Arguments),
    /// Proves the schedules of an experiment; exit code 10 if one is wrong
    #[command(after_help = examples::PROVE)]
    Prove(Inspection),
    /// Draws which rank holds which positions, and what is sent
    #[command(after_help = examples::LAYOUT)]
    Layout(crate::layout::Layout),
    /// Shows what is computed and sent when, as planned or as recorded in a run
    #[command(after_help = examples::TRACE)]
    Trace(crate::trace::Arguments),
    /// Compares every strategy with dense attention in f64, on an experiment's shape, mask and device
    #[command(after_help = examples::VERIFY)]
    Verify(crate::verify::Verify),
    /// Trains a few steps over MPI processes and over threads, and compares the results bit for bit
    #[command(after_help = examples::AGREE)]
    Agree(crate::agree::Agree),
    /// Runs a command in one process per host, or in several, with this machine's `mpirun`, and supervises them
    #[command(after_help = examples::LAUNCH)]
    Launch(crate::launch::Launch),
    /// Shows which process ended a run, where every rank stood, and which ranks waited for which
    #[command(after_help = examples::POST_MORTEM)]
    PostMortem(crate::post_mortem::PostMortem),
    /// Evaluates a model on long texts: loss by length and position, of conversations, needles, tasks
    #[command(after_help = examples::EVALUATE)]
    Evaluate(crate::evaluate::Evaluate),
    /// Generates text
    #[command(after_help = examples::GENERATE)]
    Generate(crate::generate::Generate),
    /// Computes loss, logits and gradients of a Hugging Face model on given tokens
    #[command(after_help = examples::SCORE)]
    Score(crate::score::Score),
    /// Computes attention and its gradients on given tensors
    #[command(after_help = examples::ATTEND)]
    Attend(crate::attend::Attend),
    /// Tokenizes texts into a cache
    #[command(after_help = examples::TOKENIZE)]
    Tokenize(crate::tokenize::Tokenize),
    /// Trains a tokenizer
    #[command(after_help = examples::TOKENIZER)]
    #[command(subcommand)]
    Tokenizer(crate::tokenize::TokenizerCommand),
    /// Shows data: documents, tokens, and which tokens count in the loss
    #[command(after_help = examples::DATA)]
    #[command(subcommand)]
    Data(crate::data::DataCommand),
    /// Exports a run's model as a Hugging Face folder
    #[command(after_help = examples::EXPORT)]
    Export(crate::export::Export),
    /// Compares runs: keys, loss, speed and memory
    #[command(after_help = examples::COMPARE)]
    Compare(crate::compare::Compare),
    /// Prints many runs as a table: means over seeds, confidence intervals, and which differ by more than seeds do
    #[command(after_help = examples::TABLE)]
    Table(crate::table::Arguments),
    /// Finds where two runs that should be equal first differ, by their hashes: step, layer, tensor, message
    #[command(after_help = examples::BISECT)]
    Bisect(crate::bisect::Bisect),
    /// Runs a finished run again from its folder, and compares the two bit for bit; exit code 10 if they differ
    #[command(after_help = examples::REPRODUCE)]
    Reproduce(crate::reproduce::Reproduce),
    /// Computes one step of a run again, and writes its gradients and the state after it; exit code 10 if their hashes differ from the run's
    #[command(after_help = examples::REPLAY)]
    Replay(crate::replay::Replay),
    /// Writes runs as one page of HTML: losses, plan, memory, hops, experiments
    #[command(after_help = examples::REPORT)]
    Report(crate::report::Report),
    /// Writes a run's metrics as comma-separated values: a line per logged step; of values by rank, the largest
    #[command(after_help = examples::EXPORT_METRICS)]
    ExportMetrics(crate::metrics::ExportMetrics),
    /// Writes the example experiments into a folder
    #[command(after_help = examples::INIT)]
    Init(crate::init::Init),
    /// Shows this machine's hardware and libraries, and what is missing
    #[command(after_help = examples::DOCTOR)]
    Doctor(crate::doctor::Doctor),
    /// Explains a key of the experiment, a word in plans, or an exit code
    #[command(after_help = examples::EXPLAIN)]
    Explain {
        /// A key such as `data.tokens` or `tokens`, a word such as `megatron` or `hop`, or the number of an exit code
        #[arg(required = true)]
        what: Vec<String>,
    },
    /// Prints a completion script for your shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Prints the manual page
    #[command(after_help = examples::MAN)]
    Man {
        /// Print every command with its arguments, and the exit codes, as Markdown
        #[arg(long)]
        markdown: bool,
    },
    /// Prints which strategies, masks, layouts, heads and backward routes can be combined
    #[command(after_help = examples::STRATEGIES)]
    Strategies,
    /// Prints the JSON Schema of the experiment file
    #[command(after_help = examples::SCHEMA)]
    Schema {
        /// Print a table of all keys as Markdown instead
        #[arg(long)]
        markdown: bool,
    },
}

impl Command {
    /// Whether processes that a launcher started share the ranks of this command.
    pub(crate) fn sharing(&self) -> Sharing {
        match self {
            Command::Launch(_) => Sharing::Launcher,
            other if other.is_shared() => Sharing::Shared,
            _ => Sharing::Alone,
        }
    }
}

/// Lists the commands whose ranks the processes of a launcher share, by variant and as they are typed.
macro_rules! shared {
    ($($variant:ident $name:literal),* $(,)?) => {
        impl Command {
            /// The commands whose ranks the processes of a launcher share, as they are typed.
            pub(crate) const SHARED: [&str; [$($name),*].len()] = [$($name),*];

            fn is_shared(&self) -> bool {
                matches!(self, $(Command::$variant(_))|*)
            }
        }
    };
}

shared! {
    Train "train", Reproduce "reproduce", Replay "replay", Agree "agree", Evaluate "evaluate", Generate "generate", Verify "verify",
    Score "score", Attend "attend", Doctor "doctor",
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn shared_commands_are_called_as_they_are_typed() {
        let all = Arguments::command();
        assert!(Command::SHARED.iter().all(|name| all.find_subcommand(name).is_some()));
    }
}
