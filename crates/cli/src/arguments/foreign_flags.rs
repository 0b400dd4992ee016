//! Flags of other programs, and options that belong to another: what is written instead.

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
        "epochs" | "num_train_epochs" | "num-train-epochs" => {
            "there are no epochs: set `schedule.steps` to epochs x tokens of the data / (`data.batch` x `data.tokens`)".to_owned()
        }
        "gradient_accumulation_steps" | "gradient-accumulation-steps" => {
            "`data.batch` counts the sequences of an optimizer step: `memory.micro_batch` x `mesh.data` x accumulation steps".to_owned()
        }
        key if key.contains('.') => {
            format!("values are replaced without dashes: `{key}=VALUE`")
        }
        // A misspelt flag of our own.
        _ if said.get(ContextKind::SuggestedArg).is_some() => return None,
        other => key_for(other),
    };
    Some((format!("`{flag}` is no flag of this command"), hint))
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
    match KEYS.iter().find(|(known, _)| *known == name.replace('-', "_")) {
        Some((_, key)) => format!("values are replaced by arguments without dashes: `{key}=VALUE`"),
        None => {
            "`--help` lists the flags; keys of the experiment are replaced by arguments without dashes, such as `data.tokens=64k`"
                .to_owned()
        }
    }
}

/// Flags of other programs, and the keys that they mean.
const KEYS: [(&str, &str); 29] = [
    ("lr", "optimizer.learning_rate"),
    ("learning_rate", "optimizer.learning_rate"),
    ("weight_decay", "optimizer.weight_decay"),
    ("batch_size", "data.batch"),
    ("batch", "data.batch"),
    ("bs", "data.batch"),
    ("model", "model.path"),
    ("model_name_or_path", "model.path"),
    ("data", "data.path"),
    ("dataset", "data.path"),
    ("strategy", "attention.strategy"),
    ("ranks", "mesh.sequence"),
    ("gpus", "mesh.sequence"),
    ("nproc_per_node", "mesh.sequence"),
    ("num_steps", "schedule.steps"),
    ("per_device_train_batch_size", "memory.micro_batch"),
    ("seq_len", "data.tokens"),
    ("max_length", "data.tokens"),
    ("steps", "schedule.steps"),
    ("max_steps", "schedule.steps"),
    ("context_parallel_size", "mesh.sequence"),
    ("tensor_model_parallel_size", "mesh.tensor"),
    ("warmup_steps", "schedule.warmup"),
    ("output", "output"),
    ("output_dir", "output"),
    ("seed", "seed"),
    ("device", "device"),
    ("dtype", "model.dtype"),
    ("bf16", "model.dtype"),
];
