//! The program under test: the same as `annulus`, built with the tests so that they never run a stale one.

fn main() -> std::process::ExitCode {
    annulus_cli::main()
}
