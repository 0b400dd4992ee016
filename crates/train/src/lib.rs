//! Training: the step, the loop, optimizer state, checkpoints and measurements.
//!
//! This crate knows no YAML syntax and no command line: it is given a plan. [`run`] trains, resumes and saves; [`score`] computes loss,
//! logits and gradients of given sequences.
//!
//! Modules use only those before them: `error`, `sink`, `folder`, `checkpoint`, `setup`, `step`, `ask`, `run`, `finished`, `export` and
//! `verify`.

mod ask;
mod checkpoint;
mod error;
mod exit;
mod export;
mod finished;
mod folder;
mod run;
mod setup;
mod sink;
mod step;
pub mod verify;

pub use annulus_memory as memory;
pub use annulus_ops::gpu::untried;
pub use ask::generate::{GenerateRequest, OnToken, Sampling, generate};
pub use ask::judge::{DeviceWeights, Sequences, Verdict, judge};
pub use ask::score::{ScoreOutputs, Scored, score};
pub use checkpoint::identity::{decided_by_checkpoint, resolved_text};
pub use checkpoint::{
    best_checkpoint, checkpoint_folder, last_checkpoint, need as need_checkpoint, step_of,
};
pub use error::{Result, TrainError};
pub use exit::Exit;
pub use export::Checkpoint;
pub use finished::aligned::{Aligned, Distance, Row};
pub use finished::bisect::{Bisected, Difference, Divergence, bisect};
pub use finished::compare::{Compared, Comparison, Differing, LeftOut, compare, differing};
pub use finished::logged::{Logged, median};
pub use finished::named::{MOST_RUNS, run_label, run_letter, run_name, short_hash};
pub use finished::replayed::{Nearest, Replayed, nearest, replayed};
pub use finished::reproduced::{
    Comparable, Reproduced, Unlike, Weighed, comparable, edited_model, reproduced,
};
pub use finished::summary::{RunSummary, run_summary};
pub use finished::table::metrics_table;
pub use finished::traces::read_trace;
pub use folder::manifest::{
    FINISHED, Fork, Machine, Manifest, Mpi, Nccl, PREEMPTED, Process, RunStart, StateHash,
};
pub use folder::own::is_own_file;
pub use folder::run_folder::holder;
pub use folder::traces::{trace_of, traced_step, traced_steps};
pub use folder::{RESOLVED, is_run};
pub use run::attempt::run;
pub use run::hashes::{StepHashes, hashed};
pub use run::options::RunOptions;
pub use run::outcome::{Ending, Outcome};
pub use run::phases::run_phases;
pub use run::prepare::unlike_checkpoint;
pub use run::processes::check_processes_agree;
pub use run::rerun::{Rerun, beginning, is_before_manifest};
pub use setup::assemble::{LayerGroupSchedules, Setup, model_config};
pub use setup::begun::begun_with;
pub use setup::data::{
    Data, Epoch, HeldOut, Opening, data_fingerprint, first_held_out, open_data, packing_notes,
};
pub use setup::device::{described_machine, device_warning, open_device, place_on_devices};
pub use setup::examine::{data_fits, fits_here, weights_fit};
pub use setup::fits::check_memory;
pub use setup::initial::check_beside;
pub use setup::open::{measured, rates};
pub use setup::process::prepare_process;
pub use setup::processors::Processors;
pub use setup::rates::SpeedProbe;
pub use setup::resolve::{Bring, Opened, resolve, resolve_trained};
pub use setup::same_files::{FileId, file_id, file_ids, text_files};
pub use setup::shared::{DEADLINE, cores_here, ranks_here, ranks_on_host, shared};
pub use setup::slow::slow_warning;
pub use setup::texts::{
    by_source, cache_folder, excluded, left_out_of, note_on, records_of, texts,
};
pub use setup::trained::{Saved, Trained, TrainedBy, model_folder};
pub use setup::weights::InitialWeights;
pub use sink::{Notice, Silent, Sink, Value};
pub use step::finite::{NonFinite, Origin};
pub use step::hashes::dump::Dump;
pub use step::measure::memory::{Measured, Memory, OfProcesses, measure, measure_over};
pub use step::measure::resident::{ProcessMemory, process_memory};
pub use step::state::parameters::Store;
pub use step::stepper::{Stepped, Stepper};
pub use step::sum::{Partial, Total};
pub use verify::bits::{Bits, bits};
