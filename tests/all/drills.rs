//! Nine of the faults of `cargo xtask faults`: what ends a job is said once, in a box, and nothing is lost.

use annulus_tests::drill::What;
use annulus_tests::drills::{Cell, cells, undisturbed};

const PROGRAM: &str = env!("CARGO_BIN_EXE_annulus-under-test");

const CHOSEN: [(&str, What, &str); 9] = [
    ("mpich", What::Kill, "mid backward"),
    ("mpich", What::Stop, "first hop"),
    ("mpich", What::Corrupt, "gradient sum"),
    ("mpich", What::Term, "commit"),
    ("openmpi", What::Kill, "weights"),
    ("openmpi", What::Kill, "share"),
    ("openmpi", What::Stop, "gradient sum"),
    ("openmpi", What::Slow, "first hop"),
    ("openmpi", What::Term, "mid backward"),
];

#[cfg(target_os = "linux")]
#[test]
fn a_fault_ends_the_job_with_its_code_and_the_rank_that_is_to_blame() {
    let is_chosen = |cell: &Cell| CHOSEN.contains(&(cell.mpi, cell.what, cell.spot.name));
    let chosen: Vec<Cell> = cells().into_iter().filter(is_chosen).collect();
    assert_eq!(chosen.len(), CHOSEN.len());
    let weights = undisturbed(PROGRAM).expect("a run without faults");
    for cell in chosen {
        if !cell.launcher().exists() {
            println!("SKIPPED: {cell}: `cargo xtask setup mpi`");
            continue;
        }
        if let Err(error) = cell.check(PROGRAM, &weights) {
            panic!("{cell}: {error:#}");
        }
    }
}
