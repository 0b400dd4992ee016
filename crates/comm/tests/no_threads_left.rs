//! A hundred runs, some of which fail, leave no thread behind. Alone in its process, so that the
//! threads of other tests are not counted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use annulus_comm::threads::{Options, run};
use annulus_comm::{Communicator, Error, Label, Result};

fn threads() -> Option<usize> {
    std::fs::read_dir("/proc/self/task").ok().map(Iterator::count)
}

fn program(comm: &dyn Communicator, turn: usize) -> Result<()> {
    match (comm.rank(), turn % 10) {
        (1, 0) => panic!("on purpose"),
        (2, 1) => Err(Error::Stopped),
        _ => comm.barrier(Label::default()),
    }
}

#[test]
fn runs_leave_no_threads_behind() {
    let Some(before) = threads() else {
        eprintln!("skipped: this system does not list a process's threads");
        return;
    };
    let options = Options { world: 4, deadline: Duration::from_secs(60), stop: Arc::default() };
    for turn in 0..100 {
        let ended = run(&options, |comm| program(&*comm, turn));
        assert_eq!(ended.is_err(), turn % 10 < 2, "turn {turn}");
    }
    // The system may list one that has been waited for a moment longer.
    let began = Instant::now();
    while threads() != Some(before) && began.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(threads(), Some(before));
}
