//! The machine: what depends on it is detected here, and nowhere else.
//!
//! Detected once and passed on as a value ([`Core`]), so that a plan can be made for another machine, a test can name one, and a run uses
//! what its plan was made for. [`blocks`] defines how work is cut for a core, for kernels and plans.

pub mod blocks;
mod caches;
mod cores;
mod instructions;
mod macos;
mod memory;
pub mod peak;
mod resident;

use std::sync::OnceLock;
use std::{fmt, fs};

pub use caches::Caches;
pub use cores::{are_shared, cores, processors, share};
pub use instructions::Instructions;
pub use memory::{By, Limit, machine_memory, memory};
pub use resident::Resident;

/// The environment variable that names the vector instructions to compute with.
pub const VECTOR: &str = "ANNULUS_VECTOR";

/// The properties of a core that computing depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core {
    /// The core's caches.
    pub caches: Caches,
    /// The vector instructions to use: the best that it has, or less.
    pub instructions: Instructions,
}

impl Core {
    /// A core of this machine. An invalid [`VECTOR`] is ignored: programs call [`check`] first.
    pub fn here() -> Core {
        *HERE.get_or_init(|| Core::with(usable()[0]))
    }

    fn with(instructions: Instructions) -> Core {
        Core { caches: Caches::here(), instructions }
    }
}

static HERE: OnceLock<Core> = OnceLock::new();

/// The instructions that this machine may compute with, best first: all that the processor has, up to those settled for or named by
/// [`VECTOR`]. Never empty.
pub fn usable() -> Vec<Instructions> {
    let settled = HERE.get().map(|core| core.instructions);
    let best = settled.or_else(asked).unwrap_or_else(Instructions::detect);
    Instructions::available().skip_while(|one| *one != best).collect()
}

/// Settles for these instructions, which this machine has, as the best to use from now on: what all processes of a job have. Returns
/// whether that holds: not where [`Core::here`] has already returned something else.
pub fn settle_for(instructions: Instructions) -> bool {
    HERE.get_or_init(|| Core::with(instructions)).instructions == instructions
}

impl Default for Core {
    fn default() -> Core {
        Core::here()
    }
}

/// The error of an invalid [`VECTOR`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    value: String,
    usable: Vec<&'static str>,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usable = self.usable.join(", ");
        write!(f, "{VECTOR}=`{}`: this processor has {usable}", self.value)
    }
}

impl std::error::Error for Unusable {}

/// Refuses a value of [`VECTOR`] that names no instructions, or some that the processor lacks.
///
/// # Errors
/// Then, naming the ones it has.
pub fn check() -> Result<(), Unusable> {
    wanted().map(|_| ())
}

/// The instructions that [`VECTOR`] names, where the processor has them.
pub fn asked() -> Option<Instructions> {
    wanted().unwrap_or_default()
}

fn wanted() -> Result<Option<Instructions>, Unusable> {
    let Some(value) = std::env::var_os(VECTOR).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    named(&value.to_string_lossy()).map(Some)
}

/// The instructions of this name, where the processor has them.
fn named(word: &str) -> Result<Instructions, Unusable> {
    let found = Instructions::from_word(word).filter(|found| found.is_available());
    found.ok_or_else(|| Unusable {
        value: word.to_owned(),
        usable: Instructions::available().map(Instructions::word).collect(),
    })
}

/// The name by which this machine is known; `unknown` where the system does not say.
pub fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = name.or_else(|| macos::value("kern.hostname"));
    let name = name.or_else(|| std::env::var("HOSTNAME").ok());
    name.map_or_else(|| "unknown".to_owned(), |name| name.trim().to_owned())
}

/// The processor's name, where the system reports it.
pub fn processor() -> Option<String> {
    let listed = fs::read_to_string("/proc/cpuinfo").ok();
    let listed = listed.and_then(|cpuinfo| listed_processor(&cpuinfo));
    listed.or_else(|| macos::value("machdep.cpu.brand_string"))
}

/// The name in Linux's /proc/cpuinfo; of an ARM processor, which has none there, who makes it, and the number of its kind.
fn listed_processor(cpuinfo: &str) -> Option<String> {
    let value = |key: &str| {
        let of = |line: &str| {
            let (found, value) = line.split_once(':')?;
            (found.trim() == key).then(|| value.trim().to_owned())
        };
        cpuinfo.lines().find_map(of)
    };
    let numbered = || {
        let (maker, kind) = (value("CPU implementer")?, value("CPU part")?);
        Some(format!("ARM processor (implementer {maker}, part {kind})"))
    };
    value("model name").or_else(numbered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vector_instructions_that_are_not_there_are_refused_with_those_that_are() {
        for word in ["avx", "AVX2 ", ""] {
            let message = named(word).unwrap_err().to_string();
            assert!(message.starts_with(&format!("ANNULUS_VECTOR=`{word}`: ")), "{message}");
            assert!(message.ends_with("portable"), "{message}");
        }
        let lacking = if cfg!(target_arch = "x86_64") { "neon" } else { "avx2" };
        assert!(named(lacking).is_err());
        assert_eq!(named("portable"), Ok(Instructions::Portable));
    }

    #[test]
    fn processors_are_named_as_linux_lists_them() {
        let x86 = "processor\t: 0\nmodel name\t: AMD EPYC 9R14\nmodel\t\t: 17\n";
        assert_eq!(listed_processor(x86).as_deref(), Some("AMD EPYC 9R14"));
        let arm =
            "processor\t: 0\nBogoMIPS\t: 243.75\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n";
        let wanted = "ARM processor (implementer 0x41, part 0xd40)";
        assert_eq!(listed_processor(arm).as_deref(), Some(wanted));
        assert_eq!(listed_processor("processor\t: 0\n"), None);
    }
}
