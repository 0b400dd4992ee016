//! A run from its first step to its last: phases, what is recorded, when checkpoints are saved.

pub(crate) mod attempt;
pub(crate) mod console;
pub(crate) mod fork;
pub(crate) mod hashes;
mod held_out;
mod moved;
mod needs;
pub(crate) mod options;
pub(crate) mod outcome;
pub(crate) mod phases;
pub(crate) mod prepare;
pub(crate) mod processes;
pub(crate) mod rank_thread;
pub(crate) mod recorder;
pub(crate) mod rerun;
pub(crate) mod saving;
pub(crate) mod settings;
pub(crate) mod sharded_save;
pub(crate) mod starts;
pub(crate) mod train_loop;
mod trained_on;
mod writing;
