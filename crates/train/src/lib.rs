//! The step, the loop, optimizer state, checkpoints and measurements.
//!
//! Knows no YAML syntax and no command line: it is given a plan. [`run`] trains, resumes and saves;
//! [`score`] gives loss, logits and gradients of given sequences.

mod assemble;
mod backward;
mod checkpoint;
mod curves;
mod data;
mod device;
mod error;
mod evaluate;
mod export;
mod finite;
mod folder;
mod generate;
mod gradients;
mod identity;
mod initial;
mod judge;
mod lines;
mod machine;
mod manifest;
mod measure;
mod measured;
mod open;
mod pages;
mod parameters;
mod prepare;
mod rank;
mod rates;
mod recorder;
mod resolve;
mod run;
mod score;
mod sink;
mod stages;
mod start;
mod step;
mod stepwise;
mod sum;
mod texts;
mod traced;
mod train_loop;
mod trained;
pub mod verify;
pub mod whole;

pub use annulus_memory as memory;
pub use assemble::{Attending, Setup, adapters, model_config};
pub use data::{Data, HeldOut, Opening, open_data};
pub use device::{
    described as described_machine, memory as device_memory, open as open_device,
    warning as device_warning,
};
pub use error::{Result, TrainError};
pub use export::Checkpoint;
pub use finite::{NonFinite, Origin};
pub use generate::{Sampling, Wanted, generate};
pub use initial::check_beside;
pub use judge::{Sequences, Verdict, judge};
pub use machine::check_memory;
pub use measured::{Measured, Memory, measure, measure_memory};
pub use open::rates;
pub use pages::keep_freed_pages;
pub use rates::Sample;
pub use resolve::{Bring, Opened, TOKENIZER, resolve};
pub use run::{Ending, Given, Outcome, Wrap, run};
pub use score::{Scored, Want, score};
pub use sink::{Notice, Silent, Sink, Value};
pub use stages::run_stages;
pub use stepwise::{Stepped, Stepper};
pub use sum::{Partial, Total};
pub use texts::{cache_folder, excluded, left_out_of, texts};
pub use trained::{Trained, last_saved};
