//! The program `annulus`: reads a command line, calls the library, prints what it says. Nothing here is worth a test of its own.

mod arguments;
mod attend;
mod check;
mod console;
mod data;
mod doctor;
mod evaluate;
mod export;
mod failure;
mod generate;
mod hub;
mod layout;
mod plan;
mod print;
mod prove;
mod score;
mod tensors;
mod tokenize;
mod trace;
mod train;
mod verify;
mod words;

use std::process::ExitCode;

use annulus_train::keep_freed_pages;
use annulus_train::memory::Counting;
use clap::Parser;
use mimalloc::MiMalloc;

use crate::arguments::{Arguments, Command, Data, Tokenizer};
use crate::failure::Failure;

#[global_allocator]
static ALLOCATOR: Counting<MiMalloc> = Counting::new(MiMalloc);

/// Runs the program with this process's arguments. To be called first, from the only thread.
pub fn main() -> ExitCode {
    keep_freed_pages();
    // Candle's own pools stay at one thread: every rank brings its own workers, and pools that spin would starve them.
    for pool in ["CANDLE_NUM_THREADS", "RAYON_NUM_THREADS"] {
        // SAFETY: no other thread exists yet.
        unsafe { std::env::set_var(pool, "1") };
    }
    let done = match Arguments::parse().command {
        Command::Train(arguments) => train::run(&arguments),
        Command::Check(arguments) => check::check(&arguments),
        Command::Plan(arguments) => plan::run(&arguments),
        Command::Prove(arguments) => prove::run(&arguments),
        Command::Layout(arguments) => layout::run(&arguments),
        Command::Trace(arguments) => trace::run(&arguments),
        Command::Verify(arguments) => verify::run(&arguments),
        Command::Evaluate(arguments) => evaluate::run(&arguments),
        Command::Generate(arguments) => generate::run(&arguments),
        Command::Score(arguments) => score::run(&arguments),
        Command::Attend(arguments) => attend::run(&arguments),
        Command::Tokenize(arguments) => tokenize::run(&arguments),
        Command::Tokenizer(Tokenizer::Train(arguments)) => tokenize::train(&arguments),
        Command::Data(Data::Show(arguments)) => data::show(&arguments),
        Command::Export(arguments) => export::run(&arguments),
        Command::Doctor(arguments) => {
            doctor::run(&arguments);
            Ok(0)
        }
        Command::Strategies => {
            print::line(&annulus_experiment::support());
            Ok(0)
        }
        Command::Schema => {
            check::schema();
            Ok(0)
        }
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            print::say(&failure.problems.to_string());
            ExitCode::from(failure.code)
        }
    }
}

/// What a command gives back: the exit code, or what went wrong.
type Done = Result<u8, Failure>;
