//! Why a strategy cannot run, and what could.

use std::fmt;

use annulus_text::count;

use super::{Route, Strategy};
use crate::{Heads, ShardError};

/// The reason why a strategy cannot run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StrategyError {
    /// The strategy is `local`, with more than one rank.
    TooManyRanks {
        /// The number of ranks.
        world: usize,
    },
    /// The positions cannot be sharded.
    Shard(ShardError),
    /// Query heads are no multiple of the KV heads that they share.
    Sharing {
        /// The numbers of heads.
        heads: Heads,
    },
    /// Query heads cannot be split over the ranks that exchange them.
    Heads {
        /// The strategy.
        strategy: Strategy,
        /// The number of query heads.
        heads: usize,
        /// The number of ranks that exchange heads.
        ranks: usize,
    },
    /// The product of a shape is not the number of ranks.
    Shape {
        /// The strategy.
        strategy: Strategy,
        /// The shape.
        shape: [usize; 2],
        /// The number of ranks.
        world: usize,
        /// The numbers of heads, which not every shape can exchange.
        heads: Heads,
    },
    /// Key/value heads cannot be divided into this many groups.
    Groups {
        /// The number of groups.
        groups: usize,
        /// The number of KV heads.
        heads: usize,
    },
    /// The schedules of all ranks differ, and there are more ranks than are proved one by one.
    Apart {
        /// The strategy.
        strategy: Strategy,
        /// The number of ranks.
        world: usize,
        /// The most ranks that are proved one by one.
        most: usize,
    },
    /// Queries are to travel backward, but there is no ring.
    Queries {
        /// The strategy.
        strategy: Strategy,
    },
}

impl StrategyError {
    /// What the user can change, where something helps.
    pub fn hint(&self) -> Option<String> {
        Some(match *self {
            StrategyError::TooManyRanks { .. } => {
                format!("use one rank, or one of {}", names(|other| other != Strategy::Local))
            }
            StrategyError::Shard(ref error) => error.hint(),
            StrategyError::Sharing { heads: Heads { query, .. } } if query > 0 => {
                let divisors = (1..=query).filter(|heads| query.is_multiple_of(*heads));
                format!("use {} KV heads", list(divisors))
            }
            StrategyError::Sharing { .. } => "attention has at least one head".to_owned(),
            StrategyError::Heads { strategy: Strategy::Ulysses, heads, .. } => {
                let ranks = list((1..=heads).filter(|ranks| heads.is_multiple_of(*ranks)));
                format!("use {ranks} ranks, or `usp` with one of those as its first number")
            }
            StrategyError::Heads { heads, .. } => {
                let ranks = (1..=heads).filter(|ranks| heads.is_multiple_of(*ranks));
                format!("heads can be exchanged among {} ranks", list(ranks))
            }
            StrategyError::Shape { strategy, world, heads, .. } => {
                let shaped = strategy.shapes(world).into_iter();
                let runs = shaped.filter(|shaped| shaped.check(world, heads).is_ok());
                let shapes = runs.filter_map(Strategy::shape);
                format!("use one of {}", list(shapes.map(|shape| format!("{shape:?}"))))
            }
            StrategyError::Groups { heads, .. } => {
                let divisors = (1..=heads).filter(|groups| heads.is_multiple_of(*groups));
                format!("use {}", list(divisors))
            }
            StrategyError::Apart { most, .. } => format!(
                "use equal `mesh.weights` and a layout with equal shards, another strategy, or at most {most} ranks"
            ),
            StrategyError::Queries { .. } => {
                let ring = |other: Strategy| other.routes().contains(&Route::Queries);
                format!("let keys and values travel, or use one of {}", names(ring))
            }
        })
    }
}

fn names(of: impl Fn(Strategy) -> bool) -> String {
    let names = Strategy::ALL.into_iter().filter(|strategy| of(*strategy));
    list(names.map(|strategy| format!("`{}`", strategy.name())))
}

fn list<T: fmt::Display>(items: impl Iterator<Item = T>) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for StrategyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StrategyError::TooManyRanks { world } => {
                write!(f, "`local` runs on 1 rank and cannot share a sequence among {world}")
            }
            StrategyError::Shard(error) => error.fmt(f),
            StrategyError::Sharing { heads: Heads { query, key_value } } => {
                write!(f, "{query} query heads cannot share {key_value} KV heads evenly")
            }
            StrategyError::Heads { strategy, heads, ranks } => {
                let name = strategy.name();
                write!(f, "`{name}` cannot split {heads} query heads over {ranks} ranks")
            }
            StrategyError::Shape { strategy, shape: [first, second], world, .. } => {
                let (name, ranks) = (strategy.name(), first.saturating_mul(*second));
                let ranks = count(ranks, "rank");
                write!(
                    f,
                    "`{name}` of shape [{first}, {second}] is {ranks}, but a sequence has {world}"
                )
            }
            StrategyError::Groups { groups, heads } => {
                write!(f, "{heads} KV heads cannot be gathered in {groups} equal groups")
            }
            StrategyError::Apart { strategy, world, most } => {
                let name = strategy.name();
                write!(
                    f,
                    "`{name}`: the schedules of {world} ranks all differ, and at most {most} are proved one by one"
                )
            }
            StrategyError::Queries { strategy } => {
                write!(f, "queries cannot travel in `{}`: it has no ring", strategy.name())
            }
        }
    }
}

impl std::error::Error for StrategyError {}
