//! Which attention kernels there are, from the one list that C++ and Rust read: `kernels/attention/table.h`.

use std::sync::LazyLock;

use candle_core::{DType, Error, Result};

use super::{Launch, Processor, untried};

/// Generations of attention kernels, by the GPU that they are written for; slowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Generation {
    /// Plain loops, any head dimension: what the others are held to.
    Reference,
    /// Blocks in shared memory, f32 products without tensor cores.
    Simt,
    /// Tensor cores by `mma.sync`, from sm_80 on.
    Sm80,
    /// Tensor cores by `wgmma`, fetched by TMA: sm_90a.
    Sm90,
    /// Tensor cores by `tcgen05`, whose sums lie in tensor memory: sm_100 and sm_103.
    Sm100,
}

/// What a kernel of a generation computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Pass {
    /// Folds tiles into the running state.
    Forward,
    /// All three gradients at once; that of the queries by atomic additions.
    Backward,
    /// All three gradients at once; blocks of keys add to that of the queries in turn.
    InTurn,
    /// The gradients of keys and values alone.
    Keys,
    /// The gradient of the queries alone, in a fixed order.
    Queries,
    /// Folds tiles into order-free sums.
    StrictForward,
    /// The order-free sums of the gradients of keys and values.
    StrictKeys,
    /// The order-free sums of the gradient of the queries.
    StrictQueries,
}

/// A kernel of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kernel {
    pub(super) name: String,
    /// None: a kernel between passes, found by its name.
    pub(super) task: Option<(Pass, Generation)>,
    pub(super) dtype: DType,
    /// Head dimension; 0: any.
    pub(super) dim: usize,
    /// Queries of a block.
    pub(super) query_block: usize,
    /// Keys of a block.
    pub(super) key_block: usize,
    pub(super) threads: u32,
    /// Bytes of shared memory of a thread block.
    pub(super) shared: u32,
}

static KERNELS: LazyLock<Vec<Kernel>> = LazyLock::new(|| {
    let lines = include_str!("../../../../kernels/attention/table.h").lines();
    lines.filter_map(|line| line.trim().strip_prefix("ATTENTION(")).map(Kernel::read).collect()
});

/// All of the list.
pub(super) fn kernels() -> &'static [Kernel] {
    &KERNELS
}

/// The fastest kernel for heads of `dim` in `dtype` that the GPU runs, of at most `generation`. If no tensor-core kernel has exactly this
/// head dimension, the next larger one is used. Among block sizes, the largest that fits into shared memory. By default only generations
/// that have run on a GPU ([`untried`]).
pub(super) fn kernel(
    pass: Pass,
    dtype: DType,
    dim: usize,
    on: GpuCapability,
    generation: Option<Generation>,
) -> Option<&'static Kernel> {
    let highest = generation.unwrap_or_else(untried::highest);
    let fits = |kernel: &&Kernel| {
        kernel.dtype == dtype
            && kernel.takes(dim)
            && kernel.shared <= on.shared
            && kernel.task.is_some_and(|(own, its)| {
                own == pass && its.runs_on(on.architecture) && its <= highest
            })
    };
    let rank = |kernel: &&Kernel| {
        let generation = kernel.task.map(|(_, generation)| generation);
        (generation, std::cmp::Reverse(kernel.dim), kernel.shared)
    };
    KERNELS.iter().filter(fits).max_by_key(rank)
}

/// Compute capability and shared memory of a GPU: what selects its kernels.
#[derive(Clone, Copy, Debug)]
pub struct GpuCapability {
    /// As [`Processor::architecture`] says.
    pub architecture: u32,
    /// Bytes of shared memory of a thread block.
    pub shared: u32,
}

impl GpuCapability {
    /// Those of `processor`.
    pub fn of(processor: &dyn Processor) -> GpuCapability {
        GpuCapability { architecture: processor.architecture(), shared: processor.shared_memory() }
    }
}

/// A kernel between passes: `prepare`, `finish` or `finish_queries`, by how it finds its rows.
pub(super) fn between(step: &str, order: &str, dtype: DType) -> Result<&'static Kernel> {
    let name = format!("attention_{step}_{order}_{}_any_", element_name(dtype)?);
    let found = KERNELS.iter().find(|kernel| kernel.name.starts_with(&name));
    found.ok_or_else(|| Error::Msg(format!("no kernel `{name}`")))
}

impl Kernel {
    /// Whether it takes heads of `dim`: fewer columns than it is made for where it fetches them 16 bytes at a time, or one by one.
    fn takes(&self, dim: usize) -> bool {
        match self.task {
            Some((Pass::StrictForward | Pass::StrictKeys | Pass::StrictQueries, _)) => {
                dim <= self.dim
            }
            Some((_, generation)) if generation >= Generation::Sm80 => {
                dim <= self.dim && dim.is_multiple_of(8)
            }
            _ => self.dim == dim || self.dim == 0,
        }
    }

    /// Columns of the sums it makes for heads of `dim`.
    pub(super) fn columns(&self, dim: usize) -> usize {
        if self.dim == 0 { dim } else { self.dim }
    }

    /// How it is started over `grid` thread blocks.
    pub(super) fn launch(&self, grid: [usize; 3]) -> Result<Launch<'_>> {
        Launch::new(&self.name, grid, self.threads, self.shared)
    }

    /// The thread blocks for `items`, blocks of rows by heads by batch rows (and tiles): one for each, or as many as run side by
    /// side where they go from item to item, so that one item's first loads run beside the last products of another.
    pub(super) fn blocks_for(&self, items: [usize; 3], processor: &dyn Processor) -> [usize; 3] {
        match self.task {
            Some((Pass::Forward | Pass::Queries, Generation::Sm90 | Generation::Sm100)) => {
                let count = items.into_iter().product::<usize>();
                [count.min(processor.multiprocessors()), 1, 1]
            }
            Some((Pass::Backward | Pass::InTurn | Pass::Keys, generation))
                if generation >= Generation::Sm90 =>
            {
                [items.into_iter().product(), 1, 1]
            }
            _ => items,
        }
    }

    /// Whether it overwrites the sums of fresh tiles instead of adding to zeros. Forward then also writes final results, where no tiles
    /// follow.
    pub(super) fn initializes_sums(&self) -> bool {
        self.uses_tma()
    }

    /// Whether tiles are loaded by TMA, through tensor maps. These kernels do not support attention dropout.
    pub(super) fn uses_tma(&self) -> bool {
        self.task.is_some_and(|(_, generation)| generation >= Generation::Sm90)
    }

    /// Whether it finds a few tiles in its arguments.
    pub(super) fn takes_few_tiles(&self) -> bool {
        !matches!(self.task, Some((_, Generation::Sm80)))
    }

    /// Whether keys stay in it and queries are visited, or the reverse.
    pub(super) fn keeps_keys(&self) -> bool {
        let keep = [Pass::Backward, Pass::InTurn, Pass::Keys, Pass::StrictKeys];
        self.task.is_some_and(|(pass, _)| keep.contains(&pass))
    }

    /// Whether its thread blocks take turns.
    pub(super) fn is_in_turn(&self) -> bool {
        matches!(self.task, Some((Pass::InTurn, _)))
    }

    /// Whether it looks at what queries see: those of sm90 look at what stays alone.
    pub(super) fn reads_queries(&self) -> bool {
        !(self.keeps_keys() && self.uses_tma())
    }

    /// In which order it leaves the gradient of queries.
    pub(super) fn order_of_queries(&self) -> &'static str {
        match self.task {
            Some((_, Generation::Sm80)) => "fragments",
            Some((_, Generation::Sm90)) => "lanes",
            Some((_, Generation::Sm100)) => "columns",
            _ => "rows",
        }
    }

    /// `pass, generation, type, dim, query block, key block, threads, blocks per multiprocessor, shared bytes)`
    fn read(line: &str) -> Kernel {
        let inside = line.split(')').next().unwrap_or_default();
        let words: Vec<&str> = inside.split(',').map(str::trim).collect();
        let &[pass, generation, element, dim, query_block, key_block, threads, _, shared] = &*words
        else {
            panic!("a line of kernels/attention/table.h without nine fields: {line}");
        };
        let number = |word: &str| word.parse::<usize>().expect("a literal number in table.h");
        Kernel {
            name: format!(
                "attention_{pass}_{generation}_{element}_{dim}_{query_block}x{key_block}"
            ),
            task: Pass::read(pass).zip(Generation::read(generation)),
            dtype: element_type(element),
            dim: dim.strip_prefix('d').map_or(0, number),
            query_block: number(query_block),
            key_block: number(key_block),
            threads: number(threads) as u32,
            shared: number(shared) as u32,
        }
    }
}

impl Pass {
    fn read(word: &str) -> Option<Pass> {
        match word {
            "forward" => Some(Pass::Forward),
            "backward" => Some(Pass::Backward),
            "backward_in_turn" => Some(Pass::InTurn),
            "backward_keys" => Some(Pass::Keys),
            "backward_queries" => Some(Pass::Queries),
            "strict_forward" => Some(Pass::StrictForward),
            "strict_keys" => Some(Pass::StrictKeys),
            "strict_queries" => Some(Pass::StrictQueries),
            _ => None,
        }
    }
}

impl Generation {
    const ALL: [Generation; 5] = [
        Generation::Reference,
        Generation::Simt,
        Generation::Sm80,
        Generation::Sm90,
        Generation::Sm100,
    ];

    /// The name of its kernels.
    pub fn word(self) -> &'static str {
        match self {
            Generation::Reference => "reference",
            Generation::Simt => "simt",
            Generation::Sm80 => "sm80",
            Generation::Sm90 => "sm90",
            Generation::Sm100 => "sm100",
        }
    }

    fn read(word: &str) -> Option<Generation> {
        Generation::ALL.into_iter().find(|one| one.word() == word)
    }

    /// Whether a GPU of this architecture runs its kernels: the instructions of sm_90a are of that one alone, those of sm_100 of its
    /// family.
    pub fn runs_on(self, architecture: u32) -> bool {
        match self {
            Generation::Reference | Generation::Simt | Generation::Sm80 => architecture >= 80,
            Generation::Sm90 => architecture == 90,
            Generation::Sm100 => architecture == 100 || architecture == 103,
        }
    }
}

fn element_type(word: &str) -> DType {
    match word {
        "bf16" => DType::BF16,
        "f16" => DType::F16,
        "f32" => DType::F32,
        other => panic!("element `{other}` in kernels/attention/table.h"),
    }
}

/// How kernels name a type.
pub(super) fn element_name(dtype: DType) -> Result<&'static str> {
    match dtype {
        DType::F32 => Ok("f32"),
        DType::BF16 => Ok("bf16"),
        DType::F16 => Ok("f16"),
        other => Err(Error::Msg(format!("no CUDA kernel takes {other:?}"))),
    }
}

#[cfg(test)]
mod tests;
