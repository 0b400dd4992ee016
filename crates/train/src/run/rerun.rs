//! A finished run, or a step of it, that is computed again: from where, and which known differences may change bits.

use std::path::{Path, PathBuf};

use crate::checkpoint::is_checkpoint;
use crate::folder::manifest::{Attempt, Fork, Manifest};
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

/// Starts whose steps were computed otherwise than those of their phase's last start, which is what is computed again: with other ranks,
/// another strategy, other vector instructions or another program.
fn earlier(attempts: &[Attempt]) -> Vec<String> {
    let how = |one: &Attempt| {
        let vector = one.vector.as_ref().map_or_else(String::new, |word| format!(", {word}"));
        let ranks = if one.ranks == 1 { "1 rank".into() } else { format!("{} ranks", one.ranks) };
        let program = one.binary.as_ref().and_then(|hash| hash.get(..16));
        let program = program.map_or_else(String::new, |hash| format!(", program {hash}"));
        format!("{ranks}, {}{vector}{program}", one.strategy)
    };
    let mut reasons = Vec::new();
    for (index, one) in attempts.iter().enumerate() {
        let last = attempts.iter().rfind(|other| other.stage == one.stage);
        let Some(last) = last.filter(|last| how(last) != how(one)) else { continue };
        // The step from which the next start resumed; if it began anew, no step of this start is left.
        let left = attempts.get(index + 1).and_then(|next| next.resumed_from);
        if let Some(step) = left {
            let (then, now) = (how(one), how(last));
            reasons.push(format!("steps to {step} were computed on {then}, later ones on {now}"));
        }
    }
    reasons
}

/// Where the run in `folder`, made as `manifest` says, began, if not with its own weights: the checkpoint itself, since the run that it was
/// forked from may have gone on.
///
/// # Errors
/// A checkpoint that is not there any more.
pub fn beginning(folder: &Path, manifest: &Manifest) -> Result<Option<Fork>> {
    let Some(fork) = &manifest.fork else { return Ok(None) };
    let of_run = manifest.began.filter(|_| !is_checkpoint(&fork.from));
    let from = of_run.map_or(fork.from.clone(), |step| fork.from.join(format!("step-{step}")));
    if from.is_dir() {
        return Ok(Some(Fork { from, ..fork.clone() }));
    }
    let (run, from) = (folder.display(), from.display());
    Err(TrainError::Checkpoint {
        message: format!("`{run}` began from `{from}`, which is not there"),
        hint: Some(
            "bring that checkpoint back, and start in the folder in which the run was started"
                .into(),
        ),
    })
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
        // The first start saved nothing.
        assert_eq!(earlier(&[attempt(2, None), attempt(4, None)]), [""; 0]);
    }
}
