//! How often a run's steps read its data.

use std::path::PathBuf;

use annulus_data::Source;
use annulus_experiment::Experiment;
use annulus_text::count;

/// What a source of the data gives in an epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct Epoch {
    /// The sequences that are trained on, each once in an epoch.
    pub sequences: u64,
    /// The source's share of the sequences that are read, in (0, 1].
    pub share: f64,
    /// The path of the source, of a mixture; `None`: it is read alone.
    pub path: Option<PathBuf>,
}

impl Epoch {
    /// Of a source that is read alone; `None`: its sequences are not read again.
    pub(super) fn of(source: &dyn Source) -> Option<Epoch> {
        Some(Epoch { sequences: source.epoch()?, share: 1.0, path: None })
    }

    /// How many sequences there are, and how many epochs the steps of `experiment` after step `began` are: of a mixture, with the source's
    /// path.
    pub(super) fn said(&self, experiment: &Experiment, began: u64) -> String {
        let first = experiment.phase_start().steps.start.max(began);
        let (steps, batch) = (experiment.last_step().saturating_sub(first), experiment.data.batch);
        let read = self.share * steps as f64 * batch as f64;
        let epochs = rounded(read / self.sequences.max(1) as f64);
        let sequences = count(self.sequences as usize, "sequence");
        let are = if steps == 1 { "is" } else { "are" };
        let steps = count(steps as usize, "step");
        match &self.path {
            None => format!("{sequences} for training: {steps} of {batch} {are} {epochs}"),
            Some(path) => format!(
                "{sequences} of `{}` for training: {steps} of {batch}, of which it has {:.1} %, {are} {epochs}",
                path.display(),
                100.0 * self.share
            ),
        }
    }
}

/// A number of epochs in a few digits.
fn rounded(epochs: f64) -> String {
    match epochs {
        ..0.001 => "less than 0.001 epochs".to_owned(),
        ..0.95 => format!("{epochs:.3} epochs"),
        _ => format!("{epochs:.1} epochs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_said_in_epochs() {
        let text = "name: x\nmodel: { hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1, num_attention_heads: 1 }\n\
                    data: { tokens: 8, batch: 4, path: a }\noptimizer: { learning_rate: 0.1 }\nschedule: { steps: 2000 }\n";
        let experiment = annulus_experiment::parse("x.yaml", text, &[]).expect("an experiment");
        let said = |sequences, share, path| Epoch { sequences, share, path }.said(&experiment, 0);
        let wanted = "1263 sequences for training: 2000 steps of 4 are 6.3 epochs";
        assert_eq!(said(1263, 1.0, None), wanted);
        let wanted = "100000 sequences for training: 2000 steps of 4 are 0.080 epochs";
        assert_eq!(said(100_000, 1.0, None), wanted);
        let wanted = "1 sequence of `a` for training: 2000 steps of 4, of which it has 25.0 %, are 2000.0 epochs";
        assert_eq!(said(1, 0.25, Some(PathBuf::from("a"))), wanted);
        assert_eq!(rounded(0.0001), "less than 0.001 epochs");
        // Of a fork, its own steps.
        let fork = Epoch { sequences: 1000, share: 1.0, path: None }.said(&experiment, 1500);
        assert_eq!(fork, "1000 sequences for training: 500 steps of 4 are 2.0 epochs");
    }
}
