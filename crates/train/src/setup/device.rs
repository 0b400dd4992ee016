//! What computes: the CPU, or a GPU that all ranks of this process share and no other process of its host has.

use std::sync::Arc;

use annulus_comm::World;
use annulus_experiment::Device as Wanted;
use annulus_machine::Core;
use annulus_ops::gpu::attention::Kernels;
use annulus_ops::gpu::{self, Processor};
use annulus_sequence::Strategy;
use candle_core::{DType, Device};

use crate::setup::slow;
use crate::{Result, TrainError};

/// What runs kernels for `wanted` in this process of `world`; none: the CPU.
///
/// # Errors
/// When a GPU is asked for by name and cannot be used; `auto` takes the CPU then, and [`warning`] says so. Where GPUs are fewer than
/// the processes on this host.
pub fn open(wanted: Wanted, world: &World) -> Result<Option<Arc<dyn Processor>>> {
    let beside = world.beside();
    let place = world.process() - beside.start;
    let gpus = gpu::gpus().map_or(0, |all| all.len());
    let Some(index) = choice(wanted, place, beside.len(), gpus)? else { return Ok(None) };
    let refused = |missing: gpu::Missing| TrainError::Configuration {
        message: format!("`device: {}`: {missing}", wanted.word()),
        hint: Some(missing.hint().to_owned()),
    };
    gpu::open(index).map(Some).map_err(refused)
}

/// Refuses what kernels of a GPU do not compute; `strict`: heads of so many elements in a type whose sums are to be order-free.
pub(crate) fn check(
    strategy: Strategy,
    strict: Option<(usize, DType)>,
    processor: Option<&Arc<dyn Processor>>,
) -> Result<()> {
    let Some(processor) = processor else { return Ok(()) };
    let refused =
        |message, hint: &str| Err(TrainError::Configuration { message, hint: Some(hint.into()) });
    if strategy == Strategy::LiRing {
        let message = "`li-ring` keeps scores, which no kernel of a GPU does".to_owned();
        return refused(message, "set `device: cpu`, or `attention.strategy: ring`");
    }
    let Some((heads, dtype)) = strict else { return Ok(()) };
    let longest = Kernels::longest_in_blocks(&**processor, dtype);
    if heads <= longest {
        return Ok(());
    }
    let message = format!(
        "`reproducible: strict` takes heads of at most {longest} elements on this GPU, found {heads}"
    );
    refused(message, "set `device: cpu`")
}

/// Bytes of the [`gpu`] that `wanted` means.
pub fn memory(wanted: Wanted) -> Option<u64> {
    gpu(wanted).map(|gpu| gpu.memory)
}

/// The GPU that `wanted` means, of several processes that of the first; none: the CPU, or there is no such GPU.
pub(crate) fn gpu(wanted: Wanted) -> Option<gpu::Gpu> {
    let index = match wanted {
        Wanted::Cpu => return None,
        Wanted::Auto | Wanted::Cuda(None) => 0,
        Wanted::Cuda(Some(index)) => index,
    };
    gpu::gpus().ok()?.into_iter().nth(index)
}

/// The number of the GPU that the process at `place` among the `processes` of its host takes, of so many that it sees; none: the
/// CPU. A number that there is none of says why when it is opened.
fn choice(wanted: Wanted, place: usize, processes: usize, gpus: usize) -> Result<Option<usize>> {
    let refused =
        |message, hint| Err(TrainError::Configuration { message, hint: Some(String::from(hint)) });
    match wanted {
        Wanted::Cpu => Ok(None),
        Wanted::Auto if gpus == 0 => Ok(None),
        Wanted::Cuda(Some(index)) if processes == 1 => Ok(Some(index)),
        Wanted::Cuda(Some(_)) => refused(
            format!(
                "`device: {}`: {processes} processes on this host would share it",
                wanted.word()
            ),
            "set `device: cuda`, by which each takes another, or start one process on a host, whose ranks share its GPU",
        ),
        Wanted::Auto | Wanted::Cuda(None) if gpus == 0 || processes <= gpus => Ok(Some(place)),
        Wanted::Auto | Wanted::Cuda(None) => refused(
            format!(
                "`device: {}`: {processes} processes on this host see {gpus} GPU{}, and each needs its own",
                wanted.word(),
                if gpus == 1 { "" } else { "s" },
            ),
            "start at most as many processes on a host as it has GPUs (ranks of a process share one), let each see all \
             (CUDA_VISIBLE_DEVICES, `srun --gpu-bind=none`), or set `device: cpu`",
        ),
    }
}

/// What to say where `auto` takes the CPU though this program could use a GPU.
pub fn warning(wanted: Wanted) -> Option<String> {
    let why = match gpu::gpus() {
        Ok(all) if all.is_empty() => "the NVIDIA driver lists none".to_owned(),
        Ok(_) | Err(gpu::Missing::Built) => return None,
        Err(missing) => missing.to_string(),
    };
    (wanted == Wanted::Auto).then(|| format!("no GPU is used: {why}"))
}

/// Where tensors live.
pub(crate) fn of(processor: Option<&Arc<dyn Processor>>) -> Device {
    processor.map_or(Device::Cpu, |processor| processor.device().clone())
}

/// What this machine offers, as `annulus doctor` lists it: what is asked about, and the answer.
pub fn described() -> Vec<(String, String)> {
    let processor = annulus_machine::processor().unwrap_or_else(|| "unknown".to_owned());
    let Core { caches, instructions } = Core::here();
    let [first, second, third] =
        [caches.first, caches.second, caches.third].map(|bytes| annulus_plan::size(bytes as u64));
    let third = if caches.third == 0 { String::new() } else { format!(", {third} shared") };
    let mut lines = vec![
        ("processor".to_owned(), format!("{processor}, {} cores", annulus_machine::cores())),
        ("caches".to_owned(), format!("{first}, {second}{third}")),
        ("instructions".to_owned(), instructions.word().to_owned()),
    ];
    match gpu::gpus() {
        Ok(all) if all.is_empty() => lines.push(("GPUs".to_owned(), "none".to_owned())),
        Ok(all) => lines.extend(all.into_iter().map(|gpu| {
            let memory = annulus_plan::size(gpu.memory);
            let usable = if gpu.architecture < 80 {
                "too old: sm_80 or later is needed".to_owned()
            } else {
                slow::of_some_heads(gpu.room())
            };
            let what = format!("{}, {memory}, sm_{}; {usable}", gpu.name, gpu.architecture);
            (format!("cuda:{}", gpu.index), what)
        })),
        Err(missing) => {
            lines.push(("GPUs".to_owned(), format!("none: {missing} ({})", missing.hint())));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_all(wanted: &str, processes: usize, gpus: usize) -> Vec<Option<usize>> {
        let wanted = Wanted::from_word(wanted).unwrap();
        (0..processes).map(|place| choice(wanted, place, processes, gpus).unwrap()).collect()
    }

    fn refusal(wanted: &str, processes: usize, gpus: usize) -> String {
        let wanted = Wanted::from_word(wanted).unwrap();
        let all = (0..processes).map(|place| choice(wanted, place, processes, gpus));
        let mut said: Vec<String> = all
            .map(|one| one.unwrap_err())
            .map(|e| format!("{e}; {}", e.hint().unwrap()))
            .collect();
        // All processes of a host say the same.
        said.dedup();
        assert_eq!(said.len(), 1);
        said.remove(0)
    }

    #[test]
    fn processes_of_a_host_take_a_gpu_each() {
        for wanted in ["auto", "cuda"] {
            assert_eq!(of_all(wanted, 1, 4), [Some(0)]);
            assert_eq!(of_all(wanted, 3, 4), [Some(0), Some(1), Some(2)]);
            assert_eq!(of_all(wanted, 2, 2), [Some(0), Some(1)]);
        }
        assert_eq!(of_all("cuda:3", 1, 4), [Some(3)]);
        assert_eq!(of_all("cpu", 3, 2), [None; 3]);
    }

    #[test]
    fn without_a_gpu_auto_takes_the_cpu_and_others_are_told_why_when_they_open_it() {
        assert_eq!(of_all("auto", 3, 0), [None; 3]);
        assert_eq!(of_all("cuda", 2, 0), [Some(0), Some(1)]);
        assert_eq!(of_all("cuda:0", 1, 0), [Some(0)]);
    }

    #[test]
    fn no_two_processes_share_a_gpu() {
        for wanted in ["auto", "cuda"] {
            let said = refusal(wanted, 4, 1);
            assert!(said.starts_with(&format!("`device: {wanted}`: 4 processes")), "{said}");
            assert!(said.contains("see 1 GPU, and") && said.contains("`device: cpu`"), "{said}");
        }
        assert!(refusal("cuda", 3, 2).contains("see 2 GPUs, and"));
        let said = refusal("cuda:1", 2, 4);
        assert!(said.starts_with("`device: cuda:1`: 2 processes"), "{said}");
        assert!(said.contains("set `device: cuda`,"), "{said}");
    }
}
