//! The caches of a core.

use std::fs;
use std::path::Path;

use crate::macos;

/// The folder in which Linux describes the caches of the first core.
const FOLDER: &str = "/sys/devices/system/cpu/cpu0/cache";

/// The sizes of a core's caches, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caches {
    /// The first-level data cache.
    pub first: usize,
    /// The second-level cache.
    pub second: usize,
    /// The third-level cache, over all cores that share it; 0: there is none.
    pub third: usize,
}

/// Assumed where the system does not say: less than most cores have, so that nothing overflows.
const UNKNOWN: Caches = Caches { first: 32 << 10, second: 512 << 10, third: 0 };

impl Caches {
    /// The caches of this machine.
    pub(crate) fn here() -> Caches {
        let listed = Caches::listed(Path::new(FOLDER));
        listed.or_else(|| Caches::said(macos::count)).unwrap_or(UNKNOWN)
    }

    /// These caches with a second level of `second` bytes.
    #[must_use]
    pub fn with_second(self, second: usize) -> Caches {
        Caches { second, ..self }
    }

    /// The caches that a folder of Linux's describes; `None` where it lacks the first or the second level.
    fn listed(folder: &Path) -> Option<Caches> {
        let mut levels = [None; 3];
        for entry in fs::read_dir(folder).ok()?.flatten() {
            let of = |name: &str| fs::read_to_string(entry.path().join(name)).ok();
            let (Some(level), Some(kind), Some(size)) = (of("level"), of("type"), of("size"))
            else {
                continue;
            };
            let level = level.trim().parse::<usize>().ok().and_then(|level| level.checked_sub(1));
            let level = level.and_then(|level| levels.get_mut(level));
            if let (Some(level), "Data" | "Unified") = (level, kind.trim()) {
                *level = bytes(size.trim());
            }
        }
        Some(Caches { first: levels[0]?, second: levels[1]?, third: levels[2].unwrap_or(0) })
    }

    /// The caches that macOS says a core has: on Apple's processors one of the faster cores, with its part of the second level, which several
    /// share.
    fn said(value: impl Fn(&str) -> Option<usize>) -> Option<Caches> {
        let of = |name: &str| {
            let faster = value(&format!("hw.perflevel0.{name}"));
            faster.or_else(|| value(&format!("hw.{name}"))).filter(|count| *count > 0)
        };
        let second = of("l2cachesize")? / of("cpusperl2").unwrap_or(1);
        Some(Caches { first: of("l1dcachesize")?, second, third: of("l3cachesize").unwrap_or(0) })
    }
}

/// A size as Linux writes it: `48K`, `2M`.
fn bytes(text: &str) -> Option<usize> {
    let unit = match text.chars().last()? {
        'K' => 1 << 10,
        'M' => 1 << 20,
        'G' => 1 << 30,
        _ => 1,
    };
    let count: usize = text.trim_end_matches(['K', 'M', 'G']).parse().ok()?;
    count.checked_mul(unit).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_are_read_as_the_system_lists_them() {
        let folder = std::env::temp_dir().join(format!("annulus-caches-{}", std::process::id()));
        let listed = [
            ("index0", "1", "Data", "48K"),
            ("index1", "1", "Instruction", "32K"),
            ("index2", "2", "Unified", "2M"),
            ("index3", "3", "Unified", "107520K"),
        ];
        for (name, level, kind, size) in listed {
            let index = folder.join(name);
            fs::create_dir_all(&index).unwrap();
            for (file, text) in [("level", level), ("type", kind), ("size", size)] {
                fs::write(index.join(file), format!("{text}\n")).unwrap();
            }
        }
        let found = Caches::listed(&folder);
        fs::remove_dir_all(&folder).unwrap();
        let wanted = Caches { first: 48 << 10, second: 2 << 20, third: 105 << 20 };
        assert_eq!(found, Some(wanted));
        assert_eq!(Caches::listed(&folder), None);
        assert_eq!((bytes(""), bytes("K"), bytes("0K"), bytes("64")), (None, None, None, Some(64)));
    }

    #[test]
    fn caches_are_understood_as_macos_says_them() {
        let with = |values: &[(&str, usize)]| {
            let of = |name: &str| values.iter().find(|one| one.0 == name).map(|one| one.1);
            Caches::said(of)
        };
        let apple = [
            ("hw.l1dcachesize", 64 << 10),
            ("hw.l2cachesize", 4 << 20),
            ("hw.perflevel0.l1dcachesize", 128 << 10),
            ("hw.perflevel0.l2cachesize", 12 << 20),
            ("hw.perflevel0.cpusperl2", 4),
        ];
        let wanted = Caches { first: 128 << 10, second: 3 << 20, third: 0 };
        assert_eq!(with(&apple), Some(wanted));
        let intel = [
            ("hw.l1dcachesize", 32 << 10),
            ("hw.l2cachesize", 256 << 10),
            ("hw.l3cachesize", 12 << 20),
        ];
        let wanted = Caches { first: 32 << 10, second: 256 << 10, third: 12 << 20 };
        assert_eq!(with(&intel), Some(wanted));
        assert_eq!((with(&apple[..1]), with(&[])), (None, None));
    }
}
