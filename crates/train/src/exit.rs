//! The exit codes of the program, each with one meaning; defined only here.

use serde::{Deserialize, Serialize};

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum Exit {
    /// Everything that was asked for was done.
    Done = 0,
    /// A mistake in Annulus, or output that cannot be written.
    Internal = 1,
    /// The command line or the experiment is wrong.
    Usage = 2,
    /// Data, a model or a tokenizer is missing or wrong.
    Data = 3,
    /// A checkpoint is missing, damaged or of another experiment.
    Checkpoint = 4,
    /// The run takes more memory than there is.
    DoesNotFit = 5,
    /// What was expected or asserted does not hold, or runs that are compared differ.
    Expectation = 10,
    /// A value is not finite.
    NotFinite = 11,
    /// A rank waited too long.
    Deadline = 12,
    /// A rank panicked.
    RankDied = 13,
    /// A message from a rank was corrupted in transit.
    Damaged = 14,
    /// Runs of a sweep failed.
    RunFailed = 15,
    /// Stopped on request, and saved.
    Preempted = 75,
}

impl Exit {
    /// Every exit code.
    pub const ALL: [Exit; 13] = [
        Exit::Done,
        Exit::Internal,
        Exit::Usage,
        Exit::Data,
        Exit::Checkpoint,
        Exit::DoesNotFit,
        Exit::Expectation,
        Exit::NotFinite,
        Exit::Deadline,
        Exit::RankDied,
        Exit::Damaged,
        Exit::RunFailed,
        Exit::Preempted,
    ];

    /// The number that a shell sees.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// What happened, in a few words.
    pub fn about(self) -> &'static str {
        match self {
            Exit::Done => "done",
            Exit::Internal => {
                "an error of the program, or standard output, offloaded tensors or a new file cannot be written"
            }
            Exit::Usage => "a mistake on the command line or in the experiment",
            Exit::Data => {
                "data, a model or a tokenizer cannot be used, or its cache cannot be written"
            }
            Exit::Checkpoint => {
                "a checkpoint or output folder cannot be read or written, or belongs to a different experiment"
            }
            Exit::DoesNotFit => "it needs more memory than there is, or than `memory.budget`",
            Exit::Expectation => {
                "`expect`, `verify` or `prove` does not hold, or `agree`, `bisect`, `reproduce` or `replay` finds a \
                 difference"
            }
            Exit::NotFinite => "a loss, gradient or logit is not finite",
            Exit::Deadline => {
                "a rank waited longer than `mesh.deadline`, or a process stopped responding or did not join MPI in time"
            }
            Exit::RankDied => {
                "a rank died, MPI or NCCL failed, or an NCCL transfer exceeded `mesh.deadline`"
            }
            Exit::Damaged => "what a rank received is not what was sent",
            Exit::RunFailed => "a run of a sweep failed; the others were run",
            Exit::Preempted => "stopped by a signal and saved: the same command resumes",
        }
    }

    /// What to do after this exit.
    pub fn way_out(self) -> &'static str {
        match self {
            Exit::Done => "nothing",
            Exit::Internal => {
                "free some space where output is written; else report it with the message"
            }
            Exit::Usage => {
                "the message names the file, the line and what is accepted; `annulus explain KEY` says more"
            }
            Exit::Data => {
                "the message names the file and the place in it; `annulus data show` reads it as `train` does"
            }
            Exit::Checkpoint => {
                "undo the change, restore the checkpoint, set another `output`, or fork with `--from`"
            }
            Exit::DoesNotFit => {
                "`annulus plan` shows what takes how much; lower `data.tokens` or `memory.micro_batch`, or raise `memory.budget`"
            }
            Exit::Expectation => "the message names what was expected and what was found",
            Exit::NotFinite => {
                "lower `optimizer.learning_rate`, or look at the sequences that the message names with `annulus data show RUN --step N`"
            }
            Exit::Deadline => {
                "raise `mesh.deadline` if the rank is slow rather than stuck, `ANNULUS_MPI_BEGIN` if processes start late"
            }
            Exit::RankDied => {
                "the message before it says why; the same command resumes from the last checkpoint"
            }
            Exit::Damaged => {
                "look at the memory and links of the machines that the message names; the same command resumes from the last checkpoint"
            }
            Exit::RunFailed => {
                "the message names each run with its log; the same command tries those again, and no others"
            }
            Exit::Preempted => "give the same command again",
        }
    }
}
