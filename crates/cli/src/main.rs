//! The program `annulus`.

fn main() -> std::process::ExitCode {
    annulus_cli::main()
}
