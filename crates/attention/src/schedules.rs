//! The schedules of an attention, proved: once in a process, whatever the ranks and the layers.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use annulus_sequence::{
    Heads, Layout, Mask, Positions, Return, Schedule, Split, Strategy, StrategyError, prove,
};

use crate::AttentionError;

/// What schedules are a function of.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Asked {
    pub(crate) strategy: Strategy,
    pub(crate) layout: Layout,
    pub(crate) mask: Mask,
    pub(crate) tokens: usize,
    pub(crate) heads: Heads,
    pub(crate) gradients: Return,
    pub(crate) dealing: Dealing,
}

/// Who holds what.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Dealing {
    /// In proportion to the weights of the ranks, one for each.
    Weighted(Vec<usize>),
    /// As it is dealt already.
    Dealt(Arc<[Positions]>),
}

/// Both schedules of all ranks, proved.
#[derive(Debug)]
pub(crate) struct Schedules {
    /// What every rank holds.
    pub(crate) positions: Arc<[Positions]>,
    pub(crate) forward: Schedule,
    pub(crate) backward: Schedule,
}

/// What is in use: ranks that are threads ask for the same at the same time.
static KNOWN: Mutex<Vec<(Asked, Weak<Schedules>)>> = Mutex::new(Vec::new());

/// The schedules that are asked for: made and proved now, unless somebody holds them already.
pub(crate) fn schedules(asked: Asked) -> Result<Arc<Schedules>, AttentionError> {
    // Whoever comes meanwhile waits: it would make the same.
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|(_, schedules)| schedules.strong_count() > 0);
    let found = known.iter().find(|(other, _)| *other == asked);
    if let Some(schedules) = found.and_then(|(_, schedules)| schedules.upgrade()) {
        return Ok(schedules);
    }
    let made = Arc::new(asked.made()?);
    known.push((asked, Arc::downgrade(&made)));
    Ok(made)
}

impl Asked {
    fn made(&self) -> Result<Schedules, AttentionError> {
        let Asked { strategy, layout, ref mask, tokens, heads, gradients, ref dealing } = *self;
        let world = match dealing {
            Dealing::Weighted(weights) => weights.len(),
            Dealing::Dealt(positions) => positions.len(),
        };
        strategy.check(world, heads).map_err(AttentionError::Strategy)?;
        let dealt = match dealing {
            Dealing::Weighted(weights) => layout.deal_weighted(mask, tokens, weights),
            Dealing::Dealt(positions) => Ok(positions.to_vec()),
        };
        let dealt = dealt.map_err(|error| AttentionError::Strategy(StrategyError::Deal(error)))?;
        let split = Split::new(mask, layout, dealt, heads);
        let forward = proved(strategy.forward(&split))?;
        let backward = proved(strategy.backward(&split, gradients))?;
        Ok(Schedules { positions: split.positions.into(), forward, backward })
    }
}

fn proved(schedule: Result<Schedule, StrategyError>) -> Result<Schedule, AttentionError> {
    let schedule = schedule.map_err(AttentionError::Strategy)?;
    let strategy = schedule.strategy;
    prove(&schedule).map_err(|flaw| AttentionError::Flaw { strategy, flaw })?;
    Ok(schedule)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_holds_is_not_made_again() {
        let asked = |tokens| Asked {
            strategy: Strategy::Ring,
            layout: Layout::Contiguous,
            mask: Mask::causal(),
            tokens,
            heads: Heads { query: 2, key_value: 1 },
            gradients: Return::Reversed,
            dealing: Dealing::Weighted(vec![1; 3]),
        };
        let first = schedules(asked(97)).expect("a ring runs on three ranks");
        let same = schedules(asked(97)).expect("the same");
        let other = schedules(asked(98)).expect("another");
        assert!(Arc::ptr_eq(&first, &same) && !Arc::ptr_eq(&first, &other));
        let wrong = Asked { strategy: Strategy::Local, ..asked(97) };
        assert!(matches!(schedules(wrong), Err(AttentionError::Strategy(_))));
    }
}
