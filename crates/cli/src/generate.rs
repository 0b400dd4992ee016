//! `annulus generate`: a text is continued.

use std::path::Path;

use annulus_train::{Sampling, Setup, Wanted, generate};
use serde_json::json;

use crate::Done;
use crate::arguments::Generate;
use crate::failure::{Failure, USAGE};
use crate::{evaluate, print};

pub(crate) fn run(arguments: &Generate) -> Done {
    let subject = evaluate::subject(&arguments.path, &arguments.replacements, false)?;
    let text = match &arguments.file {
        Some(path) => read(path)?,
        None => arguments.prompt.clone().unwrap_or_default(),
    };
    let mut prompt = subject.tokenizer.before(true).to_vec();
    subject.tokenizer.encode(&text, &mut |ids| prompt.extend_from_slice(ids))?;
    // What depends on the length is that of all there will be.
    let all = subject.setup(prompt.len() + arguments.tokens)?;
    let setup = Setup { frequencies: all.frequencies, ..subject.setup(prompt.len().max(1))? };
    let sampling = Sampling {
        temperature: arguments.temperature,
        top_k: arguments.top_k,
        top_p: arguments.top_p,
        seed: arguments.seed,
    };
    let ends = subject.tokenizer.after().to_vec();
    let wanted = Wanted { tokens: arguments.tokens, ends, sampling };
    let ids = generate(&setup, &subject.weights, &prompt, &wanted)?;
    let answer = subject.tokenizer.decode(&ids)?;
    let value = || json!({ "prompt": text, "prompt_ids": prompt, "ids": ids, "text": answer });
    print::either(arguments.json, value, || format!("{text}{answer}"))?;
    Ok(0)
}

/// The largest file of a prompt that is read, in bytes.
const LARGEST: u64 = 1 << 28;

fn read(path: &Path) -> Result<String, Failure> {
    annulus_files::read_to_string(path, LARGEST).map_err(|error| {
        Failure::new(USAGE, format!("cannot read `{}`: {error}", path.display()), None)
    })
}
