//! A finished run, or a step of it, that is computed again: from where, and which known differences may change bits.

use std::path::{Path, PathBuf};

use crate::checkpoint::{checkpoint_folder, is_checkpoint};
use crate::folder::manifest::{Attempt, Fork, Manifest, differing};
use crate::{Result, TrainError};

/// The run that is computed again, or a step of it.
#[derive(Clone, Debug)]
pub struct Rerun {
    /// The folder of the run that is computed again.
    pub run: PathBuf,
    /// The manifest of the run that is computed again.
    pub manifest: Manifest,
    /// Whether it is computed from its first step, so that the initial weights must be the same.
    pub whole: bool,
}

impl Rerun {
    /// Why bits may differ though nothing is wrong with the run: differences between what made it and what computes it `now`. Each is part
    /// of a sentence.
    pub fn reasons(&self, now: &Manifest) -> Vec<String> {
        let then = &self.manifest;
        let other = |what: &str, then: &str, now: &str| {
            (then != now).then(|| format!("{what}: the run's hash was `{then}`, it is `{now}`"))
        };
        let weights = other("other weights to begin with", &then.weights, &now.weights);
        let mut reasons: Vec<String> = [
            vector(then.machine.vector.as_deref(), now.machine.vector.as_deref()),
            kernels(then.machine.kernels.as_deref(), now.machine.kernels.as_deref()),
            program(then, now),
            other("other data", &then.data, &now.data),
            weights.filter(|_| self.whole),
            rounding(then, now),
        ]
        .into_iter()
        .flatten()
        .collect();
        reasons.extend(earlier(&then.attempts));
        reasons
    }
}

fn vector(then: Option<&str>, now: Option<&str>) -> Option<String> {
    match (then, now) {
        (Some(then), Some(now)) if then == now => None,
        (Some(then), Some(now)) => Some(format!("computed with {now}, the run with {then}")),
        _ => Some("the run does not say which vector instructions it computed with".to_owned()),
    }
}

fn kernels(then: Option<&str>, now: Option<&str>) -> Option<String> {
    let said = |kernels: Option<&str>| {
        kernels.map_or_else(|| "the CPU".to_owned(), |word| format!("a GPU of {word}"))
    };
    (then != now).then(|| format!("computed on {}, the run on {}", said(now), said(then)))
}

/// The first difference between two manifests in what identifies the program.
fn program(then: &Manifest, now: &Manifest) -> Option<String> {
    let rows = [
        ("version", &then.version, &now.version),
        ("commit", &then.commit, &now.commit),
        ("file's hash", &then.binary, &now.binary),
    ];
    let (what, then, now) = rows.into_iter().find(|(_, then, now)| then != now)?;
    Some(format!("another program: the {what} was `{then}`, it is `{now}`"))
}

/// How the last start of a phase that is computed again would round otherwise than that of the run.
fn rounding(then: &Manifest, now: &Manifest) -> Option<String> {
    let now = now.attempts.last()?;
    let then = then.attempts.iter().rfind(|then| then.stage == now.stage)?;
    let keys = differing(&now.rounding, &then.rounding);
    let keys: Vec<String> =
        keys.iter().map(|(key, is, was)| format!("`{key}` was `{was}`, it is `{is}`")).collect();
    (!keys.is_empty()).then(|| format!("rounded otherwise: {}", keys.join(", ")))
}

/// Starts whose steps were computed otherwise than those of their phase's last start, which is what is computed again: with other ranks,
/// another strategy, other keys that change the rounding, other vector instructions or another program.
fn earlier(attempts: &[Attempt]) -> Vec<String> {
    let how = |one: &Attempt, other: &Attempt| {
        // Ranks and strategy are named anyway.
        let alike = (one.ranks, &one.strategy) == (other.ranks, &other.strategy);
        let keys = if alike { differing(&one.rounding, &other.rounding) } else { Vec::new() };
        let keys: Vec<String> =
            keys.iter().map(|(key, value, _)| format!(", `{key}: {value}`")).collect();
        let keys = keys.concat();
        let vector = one.vector.as_ref().map_or_else(String::new, |word| format!(", {word}"));
        let ranks = if one.ranks == 1 { "1 rank".into() } else { format!("{} ranks", one.ranks) };
        let program = one.binary.as_ref().and_then(|hash| hash.get(..16));
        let program = program.map_or_else(String::new, |hash| format!(", program {hash}"));
        format!("{ranks}, {}{keys}{vector}{program}", one.strategy)
    };
    let mut reasons = Vec::new();
    for (index, one) in attempts.iter().enumerate() {
        let Some(last) = attempts.iter().rfind(|other| other.stage == one.stage) else { continue };
        let (then, now) = (how(one, last), how(last, one));
        // The step from which the next start resumed; if it began anew, no step of this start is left.
        let left = attempts.get(index + 1).and_then(|next| next.resumed_from);
        if let Some(step) = left.filter(|_| then != now) {
            reasons.push(format!("steps to {step} were computed on {then}, later ones on {now}"));
        }
    }
    reasons
}

/// The warning that a start which resumes rounds otherwise than the one before by nothing but `memory`, which the machine may have settled;
/// another split is asked for, and settles other chunks.
pub(crate) fn resumes_otherwise(attempts: &[Attempt]) -> Option<String> {
    let [.., before, last] = attempts else { return None };
    last.resumed_from.filter(|_| last.stage == before.stage)?;
    let keys = differing(&last.rounding, &before.rounding);
    if keys.is_empty() || keys.iter().any(|(key, ..)| !key.starts_with("memory.")) {
        return None;
    }
    let keys: Vec<String> =
        keys.iter().map(|(key, is, was)| format!("`{key}` was `{was}` and is `{is}`")).collect();
    let keys = keys.join(", ");
    Some(format!("{keys}: the following steps are not bit-identical to those of one start"))
}

/// Where the run in `folder`, made as `manifest` says, began, if not with its own weights: the checkpoint itself, since the run that it was
/// forked from may have gone on.
///
/// # Errors
/// A checkpoint that is not there any more.
pub fn beginning(folder: &Path, manifest: &Manifest) -> Result<Option<Fork>> {
    let Some(fork) = &manifest.fork else { return Ok(None) };
    let of_run = manifest.began.filter(|_| !is_checkpoint(&fork.from));
    let from = of_run.map_or(fork.from.clone(), |step| checkpoint_folder(&fork.from, step));
    if from.is_dir() {
        return Ok(Some(Fork { from, ..fork.clone() }));
    }
    let (run, from) = (folder.display(), from.display());
    Err(TrainError::checkpoint(
        format!("`{run}` began from `{from}`, which is not there"),
        "bring that checkpoint back, and start in the folder in which the run was started",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(vector: &str) -> Manifest {
        let mut manifest = Manifest::new(1, "", "data".into(), "weights".into());
        manifest.machine.vector = Some(vector.to_owned());
        manifest
    }

    fn attempt(ranks: usize, resumed_from: Option<u64>) -> Attempt {
        let text = format!(
            r#"{{"start": 1, "end": 2, "ending": null, "resumed_from": null, "ranks": {ranks}, "strategy": "ring"}}"#
        );
        Attempt { resumed_from, ..serde_json::from_str(&text).unwrap() }
    }

    #[test]
    fn what_may_make_other_bits_is_named() {
        let again = |whole| Rerun { run: PathBuf::from("run"), manifest: manifest("avx2"), whole };
        assert_eq!(again(true).reasons(&manifest("avx2")), [""; 0]);
        let other = Manifest { weights: "others".into(), ..manifest("portable") };
        let vector = "computed with portable, the run with avx2";
        assert_eq!(again(false).reasons(&other), [vector]);
        let both = again(true).reasons(&other);
        assert!(both.len() == 2 && both[1].starts_with("other weights to begin with"), "{both:?}");
        let mut on_a_gpu = manifest("avx2");
        on_a_gpu.machine.kernels = Some("sm_90".to_owned());
        let said = again(true).reasons(&on_a_gpu);
        assert_eq!(said, ["computed on a GPU of sm_90, the run on the CPU"]);
        let of = |chunk: &str| {
            let rounding = [("memory.loss_chunk".to_owned(), chunk.to_owned())].into();
            let attempts = vec![Attempt { rounding, ..attempt(2, None) }];
            Manifest { attempts, ..manifest("avx2") }
        };
        let run = Rerun { manifest: of("5"), ..again(true) };
        assert_eq!(run.reasons(&of("5")), [""; 0]);
        let said = run.reasons(&of("128"));
        assert_eq!(said, ["rounded otherwise: `memory.loss_chunk` was `5`, it is `128`"]);
        let other = Manifest { version: "0.0.0".into(), commit: "x".into(), ..manifest("avx2") };
        let said = again(true).reasons(&other);
        assert!(said.len() == 1 && said[0].contains("version was") && said[0].contains("0.0.0"));
    }

    #[test]
    fn starts_of_which_steps_are_left_are_named_where_they_computed_otherwise() {
        assert_eq!(earlier(&[attempt(2, None), attempt(2, Some(3))]), [""; 0]);
        let said = earlier(&[attempt(2, None), attempt(4, Some(3))]);
        assert_eq!(
            said,
            ["steps to 3 were computed on 2 ranks, ring, later ones on 4 ranks, ring"]
        );
        let chunk = |value: &str, resumed_from| {
            let rounding = [("memory.loss_chunk", value), ("mesh.sequence", "2")];
            let rounding = rounding.map(|(key, value)| (key.to_owned(), value.to_owned()));
            Attempt { rounding: rounding.into(), ..attempt(2, resumed_from) }
        };
        let starts = [chunk("5", None), chunk("128", Some(3))];
        assert_eq!(
            earlier(&starts),
            [
                "steps to 3 were computed on 2 ranks, ring, `memory.loss_chunk: 5`, later ones on 2 ranks, ring, \
              `memory.loss_chunk: 128`"
            ]
        );
        let said = resumes_otherwise(&starts).unwrap();
        assert!(said.starts_with("`memory.loss_chunk` was `5` and is `128`"), "{said}");
        assert_eq!(resumes_otherwise(&[chunk("5", None), chunk("5", Some(3))]), None);
        let mut split = chunk("128", Some(3));
        split.rounding.insert("mesh.sequence".to_owned(), "1".to_owned());
        assert_eq!(resumes_otherwise(&[chunk("5", None), split]), None);
        // An earlier version's manifest does not say.
        assert_eq!(resumes_otherwise(&[attempt(2, None), chunk("5", Some(3))]), None);
        // The first start saved nothing.
        assert_eq!(earlier(&[attempt(2, None), attempt(4, None)]), [""; 0]);
    }
}
