//! The emulator itself: its primitives against plain computations, and every kind of mistake found.

use std::path::Path;
use std::process::Command;

/// Compiles the emulator's own test with `options`, and runs it over a few seeds.
fn self_test(name: &str, options: &[&str]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels/emulator");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let mut command = Command::new(compiler);
    command.args(["-std=c++17", "-O1", "-g1", "-pthread", "-w", "-o"]).arg(&program);
    let compiled = command.args(options).arg(folder.join("self_test.cpp")).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let run = Command::new(&program).arg("3").output().unwrap();
    let [said, complained] = [&run.stdout, &run.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(run.status.success(), "{said}{complained}");
}

#[test]
fn finds_mistakes_with_every_seed() {
    self_test("emulator-self-test", &[]);
}

#[test]
fn stays_inside_of_its_memory() {
    self_test("emulator-self-test-sanitized", &["-fsanitize=address,undefined"]);
}
