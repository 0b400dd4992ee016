//! What is no attention over a split sequence is refused: passes that do not belong together, and numbers that mean nothing.

use annulus_sequence::{
    Flaw, Heads, Layout, Mask, Pass, Schedule, ScheduleError, Schedules, Setting, ShardError,
    Strategy, StrategyError,
};

const HEADS: Heads = Heads { query: 4, key_value: 2 };

fn setting(strategy: Strategy, ranks: usize, heads: Heads) -> Setting {
    Setting::new(strategy, 24, ranks, heads)
}

/// The flaw of forward and backward schedules as a pair.
fn flaw(forward: &Schedule, backward: &Schedule) -> Flaw {
    match Schedules::prove(forward.clone(), backward.clone()) {
        Err(ScheduleError::Flaw { flaw, .. }) => flaw,
        other => panic!("{other:?}"),
    }
}

#[test]
fn passes_belong_to_one_attention() {
    let both = |strategy, heads, mask: Mask| setting(strategy, 3, heads).schedules(&mask).unwrap();
    let causal = both(Strategy::Ring, HEADS, Mask::causal());
    let [forward, backward] = causal.both();
    assert!(Schedules::prove(forward.clone(), backward.clone()).is_ok());
    let [found, wanted] = [Pass::Backward, Pass::Forward];
    assert_eq!(flaw(backward, forward), Flaw::WrongPass { found, wanted });
    assert_eq!(flaw(forward, forward), Flaw::WrongPass { found: wanted, wanted: found });
    let others = [
        ("masks", both(Strategy::Ring, HEADS, Mask::full())),
        ("numbers of heads", both(Strategy::Ring, Heads::equal(2), Mask::causal())),
        ("positions of ranks", both(Strategy::STRIPED, HEADS, Mask::causal())),
    ];
    for (what, other) in others {
        assert_eq!(flaw(forward, other.of(Pass::Backward)), Flaw::PassesDiffer { what });
    }
    // Another strategy over the same positions is one attention.
    let halo = both(Strategy::Halo, HEADS, Mask::causal());
    assert!(Schedules::prove(forward.clone(), halo.of(Pass::Backward).clone()).is_ok());
}

#[test]
fn numbers_that_mean_nothing() {
    let refusal = |setting: &Setting| match setting.schedules(&Mask::causal()) {
        Err(ScheduleError::Strategy(error)) => error,
        other => panic!("{other:?}"),
    };
    for strategy in Strategy::ALL {
        for (query, key_value) in [(3, 2), (0, 2), (2, 0), (0, 0)] {
            let heads = Heads { query, key_value };
            assert_eq!(refusal(&setting(strategy, 1, heads)), StrategyError::Sharing { heads });
        }
        let nobody = StrategyError::Shard(ShardError::NoRanks);
        assert_eq!(refusal(&setting(strategy, 0, HEADS)), nobody);
    }
    for strategy in [Strategy::Ring, Strategy::Striped { width: 1 }] {
        let endless = Setting { tokens: usize::MAX, ..setting(strategy, 2, HEADS) };
        let too_long = StrategyError::Shard(ShardError::TooLong { tokens: usize::MAX });
        assert_eq!(refusal(&endless), too_long);
    }
    for layout in [Layout::Striped { width: 0 }, Layout::Balanced { width: 0 }] {
        let flat = Setting { layout, ..setting(Strategy::Ring, 2, HEADS) };
        let no_width = StrategyError::Shard(ShardError::NoWidth { layout });
        assert_eq!(refusal(&flat), no_width);
    }
    for block in [0, 5] {
        let blocks = Setting { block: Some(block), ..setting(Strategy::Ring, 2, HEADS) };
        let uneven = StrategyError::Shard(ShardError::Blocks { tokens: 24, block });
        assert_eq!(refusal(&blocks), uneven);
        assert!(!uneven.hint().unwrap().is_empty());
    }
    let error = StrategyError::Sharing { heads: Heads { query: 3, key_value: 2 } };
    assert_eq!(error.to_string(), "3 query heads cannot share 2 KV heads evenly");
    assert_eq!(error.hint().as_deref(), Some("use 1, 3 KV heads"));
    let error = StrategyError::Apart { strategy: Strategy::Ring, world: 600, most: 512 };
    let said =
        "`ring`: the schedules of 600 ranks all differ, and at most 512 are proved one by one";
    assert_eq!(error.to_string(), said);
    assert!(error.hint().is_some_and(|hint| hint.contains("equal `mesh.weights`")));
}
