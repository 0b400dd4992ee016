//! Checks that shards form a whole sequence: by runs, however long it is.

use crate::band::Band;
use crate::{Positions, Run};

/// Whether the shards together are exactly `0 .. tokens`: as many positions, none beyond and none twice.
pub(super) fn is_sharded(shards: &[Positions], tokens: usize) -> bool {
    let mut runs: Vec<Run> = shards.iter().flat_map(Positions::runs).copied().collect();
    runs.sort_unstable_by_key(|run| run.start);
    // Among the runs that begin before this one, those that do not end before it.
    let mut open: Vec<Run> = Vec::new();
    let fits = |run: Run| {
        open.retain(|earlier| earlier.last() >= run.start);
        let apart = run.last() < tokens && !open.iter().any(|earlier| meet(*earlier, run));
        open.push(run);
        apart
    };
    shards.iter().map(Positions::tokens).sum::<usize>() == tokens && runs.into_iter().all(fits)
}

/// Whether the runs have a position in common.
fn meet(a: Run, b: Run) -> bool {
    // Blocks of equal steps that are disjoint once are always disjoint.
    let apart = a.start.abs_diff(b.start);
    let apart = if apart < a.step { apart } else { apart % a.step };
    let (first, second) = if a.start < b.start { (a, b) } else { (b, a) };
    if a.step == b.step && a.step > 1 && first.width <= apart && apart + second.width <= a.step {
        return false;
    }
    let equal = Band { behind: Some(0), ahead: Some(0) };
    let [a, b] = [a, b].map(|run| Positions::new(vec![run]));
    equal.pairs(&a, &b) > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All pairs of small runs, with the rest of the sequence as a third shard.
    #[test]
    fn shards_are_sharded_where_every_position_is_held_once() {
        let mut sharded = 0;
        let runs = || {
            let sizes = [(1, 1), (2, 1), (3, 1), (3, 2), (5, 3)];
            sizes.into_iter().flat_map(|(step, width)| {
                let run = move |start, len| Run { start, step, len, width };
                (0..4).flat_map(move |start| (1..4).map(move |len| run(start, len)))
            })
        };
        for (a, b) in runs().flat_map(|a| runs().map(move |b| (a, b))) {
            let tokens = a.last().max(b.last()) + 2;
            let held = |position: &usize| a.iter().chain(b.iter()).any(|held| held == *position);
            let rest: Vec<usize> = (0..tokens).filter(|position| !held(position)).collect();
            let rest = Positions::from_list(&rest).unwrap();
            let shards = [Positions::new(vec![a]), Positions::new(vec![b]), rest];
            let once = a.iter().all(|position| b.iter().all(|other| other != position));
            // As many positions as there are, unless one is held twice.
            let held = shards.iter().map(Positions::tokens).sum();
            assert_eq!(is_sharded(&shards, held), once, "{a:?} {b:?}");
            assert!(!is_sharded(&shards[..2], tokens));
            sharded += usize::from(once);
        }
        assert!(sharded > 100, "{sharded}");
    }
}
