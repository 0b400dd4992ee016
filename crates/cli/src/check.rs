//! `annulus check`, `plan`, `schema`: what can be said of an experiment without running it.

use annulus_data::{Recall, Source, Tokenizer};
use annulus_experiment::{Format, Plan, load};

use crate::Done;
use crate::arguments::{File, Reading};
use crate::failure::Failure;
use crate::print;

pub(crate) fn check(file: &File) -> Done {
    let (_, plan) = read(file)?;
    print::line(&format!("{}: ok", plan.experiment.name));
    Ok(0)
}

pub(crate) fn plan(arguments: &Reading) -> Done {
    let (_, plan) = read(&arguments.file)?;
    print::line(&if arguments.json { plan.to_json() } else { plan.to_text() });
    Ok(0)
}

pub(crate) fn schema() {
    print::line(&format!("{:#}", annulus_experiment::schema()));
}

/// The experiment's text and its plan.
pub(crate) fn read(file: &File) -> Result<(String, Plan), Failure> {
    let experiment = load(&file.file, &file.replacements)?;
    let yaml = std::fs::read_to_string(&file.file).map_err(|error| {
        Failure::usage(format!("cannot read `{}`: {error}", file.file.display()))
    })?;
    let vocabulary = match experiment.data.format {
        Format::Text | Format::Jsonl => {
            Some(Tokenizer::open(&experiment.data.tokenizer)?.vocabulary())
        }
        Format::Recall => {
            let data = &experiment.data;
            Some(Recall::new(data.tokens, data.batch, experiment.seed)?.vocabulary())
        }
        Format::Batches => None,
    };
    Ok((yaml, Plan::new(experiment, vocabulary)?))
}
