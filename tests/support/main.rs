//! The program under test: the same as `annulus`, built with the tests so that they never run a stale one. What the
//! environment asks for (`drill`) goes wrong in it.

fn main() -> std::process::ExitCode {
    let code = annulus_cli::main_with(annulus_tests::drill::asked());
    annulus_tests::memory::tell();
    code
}
