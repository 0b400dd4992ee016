//! The section `schedule`: the number of steps, and the learning rate over them.
//!
//! The learning rate of step t, from 0:
//!
//! ```text
//! t < warmup   peak (t + 1) / warmup
//! otherwise    peak (floor + (1 - floor) shape(progress))
//!              progress = (t - warmup) / (steps - warmup)
//! ```
//! with `shape` 1 for `constant`, `1 - progress` for `linear`, half a cosine for `cosine`; `wsd` (warm-up, stable, decay) is constant until
//! the last steps, the fraction `cooldown` of all (rounded down, at least one), over which it falls linearly. So `floor` is the rate of the
//! step after the last.

use std::f64::consts::PI;

use annulus_yaml::Absent::{Is, Means, RequiredWithout};
use annulus_yaml::Interval::ZeroToOne;
use annulus_yaml::Kind::{Count, Real, Word};
use annulus_yaml::{Problem, section, words};

use crate::stages::{self, SECTION as STAGES};
use crate::{Experiment, Phase};

pub(crate) const MOST_STEPS: u64 = 1 << 40;
/// The fraction of steps over which `wsd` decays where the file does not say.
const COOLDOWN: f64 = 0.2;

section! {
    /// The section `schedule` as it is written.
    #[derive(Clone, Debug, PartialEq)]
    pub struct ScheduleKeys {
        steps: Option<u64> = Count(1, MOST_STEPS), RequiredWithout(STAGES), "optimizer steps";
        stop: Option<u64> = Count(1, MOST_STEPS), Means("steps"),
            "end the run after this step, with the learning-rate curve of all `steps`";
        ..curve: Curve;
    }
}

section! {
    /// The learning rate over the steps.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Curve {
        warmup: u64 = Count(0, MOST_STEPS), Is("0"), "steps of linear warm-up";
        decay: Decay = Word(Decay::WORDS), Is("constant"), "shape of the learning rate after warm-up";
        floor: f64 = Real(ZeroToOne), Is("0.1"), "the share of the peak at which the curve of `decay` ends; the last step is just above it: linear over 8 steps to 0 ends at 1/8 of the peak";
        cooldown: Option<f64> = Real(ZeroToOne), Means("0.2"), "share of the steps that `wsd` decays over";
    }
}

/// The section `schedule`.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// The number of optimizer steps.
    pub steps: u64,
    /// The step after which the run ends, with the learning rate as if it went on to `steps`.
    pub stop: Option<u64>,
    /// The learning rate over the steps.
    pub curve: Curve,
}

impl ScheduleKeys {
    pub(crate) fn meant(self, stages: &[Phase]) -> Option<Schedule> {
        let steps = if stages.is_empty() { self.steps? } else { stages::total(stages) };
        Some(Schedule { steps, stop: self.stop, curve: self.curve })
    }
}

impl Schedule {
    /// The learning rate of step `t`, from 0, of a curve whose peak is `peak`.
    pub fn learning_rate(&self, peak: f64, t: u64) -> f64 {
        let Schedule { steps, curve: Curve { warmup, decay, floor, cooldown }, .. } = *self;
        if t < warmup {
            return peak * (t + 1) as f64 / warmup as f64;
        }
        let shape = match decay {
            Decay::Constant => return peak,
            Decay::Linear => 1.0 - progress(t, warmup, steps),
            Decay::Cosine => 0.5 * (1.0 + (PI * progress(t, warmup, steps)).cos()),
            Decay::Wsd => {
                let falling = falling(steps, cooldown.unwrap_or(COOLDOWN));
                1.0 - progress(t, warmup.max(steps - falling), steps)
            }
        };
        peak * (floor + (1.0 - floor) * shape)
    }

    /// The keys that mean this schedule; with phases, each phase has its own `steps`.
    pub(crate) fn keys(&self, has_phases: bool) -> ScheduleKeys {
        let steps = Some(self.steps).filter(|_| !has_phases);
        ScheduleKeys { steps, stop: self.stop, curve: self.curve.clone() }
    }
}

/// The key `decay`: how the learning rate falls after warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decay {
    /// The learning rate stays at its peak.
    Constant,
    /// Linearly to the floor.
    Linear,
    /// Half a cosine to the floor.
    Cosine,
    /// Constant, then linearly to the floor.
    Wsd,
}

words!(Decay { Constant = "constant", Linear = "linear", Cosine = "cosine", Wsd = "wsd" });

/// Broken rules between the numbers of steps.
pub(crate) fn rules(experiment: &Experiment) -> Vec<Problem> {
    let (schedule, places) = (&experiment.schedule, &experiment.places);
    let beyond = |key: &str, found: u64, steps: u64| {
        let all = if experiment.phase_of.is_some() { "stages" } else { "`schedule.steps`" };
        let message = format!("`{key}` is {found}, beyond the {steps} of {all}");
        let hint = format!("at most {steps}");
        places.problem(key, message).hint(hint)
    };
    let mut problems = Vec::new();
    let (warmup, steps) = (schedule.curve.warmup, schedule.steps);
    if warmup > steps && places.to_blame(&["schedule.warmup", "schedule.steps"]) == "schedule.steps"
    {
        let message =
            format!("`schedule.steps` is {steps}, fewer than the {warmup} of `schedule.warmup`");
        let problem = places.problem("schedule.steps", message);
        problems.push(problem.hint(format!("set `schedule.warmup={steps}` too, or less")));
    } else if warmup > steps {
        problems.push(beyond("schedule.warmup", warmup, steps));
    }
    // Where `decay: constant` is written, it may be for once.
    let has = |key: &str| experiment.places.contains(&format!("schedule.{key}"));
    if schedule.curve.decay == Decay::Constant && has("floor") && !has("decay") {
        let message = "`schedule.floor` means nothing without `decay`: the rate is constant";
        let problem = experiment.places.problem("schedule.floor", message);
        problems.push(problem.hint("remove it, or set `schedule.decay`"));
    }
    if schedule.curve.decay != Decay::Wsd && experiment.places.contains("schedule.cooldown") {
        let word = schedule.curve.decay.word();
        let message = format!("`schedule.cooldown` means nothing beside `decay: {word}`");
        let problem = experiment.places.problem("schedule.cooldown", message);
        problems.push(problem.hint("remove it, or set `schedule.decay: wsd`"));
    }
    let all = experiment.all_steps();
    if let Some(stop) = schedule.stop.filter(|&stop| stop > all) {
        problems.push(beyond("schedule.stop", stop, all));
    }
    problems
}

/// The number of steps that are a share `cooldown` of all, rounded down; at least one of any share.
fn falling(steps: u64, cooldown: f64) -> u64 {
    /// What whole numbers of steps may be short of by rounding: 0.29 of 100 is 28.999….
    const SHORT: f64 = 1e-6;
    let share = steps as f64 * cooldown;
    ((share + SHORT) as u64).max(u64::from(share > 0.0))
}

/// The progress of `t` from `start` to `end`: 0 before, 1 after.
fn progress(t: u64, start: u64, end: u64) -> f64 {
    if t <= start {
        return 0.0;
    }
    ((t - start) as f64 / end.saturating_sub(start).max(1) as f64).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(decay: Decay, warmup: u64, floor: f64) -> Vec<f64> {
        cooled(decay, warmup, floor, None)
    }

    fn cooled(decay: Decay, warmup: u64, floor: f64, cooldown: Option<f64>) -> Vec<f64> {
        let curve = Curve { warmup, decay, floor, cooldown };
        let schedule = Schedule { steps: 20, stop: None, curve };
        (0..20).map(|t| schedule.learning_rate(0.01, t)).collect()
    }

    #[test]
    fn warm_up_is_a_line_to_the_peak() {
        let rates = rates(Decay::Constant, 5, 0.1);
        for (t, wanted) in [0.002, 0.004, 0.006, 0.008, 0.01, 0.01].into_iter().enumerate() {
            assert!((rates[t] - wanted).abs() < 1e-15);
        }
    }

    #[test]
    fn a_cosine_is_at_its_peak_after_warm_up_and_falls_towards_the_floor() {
        let rates = rates(Decay::Cosine, 5, 0.1);
        assert!((rates[4] - 0.01).abs() < 1e-15 && (rates[5] - 0.01).abs() < 1e-15);
        let wanted = 0.01 * (0.1 + 0.9 * 0.5 * (1.0 + (PI * 14.0 / 15.0).cos()));
        assert!((rates[19] - wanted).abs() < 1e-15);
        assert!(rates[5..].is_sorted_by(|a, b| a > b));
    }

    #[test]
    fn a_line_and_a_late_line_end_above_the_floor() {
        let line = rates(Decay::Linear, 0, 0.0);
        assert!((line[10] - 0.005).abs() < 1e-15 && (line[19] - 0.0005).abs() < 1e-15);
        let late = rates(Decay::Wsd, 2, 0.0);
        assert!((late[16] - 0.01).abs() < 1e-15, "constant up to the last fifth");
        assert!((late[18] - 0.005).abs() < 1e-15);
        let half = cooled(Decay::Wsd, 2, 0.0, Some(0.5));
        assert!((half[10] - 0.01).abs() < 1e-15 && (half[15] - 0.005).abs() < 1e-15);
        let never = cooled(Decay::Wsd, 2, 0.0, Some(0.0));
        assert!((never[19] - 0.01).abs() < 1e-15);
    }

    #[test]
    fn wsd_falls_over_whole_steps() {
        // The first of them is at the peak.
        for (steps, cooldown, falling) in [(100, 0.29, 29), (4, 0.2, 1), (9, 0.2, 1), (10, 0.2, 2)]
        {
            let curve =
                Curve { warmup: 0, decay: Decay::Wsd, floor: 0.0, cooldown: Some(cooldown) };
            let schedule = Schedule { steps, stop: None, curve };
            for t in 0..steps {
                let left = (steps - t).min(falling) as f64 / falling as f64;
                assert!(
                    (schedule.learning_rate(1.0, t) - left).abs() < 1e-15,
                    "step {t} of {steps}"
                );
            }
        }
    }
}
