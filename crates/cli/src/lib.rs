//! The program `annulus`: reads a command line, calls the library, prints its results.

mod again;
mod agree;
mod arguments;
mod attend;
mod bisect;
mod check;
mod compare;
mod console;
mod data;
mod doctor;
mod evaluate;
mod experiment_file;
mod explain;
mod export;
mod failure;
mod generate;
mod glossary;
mod hub;
mod init;
mod launch;
mod layout;
mod metrics;
mod output;
mod plan;
mod post_mortem;
mod print;
mod processes;
mod prove;
mod replay;
mod report;
mod reproduce;
mod score;
pub mod shown;
mod split;
mod stop;
mod subject;
mod sweep;
mod table;
mod tensors;
mod tokenize;
mod trace;
mod train;
mod values;
mod verify;

use std::env;
use std::panic;
use std::process::ExitCode;
#[cfg(unix)]
use std::sync::Arc;

use annulus_comm::Wrap;
use annulus_machine::VECTOR;
use annulus_memory::Counting;
use annulus_train::untried::{self, UNTRIED};
use annulus_train::{Exit, prepare_process};
use clap::Parser;
use mimalloc::MiMalloc;

use crate::arguments::{Arguments, Command};
use crate::data::DataCommand;
pub use crate::failure::Failure;
use crate::tokenize::TokenizerCommand;

#[global_allocator]
static ALLOCATOR: Counting<MiMalloc> = Counting::new(MiMalloc);

/// Runs the program with this process's arguments. Must be called first, while there is no other thread.
pub fn main() -> ExitCode {
    main_with(None)
}

/// Runs the program as `main` does, with `wrap` around the communicator of every rank that trains, by which tests inject faults.
pub fn main_with(wrap: Option<Wrap>) -> ExitCode {
    // SAFETY: no other thread exists yet.
    unsafe { prepare_process() };
    // A panic's message may contain outside text, so it is escaped as everything else that is printed.
    panic::set_hook(Box::new(|panic| print::say(&panic.to_string())));
    let checked = check_arguments().and_then(|()| ignore_file_size_signal());
    let done = checked.and_then(|()| match Arguments::try_parse() {
        Ok(arguments) => run(arguments.command, wrap),
        Err(said) => print_clap_output(&said),
    });
    match done {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            if !failure.problems.0.is_empty() {
                print::say(&failure.problems.to_string());
            }
            ExitCode::from(failure.exit.code())
        }
    }
}

/// Makes writing beyond `ulimit -f` an error of the call instead of a signal that ends the process.
fn ignore_file_size_signal() -> Result<(), Failure> {
    #[cfg(unix)]
    signal_hook::flag::register(libc::SIGXFSZ, Arc::default())
        .map_err(|error| stop::unwatched(&error))?;
    Ok(())
}

/// Checks that the vector instructions and kernels which the environment asks for are available.
fn check_environment() -> Result<(), Failure> {
    let wrong = |said: String, variable: &str| {
        Failure::usage(said, format!("name one of those, or leave {variable} out"))
    };
    annulus_machine::check().map_err(|unusable| wrong(unusable.to_string(), VECTOR))?;
    untried::check().map_err(|said| wrong(said, UNTRIED))
}

/// Checks that all arguments are UTF-8: paths are kept as text, in experiments and in records.
fn check_arguments() -> Result<(), Failure> {
    let wrong = env::args_os().find(|argument| argument.to_str().is_none());
    wrong.map_or(Ok(()), |wrong| {
        let message = format!("`{}` is not UTF-8", wrong.to_string_lossy());
        Err(Failure::usage(message, "rename the file or folder"))
    })
}

fn run(command: Command, wrap: Option<Wrap>) -> Done {
    check_environment()?;
    processes::refused(command.sharing()).unwrap_or_else(|| perform(command, wrap))
}

fn perform(command: Command, wrap: Option<Wrap>) -> Done {
    match command {
        Command::Train(arguments) => train::run(&arguments, wrap),
        Command::Sweep(arguments) => sweep::run(&arguments),
        Command::Check(arguments) => check::check(&arguments),
        Command::Plan(arguments) => plan::run(&arguments),
        Command::Prove(arguments) => prove::run(&arguments),
        Command::Layout(arguments) => layout::run(&arguments),
        Command::Trace(arguments) => trace::run(&arguments),
        Command::Verify(arguments) => verify::run(&arguments),
        Command::Agree(arguments) => agree::run(&arguments),
        Command::Launch(arguments) => launch::run(&arguments),
        Command::PostMortem(arguments) => post_mortem::run(&arguments),
        Command::Evaluate(arguments) => evaluate::run(&arguments),
        Command::Generate(arguments) => generate::run(&arguments),
        Command::Score(arguments) => score::run(&arguments),
        Command::Attend(arguments) => attend::run(&arguments),
        Command::Tokenize(arguments) => tokenize::run(&arguments),
        Command::Tokenizer(TokenizerCommand::Train(arguments)) => tokenize::train(&arguments),
        Command::Data(DataCommand::Show(arguments)) => data::show(&arguments),
        Command::Export(arguments) => export::run(&arguments),
        Command::Compare(arguments) => compare::run(&arguments),
        Command::Table(arguments) => table::run(&arguments),
        Command::Bisect(arguments) => bisect::run(&arguments),
        Command::Reproduce(arguments) => reproduce::run(&arguments),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Report(arguments) => report::run(&arguments),
        Command::ExportMetrics(arguments) => metrics::run(&arguments),
        Command::Init(arguments) => init::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Explain { what } => explain::run(&what),
        Command::Completions { shell } => explain::completions(shell),
        Command::Man { markdown: true } => explain::commands(),
        Command::Man { markdown: false } => explain::man(),
        Command::Strategies => print::line(&annulus_plan::support()).map(|()| 0),
        Command::Schema { markdown } => check::schema(markdown),
    }
}

/// Prints, in one process of a job, what clap returns instead of arguments: help and version are data, everything else is an error.
fn print_clap_output(said: &clap::Error) -> Done {
    if processes::is_another() {
        return Ok(if said.use_stderr() { Exit::Usage.code() } else { 0 });
    }
    let text = said.render();
    if said.use_stderr() {
        if let Some((message, hint)) = arguments::equivalent(said) {
            return Err(Failure::usage(message, hint));
        }
        print::say(text.to_string().trim_end());
        return Ok(Exit::Usage.code());
    }
    if print::shows_styles() {
        print::styled(text.ansi().to_string().trim_end())?;
    } else {
        print::line(text.to_string().trim_end())?;
    }
    Ok(0)
}

/// The exit code of a command, or why it failed.
type Done = Result<u8, Failure>;

/// The exit code of a command that compares: 0 if everything is as it should be.
fn judged(holds: bool) -> u8 {
    if holds { Exit::Done.code() } else { Exit::Expectation.code() }
}
