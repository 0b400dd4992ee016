//! The computer that a run is on.

use std::fs;

use annulus_experiment::Plan;

use crate::{Result, TrainError};

/// Where Linux says what a container may use.
const CONTAINER_LIMIT: &str = "/sys/fs/cgroup/memory.max";

/// Refuses a run whose ranks, all of which are on this machine, cannot fit in its memory.
pub(crate) fn check_memory(plan: &Plan) -> Result<()> {
    let needed = plan.ranks.iter().map(|rank| rank.peak.total()).fold(0, u64::saturating_add);
    match memory() {
        Some(there) if needed > there => Err(TrainError::DoesNotFit {
            message: format!(
                "this needs some {} of memory, the machine has {}",
                gibibytes(needed),
                gibibytes(there)
            ),
            hint: Some(
                "lower `data.tokens` or `memory.micro_batch`; `annulus plan` shows what takes how \
                 much"
                    .into(),
            ),
        }),
        _ => Ok(()),
    }
}

fn gibibytes(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

/// The memory of this machine or of the container, bytes; `None` where the system does not say so
/// in a file.
fn memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    let limit = fs::read_to_string(CONTAINER_LIMIT).ok().and_then(|text| text.trim().parse().ok());
    Some(limit.unwrap_or(u64::MAX).min(kibibytes * 1024))
}

/// The processor's name, where the system says so in a file.
pub(crate) fn processor() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().into())
}
