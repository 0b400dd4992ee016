//! A finished run, or a step of it, that is computed again: from where, and which known differences may change bits.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use annulus_comm::flight;
use annulus_experiment::KeyDifference;
use annulus_text::count;

use crate::folder::manifest::{Fork, Manifest, RunStart, UNKNOWN, differing};
use crate::folder::{GIVEN, LOCK, RESOLVED};
use crate::{Result, TrainError};

/// The run that is computed again, or a step of it.
#[derive(Clone, Debug)]
pub struct Rerun {
    /// The folder of the run that is computed again.
    pub run: PathBuf,
    /// The manifest of the run that is computed again.
    pub manifest: Manifest,
    /// The step up to which it is computed again; `None`: to its end.
    pub until: Option<u64>,
}

/// Steps of a run, with how one start of it computed them.
struct Steps<'a> {
    /// The step after which they begin.
    from: u64,
    /// The last of them; `None`: that of the run.
    to: Option<u64>,
    start: &'a RunStart,
}

/// Which start computed which steps of a run. What a start did after the step from which a later one resumed is not part of the run.
fn computed(starts: &[RunStart]) -> Vec<Steps<'_>> {
    let mut all: Vec<Steps<'_>> = Vec::new();
    for start in starts {
        let from = start.resumed_from.unwrap_or(0);
        all.retain(|steps| steps.from < from);
        if let Some(before) = all.last_mut() {
            before.to = Some(from);
        }
        all.push(Steps { from, to: None, start });
    }
    all
}

/// The steps that are in both, if any: after the first number, up to the second.
fn common(a: &Steps<'_>, b: &Steps<'_>) -> Option<(u64, Option<u64>)> {
    let from = a.from.max(b.from);
    let to = [a.to, b.to].into_iter().flatten().min();
    to.is_none_or(|to| from < to).then_some((from, to))
}

impl Rerun {
    /// Why bits may differ though nothing is wrong with the run: differences between what made it and what computes it `now`. Each is part
    /// of a sentence.
    pub fn reasons(&self, now: &Manifest) -> Vec<String> {
        let then = &self.manifest;
        let data = (then.data != now.data).then(|| {
            format!("other data: the run's hash was `{}`, it is `{}`", then.data, now.data)
        });
        let mut reasons: Vec<String> = [data, weights(then, now)].into_iter().flatten().collect();
        reasons.extend(self.otherwise(now));
        reasons
    }

    /// How starts of the run computed otherwise than those that compute the same steps `now`, with the steps where that is not all of them.
    fn otherwise(&self, now: &Manifest) -> Vec<String> {
        let (were, are) = (computed(&self.manifest.attempts), computed(&now.attempts));
        let mut found: Vec<(String, u64, Option<u64>)> = Vec::new();
        let mut all: Option<(u64, Option<u64>)> = None;
        for (was, is) in were.iter().flat_map(|was| are.iter().map(move |is| (was, is))) {
            let is_wanted = |from: &u64| self.until.is_none_or(|until| *from < until);
            let Some((from, to)) = common(was, is).filter(|(from, _)| is_wanted(from)) else {
                continue;
            };
            // A phase that is not computed again yet says nothing.
            if was.start.stage != is.start.stage {
                continue;
            }
            all = Some((all.map_or(from, |(first, _)| first), to));
            for reason in unlike((&self.manifest, was.start), (now, is.start)) {
                match found.iter_mut().find(|(text, _, end)| *text == reason && *end == Some(from))
                {
                    Some((_, _, end)) => *end = to,
                    None => found.push((reason, from, to)),
                }
            }
        }
        let begins = are.first().map_or(0, |first| first.from);
        let unknown = were.first().map(|first| first.from).filter(|known| *known > begins);
        let unknown =
            unknown.map(|known| format!("the run does not say how steps to {known} were computed"));
        let named = |(reason, from, to): (String, u64, Option<u64>)| match (all, to) {
            (Some(all), _) if all == (from, to) => reason,
            (Some((first, _)), Some(to)) if first == from => format!("steps to {to}: {reason}"),
            (_, Some(to)) => format!("steps {} to {to}: {reason}", from + 1),
            (_, None) => format!("after step {from}: {reason}"),
        };
        unknown.into_iter().chain(found.into_iter().map(named)).collect()
    }
}

/// How the weights that a run began with differ from those that begin it now. What goes on from a checkpoint does not know them.
fn weights(then: &Manifest, now: &Manifest) -> Option<String> {
    match (then.weights.as_str(), now.weights.as_str()) {
        (_, UNKNOWN) => None,
        (UNKNOWN, _) => Some("the run does not say which weights it began with".to_owned()),
        (was, is) => (was != is).then(|| {
            format!("other weights to begin with: the run's hash was `{was}`, it is `{is}`")
        }),
    }
}

/// How one start computed otherwise than another, each given with its manifest.
fn unlike(then: (&Manifest, &RunStart), now: (&Manifest, &RunStart)) -> Vec<String> {
    let instructions = match (instructions(then), instructions(now)) {
        (Some(was), Some(is)) if was == is => None,
        (Some(was), Some(is)) => Some(format!("computed with {is}, the run with {was}")),
        _ => Some("the run does not say which vector instructions it computed with".to_owned()),
    };
    [instructions, program(then, now), rounding(then.1, now.1)].into_iter().flatten().collect()
}

/// The vector instructions, or the generation of GPUs, that a start computed with; starts of earlier versions do not say it themselves.
fn instructions((made, start): (&Manifest, &RunStart)) -> Option<String> {
    let (vector, kernels) = match &start.vector {
        Some(vector) => (Some(vector), &start.kernels),
        None => (made.machine.vector.as_ref(), &made.machine.kernels),
    };
    let gpu = kernels.as_ref().map(|word| format!("a GPU of {word}"));
    gpu.or_else(|| vector.cloned())
}

/// The first difference in what identifies the program; its version and commit are known of the last start.
fn program(then: (&Manifest, &RunStart), now: (&Manifest, &RunStart)) -> Option<String> {
    let hash = |(made, start): (&Manifest, &RunStart)| {
        start.binary.clone().unwrap_or_else(|| made.binary.clone())
    };
    let (was, is) = (hash(then), hash(now));
    let (then, now) = (then.0, now.0);
    let of_last = was == then.binary && is == now.binary;
    let known = [("version", &then.version, &now.version), ("commit", &then.commit, &now.commit)];
    let rows = known.into_iter().filter(|_| of_last).chain([("file's hash", &was, &is)]);
    let (what, was, is) = rows.into_iter().find(|(_, was, is)| was != is)?;
    Some(format!("another program: the {what} was `{was}`, it is `{is}`"))
}

/// How one start rounded otherwise than another.
fn rounding(then: &RunStart, now: &RunStart) -> Option<String> {
    if then.rounding.is_empty() || now.rounding.is_empty() {
        // Strict, the split changes no bit; an earlier version says of it nothing but ranks and strategy.
        let is_strict = |start: &RunStart| start.rounding.is_empty() && start.vector.is_some();
        let split =
            |start: &RunStart| format!("{}, {}", count(start.ranks, "rank"), start.strategy);
        let (was, is) = (split(then), split(now));
        let alike = was == is || is_strict(then) && is_strict(now);
        return (!alike).then(|| format!("computed on {is}, the run on {was}"));
    }
    let keys = differing(&then.rounding, &now.rounding);
    let said =
        |one: &KeyDifference| format!("`{}` was `{}`, it is `{}`", one.key, one.was(), one.is());
    let keys: Vec<String> = keys.iter().map(said).collect();
    (!keys.is_empty()).then(|| format!("rounded otherwise: {}", keys.join(", ")))
}

/// The warnings that the last start of `made` computes otherwise than the one whose steps it resumes from, though nobody asked for that:
/// with other instructions, or by nothing but `memory`, which the machine may have settled; another split is asked for, and settles other
/// chunks. `settled` is what rounds, in a phase, as it is settled now.
pub(crate) fn resumes_otherwise(
    made: &Manifest,
    settled: impl FnOnce(Option<&str>) -> BTreeMap<String, String>,
) -> Vec<String> {
    let computed = computed(&made.attempts);
    let [.., before, last] = &computed[..] else { return Vec::new() };
    let (before, last) = (before.start, last.start);
    let mut all = Vec::new();
    if let (Some(was), Some(is)) = (instructions((made, before)), instructions((made, last)))
        && was != is
    {
        all.push(format!("computed with {is}, the steps before with {was}"));
    }
    // Chunks of another phase say nothing of this one's.
    let settled = settled(before.stage.as_deref());
    let keys = differing(&before.rounding, &settled);
    if !keys.is_empty() && keys.iter().all(|one| one.key.starts_with("memory.")) {
        all.push(keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "));
    }
    let more = "the following steps are not bit-identical to those of one start";
    all.into_iter().map(|what| format!("{what}: {more}")).collect()
}

/// Whether a file or folder of this name in `folder` is one that a run writes there before its manifest: a run that was killed until then has
/// nothing else in its folder, and has not begun. Without a run's lock none is: the files are somebody's own.
pub fn is_before_manifest(folder: &Path, name: &OsStr) -> bool {
    let names = [LOCK, flight::FOLDER, GIVEN, RESOLVED];
    let is_written = names.iter().any(|one| name == *one) || annulus_files::is_leftover(name);
    is_written && folder.join(LOCK).is_file()
}

/// Where the run in `folder`, made as `manifest` says, began, if not with its own weights: the checkpoint itself, since the run that it was
/// forked from may have gone on.
///
/// # Errors
/// A checkpoint that is not there any more.
pub fn beginning(folder: &Path, manifest: &Manifest) -> Result<Option<Fork>> {
    let Some(fork) = &manifest.fork else { return Ok(None) };
    let fork = manifest.began.map_or_else(|| fork.clone(), |step| fork.at(step));
    if fork.from.is_dir() {
        return Ok(Some(fork));
    }
    let (run, from) = (folder.display(), fork.from.display());
    Err(TrainError::checkpoint(
        format!("`{run}` began from `{from}`, which is not there"),
        "bring that checkpoint back, and start in the folder in which the run was started; a run without checkpoints of its own \
         may start again from another: `--from` another `step-N`",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ON: &str = "the following steps are not bit-identical to those of one start";

    /// A start that computed with avx2 and these chunks, from this step on.
    fn start(chunk: &str, resumed_from: Option<u64>) -> RunStart {
        let text = r#"{"start": 1, "end": 2, "ending": null, "resumed_from": null, "ranks": 2, "strategy": "ring"}"#;
        let rounding = [("memory.loss_chunk", chunk), ("mesh.sequence", "2")];
        RunStart {
            resumed_from,
            vector: Some("avx2".to_owned()),
            rounding: rounding.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            ..serde_json::from_str(text).unwrap()
        }
    }

    fn strict(ranks: usize, resumed_from: Option<u64>) -> RunStart {
        RunStart { rounding: BTreeMap::new(), ranks, ..start("", resumed_from) }
    }

    fn of_phase(name: &str, start: RunStart) -> RunStart {
        RunStart { stage: Some(name.to_owned()), ..start }
    }

    fn manifest(attempts: impl Into<Vec<RunStart>>) -> Manifest {
        Manifest {
            attempts: attempts.into(),
            ..Manifest::new(1, "", "data".into(), "weights".into())
        }
    }

    fn reasons(then: &Manifest, now: &Manifest) -> Vec<String> {
        let (run, manifest) = (PathBuf::from("run"), then.clone());
        Rerun { run, manifest, until: None }.reasons(now)
    }

    #[test]
    fn what_may_make_other_bits_is_named() {
        let run = manifest([start("5", None)]);
        assert_eq!(reasons(&run, &run), [""; 0]);
        let other = Manifest { weights: "others".into(), data: "new".into(), ..run.clone() };
        let said = reasons(&run, &other);
        assert!(said.len() == 2 && said[0].starts_with("other data: the run's"), "{said:?}");
        assert!(said[1].starts_with("other weights to begin with: the run's"), "{said:?}");
        // From a checkpoint on, the first weights are not known, and do not matter.
        assert_eq!(reasons(&run, &Manifest { weights: UNKNOWN.into(), ..run.clone() }), [""; 0]);
        let lost = Manifest { weights: UNKNOWN.into(), ..manifest([start("5", Some(4))]) };
        let said = reasons(&lost, &run);
        let wanted = [
            "the run does not say which weights it began with",
            "the run does not say how steps to 4 were computed",
        ];
        assert_eq!(said, wanted);
        let portable = |start| RunStart { vector: Some("portable".into()), ..start };
        let said = reasons(&run, &manifest([portable(start("5", None))]));
        assert_eq!(said, ["computed with portable, the run with avx2"]);
        let on_gpu = RunStart { kernels: Some("sm_90".into()), ..start("5", None) };
        let said = reasons(&run, &manifest([on_gpu]));
        assert_eq!(said, ["computed with a GPU of sm_90, the run with avx2"]);
        let said = reasons(&run, &manifest([start("128", None)]));
        assert_eq!(said, ["rounded otherwise: `memory.loss_chunk` was `5`, it is `128`"]);
        let said = reasons(&run, &Manifest { version: "0.0.0".into(), ..run.clone() });
        assert!(said.len() == 1 && said[0].starts_with("another program: the version was"));
    }

    #[test]
    fn starts_that_computed_otherwise_are_named_with_their_steps() {
        let now = manifest([start("64", None)]);
        // What the second start did is not part of the run.
        let killed = [start("64", None), start("16", Some(4)), start("64", Some(4))];
        assert_eq!(reasons(&manifest(killed), &now), [""; 0]);
        let chunk = |was: &str, is: &str| {
            format!("rounded otherwise: `memory.loss_chunk` was `{was}`, it is `{is}`")
        };
        let anew = [start("16", None), start("64", None)];
        assert_eq!(reasons(&manifest(anew), &now), [""; 0]);
        let two = manifest([start("16", None), start("16", Some(2)), start("64", Some(4))]);
        assert_eq!(reasons(&two, &now), [format!("steps to 4: {}", chunk("16", "64"))]);
        let three = manifest([start("64", None), start("16", Some(2)), start("64", Some(4))]);
        assert_eq!(reasons(&three, &now), [format!("steps 3 to 4: {}", chunk("16", "64"))]);
        let later = manifest([start("64", None), start("16", Some(4))]);
        assert_eq!(reasons(&later, &now), [format!("after step 4: {}", chunk("16", "64"))]);
        // Of one step that is computed again, only that counts.
        let (run, manifest_of) = (PathBuf::from("run"), manifest([start("64", Some(2))]));
        let until = |until| Rerun { run: run.clone(), manifest: later.clone(), until: Some(until) };
        assert_eq!(until(4).reasons(&manifest_of), [""; 0]);
        assert_eq!(until(5).reasons(&manifest_of), reasons(&later, &now));
        // Strict, ranks change no bit; an earlier version does not say whether it was.
        let mixed = manifest([strict(2, None), strict(1, Some(4))]);
        assert_eq!(reasons(&mixed, &manifest([strict(2, None)])), [""; 0]);
        let old = |ranks, from| RunStart { vector: None, ..strict(ranks, from) };
        let said = reasons(&manifest([old(2, None), old(1, Some(4))]), &manifest([old(1, None)]));
        assert_eq!(said, ["steps to 4: computed on 1 rank, ring, the run on 2 ranks, ring"]);
    }

    #[test]
    fn every_phase_is_compared_with_itself() {
        let run = |first: &str, second: &str| {
            let both = [("a", first, None), ("b", second, Some(4))];
            both.map(|(name, chunk, from)| of_phase(name, start(chunk, from)))
        };
        let [first, second] = run("64", "32");
        let whole = manifest([first.clone(), second]);
        assert_eq!(reasons(&whole, &whole), [""; 0]);
        assert_eq!(reasons(&whole, &manifest([first])), [""; 0], "the second is not begun");
        let said = reasons(&whole, &manifest(run("16", "32")));
        let wanted = "steps to 4: rounded otherwise: `memory.loss_chunk` was `64`, it is `16`";
        assert_eq!(said, [wanted]);
        let mut other = run("64", "32");
        other[0].vector = Some("portable".to_owned());
        let said = reasons(&manifest(other), &whole);
        assert_eq!(said, ["steps to 4: computed with avx2, the run with portable"]);
    }

    #[test]
    fn a_start_is_compared_with_the_one_whose_steps_it_resumes_from() {
        let warned = |starts: &[RunStart]| {
            let last = starts.last().unwrap().rounding.clone();
            resumes_otherwise(&manifest(starts), |_| last)
        };
        let chunks = |was, is| format!("`memory.loss_chunk` was `{was}` and is `{is}`: {ON}");
        assert_eq!(warned(&[start("5", None), start("5", Some(3))]), [""; 0]);
        assert_eq!(warned(&[start("5", None), start("9", Some(3))]), [chunks(5, 9)]);
        let killed = |last| [start("64", None), start("16", Some(4)), start(last, Some(4))];
        assert_eq!(warned(&killed("16")), [chunks(64, 16)]);
        assert_eq!(warned(&killed("64")), [""; 0]);
        // Nothing is left of the first start, or another split was asked for.
        assert_eq!(warned(&[start("5", None), start("9", None)]), [""; 0]);
        let mut split = start("9", Some(3));
        split.rounding.insert("mesh.sequence".to_owned(), "1".to_owned());
        assert_eq!(warned(&[start("5", None), split]), [""; 0]);
        let portable = RunStart { vector: Some("portable".into()), ..strict(2, Some(3)) };
        let said = warned(&[strict(2, None), portable]);
        assert_eq!(said, [format!("computed with portable, the steps before with avx2: {ON}")]);
        // An earlier version's manifest does not say.
        let old = RunStart { vector: None, ..strict(2, None) };
        let mut made = manifest([old, start("5", Some(3))]);
        made.machine.vector = None;
        assert_eq!(resumes_otherwise(&made, |_| start("5", None).rounding), [""; 0]);
    }
}
