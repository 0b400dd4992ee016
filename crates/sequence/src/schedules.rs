//! The schedules of both passes of an attention: made once, proved once, and then handed to all who count, draw or run them.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{
    Flaw, Heads, Layout, Mask, Pass, Positions, Proof, Route, Schedule, Split, Strategy,
    StrategyError, prove,
};

/// Both schedules of all ranks, proved.
#[derive(Clone, Debug)]
pub struct Schedules {
    forward: (Schedule, Proof),
    backward: (Schedule, Proof),
    longest: usize,
}

/// Why there are no schedules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScheduleError {
    /// The strategy cannot shard or split so.
    Strategy(StrategyError),
    /// A schedule does not hold: a bug of its generator, found before anything ran.
    Flaw {
        /// Whose schedule.
        strategy: &'static str,
        /// What is wrong with it.
        flaw: Flaw,
    },
}

/// How many schedules were generated in this process, and how many were proved.
pub(crate) static GENERATED: AtomicU64 = AtomicU64::new(0);
static PROVED: AtomicU64 = AtomicU64::new(0);

impl Schedules {
    /// Makes and proves those of a strategy over what was sharded; `returning` is what travels backward.
    ///
    /// # Errors
    /// When the strategy does not run so, or its generator is wrong.
    pub fn new(
        strategy: Strategy,
        split: &Split,
        route: Route,
    ) -> Result<Schedules, ScheduleError> {
        let forward = strategy.forward(split).map_err(ScheduleError::Strategy)?;
        let backward = strategy.backward(split, route).map_err(ScheduleError::Strategy)?;
        Schedules::prove(forward, backward)
    }

    /// Proves two that are made: by a strategy of ours, or by one of one's own.
    ///
    /// # Errors
    /// The first flaw.
    pub fn prove(forward: Schedule, backward: Schedule) -> Result<Schedules, ScheduleError> {
        let longest = forward.positions.iter().map(Positions::tokens).max().unwrap_or_default();
        let (forward, backward) = std::thread::scope(|scope| {
            let forward = scope.spawn(|| proved(forward));
            let backward = proved(backward);
            (forward.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), backward)
        });
        Ok(Schedules { forward: forward?, backward: backward?, longest })
    }

    /// The schedule of a pass.
    pub fn of(&self, pass: Pass) -> &Schedule {
        &self.proved_of(pass).0
    }

    /// Forward and backward.
    pub fn both(&self) -> [&Schedule; 2] {
        [&self.forward.0, &self.backward.0]
    }

    /// What was proved of it.
    pub fn proof(&self, pass: Pass) -> &Proof {
        &self.proved_of(pass).1
    }

    /// Of forward and backward.
    pub fn proofs(&self) -> [&Proof; 2] {
        [&self.forward.1, &self.backward.1]
    }

    /// The most positions that a rank holds.
    pub fn longest(&self) -> usize {
        self.longest
    }

    fn proved_of(&self, pass: Pass) -> &(Schedule, Proof) {
        match pass {
            Pass::Forward => &self.forward,
            Pass::Backward => &self.backward,
        }
    }

    /// How many schedules of one pass were generated in this process so far, and how many proved: so that one sees whether any is
    /// twice.
    pub fn counted() -> [u64; 2] {
        [&GENERATED, &PROVED].map(|count| count.load(Ordering::Relaxed))
    }
}

fn proved(schedule: Schedule) -> Result<(Schedule, Proof), ScheduleError> {
    let strategy = schedule.strategy;
    PROVED.fetch_add(1, Ordering::Relaxed);
    let proof = prove(&schedule).map_err(|flaw| ScheduleError::Flaw { strategy, flaw })?;
    Ok((schedule, proof))
}

/// How a sequence is split, whatever the mask.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The strategy.
    pub strategy: Strategy,
    /// How positions are sharded.
    pub layout: Layout,
    /// Positions of the whole sequence.
    pub tokens: usize,
    /// What ranks hold of it, in proportion: one for each.
    pub weights: Vec<usize>,
    /// Query heads, and the key/value heads that they share.
    pub heads: Heads,
    /// What is sent backward in a ring, and how gradients are reduced to their owners.
    pub route: Route,
    /// Every rank holds whole blocks of so many neighbours, which the sequence is a multiple of; none: as the layout has it.
    pub block: Option<usize>,
}

impl Setting {
    /// In the strategy's own way, between ranks that hold alike.
    pub fn new(strategy: Strategy, tokens: usize, ranks: usize, heads: Heads) -> Setting {
        let (layout, weights) = (strategy.layout(), vec![1; ranks]);
        Setting { strategy, layout, tokens, weights, heads, route: Route::default(), block: None }
    }

    /// The schedules under a mask.
    ///
    /// # Errors
    /// When the strategy does not run so, or its generator is wrong.
    pub fn schedules(&self, mask: &Mask) -> Result<Schedules, ScheduleError> {
        let mut all = self.schedules_of(std::slice::from_ref(mask))?;
        Ok(all.swap_remove(0))
    }

    /// The same under several masks, one each, over positions that are sharded as the first has them: layers may differ, but what a rank
    /// holds of the residual stream is the same in all.
    ///
    /// # Errors
    /// As [`Setting::schedules`].
    pub fn schedules_of(&self, masks: &[Mask]) -> Result<Vec<Schedules>, ScheduleError> {
        let Setting { strategy, layout, tokens, ref weights, heads, route, block } = *self;
        strategy.check(weights.len(), heads).map_err(ScheduleError::Strategy)?;
        let sharding = masks.first().cloned().unwrap_or_else(Mask::full);
        let sharded = match block {
            None => layout.shard_weighted(&sharding, tokens, weights),
            Some(block) => layout.shard_blocks(&sharding, (tokens, block), weights),
        };
        let sharded =
            sharded.map_err(|error| ScheduleError::Strategy(StrategyError::Shard(error)))?;
        let of_mask = |mask: &Mask| {
            let split = Split::new(mask, layout, sharded.clone(), heads);
            let split = split.in_blocks(block.unwrap_or(1));
            Schedules::new(strategy, &split, route)
        };
        masks.iter().map(of_mask).collect()
    }
}

impl fmt::Display for ScheduleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScheduleError::Strategy(error) => error.fmt(f),
            ScheduleError::Flaw { strategy, flaw } => {
                write!(f, "the schedule of `{strategy}` is wrong: {flaw}")
            }
        }
    }
}

impl std::error::Error for ScheduleError {}
