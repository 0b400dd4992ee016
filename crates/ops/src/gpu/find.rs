//! Finds GPUs, or the reason why there are none: never a panic, whatever is missing.

use std::fmt;
use std::sync::Arc;

use super::{GpuCapability, Processor};

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
    /// Where its kernels come from.
    pub code: Code,
}

/// Where the kernels of a GPU come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The program has them compiled, for this architecture.
    Compiled(u32),
    /// The driver compiles those of sm_80 at the first start.
    ByDriver,
    /// The program was built for other GPUs alone.
    Absent,
}

impl Code {
    /// The architecture whose kernels run. Those that a driver compiles are sm_80's: kernels with newer instructions have no body there,
    /// and would leave results unwritten.
    pub fn architecture(self) -> Option<u32> {
        match self {
            Code::Compiled(architecture) => Some(architecture),
            Code::ByDriver => Some(80),
            Code::Absent => None,
        }
    }
}

impl Gpu {
    /// What selects the kernels for this GPU.
    pub fn capability(&self) -> GpuCapability {
        GpuCapability { architecture: self.architecture, shared: self.shared_memory }
    }
}

/// What of `compiled`, as in `80,86,90`, runs on `architecture`: code of the same generation and no newer (CUDA C++ programming guide,
/// "Binary Compatibility"), for sm_90a only exactly that one, for sm_100f its family. With sm_80 comes PTX, which the driver compiles.
#[cfg(any(feature = "cuda", test))]
pub(super) fn code_for(architecture: u32, compiled: &str) -> Code {
    let all = || compiled.split(',').filter_map(|number| number.parse().ok());
    let runs = |code: &u32| match code {
        90 => architecture == 90,
        100 => matches!(architecture, 100 | 103),
        _ => code / 10 == architecture / 10 && *code <= architecture,
    };
    let own = all().filter(runs).max().map(Code::Compiled);
    let has_ptx = architecture >= 80 && all().any(|code: u32| code == 80);
    own.unwrap_or(if has_ptx { Code::ByDriver } else { Code::Absent })
}

/// Whether a driver that knows CUDA up to `driver` loads what a toolkit made: any of its own major version or an older one (CUDA
/// Compatibility, "Minor Version Compatibility").
#[cfg(any(feature = "cuda", test))]
pub(super) fn loads(driver: [u32; 2], toolkit: [u32; 2]) -> bool {
    driver[0] >= toolkit[0]
}

/// The two numbers of a version as in `13.0`.
#[cfg(any(feature = "cuda", test))]
pub(super) fn numbers(version: &str) -> [u32; 2] {
    let mut numbers = version.split('.').map_while(|number| number.parse().ok());
    [0, 1].map(|_| numbers.next().unwrap_or(0))
}

/// The reason why no GPU can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuUnavailable {
    /// The program was built without the feature `cuda`.
    Built,
    /// A library was not found.
    Library(&'static str),
    /// The driver failed, with this message.
    Driver(String),
    /// The driver, which knows CUDA up to the first version, cannot load what the second toolkit made.
    OldDriver([u32; 2], [u32; 2]),
    /// There is no GPU of the first number, but as many as the second.
    Number(usize, usize),
    /// The GPU is too old for the kernels, with this architecture.
    Old(u32),
    /// The program has no kernels for the GPU, which has this architecture.
    Code(u32),
    /// The GPU does not run the kernels that [`super::untried::UNTRIED`] asks for; its value.
    Untried(String),
}

impl fmt::Display for GpuUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuUnavailable::Built => write!(f, "this program was built without CUDA"),
            GpuUnavailable::Library(name) => write!(f, "the library `{name}` was not found"),
            GpuUnavailable::Driver(said) => write!(f, "the NVIDIA driver says: {said}"),
            GpuUnavailable::OldDriver([major, minor], [of, built]) => write!(
                f,
                "the NVIDIA driver knows CUDA {major}.{minor}, and this program was built with CUDA {of}.{built}"
            ),
            GpuUnavailable::Number(wanted, found) => {
                write!(f, "no GPU of number {wanted}: there are {found}, counted from 0")
            }
            GpuUnavailable::Old(found) => {
                write!(f, "the GPU is of sm_{found}, expected sm_80 or later")
            }
            GpuUnavailable::Code(found) => {
                write!(f, "the GPU is of sm_{found}, and this program was built for others alone")
            }
            GpuUnavailable::Untried(said) => write!(f, "{said}"),
        }
    }
}

impl GpuUnavailable {
    /// What the user can do.
    pub fn hint(&self) -> &'static str {
        match self {
            GpuUnavailable::Built => {
                "build with `--features cuda` where there is a CUDA toolkit, or with `cargo xtask cuda build`, which brings its own"
            }
            GpuUnavailable::Library("libcuda.so") => "install NVIDIA's driver, 580 or later",
            GpuUnavailable::Library(_) => {
                "install cuBLAS and cuRAND of CUDA 13 (`pip install nvidia-cublas nvidia-curand` does), and name their folder in \
                 LD_LIBRARY_PATH (of pip: `site-packages/nvidia/cu13/lib`)"
            }
            GpuUnavailable::Driver(_) => "see what `nvidia-smi` says",
            GpuUnavailable::OldDriver(..) => {
                "install a newer driver (580 or later for CUDA 13), or build with a toolkit that the driver knows, 12.4 or later: set NVCC"
            }
            GpuUnavailable::Number(..) => "see `annulus doctor` for those there are",
            GpuUnavailable::Old(_) => "use `device: cpu`",
            GpuUnavailable::Code(_) => {
                "build with its architecture in ANNULUS_CUDA_ARCHITECTURES, or with `80`, which drivers compile for later GPUs, or without it"
            }
            GpuUnavailable::Untried(_) => {
                "leave it out, or build for that GPU with a CUDA toolkit of 12.9 or later"
            }
        }
    }
}

/// All GPUs.
///
/// # Errors
/// No driver, no runtime, or a build without the feature `cuda`.
pub fn gpus() -> Result<Vec<Gpu>, GpuUnavailable> {
    #[cfg(feature = "cuda")]
    return super::cuda::gpus();
    #[cfg(not(feature = "cuda"))]
    Err(GpuUnavailable::Built)
}

/// Opens GPU number `index` with the kernels loaded, on a stream of its own. One per process and GPU: ranks that share the GPU share this
/// processor, and so its stream.
///
/// # Errors
/// As [`gpus`]; no GPU of this number, or one that is too old for the kernels or has none.
pub fn open(index: usize) -> Result<Arc<dyn Processor>, GpuUnavailable> {
    Ok(open_all(&[index])?.swap_remove(0))
}

/// The GPUs of these numbers, each named once, as by [`open`]: they copy to each other directly, where the hardware can.
///
/// # Errors
/// As those of [`open`].
pub fn open_all(indices: &[usize]) -> Result<Vec<Arc<dyn Processor>>, GpuUnavailable> {
    let all = gpus()?;
    for index in indices {
        let gpu = all.get(*index).ok_or(GpuUnavailable::Number(*index, all.len()))?;
        if gpu.architecture < 80 {
            return Err(GpuUnavailable::Old(gpu.architecture));
        }
        if gpu.code == Code::Absent {
            return Err(GpuUnavailable::Code(gpu.architecture));
        }
    }
    #[cfg(feature = "cuda")]
    return super::cuda::open_all(indices);
    #[cfg(not(feature = "cuda"))]
    Err(GpuUnavailable::Built)
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
        let by_driver = |code| if code == 0 { Code::ByDriver } else { Code::Compiled(code) };
        assert_eq!(found, wanted.map(by_driver));
        assert_eq!(code_for(120, "80,86,89,90"), Code::ByDriver);
        assert_eq!(code_for(75, all), Code::Absent);
    }

    #[test]
    fn a_driver_loads_what_toolkits_of_its_major_version_make() {
        for (driver, toolkit, loaded) in [
            ("12.4", "13.0", false),
            ("13.0", "13.1", true),
            ("13.0", "12.8", true),
            ("11.8", "12.4", false),
        ] {
            assert_eq!(loads(numbers(driver), numbers(toolkit)), loaded, "{driver} {toolkit}");
        }
        let said = GpuUnavailable::OldDriver([12, 4], [13, 0]).to_string();
        assert!(said.contains("knows CUDA 12.4, and this program was built with CUDA 13.0"));
    }

    #[test]
    fn without_sm_80_there_is_nothing_that_a_driver_compiles() {
        assert_eq!([80, 89, 90, 100].map(|one| code_for(one, "90")), {
            [Code::Absent, Code::Absent, Code::Compiled(90), Code::Absent]
        });
        assert_eq!([86, 89, 120].map(|one| code_for(one, "86,90").architecture()), {
            [Some(86), Some(86), None]
        });
        let missing = GpuUnavailable::Code(89);
        assert!(missing.to_string().contains("sm_89"), "{missing}");
        assert!(missing.hint().contains("ANNULUS_CUDA_ARCHITECTURES"));
    }

    /// Wherever tests run, there is an answer, never a panic.
    #[test]
    fn what_is_missing_is_said() {
        match gpus() {
            Ok(all) => assert!(matches!(open(all.len()), Err(GpuUnavailable::Number(..)))),
            Err(missing) => {
                assert_eq!(open(0).unwrap_err(), missing);
                assert!(!missing.to_string().is_empty() && !missing.hint().is_empty());
            }
        }
    }
}
