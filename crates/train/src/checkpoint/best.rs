//! The checkpoint with the lowest validation loss.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use annulus_experiment::tags::EVALUATE_LOSS;

use super::{State, checkpoint_folder, steps};
use crate::folder::lines::read_lines;

/// The checkpoint with the lowest validation loss in a run's folder, and that loss in nats per token. `None`: no checkpoint was evaluated at
/// its own step. Those of earlier phases, whose sequences have another length, are not compared with those of the newest one's.
pub fn best_checkpoint(output: &Path) -> Option<(PathBuf, f64)> {
    let (step, loss) = best_of(output, &steps(output).ok()?).ok()??;
    Some((checkpoint_folder(output, step), loss))
}

/// The step of [`best_checkpoint`] among `steps`, which ascend, and its loss; of equal ones the earliest.
///
/// # Errors
/// Metrics that cannot be read: which is the best is not known then.
pub(super) fn best_of(output: &Path, steps: &[u64]) -> io::Result<Option<(u64, f64)>> {
    let Some(newest) = steps.last() else { return Ok(None) };
    let before = before_phase(output, *newest);
    let lines = read_lines(output)?;
    let evaluated =
        lines.iter().filter_map(|line| Some((line.step, line.get(EVALUATE_LOSS)?.most())));
    // The last line of a step counts: what an interrupted attempt evaluated, the next evaluates again.
    let losses: BTreeMap<u64, f64> = evaluated.collect();
    let of = |step: &u64| Some((*step, *losses.get(step)?));
    let own = steps.iter().filter(|step| **step > before).filter_map(of);
    let own = own.filter(|(_, loss)| loss.is_finite());
    Ok(own.min_by(|(_, one), (_, other)| one.total_cmp(other)))
}

/// The last step before the phase that finished `step`; 0 for runs without phases, and where the checkpoint cannot be read.
fn before_phase(output: &Path, step: u64) -> u64 {
    let state = State::read(&checkpoint_folder(output, step)).ok();
    let experiment = state.and_then(|state| state.experiment().ok());
    let phases = experiment.map_or_else(Vec::new, |experiment| experiment.phases());
    let starts = phases.iter().map(|phase| phase.phase_start().steps.start);
    starts.filter(|start| *start < step).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::checkpoint::{STATE, VERSION};

    const MODEL: &str = "name: run\nmodel: { hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1, \
                         num_attention_heads: 2 }\noptimizer: { learning_rate: 1 }\n";
    const ONE: &str = "data: { path: a.txt, tokens: 16 }\nschedule: { steps: 10 }\n";
    const TWO: &str = "data: { path: a.txt }\nschedule: { warmup: 1 }\nstages: { a: { tokens: 8, \
                       steps: 4 }, b: { tokens: 16, steps: 6, reset: [] } }\n";

    fn save(output: &Path, step: u64, experiment: &str) {
        let path = checkpoint_folder(output, step);
        fs::create_dir_all(&path).unwrap();
        let state = State {
            version: VERSION,
            step,
            tokens: 0,
            moments: None,
            data: String::new(),
            experiment: format!("{MODEL}{experiment}"),
            model: None,
            base: None,
        };
        fs::write(path.join(STATE), serde_json::to_vec(&state).unwrap()).unwrap();
    }

    #[test]
    fn only_checkpoints_of_the_newest_phase_are_compared() {
        let folder = tempfile::tempdir().unwrap();
        let losses = [(2, "1.0"), (4, "2.0"), (6, "5.0"), (8, "3.0"), (10, "null")];
        // Before the first step there is no checkpoint, however low its loss.
        let start = (0, "0.5");
        let lines = [start, losses[0], losses[1], losses[2], losses[3], losses[4]]
            .map(|(step, loss)| format!("{{\"step\":{step},\"evaluate/loss\":{loss}}}\n"))
            .concat();
        fs::write(folder.path().join("metrics.jsonl"), lines).unwrap();
        let steps = losses.map(|(step, _)| step);
        for (experiment, wanted) in [(ONE, (2, 1.0)), (TWO, (8, 3.0))] {
            for step in steps {
                save(folder.path(), step, experiment);
            }
            assert_eq!(best_of(folder.path(), &steps).unwrap(), Some(wanted));
        }
        assert_eq!(best_of(folder.path(), &steps[..2]).unwrap(), Some((2, 1.0)));
        fs::remove_file(folder.path().join("metrics.jsonl")).unwrap();
        fs::create_dir(folder.path().join("metrics.jsonl")).unwrap();
        assert!(best_of(folder.path(), &steps).is_err());
    }
}
