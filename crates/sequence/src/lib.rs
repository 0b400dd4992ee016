//! Layouts, masks and schedules: which rank holds which positions, which see which, and what is sent when.
//!
//! A strategy of attention over a split sequence is data: a [`Layout`] shards positions over ranks as
//! lists of arithmetic [`Run`]s, a [`Mask`] says which query sees which key, and a [`Schedule`]
//! lists, hop by hop, what every rank sends, computes, finishes and frees. Executing, proving,
//! counting and drawing are readers of that one list.

mod alike;
mod band;
mod block;
mod count;
mod draw;
mod layout;
mod mask;
mod positions;
mod prove;
mod rows;
mod run;
mod schedule;
mod schedules;
mod strategy;
mod taken;
mod tiles;
mod view;
mod visibility;
mod wire;

pub use alike::{Alike, AlikeRanks};
pub use block::{Block, Extent, Heads, Part};
pub use count::{
    BlockShape, Bytes, Pairs, busiest_pairs, moves_and_tiles, order_free_row, pairs_per_hop,
};
pub use draw::{Detail, draw_layers, draw_schedule, draw_sharded};
pub use layout::{Layout, ShardError};
pub use mask::{Coverage, Documents, Mask, Region, Rule, WrongMask, pairs_between};
pub use positions::{Positions, common_divisor};
pub use prove::{Alive, At, Computed, Flaw, Made, Proof, prove, prove_alike, prove_each};
pub use rows::Rows;
pub use run::Run;
pub use schedule::{Collective, Generator, Hop, Move, Pass, Schedule, TilePlan};
pub use schedules::{ScheduleError, Schedules, Setting};
pub use strategy::{Exchange, Route, Split, Strategy, StrategyError};
pub use taken::{Taken, taken};
pub use tiles::{ByRows, KeyRows, Meeting, Tiles};
pub use view::{Side, View};
pub use visibility::{Span, Spans, Visibility};
pub use wire::Wire;
