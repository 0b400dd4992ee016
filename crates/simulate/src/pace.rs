//! A step's time in the units in which compute is asked for: tokens per second, share of the peak, hours and device-hours.

use annulus_experiment::{DocumentBounds, Experiment};
use annulus_text::duration;
use serde_json::{Value, json};

use crate::{Cluster, Estimate};

/// Seconds in an hour.
const HOUR: f64 = 3600.0;

/// The work of a step and of the run, on the devices that have a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Tokens that a step trains on.
    pub tokens: usize,
    /// Steps of the run, or of the phase that is planned.
    pub steps: u64,
    /// The number of devices that compute; `None`: threads of this machine.
    pub devices: Option<usize>,
    /// The peak of all these devices together, operations per second; `None`: unknown, or the plan does not know the pairs that documents
    /// of the data leave visible.
    pub peak: Option<f64>,
}

impl Pace {
    /// The work of an experiment on `cluster`.
    pub(crate) fn of(experiment: &Experiment, cluster: &Cluster) -> Pace {
        let (data, ranks) = (&experiment.data, experiment.mesh.ranks());
        let by_data = experiment.attention.masking.documents == Some(DocumentBounds::ByData);
        Pace {
            tokens: data.batch * data.tokens,
            steps: experiment.last_step().saturating_sub(experiment.phase_start().steps.start),
            devices: (!cluster.helping).then_some(ranks),
            peak: cluster.peak.filter(|_| !by_data).map(|peak| peak * ranks as f64),
        }
    }

    /// Tokens per second of all ranks together.
    pub fn tokens_per_second(&self, estimate: &Estimate) -> f64 {
        self.tokens as f64 / estimate.step
    }

    /// Model FLOP/s utilization: the step's operations per second as a fraction of the peak.
    pub fn mfu(&self, estimate: &Estimate) -> Option<f64> {
        self.peak.map(|peak| estimate.flops / estimate.step / peak)
    }

    /// Seconds of all steps.
    pub fn seconds(&self, estimate: &Estimate) -> f64 {
        self.steps as f64 * estimate.step
    }

    /// Hours of all steps, summed over devices; `None` for threads.
    pub fn device_hours(&self, estimate: &Estimate) -> Option<f64> {
        self.devices.map(|devices| devices as f64 * self.seconds(estimate) / HOUR)
    }

    /// A line: `1908 tokens/s, 45.6 % MFU, 12.34 h for 1000 steps (98.7 device-hours)`.
    pub(crate) fn to_text(self, estimate: &Estimate) -> String {
        let speed = digits(self.tokens_per_second(estimate));
        let mfu = self.mfu(estimate);
        let mfu = mfu.map_or_else(String::new, |mfu| format!(", {:.1} % MFU", 100.0 * mfu));
        let steps = annulus_text::count(self.steps as usize, "step");
        let hours = self.device_hours(estimate);
        let hours =
            hours.map_or_else(String::new, |hours| format!(" ({} device-hours)", digits(hours)));
        format!("{speed} tokens/s{mfu}, {} for {steps}{hours}", duration(self.seconds(estimate)))
    }

    /// The same for programs.
    pub(crate) fn to_json(self, estimate: &Estimate) -> Value {
        json!({
            "tokens_per_second": self.tokens_per_second(estimate),
            "mfu": self.mfu(estimate),
            "steps": self.steps,
            "seconds": self.seconds(estimate),
            "device_hours": self.device_hours(estimate),
        })
    }
}

/// A number with three digits, or all of those before the point.
fn digits(number: f64) -> String {
    match number {
        n if n >= 100.0 => format!("{n:.0}"),
        n if n >= 10.0 => format!("{n:.1}"),
        n if n >= 1.0 => format!("{n:.2}"),
        n => format!("{n:.3}"),
    }
}
