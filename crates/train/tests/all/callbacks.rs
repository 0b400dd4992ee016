//! What a program is called back with: sinks that fail and calls that take long end no run.

use std::io;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use annulus_data::Sequence;
use annulus_model::Llama;
use annulus_plan::Plan;
use annulus_train::{
    GenerateRequest, Notice, RunOptions, Sampling, Setup, Silent, Sink, TrainError, Value,
    generate, judge, run,
};
use parking_lot::Mutex;

use crate::common::{BASE, Place};

/// Longer than ranks wait for one that shows no progress.
const LONG: Duration = Duration::from_millis(2500);
const DEADLINE: Duration = Duration::from_secs(1);

/// A short run of two ranks, of which each step is logged.
const SHORT: [(&str, &str); 4] = [
    ("schedule.steps", "4"),
    ("every.log", "1"),
    ("mesh.sequence", "2"),
    ("attention.strategy", "ring"),
];

/// A sink that fails at a step, and counts the calls from then on.
struct Failing {
    at: u64,
    calls: usize,
}

impl Sink for Failing {
    fn record(&mut self, step: u64, _values: &[(&str, Value<'_>)]) -> io::Result<()> {
        self.calls += usize::from(step >= self.at);
        if step == self.at { Err(io::Error::other("no room")) } else { Ok(()) }
    }
    fn notice(&mut self, _notice: &Notice<'_>) {
        self.calls += usize::from(self.calls > 0);
    }
}

#[test]
fn a_sink_that_fails_is_told_nothing_more_and_the_outcome_says_so() {
    let place = Place::new();
    let mut sink = Failing { at: 2, calls: 0 };
    let outcome = run(&place.plan(&SHORT), RunOptions::new(BASE, 2), &mut sink).unwrap();
    assert_eq!((outcome.step, sink.calls), (4, 1));
    let said = "the sink failed at step 2, and was told nothing more: no room";
    assert_eq!(outcome.warnings.iter().filter(|warning| *warning == said).count(), 1);
}

/// A sink that keeps what it has recorded, flushed or not, and fails at a flush.
#[derive(Default)]
struct Buffered {
    recorded: Vec<u64>,
    /// How many steps had been recorded at each flush.
    flushed: Vec<usize>,
    /// The flush that fails, from 1; 0: none does.
    fails_at: usize,
}

impl Sink for Buffered {
    fn record(&mut self, step: u64, _values: &[(&str, Value<'_>)]) -> io::Result<()> {
        self.recorded.push(step);
        Ok(())
    }
    fn flush(&mut self) -> io::Result<()> {
        self.flushed.push(self.recorded.len());
        if self.flushed.len() == self.fails_at { Err(io::Error::other("no room")) } else { Ok(()) }
    }
}

#[test]
fn a_sink_is_flushed_before_a_checkpoint_and_at_the_end() {
    let place = Place::new();
    let changes = [&SHORT[..], &[("every.checkpoint", "2")]].concat();
    let plan = place.plan(&changes);
    let mut sink = Buffered::default();
    run(&plan, RunOptions::new(BASE, 2), &mut sink).unwrap();
    let all = sink.recorded.len();
    assert_eq!((sink.flushed.first(), sink.flushed.last()), (Some(&2), Some(&all)));
    // After a flush that failed it is told nothing more, and the outcome says so.
    let place = Place::new();
    let mut sink = Buffered { fails_at: 1, ..Buffered::default() };
    let outcome = run(&place.plan(&changes), RunOptions::new(BASE, 2), &mut sink).unwrap();
    assert_eq!((outcome.step, sink.recorded.as_slice(), sink.flushed.len()), (4, &[1, 2][..], 1));
    let said = "the sink failed to flush, and was told nothing more: no room";
    assert_eq!(outcome.warnings.iter().filter(|warning| *warning == said).count(), 1);
}

/// A sink that takes long at every call about step 2 or a checkpoint.
struct Slow;

impl Sink for Slow {
    fn record(&mut self, step: u64, _values: &[(&str, Value<'_>)]) -> io::Result<()> {
        if step == 2 {
            sleep(LONG);
        }
        Ok(())
    }
    fn notice(&mut self, notice: &Notice<'_>) {
        if matches!(notice, Notice::Saved { .. }) {
            sleep(LONG);
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        sleep(LONG);
        Ok(())
    }
}

#[test]
fn a_sink_may_take_longer_than_ranks_wait_for_each_other() {
    let place = Place::new();
    let changes = [&SHORT[..], &[("mesh.deadline", "1")]].concat();
    run(&place.plan(&changes), RunOptions::new(BASE, 2), &mut Slow).unwrap();
}

#[test]
fn so_may_who_is_told_of_tokens_and_sequences() {
    let place = Place::new();
    let setup = Setup { micro_batch: 1, deadline: DEADLINE, ..Setup::new(&place.plan(&SHORT), 2) };
    let weights = setup.placed(&Llama::random(&setup.config, 5).unwrap()).unwrap();
    let prompt = vec![65; setup.tokens];
    let wanted = GenerateRequest { tokens: 2, ends: Vec::new(), sampling: Sampling::default() };
    let told = |tokens: &[u32]| sleep(if tokens.len() == 1 { LONG } else { Duration::ZERO });
    assert_eq!(generate(&setup, &weights, &prompt, &wanted, &told).unwrap().len(), 2);
    let sequence = |_| Ok(Sequence::shifted(&vec![65; setup.tokens + 1]));
    let found = judge(&setup, &weights, 2, &sequence, &|| sleep(LONG / 2)).unwrap();
    assert_eq!(found.len(), 2);
}

/// A console that starts a second run in the same folder as soon as the first has made a step.
struct Second(Plan, Arc<Mutex<Option<TrainError>>>);
impl Sink for Second {
    fn record(&mut self, _step: u64, _values: &[(&str, Value<'_>)]) -> io::Result<()> {
        *self.1.lock() = run(&self.0, RunOptions::new(BASE, 1), &mut Silent).err();
        Ok(())
    }
}

#[test]
fn a_live_folder_is_refused() {
    let place = Place::new();
    let plan = place.plan(&[("schedule.stop", "1")]);
    let refused = Arc::new(Mutex::new(None));
    let mut console = Second(plan.clone(), refused.clone());
    run(&plan, RunOptions::new(BASE, 1), &mut console).unwrap();
    let error = refused.lock().take().unwrap();
    assert_eq!(error.exit_code(), 4);
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
}
