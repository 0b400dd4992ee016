//! Whole documents, packed into sequences: those of `data.pack: documents` and `best-fit`.

use std::sync::Arc;

use annulus_data::{Cache, DataError, Extract, Longer, Packed, Packing, PackingStats, Window};
use annulus_experiment::{Experiment, Pack};

use crate::setup::data::epochs::Epoch;
use crate::setup::data::{Data, HeldOut, named};
use crate::{Result, TrainError};

fn longer(word: annulus_experiment::Longer) -> Longer {
    match word {
        annulus_experiment::Longer::Refuse => Longer::Refuse,
        annulus_experiment::Longer::Cut => Longer::Cut,
        annulus_experiment::Longer::Drop => Longer::Drop,
        annulus_experiment::Longer::Split => Longer::Split,
    }
}

/// The paths of the sources, in quotes.
fn names(experiment: &Experiment) -> String {
    let sources = experiment.data.path.iter().map(|source| format!("`{}`", source.path.display()));
    sources.collect::<Vec<_>>().join(", ")
}

fn nothing_fits(experiment: &Experiment) -> TrainError {
    let tokens = experiment.data.tokens;
    let sources = names(experiment);
    TrainError::configuration(
        format!(
            "{sources}: all documents that are held out are longer than sequences of {tokens} tokens"
        ),
        "set `data.longer: split` or `cut` (of a mixture, `longer` of that source), or more of `data.evaluate`, or 0",
    )
}

/// Packs whole documents into sequences of `tokens` inputs.
fn packing(experiment: &Experiment, cache: &Arc<Cache>, tokens: usize) -> Result<Packing> {
    let packing = Packing::new(cache.clone(), tokens, longer(experiment.data.longer));
    Ok(packing.map_err(|error| named(error, experiment))?)
}

/// The first token of the text in `cache` that no phase of `experiment` trains on; where nothing is held out, one past the last.
///
/// # Errors
/// Documents that are too long, where the experiment refuses them.
pub fn first_held_out(experiment: &Experiment, cache: &Arc<Cache>) -> Result<u64> {
    let Experiment { data, .. } = experiment;
    Ok(match data.pack {
        Pack::Stream => cache.tokens().saturating_sub(experiment.held_out() as u64),
        // What best fit holds out is what is held out without it.
        Pack::Documents | Pack::BestFit => {
            let longest = packing(experiment, cache, experiment.longest())?;
            longest.first_of_last(data.evaluate as u64).min(cache.tokens())
        }
    })
}

impl HeldOut {
    /// The documents of a source's `cache` from token `first` on, packed into sequences of `tokens` inputs as what is held out is, and how.
    ///
    /// # Errors
    /// Documents that are too long, where the experiment refuses them, or none with a token to learn.
    pub fn since(
        experiment: &Experiment,
        cache: &Arc<Cache>,
        first: u64,
        tokens: usize,
    ) -> Result<(HeldOut, PackingStats)> {
        let longer = longer(experiment.data.longer);
        let in_file = |mut error: DataError| {
            if let DataError::TooLong { key, .. } = &mut error {
                *key = "evaluation.lengths";
            }
            named(error, experiment)
        };
        let packing = Packing::since(cache.clone(), first, tokens, longer).map_err(in_file)?;
        let stats = packing.stats();
        if stats.sequences == 0 {
            let sources = names(experiment);
            return Err(TrainError::configuration(
                format!(
                    "{sources}: no document has a token to learn in sequences of {tokens} tokens"
                ),
                "raise `evaluation.lengths`, or set `data.longer: split`",
            ));
        }
        let all = stats.sequences;
        let packed = Packed::new(Arc::new(packing), Window::HeldOut, all, 1, experiment.seed);
        Ok((HeldOut::of(packed.map_err(in_file)?, all), stats))
    }

    /// The documents in sequence `index`, from 0, or the parts of them, in order.
    ///
    /// # Errors
    /// A sequence that there is not.
    pub fn extracts(&self, index: usize) -> Result<Vec<Extract>> {
        let origin = self.source.origin(index as u64, 0)?;
        Ok(origin.map_or_else(Vec::new, |origin| origin.extracts))
    }

    /// The sequences of `packed`.
    fn of(packed: Packed, sequences: u64) -> HeldOut {
        HeldOut {
            source: Arc::new(packed),
            sequences: sequences as usize,
            bigram_entropy: None,
            exact: false,
            sources: Vec::new(),
        }
    }
}

/// Opens whole documents, packed into sequences, with notes about what is left out.
pub(super) fn packed(experiment: &Experiment, cache: &Arc<Cache>) -> Result<Data> {
    let Experiment { data, seed, .. } = experiment;
    let in_file = |error: DataError| named(error, experiment);
    let packed = packing(experiment, cache, data.tokens)?;
    // Documents that the phase with the longest sequences holds out are never trained on in the others.
    let held_out = match experiment.longest() {
        longest if longest > data.tokens => {
            let longest = packing(experiment, cache, longest)?;
            packed.sequences_from(longest.first_of_last(data.evaluate as u64))
        }
        _ => data.evaluate as u64,
    };
    if data.evaluate > 0 && held_out == 0 {
        return Err(nothing_fits(experiment));
    }
    let packed = match data.pack {
        Pack::BestFit => packed.best_fit(held_out),
        Pack::Documents | Pack::Stream => packed,
    };
    let packed = Arc::new(packed);
    let part = |window, batch| {
        Packed::new(packed.clone(), window, held_out, batch, *seed).map_err(in_file)
    };
    let train = Arc::new(part(Window::Train, data.batch)?);
    let held_out = match held_out {
        0 => None,
        sequences => Some(HeldOut::of(part(Window::HeldOut, 1)?, sequences)),
    };
    let notes = notes(packed.stats(), data.pack, data.tokens);
    let epochs = Epoch::of(&*train).into_iter().collect();
    Ok(Data { train, held_out, epochs, notes })
}

/// The share of padding, in percent, from which on it is told.
const MUCH_PADDING: u64 = 5;

/// Notes about documents that sequences of `tokens` do not have, or not whole.
pub fn packing_notes(found: PackingStats, tokens: usize) -> Vec<String> {
    let PackingStats { cut, split, dropped, documents, .. } = found;
    let all = documents + dropped;
    let are_cut = format!("{cut} of {documents} documents are cut to {tokens} tokens");
    let left_out =
        format!("{dropped} of {all} documents are left out: too long, or nothing to learn");
    let in_pieces =
        format!("{split} of {documents} documents are split into pieces of {tokens} tokens");
    let notes = [(cut > 0, are_cut), (split > 0, in_pieces), (dropped > 0, left_out)];
    notes.into_iter().filter(|(is_so, _)| *is_so).map(|(_, note)| note).collect()
}

/// Notes about tokens and documents that no sequence has, and about sequences that have few.
fn notes(found: PackingStats, pack: Pack, tokens: usize) -> Vec<String> {
    let PackingStats { sequences, tokens: inputs, .. } = found;
    let room = (sequences * tokens as u64).max(1);
    let padding = 100 * (room - inputs.min(room)) / room;
    let less = if pack == Pack::Documents { ": `data.pack: best-fit` may leave less" } else { "" };
    let is_padding = format!("{padding} % of the tokens of sequences are padding{less}");
    let is_much = sequences > 0 && padding > MUCH_PADDING;
    packing_notes(found, tokens).into_iter().chain(is_much.then_some(is_padding)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_whose_held_out_documents_are_too_long_is_named() {
        let text = "name: x\nmodel: { hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1, num_attention_heads: 1 }\n\
                    data: { tokens: 8, path: a.txt }\noptimizer: { learning_rate: 0.1 }\nschedule: { steps: 2 }\n";
        let experiment = annulus_experiment::parse("x.yaml", text, &[]).expect("an experiment");
        let said = nothing_fits(&experiment).to_string();
        let wanted =
            "`a.txt`: all documents that are held out are longer than sequences of 8 tokens";
        assert!(said.contains(wanted), "{said}");
    }

    #[test]
    fn much_padding_is_told() {
        let said = |tokens, pack| {
            let found = PackingStats { sequences: 2, documents: 3, tokens, ..Default::default() };
            notes(found, pack, 100)
        };
        let padding = "12 % of the tokens of sequences are padding";
        let less = format!("{padding}: `data.pack: best-fit` may leave less");
        assert_eq!(said(176, Pack::Documents), [less]);
        assert_eq!(said(176, Pack::BestFit), [padding]);
        assert!(said(189, Pack::Documents).is_empty());
        assert!(notes(PackingStats::default(), Pack::Documents, 100).is_empty());
    }
}
