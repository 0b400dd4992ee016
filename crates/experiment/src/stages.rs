//! The section `stages`: training phases of one run, one after another. Each is an experiment of its own, whose model, optimizer and data
//! continue from the phase before, except for what `reset` lists.

use std::collections::BTreeSet;
use std::ops::Range;

use annulus_yaml::Absent::{Means, Required};
use annulus_yaml::Interval::AboveZero;
use annulus_yaml::Kind::{Count, Real, Section, Tokens, Words};
use annulus_yaml::{Places, Problem, printable, section, words};

use crate::data::MOST_TOKENS;
use crate::schedule::MOST_STEPS;
use crate::{Experiment, Extension};

/// The path of the section.
pub(crate) const SECTION: &str = "stages";
/// The most tokens that a whole run may read: keeps counts within 64 bits.
const MOST_READ: u64 = 1 << 60;

section! {
    /// The keys of each phase in `stages`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct PhaseKeys {
        tokens: usize = Tokens(1, MOST_TOKENS), Required, "tokens per sequence";
        steps: u64 = Count(1, MOST_STEPS), Required, "optimizer steps";
        batch: Option<usize> = Count(1, 1 << 20), Means("as before; in the first `data.batch`"),
            "sequences per optimizer step";
        learning_rate: Option<f64> = Real(AboveZero),
            Means("as before; in the first `optimizer.learning_rate`"), "peak learning rate";
        extend: Option<Extension> = Section(Extension::KEYS),
            Means("as before; in the first that of the file"),
            "longer sequences than the model was trained for";
        reset: Option<Vec<Reset>> = Words(Reset::WORDS),
            Means("everything in the first; required in the others"),
            "what is reset: the optimizer's moments, the learning-rate curve, the order of the data";
    }
}

/// A training phase, an item of `stages`; what it leaves out is as in the phase before, and in the first phase as in the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// The phase's name: its key in `stages`.
    pub name: String,
    /// Input tokens per sequence.
    pub tokens: usize,
    /// The number of optimizer steps.
    pub steps: u64,
    /// Sequences per step.
    pub batch: Option<usize>,
    /// The peak of the learning rate.
    pub learning_rate: Option<f64>,
    /// The extension of the model to longer sequences.
    pub extend: Option<Extension>,
    /// What is reset when the phase starts. Written in all but the first phase, where everything starts anyway.
    pub reset: Vec<Reset>,
}

/// What a phase may reset when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reset {
    /// The optimizer's moments, and the count of steps that corrects their bias.
    Moments,
    /// The learning-rate curve: warm-up and decay, over the steps until the next phase that resets it.
    Schedule,
    /// The data: reading starts at its first batch, instead of the first batch beyond the tokens that were read.
    Data,
}

words!(Reset { Moments = "moments", Schedule = "schedule", Data = "data" });

/// Where in a run a phase starts. Steps are counted from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseStart {
    /// The steps of the run that belong to the phase.
    pub steps: Range<u64>,
    /// Tokens trained on in earlier phases.
    pub tokens: u64,
    /// The step of the run at which the phase's learning-rate curve starts.
    pub schedule: u64,
    /// The step of the run since which moments are averaged.
    pub moments: u64,
    /// The number of the data's batch that the phase's first step reads.
    pub batch: u64,
}

impl PhaseStart {
    /// The start of a run's first phase of `steps` steps.
    fn first(steps: u64) -> PhaseStart {
        PhaseStart { steps: 0..steps, tokens: 0, schedule: 0, moments: 0, batch: 0 }
    }
}

/// An experiment's place among the phases of its run.
#[derive(Clone, Debug, PartialEq)]
pub struct CurrentPhase {
    /// The experiment as written, with all phases.
    pub whole: Experiment,
    /// The number of this phase, from 0.
    pub number: usize,
    /// Where in the run this phase starts.
    pub part: PhaseStart,
}

impl PhaseKeys {
    pub(crate) fn meant(self, name: String) -> Phase {
        let PhaseKeys { tokens, steps, batch, learning_rate, extend, reset } = self;
        let reset = BTreeSet::from_iter(reset.unwrap_or_default()).into_iter().collect();
        Phase { name, tokens, steps, batch, learning_rate, extend, reset }
    }
}

impl Experiment {
    /// The experiments of all phases, in order; without `stages`, the experiment itself.
    pub fn phases(&self) -> Vec<Experiment> {
        if self.stages.is_empty() {
            return vec![self.clone()];
        }
        let mut before = Experiment { stages: Vec::new(), ..self.clone() };
        let mut parts = Vec::new();
        for number in 0..self.stages.len() {
            let part = self.phase_start_of(number, &parts);
            before = self.stages[number].on(&before);
            before.schedule.steps = self.scheduled(number);
            let phase_of = CurrentPhase { whole: self.clone(), number, part };
            before.phase_of = Some(Box::new(phase_of));
            parts.push(before.clone());
        }
        parts
    }

    /// The experiment of the phase that a run is in after `step` steps: beyond the end the last phase; without `stages`, the experiment
    /// itself.
    #[must_use]
    pub fn phase_at(&self, step: u64) -> Experiment {
        self.phases().swap_remove(self.phase_index_at(step))
    }

    /// The number, from 0, of the phase that [`Experiment::phase_at`] returns.
    pub fn phase_index_at(&self, step: u64) -> usize {
        let stages = &self.written().stages;
        let last = stages.len().saturating_sub(1);
        (0..last).find(|&number| step <= total(&stages[..=number])).unwrap_or(last)
    }

    /// The experiment as it was written; for a phase, the one with all phases.
    pub fn written(&self) -> &Experiment {
        self.phase_of.as_ref().map_or(self, |phase_of| &phase_of.whole)
    }

    /// Where in its run this experiment starts.
    pub fn phase_start(&self) -> PhaseStart {
        let phase_of = self.phase_of.as_ref().map(|phase_of| phase_of.part.clone());
        phase_of.unwrap_or_else(|| PhaseStart::first(self.schedule.steps))
    }

    /// The phase that this experiment is; `None`: it is no phase of another.
    pub fn phase(&self) -> Option<&Phase> {
        let phase_of = self.phase_of.as_ref()?;
        phase_of.whole.stages.get(phase_of.number)
    }

    /// The last step of this phase, the run's first being number 1.
    pub fn last_step(&self) -> u64 {
        let end = self.phase_start().steps.end;
        self.schedule.stop.map_or(end, |stop| stop.min(end))
    }

    /// The number of steps of the whole run.
    pub fn all_steps(&self) -> u64 {
        self.written().schedule.steps
    }

    /// Tokens at the end of a text that are held out: equal in all phases, so that none is trained on what another is evaluated on.
    pub fn held_out(&self) -> usize {
        match self.data.evaluate {
            0 => 0,
            sequences => sequences * self.longest() + 1,
        }
    }

    /// The number of tokens of the longest sequences of all phases.
    pub fn longest(&self) -> usize {
        let stages = self.written().stages.iter().map(|stage| stage.tokens);
        stages.max().unwrap_or(self.data.tokens)
    }

    /// Where in the run phase `number` starts, after the phases `before` it.
    fn phase_start_of(&self, number: usize, before: &[Experiment]) -> PhaseStart {
        let Phase { tokens, batch, steps, reset, .. } = &self.stages[number];
        let Some(last) = before.last() else {
            return PhaseStart::first(*steps);
        };
        let per_step = |batch: usize, tokens: usize| (batch as u64).saturating_mul(tokens as u64);
        let PhaseStart { steps: ended, tokens: learned, schedule, moments, batch: first } =
            last.phase_start();
        let done = ended.end - ended.start;
        let then = per_step(last.data.batch, last.data.tokens);
        let now = per_step(batch.unwrap_or(last.data.batch), *tokens);
        let read = first.saturating_add(done).saturating_mul(then);
        let anew = |what: Reset, otherwise: u64| {
            if reset.contains(&what) { ended.end } else { otherwise }
        };
        PhaseStart {
            steps: ended.end..ended.end.saturating_add(*steps),
            tokens: learned.saturating_add(done.saturating_mul(then)),
            schedule: anew(Reset::Schedule, schedule),
            moments: anew(Reset::Moments, moments),
            batch: if reset.contains(&Reset::Data) { 0 } else { read.div_ceil(now) },
        }
    }

    /// The number of steps of the learning-rate curve that phase `number` belongs to.
    fn scheduled(&self, number: usize) -> u64 {
        let anew = |stage: &Phase| stage.reset.contains(&Reset::Schedule);
        let begins = |number: usize| number == 0 || anew(&self.stages[number]);
        let first = (0..=number).rev().find(|&number| begins(number)).unwrap_or_default();
        let next = (number + 1..self.stages.len()).find(|&number| begins(number));
        total(&self.stages[first..next.unwrap_or(self.stages.len())])
    }
}

impl Phase {
    /// The phase's name, and the keys that mean it.
    pub(crate) fn keys(&self, first: bool) -> (String, PhaseKeys) {
        let Phase { name, tokens, steps, batch, learning_rate, extend, reset } = self.clone();
        let reset = Some(reset).filter(|_| !first);
        (name, PhaseKeys { tokens, steps, batch, learning_rate, extend, reset })
    }

    /// The experiment `before`, with this phase's changes.
    fn on(&self, before: &Experiment) -> Experiment {
        let mut own = before.clone();
        own.data.tokens = self.tokens;
        own.data.batch = self.batch.unwrap_or(own.data.batch);
        own.optimizer.learning_rate = self.learning_rate.unwrap_or(own.optimizer.learning_rate);
        own.extend = self.extend.clone().or(own.extend);
        own.places = own.places.standing_for(|key| self.stands_for(key));
        own
    }

    /// The key of the file that this phase's `key` overrides.
    fn stands_for(&self, key: &str) -> Option<String> {
        let own = key.strip_prefix(&format!("{SECTION}.{}.", self.name))?;
        Some(match own {
            "tokens" | "batch" => format!("data.{own}"),
            "steps" => String::from("schedule.steps"),
            "learning_rate" => String::from("optimizer.learning_rate"),
            other => other.to_owned(),
        })
    }
}

/// The number of steps of `stages` together.
pub(crate) fn total(stages: &[Phase]) -> u64 {
    stages.iter().fold(0, |steps, stage| steps.saturating_add(stage.steps))
}

/// Broken rules between phases and the file; each phase is also checked as an experiment.
pub(crate) fn rules(experiment: &Experiment) -> Vec<Problem> {
    let Experiment { stages, places, .. } = experiment;
    let mut problems = Vec::new();
    if stages.is_empty() {
        return problems;
    }
    for key in ["data.tokens", "schedule.steps"] {
        if places.contains(key) {
            let message =
                format!("`{key}` is given beside `{SECTION}`, each of which says its own");
            problems.push(places.problem(key, message).hint("drop one of them"));
        }
    }
    let read = experiment.phases().last().map_or(0, |phase| {
        let PhaseStart { steps, batch, .. } = phase.phase_start();
        let batches = batch.saturating_add(steps.end - steps.start);
        batches.saturating_mul((phase.data.batch as u64).saturating_mul(phase.data.tokens as u64))
    });
    if read > MOST_READ {
        let message = format!("`{SECTION}` read more than {MOST_READ} tokens");
        problems.push(places.problem(SECTION, message).hint("fewer `steps`"));
    }
    let of_stage = |(number, stage)| rules_of(stage, number, places);
    problems.extend(stages.iter().enumerate().flat_map(of_stage));
    problems
}

/// Broken rules of one phase, and of its position in `stages`.
fn rules_of(Phase { name, reset, .. }: &Phase, number: usize, places: &Places) -> Vec<Problem> {
    let mut problems = Vec::new();
    let plain = |letter: char| letter.is_alphanumeric() || "-_".contains(letter);
    if name.is_empty() || !name.chars().all(plain) {
        let message = format!("`{}` cannot name a phase", printable(name));
        let problem = places.problem(SECTION, message);
        problems.push(problem.hint("use letters, digits, `-` and `_`"));
    }
    let (section, key) = (format!("{SECTION}.{name}"), format!("{SECTION}.{name}.reset"));
    if number == 0 && !reset.is_empty() {
        let message = "`reset` in the first of `stages`, where everything begins";
        problems.push(places.problem(&key, message).hint("remove it"));
    }
    if number > 0 && !places.contains(&key) {
        let message = format!("`{key}` is missing: it lists what this phase resets");
        let words = Reset::WORDS.join("`, `");
        let hint = format!("write `reset: []`, or a list of some of `{words}`");
        problems.push(places.problem(&section, message).hint(hint));
    }
    problems
}
