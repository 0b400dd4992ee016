//! The schedules of an attention, forward and backward: made once, proved once, and then passed to all that count, draw or run them.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{
    Flaw, Heads, Layout, Mask, Pass, Positions, Proof, Route, Schedule, Split, Strategy,
    StrategyError, prove,
};

/// The proved schedules of both passes, of all ranks.
#[derive(Clone, Debug)]
pub struct Schedules {
    forward: (Schedule, Proof),
    backward: (Schedule, Proof),
    longest: usize,
}

/// The reason why there are no schedules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScheduleError {
    /// The strategy cannot shard or split the sequence so.
    Strategy(StrategyError),
    /// A schedule is flawed: a bug of its generator, found before anything ran.
    Flaw {
        /// The strategy of the schedule.
        strategy: &'static str,
        /// The flaw.
        flaw: Flaw,
    },
}

/// Numbers of schedules that were generated in this process, and that were proved.
pub(crate) static GENERATED: AtomicU64 = AtomicU64::new(0);
static PROVED: AtomicU64 = AtomicU64::new(0);

impl Schedules {
    /// Makes and proves the schedules of a strategy over a sharded sequence; `returning` is the backward route.
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

    /// Proves the two schedules of one attention, made by one of our strategies or by a custom generator.
    ///
    /// # Errors
    /// The first flaw.
    pub fn prove(forward: Schedule, backward: Schedule) -> Result<Schedules, ScheduleError> {
        check_pair(&forward, &backward)?;
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

    /// The schedules, forward then backward.
    pub fn both(&self) -> [&Schedule; 2] {
        [&self.forward.0, &self.backward.0]
    }

    /// The proof of a pass.
    pub fn proof(&self, pass: Pass) -> &Proof {
        &self.proved_of(pass).1
    }

    /// The proofs, forward then backward.
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

    /// The numbers of schedules of one pass that were generated, and proved, in this process so far: shows whether any is made twice.
    pub fn counted() -> [u64; 2] {
        [&GENERATED, &PROVED].map(|count| count.load(Ordering::Relaxed))
    }
}

/// Checks that two schedules are the two passes of one attention.
fn check_pair(forward: &Schedule, backward: &Schedule) -> Result<(), ScheduleError> {
    let flawed =
        |schedule: &Schedule, flaw| Err(ScheduleError::Flaw { strategy: schedule.strategy, flaw });
    for (schedule, wanted) in [(forward, Pass::Forward), (backward, Pass::Backward)] {
        if schedule.pass != wanted {
            return flawed(schedule, Flaw::WrongPass { found: schedule.pass, wanted });
        }
    }
    let alike = [
        ("masks", forward.mask == backward.mask),
        ("numbers of heads", forward.heads == backward.heads),
        ("positions of ranks", forward.positions == backward.positions),
    ];
    match alike.into_iter().find(|(_, alike)| !alike) {
        Some((what, _)) => flawed(backward, Flaw::PassesDiffer { what }),
        None => Ok(()),
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
    /// The number of positions of the whole sequence.
    pub tokens: usize,
    /// The weights of the ranks, in proportion to which they hold positions.
    pub weights: Vec<usize>,
    /// The numbers of query heads and of the KV heads that they share.
    pub heads: Heads,
    /// The backward route.
    pub route: Route,
    /// The size of strict blocks, of which every rank holds whole ones and the sequence is a multiple; `None`: as the layout has it.
    pub block: Option<usize>,
}

impl Setting {
    /// The strategy in its own layout, over ranks of equal weights.
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

    /// The schedules under each of `masks`, over positions sharded as the first mask has them, since all layers share the residual stream.
    ///
    /// # Errors
    /// As [`Setting::schedules`].
    pub fn schedules_of(&self, masks: &[Mask]) -> Result<Vec<Schedules>, ScheduleError> {
        let sharding = masks.first().cloned().unwrap_or_else(Mask::full);
        let shards = self.shards(&sharding).map_err(ScheduleError::Strategy)?;
        let of_mask = |mask: &Mask| {
            Schedules::new(self.strategy, &self.split(mask, shards.clone()), self.route)
        };
        masks.iter().map(of_mask).collect()
    }

    /// The positions of every rank under the mask `sharding`.
    ///
    /// # Errors
    /// When the strategy does not run so.
    pub fn shards(&self, sharding: &Mask) -> Result<Vec<Positions>, StrategyError> {
        let Setting { strategy, layout, tokens, ref weights, heads, block, .. } = *self;
        strategy.check(weights.len(), heads)?;
        let shards = match block {
            None => layout.shard_weighted(sharding, tokens, weights),
            Some(block) => layout.shard_blocks(sharding, tokens, block, weights),
        };
        shards.map_err(StrategyError::Shard)
    }

    /// What a strategy has to schedule: attention under `mask`, over positions that [`Setting::shards`] gave.
    pub fn split(&self, mask: &Mask, shards: Vec<Positions>) -> Split {
        let split = Split::new(mask, self.layout, shards, self.heads);
        split.in_blocks(self.block.unwrap_or(1))
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
