//! The program under test: the same as `annulus`, built with the tests so that they never run a stale one.

fn main() -> std::process::ExitCode {
    let code = annulus_cli::main();
    annulus_tests::memory::tell();
    code
}
