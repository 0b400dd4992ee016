//! `annulus data show --step`: the sequences of a step, and what they are made of.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use annulus_data::{Extract, Origin, Place, Sequence, Texts, Tokenizer, count_padding, places};
use annulus_experiment::Experiment;
use annulus_plan::Plan;
use annulus_text::count;
use annulus_train::{
    Data, Manifest, Opened, Opening, by_source, data_fingerprint, excluded, is_run, records_of,
    texts,
};

use crate::again::refuse_before;
use crate::failure::Failure;
use crate::{check, print};

/// Tokens of a document's beginning, and of its end, that are shown.
const SHOWN: usize = 16;

/// The plan of the phase that step `step`, from 1, belongs to; without a step that of the first. `made`: the manifest of the run in `file`.
///
/// # Errors
/// A step that the run does not have, or did not compute, because it was forked after it.
pub(super) fn plan_at(
    mut plans: Vec<Plan>,
    step: Option<u64>,
    file: &Path,
    made: Option<&Manifest>,
) -> Result<Plan, Failure> {
    let Some(step) = step else { return Ok(plans.swap_remove(0)) };
    let (steps, stages) = (plans[0].experiment.all_steps(), plans.len());
    if (1..=steps).contains(&step) {
        made.map_or(Ok(()), |made| refuse_before(file, made, step))?;
        return Ok(check::phase_at(plans, step));
    }
    let sum = if stages == 1 { "`schedule.steps`" } else { "the steps of all `stages`" };
    Err(Failure::usage(
        format!("there is no step {step}"),
        format!("steps are counted from 1 to {steps}, {sum}"),
    ))
}

/// The manifest of the run in `file`; `None`: that is no run's folder, or has none.
pub(super) fn made(file: &Path) -> Result<Option<Manifest>, Failure> {
    Ok(if is_run(file) { Manifest::open(file)? } else { None })
}

/// The number of the data's batch that step `step` reads, in the phase of `experiment`.
pub(super) fn batch_of(experiment: &Experiment, step: u64) -> u64 {
    let phase = experiment.phase_start();
    step - 1 - phase.steps.start + phase.batch
}

/// Warns where the data of the run of the manifest `made` are not any more what it was trained on.
pub(super) fn warn_of_other_data(
    made: Option<&Manifest>,
    opened: &Opened,
    opening: Opening<'_>,
) -> Result<(), Failure> {
    let Some(manifest) = made else { return Ok(()) };
    let experiment = &opened.resolved.experiment;
    if data_fingerprint(experiment, opening, &mut |_| ())? != manifest.data {
        print::warn(
            "the data are not what the run read: they, or keys of them, have changed since",
        );
    }
    Ok(())
}

/// What the sequences of a step are made of.
pub(super) struct MadeOf<'a> {
    tokenizer: &'a Tokenizer,
    origins: Vec<Option<Origin>>,
    /// By source, where its documents are.
    places: Vec<BTreeMap<u64, Place>>,
}

impl<'a> MadeOf<'a> {
    /// Finds what batch `batch` of the data of `experiment` is made of: reads texts again, up to its last document.
    pub(super) fn read(
        experiment: &Experiment,
        data: &Data,
        batch: u64,
        tokenizer: &'a Tokenizer,
    ) -> Result<MadeOf<'a>, Failure> {
        let rows = 0..data.train.rows();
        let origins =
            rows.map(|row| data.train.origin(batch, row)).collect::<Result<Vec<_>, _>>()?;
        let mut wanted: BTreeMap<usize, BTreeSet<u64>> = BTreeMap::new();
        for origin in origins.iter().flatten() {
            let documents = origin.extracts.iter().map(|extract| extract.document);
            wanted.entry(origin.source).or_default().extend(documents);
        }
        let sources = by_source(experiment);
        let found = sources.iter().enumerate().map(|(number, source)| {
            let documents = wanted.get(&number);
            documents.map_or_else(|| Ok(BTreeMap::new()), |all| found(source, all, tokenizer))
        });
        Ok(MadeOf { tokenizer, places: found.collect::<Result<_, Failure>>()?, origins })
    }

    /// A line for every document in sequence `row`, which is `sequence`: its positions, where it is from, how it begins and ends.
    pub(super) fn lines(&self, row: usize, sequence: &Sequence) -> Result<String, Failure> {
        let Some(Origin { source, extracts }) = &self.origins[row] else {
            let end = sequence.inputs.len() - count_padding(sequence);
            return Ok(format!("  {}", self.ends(&sequence.inputs[..end])?));
        };
        let (mut at, mut lines) = (0, String::new());
        for extract in extracts {
            let end = at + extract.inputs;
            let from = self.from(*source, extract);
            let text = self.ends(&sequence.inputs[at..end])?;
            let _ = writeln!(lines, "  positions {at} to {}: {from}: {text}", end - 1);
            at = end;
        }
        let padding = sequence.inputs.len() - at;
        if padding > 0 {
            let _ = writeln!(lines, "  padding: {}", count(padding, "token"));
        }
        lines.truncate(lines.trim_end().len());
        Ok(lines)
    }

    /// A document's number and place.
    fn from(&self, source: usize, extract: &Extract) -> String {
        let Extract { document, first, .. } = *extract;
        let mut from = format!("document {}", document + 1);
        match self.places[source].get(&document) {
            Some(Place { file, line: Some(line) }) => {
                let _ = write!(from, " (`{}`, line {line})", file.display());
            }
            Some(Place { file, line: None }) => {
                let _ = write!(from, " (`{}`)", file.display());
            }
            None => {}
        }
        if first > 0 {
            let _ = write!(from, " from its token {first} on");
        }
        from
    }

    /// How a text begins and ends.
    fn ends(&self, ids: &[u32]) -> Result<String, Failure> {
        let shown = |ids: &[u32]| Ok::<_, Failure>(format!("{:?}", self.tokenizer.decode(ids)?));
        if ids.len() <= 2 * SHOWN {
            return shown(ids);
        }
        Ok(format!("{} … {}", shown(&ids[..SHOWN])?, shown(&ids[ids.len() - SHOWN..])?))
    }
}

/// Where documents of a source are.
fn found(
    source: &Experiment,
    documents: &BTreeSet<u64>,
    tokenizer: &Tokenizer,
) -> Result<BTreeMap<u64, Place>, Failure> {
    let Some(records) = records_of(source.data.format) else { return Ok(BTreeMap::new()) };
    let inputs = texts(source)?;
    let excluded = excluded(&inputs, &source.output)?;
    let column = &source.data.column;
    let texts = Texts { inputs: &inputs, records, column, tokenizer, excluded: &excluded };
    Ok(places(&texts, documents)?)
}
