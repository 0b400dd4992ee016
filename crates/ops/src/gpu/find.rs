//! Finds GPUs, or the reason why there are none: never a panic, whatever is missing.

use std::fmt;
use std::sync::Arc;

use super::{Processor, Room};

/// An NVIDIA GPU that this program can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// The number of the GPU, from 0.
    pub index: usize,
    /// The name that the GPU reports.
    pub name: String,
    /// Bytes of the GPU's memory.
    pub memory: u64,
    /// The compute capability: 80 for an A100, 90 for an H100.
    pub architecture: u32,
    /// Bytes of shared memory that a thread block may use.
    pub shared_memory: u32,
    /// The architecture of the program's code that this GPU runs; `None`: the driver compiles the kernels at the first start.
    pub code: Option<u32>,
}

impl Gpu {
    /// The architecture and shared memory, by which kernels are chosen.
    pub fn room(&self) -> Room {
        Room { architecture: self.architecture, shared: self.shared_memory }
    }
}

/// The architecture among `compiled`, as in `80,86,90`, whose code runs on `architecture`: of the same generation and no newer (CUDA C++
/// programming guide, "Binary Compatibility"), for sm_90a only exactly that one, for sm_100f its family. `None`: PTX is compiled for it.
#[cfg(any(feature = "cuda", test))]
pub(super) fn code_for(architecture: u32, compiled: &str) -> Option<u32> {
    let all = compiled.split(',').filter_map(|number| number.parse().ok());
    let runs = |code: &u32| match code {
        90 => architecture == 90,
        100 => matches!(architecture, 100 | 103),
        _ => code / 10 == architecture / 10 && *code <= architecture,
    };
    all.filter(runs).max()
}

/// The reason why no GPU can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The program was built without the feature `cuda`.
    Built,
    /// A library was not found.
    Library(&'static str),
    /// The driver failed, with this message.
    Driver(String),
    /// There is no GPU of the first number, but as many as the second.
    Number(usize, usize),
    /// The GPU is too old for the kernels, with this architecture.
    Old(u32),
    /// The GPU does not run the kernels that [`super::untried::UNTRIED`] asks for; its value.
    Untried(String),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Built => write!(f, "this program was built without CUDA"),
            Missing::Library(name) => write!(f, "the library `{name}` was not found"),
            Missing::Driver(said) => write!(f, "the NVIDIA driver says: {said}"),
            Missing::Number(wanted, found) => {
                write!(f, "no GPU of number {wanted}: there are {found}, counted from 0")
            }
            Missing::Old(found) => write!(f, "the GPU is of sm_{found}, wanted sm_80 or later"),
            Missing::Untried(said) => write!(f, "{said}"),
        }
    }
}

impl Missing {
    /// What the user can do.
    pub fn hint(&self) -> &'static str {
        match self {
            Missing::Built => {
                "build with `--features cuda` where there is a CUDA toolkit, or with `cargo xtask cuda build`, which brings its own"
            }
            Missing::Library("libcuda.so") => "install NVIDIA's driver, 580 or later",
            Missing::Library(_) => {
                "install the CUDA 13 libraries, and name their folder in LD_LIBRARY_PATH"
            }
            Missing::Driver(_) => "see what `nvidia-smi` says",
            Missing::Number(..) => "see `annulus doctor` for those there are",
            Missing::Old(_) => "use `device: cpu`",
            Missing::Untried(_) => {
                "leave it out, or build for that GPU with a CUDA toolkit of 12.9 or later"
            }
        }
    }
}

/// All GPUs.
///
/// # Errors
/// No driver, no runtime, or a build without the feature `cuda`.
pub fn gpus() -> Result<Vec<Gpu>, Missing> {
    #[cfg(feature = "cuda")]
    return super::cuda::gpus();
    #[cfg(not(feature = "cuda"))]
    Err(Missing::Built)
}

/// Opens GPU number `index` with the kernels loaded, on a stream of its own. One per process and GPU: ranks that share the GPU share this
/// processor, and so its stream.
///
/// # Errors
/// As [`gpus`]; no GPU of this number, or one that is too old for the kernels.
pub fn open(index: usize) -> Result<Arc<dyn Processor>, Missing> {
    Ok(open_all(&[index])?.swap_remove(0))
}

/// The GPUs of these numbers, each named once, as by [`open`]: they copy to each other directly, where the hardware can.
///
/// # Errors
/// As those of [`open`].
pub fn open_all(indices: &[usize]) -> Result<Vec<Arc<dyn Processor>>, Missing> {
    let all = gpus()?;
    for index in indices {
        let gpu = all.get(*index).ok_or(Missing::Number(*index, all.len()))?;
        if gpu.architecture < 80 {
            return Err(Missing::Old(gpu.architecture));
        }
    }
    #[cfg(feature = "cuda")]
    return super::cuda::open_all(indices);
    #[cfg(not(feature = "cuda"))]
    Err(Missing::Built)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_runs_on_its_generation_from_its_own_number_on() {
        let all = "80,86,89,90,100,120";
        let found =
            [80, 86, 87, 89, 90, 100, 101, 103, 110, 120, 121].map(|one| code_for(one, all));
        let wanted = [80, 86, 86, 89, 90, 100, 0, 100, 0, 120, 120];
        assert_eq!(found.map(|code| code.unwrap_or(0)), wanted);
        assert_eq!(code_for(120, "80,86,89,90"), None);
    }

    /// Wherever tests run, there is an answer, never a panic.
    #[test]
    fn what_is_missing_is_said() {
        match gpus() {
            Ok(all) => assert!(matches!(open(all.len()), Err(Missing::Number(..)))),
            Err(missing) => {
                assert_eq!(open(0).unwrap_err(), missing);
                assert!(!missing.to_string().is_empty() && !missing.hint().is_empty());
            }
        }
    }
}
