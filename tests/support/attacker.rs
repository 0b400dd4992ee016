//! Tries hostile cases on a program (`cargo xtask attack`).

fn main() -> std::process::ExitCode {
    annulus_tests::attack::main()
}
