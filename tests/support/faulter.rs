//! What `cargo xtask faults` runs: every fault at every place under both families of MPI, as a table; or requests to stop.

use std::process::ExitCode;
use std::time::Instant;

use annulus_tests::drills::{cells, undisturbed};
use annulus_tests::nccl::seeded;
use annulus_tests::signals::{Ended, check};
use anyhow::Result;

fn main() -> Result<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    let program: &'static str = arguments.next().expect("the program under test").leak();
    let only: Vec<String> = arguments.collect();
    if let [first, times, seed] = &only[..]
        && first == SIGNALS
    {
        return signals(program, times.parse()?, seed.parse()?);
    }
    if let [first, seeds] = &only[..]
        && first == NCCL
    {
        return nccl(program, seeds.parse()?);
    }
    let weights = undisturbed(program)?;
    let (mut held, mut failed, began) = (0, 0, Instant::now());
    say("mpi      fault    place          code   ended after");
    for cell in cells() {
        let name = cell.to_string().to_lowercase();
        if !only.iter().all(|word| name.contains(word)) {
            continue;
        }
        match cell.check(program, &weights) {
            Ok(met) => {
                held += 1;
                say(&format!("{cell} {:>5} {:>12.2} s", met.code, met.after.as_secs_f64()));
            }
            Err(error) => {
                failed += 1;
                say(&format!("{cell} FAILED: {error:#}"));
            }
        }
    }
    say(&format!("{held} cells hold, {failed} do not, {:.0} s", began.elapsed().as_secs_f64()));
    Ok(if failed == 0 && held > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The first word where runs are to be asked to stop; how often, and the seed of the times, follow.
const SIGNALS: &str = "signals";

/// The first word where tensors are to go by NCCL; how many seeds follows.
const NCCL: &str = "nccl";

fn signals(program: &'static str, times: usize, seed: u64) -> Result<ExitCode> {
    let began = Instant::now();
    let Ended { saved, late } = check(program, times, seed)?;
    let seconds = began.elapsed().as_secs_f64();
    say(&format!(
        "{saved} requests to stop: each saved, ended with 75 and lost no step; {late} came too late; {seconds:.0} s"
    ));
    Ok(ExitCode::SUCCESS)
}

fn nccl(program: &'static str, seeds: u64) -> Result<ExitCode> {
    let (began, runs) = (Instant::now(), seeded(program, seeds)?);
    let seconds = began.elapsed().as_secs_f64();
    say(&format!("{runs} runs by NCCL with {seeds} seeds: the bits of threads; {seconds:.0} s"));
    Ok(ExitCode::SUCCESS)
}

#[expect(clippy::print_stdout, reason = "a table that was asked for")]
fn say(line: &str) {
    println!("{line}");
}
