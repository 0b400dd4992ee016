//! `strategy: auto`: every strategy estimated, the fastest that fits taken, and why.

use annulus_sequence::Strategy;

use super::families::{families, label};
use super::{Cluster, Estimate, Hiding, Way, Weighing};
use crate::{Experiment, Plan, Problem, Problems};

/// Of strategies that take at most so many times the fastest one's step, the one with the least
/// memory is taken, if the fastest needs more than so many times as much.
const CLOSE: f64 = 1.01;

/// One strategy in its best shape, and what it would take.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The strategy.
    pub strategy: Strategy,
    /// Its step, or why it cannot run.
    pub outcome: Result<Estimate, String>,
}

/// All strategies beside each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// What was asked, in a line.
    pub title: String,
    /// What it is chosen for.
    pub cluster: Cluster,
    /// Every strategy, in the order of [`Strategy::ALL`], and every exchange of its.
    pub candidates: Vec<Candidate>,
    /// What `strategy: auto` takes; `None`: none can run.
    pub chosen: Option<Strategy>,
    /// The ways back of what is taken, those of the fewest bytes first.
    pub ways: Vec<Way>,
    /// What unequal shares gain, where devices are unequal or shares are.
    pub weighing: Option<Weighing>,
    /// From how many tokens per rank messages hide behind attention, by kind of link.
    pub hiding: Vec<Hiding>,
}

impl Choice {
    /// Estimates `experiment` under every strategy on `cluster`. `vocabulary` is what the tokenizer
    /// has, where it is known.
    ///
    /// # Errors
    /// When there are fewer devices than ranks: then no strategy can run.
    pub fn among(
        experiment: &Experiment,
        vocabulary: Option<usize>,
        cluster: &Cluster,
    ) -> Result<Choice, Problems> {
        enough_devices(experiment, cluster)?;
        let mut hiding = Vec::new();
        let mut candidate = |strategy| {
            let outcome = Plan::of(under(experiment, strategy, cluster), vocabulary)
                .inspect(|plan| hiding = cluster.hiding(plan))
                .and_then(|plan| Estimate::of(&plan, cluster))
                .map_err(|problems| reason(&problems));
            Candidate { strategy, outcome }
        };
        let mut best = |shapes: Vec<Strategy>| {
            let candidates: Vec<Candidate> = shapes.into_iter().map(&mut candidate).collect();
            let chosen = choose(&candidates, cluster);
            let first = candidates.iter().position(|c| chosen.is_none_or(|s| s == c.strategy));
            candidates.into_iter().nth(first.unwrap_or_default())
        };
        let families = families(experiment.mesh.sequence);
        let candidates: Vec<Candidate> = families.into_iter().filter_map(&mut best).collect();
        let chosen = choose(&candidates, cluster);
        let title = title(experiment);
        let cluster = cluster.clone();
        let (weighing, ways) = (None, Vec::new());
        let mut choice = Choice { title, cluster, candidates, chosen, ways, weighing, hiding };
        choice.weighing = Weighing::of(&choice, experiment, vocabulary);
        choice.ways = choice.ways_back(experiment, vocabulary);
        Ok(choice)
    }

    fn ways_back(&self, experiment: &Experiment, vocabulary: Option<usize>) -> Vec<Way> {
        let under = |strategy| under(experiment, strategy, &self.cluster);
        let plan = self.chosen.map(under).and_then(|chosen| Plan::of(chosen, vocabulary).ok());
        plan.map_or_else(Vec::new, |plan| Way::all(&plan, &self.cluster))
    }

    /// The estimates of those that can run, the fastest first.
    pub fn ranking(&self) -> Vec<(Strategy, &Estimate)> {
        let mut able: Vec<_> = runnable(&self.candidates).collect();
        able.sort_by(|a, b| a.1.step.total_cmp(&b.1.step));
        able
    }

    /// Whether a strategy fits into every device's memory.
    pub fn fits(&self, estimate: &Estimate) -> bool {
        fits(estimate, &self.cluster)
    }

    /// That none can run.
    pub(crate) fn none(&self, experiment: &Experiment) -> Problem {
        let reasons = self.candidates.iter().filter_map(|candidate| {
            let why = candidate.outcome.as_ref().err()?;
            Some(format!("`{}`: {why}", label(candidate.strategy)))
        });
        let reasons: Vec<String> = reasons.collect();
        let message = "no strategy can run";
        experiment.places.problem("attention.strategy", message).hint(reasons.join("; "))
    }

    /// Why the chosen one and none of the others, a line each.
    pub fn why(&self) -> Vec<String> {
        let find = |chosen| self.ranking().into_iter().find(|(strategy, _)| *strategy == chosen);
        let Some((chosen, best)) = self.chosen.and_then(find) else {
            return vec![String::from("no strategy can run")];
        };
        let mut lines = vec![format!(
            "auto takes `{}`: {}",
            label(chosen),
            if self.fits(best) {
                "the fastest that fits; where steps are within 1 %, memory decides"
            } else {
                "none fits, and it needs the least memory"
            }
        )];
        lines.extend(self.ways.iter().map(|way| way.to_text()));
        lines.extend(self.weighing.as_ref().map(Weighing::to_text));
        let others = self.ranking().into_iter().filter(|(strategy, _)| *strategy != chosen);
        lines.extend(others.map(|(strategy, estimate)| self.against(strategy, estimate, best)));
        lines
    }

    /// What speaks against a strategy.
    fn against(&self, strategy: Strategy, estimate: &Estimate, best: &Estimate) -> String {
        let ratio = estimate.step / best.step;
        let computing = |e: &Estimate| e.step - e.exposed - e.uneven;
        let causes = [
            (estimate.uneven - best.uneven, "ranks wait for the slowest"),
            (estimate.exposed - best.exposed, "links are waited for"),
            (computing(estimate) - computing(best), "more is computed"),
        ];
        let most = causes.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
        let larger = estimate.fullest() as f64 > CLOSE * best.fullest() as f64;
        let equal = if larger { "as good, but it needs more memory" } else { "about as good" };
        let cause = most.filter(|_| ratio > CLOSE).map_or(equal, |(_, cause)| cause);
        let cause = if self.fits(estimate) { cause } else { "it does not fit" };
        format!("  `{}` takes {ratio:.2} times as long: {cause}", label(strategy))
    }
}

/// The experiment under one strategy, with the cluster's memory for a budget unless it has one.
pub(super) fn under(experiment: &Experiment, strategy: Strategy, cluster: &Cluster) -> Experiment {
    let mut experiment = experiment.clone();
    experiment.attention.strategy = strategy;
    experiment.attention.automatic = false;
    let world = experiment.mesh.data.saturating_mul(experiment.mesh.sequence) as u64;
    let there = cluster.memory.map(|bytes| bytes.saturating_mul(world));
    experiment.memory.budget = experiment.memory.budget.or(there);
    experiment
}

pub(super) fn enough_devices(experiment: &Experiment, cluster: &Cluster) -> Result<(), Problem> {
    let world = experiment.mesh.data.saturating_mul(experiment.mesh.sequence);
    let devices = cluster.devices();
    if world <= devices {
        return Ok(());
    }
    let message =
        format!("{world} ranks, but the cluster `{}` has {devices} devices", cluster.name);
    let hint = "describe a larger cluster, or lower `mesh.sequence` or `mesh.data`";
    Err(experiment.places.problem("mesh", message).hint(hint))
}

fn title(experiment: &Experiment) -> String {
    let (data, mesh) = (&experiment.data, &experiment.mesh);
    let ranks = if mesh.sequence == 1 { "rank" } else { "ranks" };
    let replicas = if mesh.data == 1 { "replica" } else { "replicas" };
    format!(
        "{}: a batch of {}, {} tokens each, on {} {replicas} of {} {ranks}",
        experiment.name, data.batch, data.tokens, mesh.data, mesh.sequence
    )
}

/// The first problem: what a line of a table has room for.
fn reason(problems: &Problems) -> String {
    problems.0.first().map_or_else(String::new, |problem| problem.message.clone())
}

fn runnable(candidates: &[Candidate]) -> impl Iterator<Item = (Strategy, &Estimate)> {
    candidates.iter().filter_map(|candidate| {
        candidate.outcome.as_ref().ok().map(|estimate| (candidate.strategy, estimate))
    })
}

fn fits(estimate: &Estimate, cluster: &Cluster) -> bool {
    cluster.memory.is_none_or(|memory| estimate.fullest() <= memory)
}

/// Of the strategies that fit the fastest, or the one with the least memory of those that are as
/// good; where none fits, the one with the least of all.
fn choose(candidates: &[Candidate], cluster: &Cluster) -> Option<Strategy> {
    // One that keeps scores is there to be compared with: never taken, not even of equals.
    let able = || runnable(candidates).filter(|(strategy, _)| *strategy != Strategy::LiRing);
    let fitting = || able().filter(|(_, estimate)| fits(estimate, cluster));
    // The first of equals is taken.
    let least = |candidates: &mut dyn Iterator<Item = (Strategy, &Estimate)>| {
        candidates.min_by_key(|(_, estimate)| estimate.fullest()).map(|(strategy, _)| strategy)
    };
    let Some((fastest, best)) = fitting().min_by(|a, b| a.1.step.total_cmp(&b.1.step)) else {
        return least(&mut able());
    };
    let smaller = |estimate: &Estimate| estimate.fullest() as f64 * CLOSE < best.fullest() as f64;
    let good = |estimate: &Estimate| estimate.step <= CLOSE * best.step && smaller(estimate);
    least(&mut fitting().filter(|(_, estimate)| good(estimate))).or(Some(fastest))
}
