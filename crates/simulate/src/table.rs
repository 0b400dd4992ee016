//! The comparison of strategies for one layer group: which is taken, and why not the others.

use std::collections::HashMap;

use annulus_experiment::{Attention, Experiment, Resolved, Sliding};
use annulus_plan::{Plan, heads_of, label};
use annulus_sequence::Strategy;
use annulus_yaml::Problems;
use rayon::prelude::*;

use crate::choose::under;
use crate::families::families;
use crate::{Cluster, Estimate, Hiding, RouteCost};

/// Steps within this multiple of the fastest are close: of their strategies the one with the least memory is taken, if the fastest needs
/// more than this multiple of it; of one strategy's settings the first, or what is as fast with less memory.
pub(crate) const CLOSE: f64 = 1.01;

/// One strategy in its best shape, with its estimate.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The strategy.
    pub strategy: Strategy,
    /// The estimate of its step, or why it cannot run. Where layers differ, of a model with only these layers.
    pub outcome: Result<Estimate, String>,
}

/// All strategies for one layer group.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// The group's layers in words; `None`: all layers.
    pub layers: Option<String>,
    /// Every strategy in the order of [`Strategy::ALL`], with every exchange; or only the written one.
    pub candidates: Vec<Candidate>,
    /// The strategy that `auto` takes; `None`: none can run.
    pub chosen: Option<Strategy>,
    /// The backward routes of the chosen strategy, fewest bytes first.
    pub routes: Vec<RouteCost>,
}

/// What a table is computed for.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) resolved: &'a Resolved,
    pub(crate) cluster: &'a Cluster,
}

impl Asked<'_> {
    /// The table of layer group number `group`, and what hides its messages.
    pub(crate) fn table(self, group: usize, layers: Option<String>) -> (Table, Vec<Hiding>) {
        let Asked { resolved, cluster } = self;
        let experiment = &resolved.experiment;
        let written = written(&experiment.attention, group);
        let families = match (written, resolved.shape()) {
            (Some(strategy), _) => vec![vec![strategy]],
            (None, Ok(shape)) => {
                let seen = cluster.of_replica(&experiment.mesh, 0);
                families(
                    experiment.mesh.sequence,
                    heads_of(&shape.part_of(experiment.mesh.tensor)),
                    &seen,
                )
            }
            (None, Err(_)) => Vec::new(),
        };
        let (estimates, hiding) = self.estimates(group, families.iter().flatten().copied());
        let candidate = |strategy: &Strategy| {
            let known = estimates.get(&strategy.plain());
            let outcome =
                known.map_or_else(|| self.estimate(group, *strategy).0, |all| Ok(all.clone()));
            Candidate { strategy: *strategy, outcome }
        };
        let best = |shapes: &Vec<Strategy>| {
            let candidates: Vec<Candidate> = shapes.iter().map(candidate).collect();
            let chosen = choose(&candidates, cluster);
            let first = candidates.iter().position(|c| chosen.is_none_or(|s| s == c.strategy));
            candidates.into_iter().nth(first.unwrap_or_default())
        };
        let candidates: Vec<Candidate> = families.iter().filter_map(best).collect();
        let chosen = match written {
            Some(strategy) => runnable(&candidates).next().map(|_| strategy),
            None => choose(&candidates, cluster),
        };
        let outline = |strategy| Plan::outline_of_group(&self.alone(group, strategy), group);
        let routes = chosen.and_then(|chosen| outline(chosen).ok());
        let routes = routes.map_or_else(Vec::new, |plan| RouteCost::all(&plan, cluster));
        (Table { layers, candidates, chosen, routes }, hiding)
    }

    /// The estimates of the strategies that can run, keyed by what they are apart from their names: each is computed once, on all cores.
    fn estimates(
        self,
        group: usize,
        strategies: impl Iterator<Item = Strategy>,
    ) -> (HashMap<Strategy, Estimate>, Vec<Hiding>) {
        let plain = strategies.map(|strategy| (strategy.plain(), strategy));
        let different: Vec<Strategy> = plain.collect::<HashMap<_, _>>().into_values().collect();
        let estimate = |strategy: &Strategy| {
            let (outcome, hiding) = self.estimate(group, *strategy);
            Some((strategy.plain(), outcome.ok()?, hiding))
        };
        let all: Vec<_> = on_all_cores(&different, estimate).into_iter().flatten().collect();
        let hiding = all.first().map_or_else(Vec::new, |(.., hiding)| hiding.clone());
        (all.into_iter().map(|(plain, estimate, _)| (plain, estimate)).collect(), hiding)
    }

    /// The estimate of a step under one strategy, or why it cannot run; and what hides its messages.
    fn estimate(self, group: usize, strategy: Strategy) -> (Result<Estimate, String>, Vec<Hiding>) {
        let mut hiding = Vec::new();
        let outcome = Plan::of_group(&self.alone(group, strategy), group)
            .inspect(|plan| hiding = self.cluster.hiding(plan))
            .and_then(|plan| Ok(Estimate::fastest(plan, self.cluster)?.1));
        (outcome.map_err(|problems| reason(&problems)), hiding)
    }

    /// The experiment with a strategy for one layer group, and no other layers.
    fn alone(self, group: usize, strategy: Strategy) -> Resolved {
        self.resolved.with(alone(&self.resolved.experiment, group, strategy, self.cluster))
    }
}

/// `each` of all `items`, in their order, computed on all cores.
pub(crate) fn on_all_cores<T: Sync, R: Send>(
    items: &[T],
    each: impl Fn(&T) -> R + Send + Sync,
) -> Vec<R> {
    match rayon::ThreadPoolBuilder::new().num_threads(annulus_machine::cores()).build() {
        Ok(cores) => cores.install(|| items.par_iter().map(each).collect()),
        Err(_) => items.iter().map(each).collect(),
    }
}

/// The written strategy of a layer group, where another group's is open.
fn written(attention: &Attention, group: usize) -> Option<Strategy> {
    let Attention { strategy, automatic, ref sliding, .. } = *attention;
    let (strategy, automatic) = match sliding {
        Some(sliding) if group > 0 => (sliding.strategy, sliding.automatic),
        _ => (strategy, automatic),
    };
    (attention.is_open() && !automatic).then_some(strategy)
}

/// The experiment with a strategy for one layer group, and the other groups' strategies left out.
fn alone(
    experiment: &Experiment,
    group: usize,
    strategy: Strategy,
    cluster: &Cluster,
) -> Experiment {
    let mut experiment = under(experiment, group, strategy, cluster);
    let attention = &mut experiment.attention;
    match &mut attention.sliding {
        None => {}
        Some(Sliding { strategy, automatic, backward, .. }) if group == 0 => {
            (*strategy, *automatic, *backward) = (Strategy::Local, true, None);
        }
        Some(_) => {
            attention.strategy = Strategy::Local;
            (attention.automatic, attention.backward) = (true, None);
        }
    }
    experiment
}

impl Table {
    /// The estimates of the strategies that can run, the fastest first.
    pub fn ranking(&self) -> Vec<(Strategy, &Estimate)> {
        let mut able: Vec<_> = runnable(&self.candidates).collect();
        able.sort_by(|a, b| a.1.step.total_cmp(&b.1.step));
        able
    }

    /// The chosen strategy with its estimate.
    pub(crate) fn best(&self) -> Option<(Strategy, &Estimate)> {
        let chosen = self.chosen?;
        runnable(&self.candidates).find(|(strategy, _)| *strategy == chosen)
    }

    /// The strategies that cannot run, and why.
    pub(crate) fn reasons(&self) -> impl Iterator<Item = (String, String)> {
        self.candidates.iter().filter_map(|candidate| {
            let why = candidate.outcome.as_ref().err()?;
            Some((label(candidate.strategy), why.clone()))
        })
    }

    /// The chosen strategy in a line, and its backward routes.
    pub(crate) fn taken(&self, cluster: &Cluster) -> Vec<String> {
        let layers = self.layers.as_ref().map_or_else(String::new, |layers| format!("{layers}: "));
        let Some((chosen, best)) = self.best() else {
            return vec![format!("{layers}no strategy can run")];
        };
        let chosen = label(chosen);
        let why = match (self.candidates.len(), fits(best, cluster)) {
            (1, _) => format!("`{chosen}` is written"),
            (_, true) => format!(
                "auto takes `{chosen}`: the fastest that fits; among those within 1 % of it, the one \
                 with the least memory"
            ),
            (_, false) => {
                format!("auto takes `{chosen}`: none fits, and it needs the least memory")
            }
        };
        let routes = self.routes.iter().map(|cost| cost.to_text());
        [layers + &why].into_iter().chain(routes).collect()
    }

    /// Why each of the other strategies is not taken, a line each.
    pub(crate) fn others(&self, cluster: &Cluster) -> Vec<String> {
        let Some((chosen, best)) = self.best() else { return Vec::new() };
        let others = self.ranking().into_iter().filter(|(strategy, _)| *strategy != chosen);
        others.map(|(strategy, estimate)| against(strategy, estimate, best, cluster)).collect()
    }
}

/// The reason against a strategy.
fn against(strategy: Strategy, estimate: &Estimate, best: &Estimate, cluster: &Cluster) -> String {
    let ratio = estimate.step / best.step;
    let computing = |e: &Estimate| e.step - e.exposed - e.uneven;
    let causes = [
        (estimate.uneven - best.uneven, "ranks wait longer for the slowest"),
        (estimate.exposed - best.exposed, "links are waited for longer"),
        (computing(estimate) - computing(best), "more is computed"),
    ];
    let most = causes.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
    let larger = estimate.fullest() as f64 > CLOSE * best.fullest() as f64;
    let equal = if larger { "as good, but it needs more memory" } else { "about as good" };
    let cause = most.filter(|_| ratio > CLOSE).map_or(equal, |(_, cause)| cause);
    let cause = match [estimate, best].map(|one| fits(one, cluster)) {
        [false, true] => "it does not fit",
        // Of what does not fit, what needs the least memory is taken.
        [false, false] if larger && ratio > CLOSE => "it needs more memory",
        _ => cause,
    };
    format!("  `{}` takes {ratio:.2} times as long: {cause}", label(strategy))
}

/// The first problem, for which a line of a table has room.
pub(crate) fn reason(problems: &Problems) -> String {
    problems.0.first().map_or_else(String::new, |problem| problem.message.clone())
}

fn runnable(candidates: &[Candidate]) -> impl Iterator<Item = (Strategy, &Estimate)> {
    candidates.iter().filter_map(|candidate| {
        candidate.outcome.as_ref().ok().map(|estimate| (candidate.strategy, estimate))
    })
}

pub(crate) fn fits(estimate: &Estimate, cluster: &Cluster) -> bool {
    let holds = cluster.budget.is_none_or(|budget| estimate.fullest() <= budget);
    holds && offload_fits(estimate, cluster)
}

/// Whether every node has room for what its devices offload.
pub(crate) fn offload_fits(estimate: &Estimate, cluster: &Cluster) -> bool {
    let [_, of_node] = estimate.offloaded_bytes;
    cluster.offload_memory.is_none_or(|bytes| of_node <= bytes)
}

/// Chooses the fastest strategy that fits, or among those nearly as fast the one with the least memory; where none fits, the fastest of
/// those with about the least memory.
fn choose(candidates: &[Candidate], cluster: &Cluster) -> Option<Strategy> {
    // Strategies that store scores are there for comparison, and never chosen, not even among equals.
    let able = || runnable(candidates).filter(|(strategy, _)| !strategy.stores_scores());
    let fitting = || able().filter(|(_, estimate)| fits(estimate, cluster));
    // Of equals the first is taken.
    let least = |candidates: &mut dyn Iterator<Item = (Strategy, &Estimate)>| {
        candidates.min_by_key(|(_, estimate)| estimate.fullest()).map(|(strategy, _)| strategy)
    };
    let Some((fastest, best)) = fastest(fitting()) else {
        let fullest = |candidate: (Strategy, &Estimate)| candidate.1.fullest() as f64;
        let most = able().map(fullest).fold(f64::INFINITY, f64::min) * CLOSE;
        return fastest(able().filter(|one| fullest(*one) <= most)).map(|(one, _)| one);
    };
    // Help is free in the model but costs a little in reality: among equals the most even strategy needs least of it.
    let as_good = |estimate: &Estimate| {
        let most = [best.step, best.fullest() as f64].map(|least| CLOSE * least);
        estimate.step <= most[0] && estimate.fullest() as f64 <= most[1]
    };
    let most_even = fitting()
        .filter(|(_, estimate)| cluster.helping && as_good(estimate))
        .min_by(|a, b| a.1.balance.total_cmp(&b.1.balance));
    let fastest = most_even.map_or(fastest, |(strategy, _)| strategy);
    let smaller = |estimate: &Estimate| estimate.fullest() as f64 * CLOSE < best.fullest() as f64;
    let good = |estimate: &Estimate| estimate.step <= CLOSE * best.step && smaller(estimate);
    least(&mut fitting().filter(|(_, estimate)| good(estimate))).or(Some(fastest))
}

fn fastest<'a>(
    candidates: impl Iterator<Item = (Strategy, &'a Estimate)>,
) -> Option<(Strategy, &'a Estimate)> {
    candidates.min_by(|a, b| a.1.step.total_cmp(&b.1.step))
}
