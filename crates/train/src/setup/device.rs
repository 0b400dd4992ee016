//! The devices that compute: the CPU, or GPUs. The ranks of a lone process share as many as they can; of several processes on a host, each
//! has one that no other has.

use annulus_comm::World;
use annulus_experiment::{Device as Wanted, Experiment, Problems, STORES_SCORES};
use annulus_machine::Core;
use annulus_model::Config;
use annulus_ops::gpu::attention::Kernels;
use annulus_ops::gpu::untried::{self, UNTRIED};
use annulus_ops::gpu::{self, Code, GpuCapability};
use annulus_plan::devices_for;
use annulus_sequence::{Positions, Strategy};
use annulus_text::count;
use candle_core::DType;

use crate::setup::processors::{Processors, even_share};
use crate::setup::slow;
use crate::{Result, TrainError};

/// The processors that `wanted` means in this process of `world`, which has `ranks` ranks in all; none means the CPU. A lone process takes
/// as many GPUs as its ranks can share evenly.
///
/// # Errors
/// A GPU that is named but cannot be used, several that cannot be shared, and fewer GPUs than processes on this host. `auto` takes the CPU
/// instead of a GPU that cannot be used, and [`device_warning`] says so.
pub fn open_device(wanted: &Wanted, world: &World, ranks: usize) -> Result<Processors> {
    let devices = match wanted {
        _ if world.processes() > 1 => 1,
        Wanted::Cuda(numbers) if !numbers.is_empty() => numbers.len(),
        _ => even_share(visible(), ranks).max(1),
    };
    if world.processes() == 1 && !ranks.is_multiple_of(devices) {
        let word = wanted.word();
        let shared = count(ranks, "rank");
        let message = format!("`{word}`: {devices} GPUs cannot share {shared} evenly");
        let hint = Some("name as many as divide the ranks, or `cuda`".to_owned());
        return Err(TrainError::Configuration { message, hint });
    }
    open_some(wanted, world, devices)
}

/// The processors that an experiment means, as many as it is planned for.
///
/// # Errors
/// Those of [`open_device`], with the place in the file.
pub(crate) fn open_planned(experiment: &Experiment, world: &World) -> Result<Processors> {
    let Experiment { device, host, places, .. } = experiment;
    open_some(device, world, host.devices).map_err(|error| {
        let problem = places.problem("device", error.to_string());
        let hint = error.hint();
        Problems::from(match hint {
            Some(hint) => problem.hint(hint),
            None => problem,
        })
        .into()
    })
}

fn open_some(wanted: &Wanted, world: &World, devices: usize) -> Result<Processors> {
    let beside = world.beside();
    let (place, gpus) = (world.process() - beside.start, visible());
    // NCCL refuses processes that share a GPU unless this is set, which nobody does by accident.
    let shared = std::env::var("NCCL_MULTI_RANK_GPU_ENABLE").is_ok_and(|word| word == "1");
    let (place, processes) = if shared && gpus > 0 {
        (place % gpus, beside.len().min(gpus))
    } else {
        (place, beside.len())
    };
    let numbers = choice(wanted, devices, place, processes, gpus)?;
    if numbers.is_empty() {
        return Ok(Processors::default());
    }
    let refused = |missing: gpu::GpuUnavailable| {
        TrainError::configuration(
            format!("`device: {}`: {missing}", wanted.word()),
            missing.hint().to_owned(),
        )
    };
    gpu::open_all(&numbers).map(Processors::from).map_err(refused)
}

/// Sets the devices that `experiment` is planned for to those of this machine: how many, and the room of the smallest.
pub fn place_on_devices(experiment: &mut Experiment) {
    let gpus = gpu::gpus().unwrap_or_default();
    let devices = match &experiment.device {
        _ if experiment.host.processes > 1 => 1,
        Wanted::Cpu => 1,
        Wanted::Cuda(numbers) if !numbers.is_empty() => numbers.len(),
        Wanted::Auto | Wanted::Cuda(_) => devices_for(experiment, gpus.len()),
    };
    let memory = match &experiment.device {
        Wanted::Cpu => None,
        wanted => {
            wanted.numbers(devices).iter().map(|number| Some(gpus.get(*number)?.memory)).min()
        }
    };
    (experiment.host.gpu_memory, experiment.host.devices) = (memory.flatten(), devices);
}

/// How many GPUs this program can see.
fn visible() -> usize {
    gpu::gpus().map_or(0, |all| all.len())
}

/// An error for the first of these strategies that GPU kernels cannot compute, where a model attends with them; `block`: the tokens of a
/// block over which sums are to be order-free.
pub(crate) fn check_all(
    strategies: impl IntoIterator<Item = Strategy>,
    block: Option<usize>,
    config: &Config,
    processors: &Processors,
) -> Result<()> {
    let strict = block.map(|_| (config.shape.head_dim, config.dtype));
    strategies.into_iter().try_for_each(|strategy| check(strategy, strict, processors))
}

/// An error for a strategy that GPU kernels cannot compute; `strict`: head dimension and dtype, where sums are to be order-free.
pub(crate) fn check(
    strategy: Strategy,
    strict: Option<(usize, DType)>,
    processors: &Processors,
) -> Result<()> {
    let Some(processor) = processors.first() else { return Ok(()) };
    let refused = |message: String, hint: &str| Err(TrainError::configuration(message, hint));
    if strategy.stores_scores() {
        let hint = "set `device: cpu`, or `attention.strategy: ring`";
        return refused(STORES_SCORES.to_owned(), hint);
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

/// An error where one of the ranks that share a sequence has no tokens and computes on a GPU, whose driver allocates no empty tensor.
/// `shards`: the positions of each.
pub(crate) fn check_tokens(shards: &[Positions], processors: &Processors) -> Result<()> {
    if processors.device(0).is_cuda() { all_have_tokens(shards) } else { Ok(()) }
}

fn all_have_tokens(shards: &[Positions]) -> Result<()> {
    let Some(rank) = shards.iter().position(|shard| shard.tokens() == 0) else { return Ok(()) };
    let (ranks, tokens) = (shards.len(), shards.iter().map(Positions::tokens).sum::<usize>());
    Err(TrainError::configuration(
        format!(
            "rank {rank} of the {ranks} that share a sequence of {} has no tokens, which a GPU cannot compute",
            count(tokens, "token")
        ),
        "take fewer ranks for a sequence, a longer one, `mesh.weights` above 0 or a smaller `attention.stripe`; or set `device: cpu`",
    ))
}

/// The GPU that `wanted` means, of several the first; `None`: the CPU, or there is no such GPU.
pub(crate) fn gpu(wanted: &Wanted) -> Option<gpu::Gpu> {
    let index = if *wanted == Wanted::Cpu { None } else { wanted.numbers(1).first().copied() };
    gpu::gpus().ok()?.into_iter().nth(index?)
}

/// The numbers of the GPUs that a process takes, of so many that it sees: `devices` where it is alone, one where it is at `place` among
/// several `processes` of its host; none: the CPU. A number without a GPU causes the error when it is opened.
fn choice(
    wanted: &Wanted,
    devices: usize,
    place: usize,
    processes: usize,
    gpus: usize,
) -> Result<Vec<usize>> {
    let refused = |message: String, hint: &str| Err(TrainError::configuration(message, hint));
    let (word, each) = (wanted.word(), format!("{processes} processes on this host"));
    match wanted {
        Wanted::Cpu => Ok(Vec::new()),
        Wanted::Auto if gpus == 0 => Ok(Vec::new()),
        _ if processes == 1 => Ok(wanted.numbers(devices)),
        Wanted::Cuda(numbers) if numbers.len() == 1 => refused(
            format!("`device: {word}`: {each} would share it"),
            "set `device: cuda`, by which each takes another, or start one process on a host, whose ranks share its GPU",
        ),
        Wanted::Cuda(numbers) if !numbers.is_empty() => match numbers.get(place..=place) {
            Some(own) if processes <= numbers.len() => Ok(own.to_vec()),
            _ => refused(
                format!(
                    "`device: {word}`: {each} are more than the GPUs that are named, and each needs its own"
                ),
                "name one for each process, or set `device: cuda`",
            ),
        },
        Wanted::Auto | Wanted::Cuda(_) if gpus == 0 || processes <= gpus => Ok(vec![place]),
        Wanted::Auto | Wanted::Cuda(_) => refused(
            format!("`device: {word}`: {each} see {}, and each needs its own", count(gpus, "GPU")),
            "start at most as many processes on a host as it has GPUs (ranks of a process share one), let each see all \
             (CUDA_VISIBLE_DEVICES, `srun --gpu-bind=none`), or set `device: cpu`",
        ),
    }
}

/// The warning that `auto` takes the CPU though this program could use a GPU.
pub fn device_warning(wanted: &Wanted) -> Option<String> {
    let why = match gpu::gpus() {
        Ok(all) if all.is_empty() => "the NVIDIA driver lists none".to_owned(),
        Ok(_) | Err(gpu::GpuUnavailable::Built) => return None,
        Err(missing) => missing.to_string(),
    };
    (*wanted == Wanted::Auto).then(|| format!("no GPU is used: {why}"))
}

/// Describes a GPU: its data sheet's peak, where its kernels come from, and what is slow on it.
fn usable(gpu: &gpu::Gpu) -> String {
    let (memory, architecture) = (annulus_text::size(gpu.memory), gpu.architecture);
    let peak = gpu.tensor_peak().map(|peak| format!(", {:.1} TFLOP/s in bf16", peak / 1e12));
    let peak = peak.unwrap_or_default();
    format!("{}, {memory}, sm_{architecture}{peak}; {}", gpu.name, code_of(gpu))
}

/// Where the kernels of a GPU come from and what is slow, or why it cannot be used.
fn code_of(gpu: &gpu::Gpu) -> String {
    if gpu.architecture < 80 {
        return "too old: sm_80 or later is needed".to_owned();
    }
    let code = match gpu.code {
        Code::Compiled(code) => format!("kernels of sm_{code}"),
        Code::ByDriver => "the driver compiles its kernels at the first start".to_owned(),
        Code::Absent => {
            return format!(
                "no kernels for it in this program: {}",
                gpu::GpuUnavailable::Code(gpu.architecture).hint()
            );
        }
    };
    let capability =
        GpuCapability { architecture: gpu.code.architecture().unwrap_or(80), ..gpu.capability() };
    format!("{code}; {}{}", slow::of_some_heads(capability), of_untried(capability.architecture))
}

/// Which untried kernels a GPU of this architecture could be asked to use.
fn of_untried(architecture: u32) -> String {
    if !untried::there_are_for(architecture) {
        return String::new();
    }
    format!(
        "; {UNTRIED}=sm100 takes attention kernels for its tensor memory, which no GPU has run yet: test them first (kernels/README.md, `run.sh check`)"
    )
}

/// What this machine offers, as questions and answers of `annulus doctor`.
pub fn described_machine() -> Vec<(String, String)> {
    let processor = annulus_machine::processor().unwrap_or_else(|| "unknown".to_owned());
    let Core { caches, instructions } = Core::here();
    let [first, second, third] =
        [caches.first, caches.second, caches.third].map(|bytes| annulus_text::size(bytes as u64));
    let third = if caches.third == 0 { String::new() } else { format!(", {third} shared") };
    let mut lines = vec![
        ("processor".to_owned(), format!("{processor}, {} cores", annulus_machine::cores())),
        ("caches".to_owned(), format!("{first}, {second}{third}")),
        ("instructions".to_owned(), instructions.word().to_owned()),
    ];
    match gpu::gpus() {
        Ok(all) if all.is_empty() => lines.push(("GPUs".to_owned(), "none".to_owned())),
        Ok(all) => {
            let taken: Vec<String> =
                all.iter().map(|gpu| format!("rank {0} on cuda:{0}", gpu.index)).collect();
            let shared = "of more ranks neighbours share one, evenly";
            lines.extend(all.iter().map(|gpu| (format!("cuda:{}", gpu.index), usable(gpu))));
            lines.push(("device: cuda".to_owned(), format!("{}; {shared}", taken.join(", "))));
        }
        Err(missing) => {
            lines.push(("GPUs".to_owned(), format!("none: {missing} ({})", missing.hint())));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use annulus_sequence::{Layout, Mask};

    use super::*;

    fn of_all(wanted: &str, processes: usize, gpus: usize) -> Vec<Vec<usize>> {
        let wanted = Wanted::from_word(wanted).unwrap();
        let of = |place| choice(&wanted, 1, place, processes, gpus).unwrap();
        (0..processes).map(of).collect()
    }

    fn alone(wanted: &str, devices: usize, gpus: usize) -> Vec<usize> {
        choice(&Wanted::from_word(wanted).unwrap(), devices, 0, 1, gpus).unwrap()
    }

    fn refusal(wanted: &str, processes: usize, gpus: usize) -> String {
        let wanted = Wanted::from_word(wanted).unwrap();
        let all = (0..processes).map(|place| choice(&wanted, 1, place, processes, gpus));
        let mut said: Vec<String> = all
            .map(|one| one.unwrap_err())
            .map(|e| format!("{e}; {}", e.hint().unwrap()))
            .collect();
        // All processes of a host say the same things.
        said.dedup();
        assert_eq!(said.len(), 1);
        said.remove(0)
    }

    #[test]
    fn processes_of_a_host_take_a_gpu_each() {
        for wanted in ["auto", "cuda"] {
            assert_eq!(of_all(wanted, 3, 4), [[0], [1], [2]]);
            assert_eq!(of_all(wanted, 2, 2), [[0], [1]]);
        }
        assert_eq!(of_all("cuda:2,0", 2, 4), [[2], [0]]);
        assert_eq!(of_all("cuda:1-3", 2, 4), [[1], [2]]);
        assert_eq!(of_all("cpu", 3, 2), [[0; 0]; 3]);
    }

    #[test]
    fn a_process_alone_takes_as_many_as_it_is_planned_for() {
        for wanted in ["auto", "cuda"] {
            assert_eq!(alone(wanted, 1, 4), [0]);
            assert_eq!(alone(wanted, 3, 4), [0, 1, 2]);
        }
        assert_eq!(alone("cuda:3", 1, 4), [3]);
        assert_eq!(alone("cuda:3,1", 2, 4), [3, 1]);
        // A process that is alone on its host, but not in its world.
        assert_eq!(alone("cuda:3,1", 1, 4), [3]);
        assert_eq!(alone("cpu", 1, 4), [0; 0]);
    }

    #[test]
    fn without_a_gpu_auto_takes_the_cpu_and_others_are_told_why_when_they_open_it() {
        assert_eq!(of_all("auto", 3, 0), [[0; 0]; 3]);
        assert_eq!(of_all("cuda", 2, 0), [[0], [1]]);
        assert_eq!(alone("auto", 1, 0), [0; 0]);
        assert_eq!(alone("cuda:0", 1, 0), [0]);
    }

    #[test]
    fn a_gpu_is_described_with_its_peak_and_where_its_kernels_come_from() {
        let gpu = gpu::Gpu {
            index: 0,
            name: "NVIDIA H200".to_owned(),
            memory: 139 << 30,
            architecture: 90,
            shared_memory: 227 << 10,
            code: Code::Compiled(90),
        };
        let said = usable(&gpu);
        assert!(
            said.starts_with("NVIDIA H200, 139.0 GiB, sm_90, 989.4 TFLOP/s in bf16; "),
            "{said}"
        );
        assert!(said.contains("; kernels of sm_90; "), "{said}");
        let said = usable(&gpu::Gpu { code: Code::ByDriver, ..gpu.clone() });
        assert!(said.contains("the driver compiles its kernels"), "{said}");
        let said = usable(&gpu::Gpu { name: "Other".to_owned(), code: Code::Absent, ..gpu });
        assert!(said.starts_with("Other, 139.0 GiB, sm_90; no kernels for it"), "{said}");
    }

    #[test]
    fn a_rank_without_tokens_is_refused_on_a_gpu_alone() {
        let shards = |weights: &[usize], tokens| {
            Layout::Contiguous.shard_weighted(&Mask::full(), tokens, weights).unwrap()
        };
        assert!(all_have_tokens(&shards(&[1, 2], 6)).is_ok());
        let error = all_have_tokens(&shards(&[1, 0, 1], 6)).unwrap_err();
        let said = "rank 1 of the 3 that share a sequence of 6 tokens has no tokens";
        assert!(error.to_string().contains(said), "{error}");
        assert!(error.hint().unwrap().contains("`mesh.weights` above 0"));
        // A prompt that is shorter than there are ranks.
        let error = all_have_tokens(&shards(&[1, 1], 1)).unwrap_err();
        assert!(error.to_string().contains("a sequence of 1 token has"), "{error}");
        // The CPU takes it, and so does the emulator.
        assert!(check_tokens(&shards(&[1, 0], 6), &Processors::default()).is_ok());
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
        let said = refusal("cuda:0-1", 3, 4);
        assert!(said.starts_with("`device: cuda:0,1`: 3 processes"), "{said}");
    }
}
