//! The sections `mesh`, `parallel` and `memory`: the ranks, how the state is sharded, and what ranks may hold.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use annulus_yaml::Absent::{Is, Means};
use annulus_yaml::Kind::{Bytes, Count, Counts, Path, Seconds, Tokens, Truth, Word, WordOr};
use annulus_yaml::{section, words};

use crate::data::MOST_TOKENS;

section! {
    /// The section `mesh`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Mesh {
        data: usize = Count(1, 1 << 12), Is("1"), "data-parallel replicas";
        sequence: usize = Count(1, 1 << 14), Is("1"), "context-parallel ranks of a sequence";
        tensor: usize = Count(1, 1 << 8), Is("1"),
            "tensor-parallel ranks: each has a part of every layer's heads and feed-forward, of the vocabulary, and of the rows between layers. Must divide the KV heads, `intermediate_size` and the tokens of every shard. Training only; other commands run without it";
        order: Order = Word(Order::WORDS), Is("sequence_first"),
            "which ranks are neighbours, and so on one host before others (tensor-parallel ranks always are): sequence_first: those that share a sequence; data_first: those that have the same part of different sequences. Results are bit-identical";
        engine: Engine = Word(Engine::WORDS), Is("auto"),
            "communication backend between processes: nccl: NCCL, between GPUs, with one rank and one GPU per process; MPI still starts the processes and carries small control messages (`libnccl.so.2` of the system, of a Python environment, or the one that `ANNULUS_NCCL` names). mpi: MPI. auto: NCCL where all processes can, else MPI; `train` says which. Results are bit-identical";
        weights: Option<Vec<usize>> = Counts(0, 1 << 16), Means("all ranks alike"),
            "relative sizes of the shards, one number for each rank of a sequence";
        deadline: Duration = Seconds, Is("60s"), "how long a rank waits for another that makes no progress";
        checksum: bool = Truth, Is("false"),
            "verify a checksum of every tensor sent between ranks; a mismatch ends the run with exit code 14";
        cluster: Option<PathBuf> = Path, Means("the threads of this machine"),
            "the file of the cluster that `strategy: auto` chooses for";
    }
}

impl Mesh {
    /// The number of ranks of the run.
    pub fn ranks(&self) -> usize {
        self.data.saturating_mul(self.sequence).saturating_mul(self.tensor)
    }

    /// The ranks of replica number `replica`, one at each place of a sequence: with tensor parallelism the first one there.
    pub fn replica(&self, replica: usize) -> Replica {
        let (first, step) = match self.order {
            Order::SequenceFirst => (replica * self.sequence, 1),
            Order::DataFirst => (replica, self.data),
        };
        Replica { first: first * self.tensor, step: step * self.tensor, places: self.sequence }
    }

    /// The ranks that share a sequence with `rank` and have the same tensor-parallel part.
    pub fn beside(&self, rank: usize) -> Replica {
        let replica = self.replica(self.replica_of(rank));
        Replica { first: replica.first + rank % self.tensor, ..replica }
    }

    /// The number of the replica that `rank` belongs to.
    pub fn replica_of(&self, rank: usize) -> usize {
        match self.order {
            Order::SequenceFirst => rank / self.tensor / self.sequence,
            Order::DataFirst => rank / self.tensor % self.data,
        }
    }

    /// The place of `rank` in its sequence: which shard of positions it holds.
    pub fn place_of(&self, rank: usize) -> usize {
        match self.order {
            Order::SequenceFirst => rank / self.tensor % self.sequence,
            Order::DataFirst => rank / self.tensor / self.data,
        }
    }
}

/// The key `order`: which ranks are neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Ranks that share a sequence are neighbours.
    SequenceFirst,
    /// Ranks at the same place of different sequences are neighbours.
    DataFirst,
}

words!(Order { SequenceFirst = "sequence_first", DataFirst = "data_first" });

/// The key `engine`: what carries tensors between processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// NCCL where all processes can use it, else MPI.
    Auto,
    /// MPI.
    Mpi,
    /// NCCL.
    Nccl,
}

words!(Engine { Auto = "auto", Mpi = "mpi", Nccl = "nccl" });

/// The ranks that share a sequence, one at each place; with tensor parallelism those of one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica {
    /// The rank at place 0.
    pub first: usize,
    /// The distance between the numbers of neighbouring ranks.
    pub step: usize,
    /// The number of places, so of ranks.
    pub places: usize,
}

impl Replica {
    /// The rank at `place`.
    pub fn rank(self, place: usize) -> usize {
        self.first + place * self.step
    }

    /// All ranks of the replica, in the order of places.
    pub fn ranks(self) -> impl ExactSizeIterator<Item = usize> + Clone {
        (0..self.places).map(move |place| self.rank(place))
    }

    /// The places whose ranks are in `ranks`; they are neighbours.
    pub fn places_in(self, ranks: Range<usize>) -> Range<usize> {
        let before = |rank: usize| rank.saturating_sub(self.first).div_ceil(self.step);
        before(ranks.start).min(self.places)..before(ranks.end).min(self.places)
    }
}

section! {
    /// The section `parallel`: how the state is sharded.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Parallel {
        state: State = Word(State::WORDS), Is("auto"),
            "sharding of the state over processes, or over the GPUs of one process (the ranks of a process, or of a GPU, share \
             one copy in any case); replicated: none; zero1: f32 masters and moments; zero2: the same, because gradients are \
             always reduce-scattered; zero3: weights too, gathered part by part before they are used; auto: the first of \
             replicated, zero1 and zero3 that fits into the budget, without recomputation if one does; on a described cluster \
             the fastest that fits, or the first within 1 % of it; among equally fast ones, the one with the least memory. Results \
             are bit-identical";
        state_axes: StateAxes = Word(StateAxes::WORDS), Is("all"),
            "mesh axes over which the state is sharded; all: both; sequence: over the processes of one sequence, replicated \
             along data; data: over the replicas, replicated along sequence (hybrid sharding, as HSDP: gathers stay on a host \
             where the processes of the axis do). Results are bit-identical";
    }
}

/// The key `state_axes`: the mesh axes over which the state is sharded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateAxes {
    /// Over all processes.
    All,
    /// Over the processes whose ranks share a sequence.
    Sequence,
    /// Over the processes whose ranks hold the same shard of different sequences.
    Data,
}

words!(StateAxes { All = "all", Sequence = "sequence", Data = "data" });

/// The key `state`: what of the state is sharded over processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The plan chooses the first of the others that fits into the budget.
    Auto,
    /// Every process holds all of the state.
    Replicated,
    /// Every process holds all weights, and a shard of masters and moments.
    Zero1,
    /// As `Zero1`, because gradients are reduce-scattered in any case.
    Zero2,
    /// Every process holds a shard of weights, masters and moments.
    Zero3,
}

words!(State { Auto = "auto", Replicated = "replicated", Zero1 = "zero1", Zero2 = "zero2", Zero3 = "zero3" });

impl State {
    /// Whether masters and moments are sharded.
    pub fn shards_optimizer(self) -> bool {
        matches!(self, State::Zero1 | State::Zero2 | State::Zero3)
    }

    /// Whether weights are sharded.
    pub fn shards_weights(self) -> bool {
        self == State::Zero3
    }
}

section! {
    /// The section `memory`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Memory {
        recompute: Recompute = Word(Recompute::WORDS), Is("auto"),
            "activation checkpointing: what backward recomputes; layer: all of a layer but attention, whose output is kept; auto: none if that fits into the budget, sharding the state if needed; else layer";
        budget: Option<u64> = Bytes(1),
            Means("three quarters of its memory"),
            "the most memory that the ranks of a device may hold together; the device is this machine, each of its GPUs, or each device of a described cluster";
        offload: Offload = WordOr(Offload::WORDS, to_host), Is("none"),
            "what is offloaded until it is needed, from GPUs to page-locked memory of the host, else to disk: activations: those that layers keep for backward; optimizer: AdamW's moments";
        offload_folder: Option<PathBuf> = Path, Means("on GPUs no folder, but the memory of the host; on CPUs `offload` in the folder of the run"),
            "a folder for what is offloaded, on a local disk with room for it; its files are unlinked and vanish when the process ends";
        micro_batch: Option<usize> = Count(1, 1 << 20), Means("all of a replica's sequences"),
            "sequences computed at once; the rest of a batch is accumulated (gradient accumulation)";
        loss_chunk: Option<usize> = Tokens(1, MOST_TOKENS), Means("on CPUs 1024, or 128 where that does not fit into the budget; on GPUs 4096, 1024 or 128"),
            "tokens per chunk of the loss";
        mlp_chunk: Option<usize> = Tokens(1, MOST_TOKENS),
            Means("all, or of 8192, 4096, 2048 and 1024 the first that fits into the budget"),
            "tokens per chunk of the feed-forward layer";
    }
}

/// The key `offload`: what is offloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Nothing: everything stays in memory.
    None,
    /// The activations that layers but the last keep for backward.
    Activations,
    /// AdamW's moments.
    Optimizer,
    /// Activations and moments.
    Both,
}

/// The way out of `cpu` and `true`, which other programs have.
fn to_host(word: &str) -> Option<String> {
    let hint = "`activations`, `optimizer` or `both`: from a GPU they go to the memory of its host unless `memory.offload_folder` names a folder";
    matches!(word, "cpu" | "true").then(|| String::from(hint))
}

words!(Offload { None = "none", Activations = "activations", Optimizer = "optimizer", Both = "both" });

/// Where a rank offloads tensors to: a folder, or from a GPU the memory of its host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OffloadPlace {
    /// A folder: that of `memory.offload_folder`, or one in the folder of the run.
    pub folder: PathBuf,
    /// Whether the experiment names it.
    pub is_written: bool,
}

impl OffloadPlace {
    /// The folder to which a rank offloads from a GPU, or from this machine's own memory; `None`: to page-locked memory of the GPU's host.
    pub fn folder(&self, from_gpu: bool) -> Option<&std::path::Path> {
        (self.is_written || !from_gpu).then_some(&self.folder)
    }
}

impl Offload {
    /// Whether activations are offloaded.
    pub fn activations(self) -> bool {
        matches!(self, Offload::Activations | Offload::Both)
    }

    /// Whether AdamW's moments are offloaded.
    pub fn optimizer(self) -> bool {
        matches!(self, Offload::Optimizer | Offload::Both)
    }
}

/// The key `recompute`: activation checkpointing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recompute {
    /// The plan chooses: nothing is recomputed where everything fits into the budget.
    Auto,
    /// All activations are kept.
    None,
    /// A layer keeps only its input and attention's output.
    Layer,
}

words!(Recompute { Auto = "auto", None = "none", Layer = "layer" });
