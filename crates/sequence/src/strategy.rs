//! Strategies by name, and the schedules that they generate.

mod all_gather;
mod broadcast;
mod double_ring;
mod error;
mod halo;
mod li_ring;
mod ring;
mod routes;
mod split;
mod torus;
mod variants;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use all_gather::Gather;
use broadcast::Broadcast;
use double_ring::Rings;
use halo::Halo;

use crate::positions::common_divisor;
use crate::schedules::GENERATED;
use crate::{Generator, Heads, Layout, Mask, Pass, Schedule, ShardError};
pub use error::StrategyError;
pub use routes::{Exchange, Route};
pub use split::Split;

/// A way to split attention over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// One rank: the reference.
    Local,
    /// Ring Attention: contiguous chunks; keys and values travel round a ring.
    Ring,
    /// Striped Attention: the same ring over stripes.
    Striped {
        /// Neighbouring positions per stripe, 1 in the paper.
        width: usize,
    },
    /// Megatron context parallelism: zigzag chunks, with one of four exchanges.
    Megatron {
        /// The exchange.
        exchange: Exchange,
    },
    /// DeepSpeed-Ulysses: contiguous chunks, heads exchanged for positions and back.
    Ulysses,
    /// Heads exchanged for positions within groups of ranks, and a ring of zigzag chunks between groups.
    Usp {
        /// The number of ranks per group, and of groups; `None`: groups as large as the KV heads can be split over.
        shape: Option<[usize; 2]>,
    },
    /// A ring inside every node and a ring of nodes, over zigzag chunks.
    DoubleRing {
        /// The numbers of nodes and of ranks per node; `None`: about as many nodes as ranks per node, or more.
        shape: Option<[usize; 2]>,
    },
    /// Contiguous chunks; keys and values are gathered.
    AllGather {
        /// The number of groups of KV heads, which are gathered one after another.
        groups: usize,
    },
    /// Contiguous chunks; one rank's keys and values after another's are broadcast: the naive baseline.
    Broadcast,
    /// Contiguous chunks, of which only the rows that others see are sent: for windows.
    Halo,
    /// Contiguous chunks; keys travel round, then values, while scores are kept: Li et al.'s baseline.
    LiRing,
}

impl Strategy {
    /// All strategies, each as its bare name means it, in the order of the documentation.
    pub const ALL: [Strategy; 11] = [
        Strategy::Local,
        Strategy::Ring,
        Strategy::STRIPED,
        Strategy::MEGATRON,
        Strategy::Ulysses,
        Strategy::USP,
        Strategy::DOUBLE_RING,
        Strategy::ALL_GATHER,
        Strategy::Broadcast,
        Strategy::Halo,
        Strategy::LiRing,
    ];
    /// The strategy `striped` with stripes of one position.
    pub const STRIPED: Strategy = Strategy::Striped { width: 1 };
    /// The strategy `megatron` with a ring.
    pub const MEGATRON: Strategy = Strategy::Megatron { exchange: Exchange::PointToPoint };
    /// The strategy `usp` in the shape that its heads suggest.
    pub const USP: Strategy = Strategy::Usp { shape: None };
    /// The strategy `double-ring` with about as many nodes as ranks per node.
    pub const DOUBLE_RING: Strategy = Strategy::DoubleRing { shape: None };
    /// The strategy `all-gather` with all heads at once.
    pub const ALL_GATHER: Strategy = Strategy::AllGather { groups: 1 };

    /// The word one writes: `local`, `ring`, `striped`, `megatron`, `ulysses`, `usp`,
    /// `double-ring`, `all-gather`, `broadcast`, `halo`, `li-ring`.
    pub fn name(self) -> &'static str {
        match self {
            Strategy::Local => "local",
            Strategy::Ring => "ring",
            Strategy::Striped { .. } => "striped",
            Strategy::Megatron { .. } => "megatron",
            Strategy::Ulysses => "ulysses",
            Strategy::Usp { .. } => "usp",
            Strategy::DoubleRing { .. } => "double-ring",
            Strategy::AllGather { .. } => "all-gather",
            Strategy::Broadcast => "broadcast",
            Strategy::Halo => "halo",
            Strategy::LiRing => "li-ring",
        }
    }
    /// The strategy of a name, as in [`Strategy::ALL`].
    pub fn from_name(name: &str) -> Option<Strategy> {
        Strategy::ALL.into_iter().find(|strategy| strategy.name() == name)
    }
    /// The strategy's own layout, used unless another is given: every schedule takes every layout.
    pub fn layout(self) -> Layout {
        match self {
            Strategy::Striped { width } => Layout::Striped { width },
            Strategy::Megatron { .. } | Strategy::Usp { .. } | Strategy::DoubleRing { .. } => {
                Layout::Zigzag
            }
            Strategy::Local
            | Strategy::Ring
            | Strategy::Ulysses
            | Strategy::AllGather { .. }
            | Strategy::Broadcast
            | Strategy::Halo
            | Strategy::LiRing => Layout::Contiguous,
        }
    }
    /// The backward routes that differ: a single one where there is no ring.
    pub fn routes(self) -> &'static [Route] {
        match self {
            Strategy::Local
            | Strategy::AllGather { .. }
            | Strategy::Megatron { exchange: Exchange::AllGather }
            | Strategy::Broadcast
            | Strategy::Halo => &[Route::Reversed],
            Strategy::DoubleRing { .. } | Strategy::LiRing => &[Route::Travelling, Route::Reversed],
            Strategy::Ring
            | Strategy::Striped { .. }
            | Strategy::Megatron { .. }
            | Strategy::Ulysses
            | Strategy::Usp { .. } => &Route::ALL,
        }
    }
    /// Whether all attention scores are stored until values arrive, instead of one tile's at a time.
    pub fn stores_scores(self) -> bool {
        self == Strategy::LiRing
    }
    /// `tokens` positions sharded over `world` ranks in the strategy's own layout.
    ///
    /// # Errors
    /// When they cannot be sharded, or the strategy does not run on so many ranks or heads.
    pub fn split(
        self,
        mask: &Mask,
        tokens: usize,
        world: usize,
        heads: Heads,
    ) -> Result<Split, StrategyError> {
        self.check(world, heads)?;
        let layout = self.layout();
        let positions = layout.shard(tokens, world).map_err(StrategyError::Shard)?;
        Ok(Split::new(mask, layout, positions, heads))
    }
    /// Checks that the strategy runs on `world` ranks with these heads.
    ///
    /// # Errors
    /// When it does not.
    pub fn check(self, world: usize, heads: Heads) -> Result<(), StrategyError> {
        self.path(world, heads).map(drop)
    }
    /// The forward schedule.
    ///
    /// # Errors
    /// When the strategy does not run on so many ranks or heads.
    pub fn forward(self, split: &Split) -> Result<Schedule, StrategyError> {
        let path = self.path(split.world(), split.heads)?;
        let generator: Arc<dyn Generator> = match path {
            Path::Ring { lanes } => Arc::new(ring::forward(split, lanes)),
            Path::Scores => Arc::new(li_ring::Rounds::new(split)),
            path => path.either(split, Pass::Forward, Route::default()),
        };
        self.schedule(Pass::Forward, split, generator)
    }
    /// The backward schedule; `route` matters to rings alone; a double ring takes
    /// [`Route::Direct`] as [`Route::Reversed`].
    ///
    /// # Errors
    /// As [`Strategy::forward`], and when queries are to travel where there is no ring of ranks.
    pub fn backward(self, split: &Split, route: Route) -> Result<Schedule, StrategyError> {
        let path = self.path(split.world(), split.heads)?;
        if route == Route::Queries && !self.routes().contains(&route) {
            return Err(StrategyError::Queries { strategy: self });
        }
        let generator: Arc<dyn Generator> = match path {
            Path::Ring { lanes } => Arc::new(ring::backward(split, lanes, route)),
            Path::Scores => Arc::new(ring::backward(split, 1, route)),
            path => path.either(split, Pass::Backward, route),
        };
        self.schedule(Pass::Backward, split, generator)
    }

    /// The generator for this number of ranks and heads.
    fn path(self, world: usize, heads: Heads) -> Result<Path, StrategyError> {
        check_numbers(world, heads)?;
        let path = match self {
            Strategy::Local if world > 1 => return Err(StrategyError::TooManyRanks { world }),
            Strategy::Local
            | Strategy::Ring
            | Strategy::Striped { .. }
            | Strategy::Megatron { exchange: Exchange::PointToPoint } => Path::Ring { lanes: 1 },
            Strategy::Ulysses | Strategy::Megatron { exchange: Exchange::AllToAll } => {
                self.lanes(world, heads)?
            }
            Strategy::Usp { shape } | Strategy::Megatron { exchange: Exchange::Both { shape } } => {
                let suggested = common_divisor(world, heads.key_value);
                let [lanes, _] =
                    self.shaped(shape, [suggested, world / suggested], (world, heads))?;
                self.lanes(lanes, heads)?
            }
            Strategy::DoubleRing { shape } => {
                let suggested = (1..=world)
                    .find(|inside| world.is_multiple_of(*inside) && inside * inside >= world);
                let inside = suggested.unwrap_or(world);
                let [nodes, inside] =
                    self.shaped(shape, [world / inside, inside], (world, heads))?;
                // If one of the two rings has one member, a single ring is left.
                if nodes == 1 || inside == 1 {
                    Path::Ring { lanes: 1 }
                } else {
                    Path::Rings { inside }
                }
            }
            Strategy::AllGather { groups } => gather(heads, groups)?,
            Strategy::Megatron { exchange: Exchange::AllGather } => gather(heads, 1)?,
            Strategy::Broadcast => Path::Broadcast,
            Strategy::Halo => Path::Halo,
            // Scores are kept on a single rank, too.
            Strategy::LiRing => return Ok(Path::Scores),
        };
        // A single rank has nothing to exchange.
        Ok(if world == 1 { Path::Ring { lanes: 1 } } else { path })
    }

    fn lanes(self, lanes: usize, heads: Heads) -> Result<Path, StrategyError> {
        if heads.query.is_multiple_of(lanes) {
            Ok(Path::Ring { lanes })
        } else {
            Err(StrategyError::Heads { strategy: self, heads: heads.query, ranks: lanes })
        }
    }

    fn shaped(
        self,
        shape: Option<[usize; 2]>,
        suggested: [usize; 2],
        (world, heads): (usize, Heads),
    ) -> Result<[usize; 2], StrategyError> {
        let shape = shape.unwrap_or(suggested);
        if shape[0].checked_mul(shape[1]) == Some(world) {
            Ok(shape)
        } else {
            Err(StrategyError::Shape { strategy: self, shape, world, heads })
        }
    }

    fn schedule(
        self,
        pass: Pass,
        split: &Split,
        generator: Arc<dyn Generator>,
    ) -> Result<Schedule, StrategyError> {
        let world = split.world();
        if world > MOST_APART && generator.alike().is_none() {
            return Err(StrategyError::Apart { strategy: self, world, most: MOST_APART });
        }
        GENERATED.fetch_add(1, Ordering::Relaxed);
        let Split { mask, layout, positions, heads, .. } = split.clone();
        Ok(Schedule { strategy: self.name(), pass, layout, mask, heads, positions, generator })
    }
}

/// The most ranks where none is like another: the proof grows with their square.
const MOST_APART: usize = 1 << 9;

/// The generators of schedules.
#[derive(Clone, Copy, Debug)]
enum Path {
    Ring { lanes: usize },
    Rings { inside: usize },
    Gather { groups: usize },
    Broadcast,
    Halo,
    Scores,
}

impl Path {
    /// The generator of a pass, for paths that treat both passes alike.
    fn either(self, split: &Split, pass: Pass, route: Route) -> Arc<dyn Generator> {
        match self {
            Path::Ring { .. } | Path::Scores => unreachable!("a ring's passes differ"),
            Path::Rings { inside } => Arc::new(Rings::new(split, inside, pass, route)),
            Path::Gather { groups } => Arc::new(Gather { split: split.clone(), pass, groups }),
            Path::Broadcast => Arc::new(Broadcast { split: split.clone(), pass }),
            Path::Halo => Arc::new(Halo::new(split, pass)),
        }
    }
}

/// Checks what every strategy asks of the numbers of ranks and heads.
fn check_numbers(world: usize, heads: Heads) -> Result<(), StrategyError> {
    match (world, heads.are_shared_evenly()) {
        (0, _) => Err(StrategyError::Shard(ShardError::NoRanks)),
        (_, false) => Err(StrategyError::Sharing { heads }),
        _ => Ok(()),
    }
}

fn gather(heads: Heads, groups: usize) -> Result<Path, StrategyError> {
    if groups > 0 && heads.key_value.is_multiple_of(groups) {
        Ok(Path::Gather { groups })
    } else {
        Err(StrategyError::Groups { groups, heads: heads.key_value })
    }
}
