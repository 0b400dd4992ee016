//! Training: the step, the loop, optimizer state, checkpoints and measurements.
//!
//! This crate knows no YAML syntax and no command line: it is given a plan. [`run`] trains, resumes and saves; [`score`] computes loss,
//! logits and gradients of given sequences.

mod ask;
mod checkpoint;
mod error;
mod exit;
mod export;
mod run;
mod setup;
mod step;
pub mod verify;

pub use annulus_memory as memory;
pub use annulus_ops::gpu::untried;
pub use ask::generate::{Sampling, Told, Wanted, generate};
pub use ask::judge::{Placed, Sequences, Verdict, judge};
pub use ask::score::{Scored, Want, score};
pub use ask::weights::{Trained, experiment_of, model_folder, saved_step};
pub use ask::whole;
pub use checkpoint::last_checkpoint;
pub use error::{Result, TrainError};
pub use exit::Exit;
pub use export::Checkpoint;
pub use run::agree::{Bits, bits};
pub use run::aligned::{Aligned, Distance, Row};
pub use run::attempt::run;
pub use run::bisect::{Bisected, Difference, Divergence, bisect};
pub use run::compare::{Compared, Comparison, Differing, compare, differing};
pub use run::folder::{RESOLVED, holder, is_run};
pub use run::fork::Fork;
pub use run::given::{Given, ranks_here};
pub use run::hashes::{StepHashes, hashed};
pub use run::identity::resolved_text;
pub use run::logged::{Logged, median};
pub use run::manifest::{Attempt, FINISHED, Machine, Manifest, Mpi, Nccl, Process, StateHash};
pub use run::outcome::{Ending, Outcome};
pub use run::phases::run_phases;
pub use run::processes::alike;
pub use run::replayed::{Nearest, Replayed, nearest, replayed};
pub use run::reproduced::{Comparable, Reproduced, Unlike, Weighed, comparable, reproduced};
pub use run::rerun::{Rerun, beginning};
pub use run::sink::{Notice, Silent, Sink, Value};
pub use run::summary::{RunSummary, run_summary};
pub use run::table::metrics_table;
pub use run::traces::{read_trace, traced_step, traced_steps};
pub use setup::assemble::{Attending, Setup, model_config};
pub use setup::data::{Data, HeldOut, Opening, first_held_out, open_data};
pub use setup::device::{described_machine, device_warning, open_device, place_on_devices};
pub use setup::examine::{data_fits, fits_here, weights_fit};
pub use setup::fits::check_memory;
pub use setup::initial::check_beside;
pub use setup::open::{measured, rates};
pub use setup::pages::keep_freed_pages;
pub use setup::processors::Processors;
pub use setup::rates::Sample;
pub use setup::resolve::{Bring, Opened, TOKENIZER, resolve};
pub use setup::shared::shared;
pub use setup::slow::slow_warning;
pub use setup::texts::{
    by_source, cache_folder, excluded, left_out_of, note_on, records_of, texts,
};
pub use setup::weights::InitialWeights;
pub use step::dump::Dump;
pub use step::finite::{NonFinite, Origin};
pub use step::memory::{Measured, Memory, OfProcesses, measure, measure_memory, measure_over};
pub use step::parameters::Store;
pub use step::resident::{Held, held};
pub use step::stepper::{Stepped, Stepper};
pub use step::sum::{Partial, Total};
