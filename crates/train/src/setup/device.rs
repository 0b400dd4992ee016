//! What computes: the CPU, or a GPU that all ranks of this process share.

use std::sync::Arc;

use annulus_experiment::Device as Wanted;
use annulus_machine::Core;
use annulus_ops::gpu::{self, Processor};
use annulus_sequence::Strategy;
use candle_core::Device;

use crate::{Result, TrainError};

/// What runs kernels for `wanted`; none: the CPU.
///
/// # Errors
/// When a GPU is asked for by name and cannot be used. `auto` takes the CPU then, and [`warning`] says so.
pub fn open(wanted: Wanted) -> Result<Option<Arc<dyn Processor>>> {
    let usable = wanted != Wanted::Auto || memory(wanted).is_some();
    let Some(index) = index(wanted).filter(|_| usable) else { return Ok(None) };
    let refused = |missing: gpu::Missing| TrainError::Configuration {
        message: format!("`device: {}`: {missing}", wanted.word()),
        hint: Some(missing.hint().to_owned()),
    };
    gpu::open(index).map(Some).map_err(refused)
}

/// Refuses what kernels of a GPU do not compute.
pub(crate) fn check(strategy: Strategy, processor: Option<&Arc<dyn Processor>>) -> Result<()> {
    if processor.is_none() || strategy != Strategy::LiRing {
        return Ok(());
    }
    Err(TrainError::Configuration {
        message: "`li-ring` keeps scores, which no kernel of a GPU does".to_owned(),
        hint: Some("set `device: cpu`, or `attention.strategy: ring`".to_owned()),
    })
}

/// Bytes of the GPU that `wanted` means; none: the CPU, or there is no such GPU.
pub fn memory(wanted: Wanted) -> Option<u64> {
    gpu::gpus().ok()?.get(index(wanted)?).map(|gpu| gpu.memory)
}

/// The number of the GPU that `wanted` means; none: the CPU.
fn index(wanted: Wanted) -> Option<usize> {
    match wanted {
        Wanted::Cpu => None,
        Wanted::Auto => Some(0),
        Wanted::Cuda(index) => Some(index),
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
            let usable =
                if gpu.architecture < 80 { "; too old: sm_80 or later is needed" } else { "" };
            let what = format!("{}, {memory}, sm_{}{usable}", gpu.name, gpu.architecture);
            (format!("cuda:{}", gpu.index), what)
        })),
        Err(missing) => {
            lines.push(("GPUs".to_owned(), format!("none: {missing} ({})", missing.hint())));
        }
    }
    lines
}
