//! The learning rate of a step.
//!
//! ```text
//! t < warmup   peak (t + 1) / warmup
//! otherwise    peak (floor + (1 - floor) shape(progress))
//!              progress = (t - warmup) / (steps - warmup)
//! ```
//! with `shape` 1 for `constant`, `1 - progress` for `linear`, half a cosine for `cosine`; `wsd`
//! (warm-up, stable, decay) is constant but for the last fifth of the steps, where it falls in a
//! line.

use std::f64::consts::PI;

use annulus_experiment::{Decay, Schedule};

/// The learning rate of step `t` (from 0) whose peak is `peak`.
pub fn learning_rate(schedule: &Schedule, peak: f64, t: u64) -> f64 {
    let Schedule { steps, warmup, decay, floor, .. } = *schedule;
    if t < warmup {
        return peak * (t + 1) as f64 / warmup as f64;
    }
    let shape = match decay {
        Decay::Constant => return peak,
        Decay::Linear => 1.0 - progress(t, warmup, steps),
        Decay::Cosine => 0.5 * (1.0 + (PI * progress(t, warmup, steps)).cos()),
        Decay::Wsd => 1.0 - progress(t, warmup.max(steps - steps / 5), steps),
    };
    peak * (floor + (1.0 - floor) * shape)
}

/// How far `t` is on the way from `start` to `end`: 0 before, 1 after.
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
        let schedule = Schedule { steps: 20, stop: None, warmup, decay, floor };
        (0..20).map(|t| learning_rate(&schedule, 0.01, t)).collect()
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
    }
}
