//! The program under test: the same as `annulus`, built with the tests so that they never run a stale one. What the
//! environment asks for (`drill`) goes wrong in it, and it measures the machine's peak, which every training begins with, in a moment.

fn main() -> std::process::ExitCode {
    annulus_machine::peak::measure_once();
    let code = annulus_cli::main_with(annulus_tests::drill::asked());
    annulus_tests::memory::tell();
    code
}
