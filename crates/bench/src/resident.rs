//! The memory of this process as the system sees it, in MiB.

use annulus_machine::Resident;

const MIB: f64 = 1024.0 * 1024.0;

/// The most this process may have had resident since a moment, above what it had then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    base: f64,
}

impl Watch {
    /// From now on.
    pub(crate) fn start() -> Watch {
        Resident::forget_peak();
        Watch { base: of(|resident| resident.now) }
    }

    /// MiB that were resident at the start.
    pub(crate) fn base(self) -> f64 {
        self.base
    }

    /// MiB that have been resident at once since the start.
    pub(crate) fn peak() -> f64 {
        of(|resident| resident.peak)
    }

    /// The difference.
    pub(crate) fn growth(self) -> f64 {
        Watch::peak() - self.base
    }
}

fn of(bytes: fn(Resident) -> u64) -> f64 {
    Resident::here().map_or(f64::NAN, |resident| bytes(resident) as f64 / MIB)
}
