//! `strategy: auto`: estimates every strategy and takes the fastest that fits, with reasons.
//!
//! Where layers differ, every layer group has a table of its own, and the layout is shared: for each layout the best strategy of every
//! group, and of these the layout with the shortest step. Groups' times add up, so the best of each are the best together.

use annulus_experiment::{Experiment, LayoutKeys, Resolved};
use annulus_memory::Class;
use annulus_plan::{Plan, label};
use annulus_sequence::Strategy;
use annulus_text::{count, duration};
use annulus_yaml::{Problem, Problems};

use crate::table::{Asked, fits, offload_fits, reason};
use crate::{Cluster, Estimate, Hiding, Pace, Table, Weighing};

/// The comparison of all strategies, and the choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The experiment in a line.
    pub title: String,
    /// The cluster that strategies are estimated on.
    pub cluster: Cluster,
    /// The number of ranks, over all replicas.
    pub ranks: usize,
    /// The work of a step and of the run.
    pub pace: Pace,
    /// All strategies, by layer group.
    pub tables: Vec<Table>,
    /// Where layers differ: the layouts that they may share, each with its best strategies.
    pub layouts: Vec<Shared>,
    /// The index of the chosen layout in [`Choice::layouts`]; [`Choice::tables`] are over it.
    pub taken: usize,
    /// The experiment's own strategies and their estimate, where none is left open.
    pub written: Option<(String, Estimate)>,
    /// What unequal shards gain, where devices or shards are unequal.
    pub weighing: Option<Weighing>,
    /// The tokens per rank from which messages hide behind attention, by kind of link.
    pub hiding: Vec<Hiding>,
}

/// A layout that all layers share.
#[derive(Clone, Debug, PartialEq)]
pub struct Shared {
    /// How positions are sharded.
    pub sharded: LayoutKeys,
    /// The best strategy over this layout, by layer group; empty where a group has none.
    pub strategies: Vec<Strategy>,
    /// The estimate of a step of all layers, or why it cannot run.
    pub outcome: Result<Estimate, String>,
}

impl Choice {
    /// Estimates an experiment under every strategy on `cluster`.
    ///
    /// # Errors
    /// When there are fewer devices than ranks, the model cannot be read or extended, or `sliding` names layers that it does not have: then
    /// no strategy can run.
    pub fn among(resolved: &Resolved, cluster: &Cluster) -> Result<Choice, Problems> {
        let experiment = &resolved.experiment;
        let mut choice = Choice::compared(resolved, cluster)?;
        let cluster = &choice.cluster;
        if !experiment.attention.is_open() {
            let (plan, estimate) = planned(resolved, cluster)?;
            choice.written = Some((plan.strategies(label), estimate));
        }
        choice.weighing = Weighing::of(&choice, resolved);
        Ok(choice)
    }

    /// [`Choice::among`] without the written strategies' estimate, and without other weights of shards.
    pub(crate) fn compared(resolved: &Resolved, cluster: &Cluster) -> Result<Choice, Problems> {
        let experiment = &resolved.experiment;
        enough_devices(experiment, cluster)?;
        // A model that cannot be read, or extended, is refused before any strategy is tried.
        resolved.shape()?;
        let cluster = &cluster.budgeted(&experiment.memory);
        let asked = Asked { resolved, cluster };
        let mut choice = Choice {
            title: title(experiment),
            cluster: cluster.clone(),
            ranks: experiment.mesh.ranks(),
            pace: Pace::of(experiment, cluster),
            tables: Vec::new(),
            layouts: Vec::new(),
            taken: 0,
            written: None,
            weighing: None,
            hiding: Vec::new(),
        };
        if experiment.attention.sliding.is_some() {
            choice.share_a_layout(asked)?;
        } else {
            let (table, hiding) = asked.table(0, None);
            (choice.tables, choice.hiding) = (vec![table], hiding);
        }
        Ok(choice)
    }

    /// Takes the best of the layouts that all layers may share.
    fn share_a_layout(&mut self, asked: Asked<'_>) -> Result<(), Problems> {
        let titles = Plan::titles(asked.resolved)?;
        let mut tables = Vec::new();
        for sharded in layouts(&asked.resolved.experiment) {
            let mut resolved = asked.resolved.clone();
            resolved.experiment.attention.layout = Some(sharded);
            let asked = Asked { resolved: &resolved, ..asked };
            let of_group =
                |(group, title): (usize, &String)| asked.table(group, Some(title.clone()));
            let (of_layout, hiding): (Vec<Table>, Vec<_>) =
                titles.iter().enumerate().map(of_group).unzip();
            let strategies: Vec<Strategy> = of_layout.iter().filter_map(|t| t.chosen).collect();
            let outcome = together(asked, sharded, &strategies, titles.len());
            self.layouts.push(Shared { sharded, strategies, outcome });
            self.hiding = hiding.into_iter().find(|one| !one.is_empty()).unwrap_or_default();
            tables.push(of_layout);
        }
        self.taken = self.best_layout().unwrap_or_default();
        self.tables = tables.swap_remove(self.taken);
        Ok(())
    }

    /// The index of the layout with the shortest step that fits, or else with the least memory.
    fn best_layout(&self) -> Option<usize> {
        let able = || {
            let estimates = self.layouts.iter().enumerate();
            estimates.filter_map(|(number, shared)| Some((number, shared.outcome.as_ref().ok()?)))
        };
        let fitting = able().filter(|(_, estimate)| self.fits(estimate));
        let fastest = fitting.min_by(|a, b| a.1.step.total_cmp(&b.1.step));
        let least = || able().min_by_key(|(_, estimate)| estimate.fullest());
        fastest.or_else(least).map(|(number, _)| number)
    }

    /// The experiment with the chosen strategies; `None`: some layers cannot run.
    pub fn settled(&self, experiment: &Experiment) -> Option<Experiment> {
        let chosen: Option<Vec<Strategy>> = self.tables.iter().map(|table| table.chosen).collect();
        match self.layouts.get(self.taken) {
            Some(Shared { outcome: Err(_), .. }) => None,
            Some(Shared { sharded, .. }) => Some(split(experiment.clone(), *sharded, &chosen?)),
            None => Some(named(experiment.clone(), 0, *chosen?.first()?)),
        }
    }

    /// The chosen strategies in words, whether they fit, and their estimate; or why none can run.
    pub(crate) fn best(&self) -> Result<(String, bool, Estimate), String> {
        let none = || {
            let reasons = self.tables.iter().flat_map(Table::reasons);
            once(reasons).join("; ")
        };
        let (name, estimate) = match (self.layouts.get(self.taken), self.tables.as_slice()) {
            (Some(shared), _) => {
                let names: Vec<String> = shared.strategies.iter().map(|one| label(*one)).collect();
                (names.join(" and "), shared.outcome.as_ref().map_err(String::clone)?)
            }
            (None, [table]) => {
                let (strategy, estimate) = table.best().ok_or_else(none)?;
                (label(strategy), estimate)
            }
            (None, _) => return Err(none()),
        };
        Ok((name, self.fits(estimate), estimate.clone()))
    }

    /// The written or else the chosen strategies in words, whether they fit, and their estimate; `None`: none can run.
    pub fn answered(&self) -> Option<(String, bool, Estimate)> {
        let written = self.written.clone().map(|(name, own)| (name, self.fits(&own), own));
        written.or_else(|| self.best().ok())
    }

    /// Bytes of weights, gradients and optimizer state of an estimate, where these alone exceed a device's budget.
    pub fn state_beyond_budget(&self, estimate: &Estimate) -> Option<u64> {
        let state = [Class::Weights, Class::Gradients, Class::Optimizer];
        let state = state.map(|class| estimate.classes[class]).iter().sum();
        self.cluster.budget.filter(|budget| state > *budget).map(|_| state)
    }

    /// Bytes that the devices of a node offload together by an estimate, and the node's room for them, where that is too little.
    pub fn offload_beyond_node(&self, estimate: &Estimate) -> Option<[u64; 2]> {
        let room = self.cluster.offload_memory?;
        let [_, of_node] = estimate.offloaded_bytes;
        (!offload_fits(estimate, &self.cluster)).then_some([of_node, room])
    }

    /// The estimate on the cluster of this choice of an experiment that names its strategies.
    ///
    /// # Errors
    /// What is wrong with the experiment.
    pub fn estimate(&self, resolved: &Resolved) -> Result<Estimate, Problems> {
        Ok(planned(resolved, &self.cluster)?.1)
    }

    /// Whether an estimate fits into every device's budget, and what it offloads into every node.
    pub fn fits(&self, estimate: &Estimate) -> bool {
        fits(estimate, &self.cluster)
    }

    /// The problem that no strategy can run.
    pub fn none(&self, experiment: &Experiment) -> Problem {
        let shared = self.layouts.get(self.taken).and_then(|shared| shared.outcome.as_ref().err());
        let unable = self.tables.iter().filter(|table| table.chosen.is_none());
        let own = unable.flat_map(Table::reasons);
        let reasons: Vec<String> = once(own).into_iter().chain(shared.cloned()).collect();
        let message = "no strategy can run";
        experiment.places.problem("attention.strategy", message).hint(reasons.join("; "))
    }

    /// The step of each layout as text, the chosen one first.
    fn layouts_to_text(&self) -> Vec<String> {
        let mut layouts: Vec<(usize, &Shared)> = self.layouts.iter().enumerate().collect();
        layouts.sort_by_key(|(number, _)| *number != self.taken);
        let line = |(number, shared): (usize, &Shared)| {
            let word = shared.sharded.word();
            let names: Vec<String> = shared.strategies.iter().map(|one| label(*one)).collect();
            let names = names.join("` and `");
            match &shared.outcome {
                Err(why) => format!("  `layout: {word}` cannot run: {why}"),
                Ok(estimate) => {
                    let step = duration(estimate.step);
                    let over = if self.fits(estimate) { "" } else { ", and does not fit" };
                    let takes = if number == self.taken { "auto takes" } else { " " };
                    format!(
                        "{takes} `layout: {word}` for all layers: `{names}` take {step} a step{over}"
                    )
                }
            }
        };
        layouts.into_iter().map(line).collect()
    }

    /// Why the chosen strategy and none of the others, a line each.
    pub fn why(&self) -> Vec<String> {
        let weighing = || self.weighing.as_ref().map(Weighing::to_text);
        if let [table] = self.tables.as_slice() {
            let weighing = || weighing().filter(|_| table.chosen.is_some());
            let taken = table.taken(&self.cluster).into_iter().chain(weighing());
            return taken.chain(table.others(&self.cluster)).collect();
        }
        let of_table = |table: &Table| {
            let taken = table.taken(&self.cluster).into_iter();
            taken.chain(table.others(&self.cluster)).collect::<Vec<_>>()
        };
        let tables = self.tables.iter().flat_map(of_table);
        tables.chain(self.layouts_to_text()).chain(weighing()).collect()
    }
}

/// The plan on `cluster` of an experiment that names its strategies, and the estimate of its step.
fn planned(resolved: &Resolved, cluster: &Cluster) -> Result<(Plan, Estimate), Problems> {
    let placed = resolved.with(cluster.place(resolved.experiment.clone()));
    Estimate::fastest(Plan::new(&placed)?, cluster)
}

/// The layouts that all layers may share: the written one, that of the only strategy that is not open, or those of all strategies.
fn layouts(experiment: &Experiment) -> Vec<LayoutKeys> {
    let attention = &experiment.attention;
    match attention.layout {
        Some(written) => vec![written],
        None if attention.is_open() && !attention.automatic => {
            vec![LayoutKeys::of(attention.strategy.layout())]
        }
        None => {
            let mut layouts = Vec::new();
            for strategy in Strategy::ALL {
                let sharded = LayoutKeys::of(strategy.layout());
                if !layouts.contains(&sharded) {
                    layouts.push(sharded);
                }
            }
            layouts
        }
    }
}

/// The estimate of a step of all layers.
fn together(
    asked: Asked<'_>,
    sharded: LayoutKeys,
    strategies: &[Strategy],
    groups: usize,
) -> Result<Estimate, String> {
    if strategies.len() < groups {
        return Err(String::from("not all layers can run so"));
    }
    let Asked { resolved, cluster } = asked;
    let experiment = cluster.place(split(resolved.experiment.clone(), sharded, strategies));
    let plan = Plan::new(&resolved.with(experiment)).map_err(|problems| reason(&problems))?;
    let fastest = Estimate::fastest(plan, cluster).map_err(|problems| reason(&problems));
    fastest.map(|(_, estimate)| estimate)
}

/// The experiment over a layout, with a strategy for every layer group.
fn split(mut experiment: Experiment, sharded: LayoutKeys, strategies: &[Strategy]) -> Experiment {
    for (group, strategy) in strategies.iter().enumerate() {
        experiment = named(experiment, group, *strategy);
    }
    // A strategy's own layout is not written.
    let own = sharded == LayoutKeys::of(experiment.attention.strategy.layout());
    experiment.attention.layout = Some(sharded).filter(|_| !own);
    experiment
}

/// The experiment with a strategy for one layer group.
fn named(mut experiment: Experiment, group: usize, strategy: Strategy) -> Experiment {
    let attention = &mut experiment.attention;
    match &mut attention.sliding {
        Some(sliding) if group > 0 => (sliding.strategy, sliding.automatic) = (strategy, false),
        _ => (attention.strategy, attention.automatic) = (strategy, false),
    }
    experiment
}

/// The experiment on a cluster, with one strategy for a layer group.
pub(crate) fn under(
    experiment: &Experiment,
    group: usize,
    strategy: Strategy,
    cluster: &Cluster,
) -> Experiment {
    cluster.place(named(experiment.clone(), group, strategy))
}

pub(crate) fn enough_devices(experiment: &Experiment, cluster: &Cluster) -> Result<(), Problem> {
    let world = experiment.mesh.ranks();
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
    let (replicas, ranks) = (count(mesh.data, "replica"), count(mesh.sequence, "rank"));
    let tensor = match mesh.tensor {
        1 => String::new(),
        tensor => format!(" by {tensor} tensor-parallel ones"),
    };
    format!(
        "{}: a batch of {}, {} tokens each, on {replicas} of {ranks}{tensor}",
        experiment.name, data.batch, data.tokens
    )
}

/// The strategies that cannot run, and why: a reason that several share is given once.
fn once(all: impl Iterator<Item = (String, String)>) -> Vec<String> {
    let mut reasons: Vec<(String, Vec<String>)> = Vec::new();
    for (name, why) in all {
        match reasons.iter_mut().find(|(said, _)| *said == why) {
            Some((_, names)) => names.push(name),
            None => reasons.push((why, vec![name])),
        }
    }
    reasons.iter().map(|(why, names)| format!("`{}`: {why}", names.join("`, `"))).collect()
}
