//! `stages:` lengths one after another in one run. Each is an experiment of its own, whose model, optimizer and data go on where
//! those of the one before ended, but for what is said to begin anew.

use std::ops::Range;

use annulus_architecture::sorted;
use annulus_yaml::Absent::{Means, Required};
use annulus_yaml::Interval::AboveZero;
use annulus_yaml::Kind::{Count, Real, Section, Tokens, Words};
use annulus_yaml::{Places, Problem, printable, section, words};

use crate::data::MOST_TOKENS;
use crate::schedule::MOST_STEPS;
use crate::{Experiment, Extension};

/// The key.
pub(crate) const SECTION: &str = "stages";
/// Tokens of a whole run: keeps what is counted within 64 bits.
const MOST_READ: u64 = 1 << 60;

section! {
    /// The keys of each of `stages:`.
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
            "what starts anew: the optimizer's moments, the learning-rate curve, the order of the data";
    }
}

/// One of `stages:`; what it does not say is as in the one before, and in the first as in the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// The word before it.
    pub name: String,
    /// Inputs per sequence.
    pub tokens: usize,
    /// Optimizer steps.
    pub steps: u64,
    /// Sequences per step.
    pub batch: Option<usize>,
    /// The peak of the learning rate.
    pub learning_rate: Option<f64>,
    /// Longer sequences than the model was trained for.
    pub extend: Option<Extension>,
    /// What begins anew. Written but in the first, where everything does.
    pub reset: Vec<Reset>,
}

/// What may begin anew with a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reset {
    /// The optimizer's moments, and the count of steps that corrects them.
    Moments,
    /// The learning rate: warm-up and decay, over the steps up to the next stage that says so.
    Schedule,
    /// The data: from its first batch on. Otherwise from the first batch beyond the tokens that were read.
    Data,
}

words!(Reset { Moments = "moments", Schedule = "schedule", Data = "data" });

/// Where in a run an experiment is. Steps are counted from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseStart {
    /// Its steps.
    pub steps: Range<u64>,
    /// Tokens trained on before.
    pub tokens: u64,
    /// The first step of its schedule.
    pub schedule: u64,
    /// The step since which moments are summed.
    pub moments: u64,
    /// The number of the data's batch that its first step reads.
    pub batch: u64,
}

impl PhaseStart {
    /// The first of a run, or all of it.
    fn first(steps: u64) -> PhaseStart {
        PhaseStart { steps: 0..steps, tokens: 0, schedule: 0, moments: 0, batch: 0 }
    }
}

/// One of several stages.
#[derive(Clone, Debug, PartialEq)]
pub struct CurrentPhase {
    /// All of them, as written.
    pub whole: Experiment,
    /// Its number in them, from 0.
    pub number: usize,
    /// Where in the run it is.
    pub part: PhaseStart,
}

impl PhaseKeys {
    pub(crate) fn meant(self, name: String) -> Phase {
        let PhaseKeys { tokens, steps, batch, learning_rate, extend, reset } = self;
        let reset = sorted(reset.unwrap_or_default());
        Phase { name, tokens, steps, batch, learning_rate, extend, reset }
    }
}

impl Experiment {
    /// The experiments of its phases, in order; of one without stages that itself.
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

    /// The stage whose weights a run has after `step` steps, the last beyond its end; of one without stages itself.
    #[must_use]
    pub fn phase_at(&self, step: u64) -> Experiment {
        self.phases().swap_remove(self.phase_index_at(step))
    }

    /// The number, from 0, of the stage that [`Experiment::phase_at`] gives.
    pub fn phase_index_at(&self, step: u64) -> usize {
        let stages = &self.written().stages;
        let last = stages.len().saturating_sub(1);
        (0..last).find(|&number| step <= total(&stages[..=number])).unwrap_or(last)
    }

    /// The experiment as it was written: of a stage, with all of them.
    pub fn written(&self) -> &Experiment {
        self.phase_of.as_ref().map_or(self, |phase_of| &phase_of.whole)
    }

    /// Where in its run it is.
    pub fn phase_start(&self) -> PhaseStart {
        let phase_of = self.phase_of.as_ref().map(|phase_of| phase_of.part.clone());
        phase_of.unwrap_or_else(|| PhaseStart::first(self.schedule.steps))
    }

    /// Which of several stages it is.
    pub fn phase(&self) -> Option<&Phase> {
        let phase_of = self.phase_of.as_ref()?;
        phase_of.whole.stages.get(phase_of.number)
    }

    /// The step after which it ends, the run's first being number 1.
    pub fn last_step(&self) -> u64 {
        let end = self.phase_start().steps.end;
        self.schedule.stop.map_or(end, |stop| stop.min(end))
    }

    /// Steps of the whole run.
    pub fn all_steps(&self) -> u64 {
        let Experiment { stages, schedule, .. } = self.written();
        if stages.is_empty() { schedule.steps } else { total(stages) }
    }

    /// Tokens at the end of a text that are held out: as many in all stages, so that none learns what another is asked.
    pub fn held_out(&self) -> usize {
        match self.data.evaluate {
            0 => 0,
            sequences => sequences * self.longest() + 1,
        }
    }

    /// Tokens of the longest of its run's sequences.
    pub fn longest(&self) -> usize {
        let stages = self.written().stages.iter().map(|stage| stage.tokens);
        stages.max().unwrap_or(self.data.tokens)
    }

    /// Where in the run stage `number` is, behind the stages `before` it.
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

    /// Steps of the schedule that stage `number` is in.
    fn scheduled(&self, number: usize) -> u64 {
        let anew = |stage: &Phase| stage.reset.contains(&Reset::Schedule);
        let begins = |number: usize| number == 0 || anew(&self.stages[number]);
        let first = (0..=number).rev().find(|&number| begins(number)).unwrap_or_default();
        let next = (number + 1..self.stages.len()).find(|&number| begins(number));
        total(&self.stages[first..next.unwrap_or(self.stages.len())])
    }
}

impl Phase {
    /// Its name, and the keys that mean it.
    pub(crate) fn keys(&self, first: bool) -> (String, PhaseKeys) {
        let Phase { name, tokens, steps, batch, learning_rate, extend, reset } = self.clone();
        let reset = Some(reset).filter(|_| !first);
        (name, PhaseKeys { tokens, steps, batch, learning_rate, extend, reset })
    }

    /// `before` as this stage says it.
    fn on(&self, before: &Experiment) -> Experiment {
        let mut own = before.clone();
        own.data.tokens = self.tokens;
        own.data.batch = self.batch.unwrap_or(own.data.batch);
        own.optimizer.learning_rate = self.learning_rate.unwrap_or(own.optimizer.learning_rate);
        own.extend = self.extend.clone().or(own.extend);
        own.places = own.places.standing_for(|key| self.stands_for(key));
        own
    }

    /// The key of the file that one of this stage stands for.
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

/// Steps of `stages` together.
pub(crate) fn total(stages: &[Phase]) -> u64 {
    stages.iter().fold(0, |steps, stage| steps.saturating_add(stage.steps))
}

/// What stages must be to each other and to the file. They are checked as experiments besides.
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

/// What a stage must be, by itself and as the one of its number.
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
        problems.push(places.problem(&key, message).hint("drop it"));
    }
    if number > 0 && !places.contains(&key) {
        let message = format!("`{key}` is missing: what begins anew with this phase?");
        let words = Reset::WORDS.join("`, `");
        let hint = format!("write `reset: []`, or a list of some of `{words}`");
        problems.push(places.problem(&section, message).hint(hint));
    }
    problems
}
