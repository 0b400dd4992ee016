//! Flags of other programs, and options that belong to another: what is written instead.

use annulus_experiment::{conversion, elsewhere};
use clap::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// The error message for a flag that only other programs have, and a hint at what is written here instead.
pub(crate) fn equivalent(said: &Error) -> Option<(String, String)> {
    if said.kind() == ErrorKind::MissingRequiredArgument {
        return needed(said);
    }
    if said.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(flag)) = said.get(ContextKind::InvalidArg) else { return None };
    if !flag.starts_with('-') && flag.contains('=') {
        let message = format!("`{flag}`: this command replaces no keys of an experiment");
        return Some((message, "leave it out; `--help` lists what the command takes".to_owned()));
    }
    let hint = match flag.trim_start_matches('-') {
        "resume" | "resume-from" | "resume_from_checkpoint" | "resume-from-checkpoint" => {
            "the same command resumes a run; \
             to start a new run from it, `annulus train FILE --from RUN`"
                .to_owned()
        }
        "config" | "c" | "f" => "the file is the first argument: `annulus train FILE`".to_owned(),
        "dry-run" | "dry_run" => {
            "`annulus check FILE` says whether it would run, and `annulus plan FILE` what it would do".to_owned()
        }
        "overwrite" | "force" | "overwrite_output_dir" => {
            "nothing is overwritten: remove the folder, or set another `output`".to_owned()
        }
        "v" | "verbose" => "there are no further messages: `every.log=1` logs every step".to_owned(),
        "set" | "o" | "override" => {
            "values are replaced by arguments such as `data.tokens=64k`".to_owned()
        }
        key if key.contains('.') => {
            format!("values are replaced without dashes: `{key}=VALUE`")
        }
        // A misspelt flag of our own.
        _ if said.get(ContextKind::SuggestedArg).is_some() => return None,
        other => key_for(other),
    };
    Some((format!("`{flag}` is not a flag of this command"), hint))
}

/// The error message for an option of `plan` without the one that it belongs to.
fn needed(said: &Error) -> Option<(String, String)> {
    let Some(ContextValue::Strings(missing)) = said.get(ContextKind::InvalidArg) else {
        return None;
    };
    let (message, hint) = match missing.first()?.split(' ').next()? {
        "--compare" => (
            "`--tokens`, `--ranks` and the other sizes of a layer are options of `plan --compare`",
            "values of an experiment are replaced without dashes: `data.tokens=64k`, `mesh.sequence=8`",
        ),
        "--cluster" => (
            "`--svg` and `--scale` are options of `plan --cluster`",
            "name a described cluster: `--cluster experiments/clusters/h100.yaml`, or a copy with your own numbers",
        ),
        _ => return None,
    };
    Some((message.to_owned(), hint.to_owned()))
}

/// How to set what another program has the flag `name` for.
fn key_for(name: &str) -> String {
    let name = name.replace('-', "_");
    let own = KEYS.iter().find(|(known, _)| *known == name).map(|(_, key)| *key);
    match own.or_else(|| elsewhere(&name)) {
        Some(key) => {
            let converted = conversion(&name);
            let converted = converted.map_or_else(String::new, |how| format!("; {how}"));
            format!("values are replaced by arguments without dashes: `{key}=VALUE`{converted}")
        }
        None => {
            "`--help` lists the flags; keys of the experiment are replaced by arguments without dashes, such as `data.tokens=64k`"
                .to_owned()
        }
    }
}

/// Flags that are keys or words of an experiment, and the keys that they mean.
const KEYS: [(&str, &str); 16] = [
    ("learning_rate", "optimizer.learning_rate"),
    ("weight_decay", "optimizer.weight_decay"),
    ("batch", "data.batch"),
    ("bs", "data.batch"),
    ("model", "model.path"),
    ("data", "data.path"),
    ("strategy", "attention.strategy"),
    ("ranks", "mesh.sequence"),
    ("gpus", "mesh.sequence"),
    ("nproc_per_node", "mesh.sequence"),
    ("steps", "schedule.steps"),
    ("output", "output"),
    ("seed", "seed"),
    ("device", "device"),
    ("dtype", "model.dtype"),
    ("offload", "memory.offload"),
];
