//! `strategy: auto` where layers differ: a table for every group of them, one layout for all.

use crate::support::resolved;
use annulus_experiment::{Experiment, LayoutKeys, Resolved};
use annulus_plan::Plan;
use annulus_sequence::{Exchange, Strategy};
use annulus_simulate::{Choice, Cluster, Estimate, Shared};

use crate::support::{cluster, experiment};

/// Three of four layers see 4k of 128k keys.
const SLIDING: [&str; 2] = ["attention.sliding.layers=[0-2]", "attention.sliding.window=4k"];

fn sliding(arguments: &[&str]) -> Experiment {
    experiment(&[&SLIDING, arguments].concat())
}

/// Over both nodes, with as many KV heads as query heads: keys and values weigh more than queries and outputs.
const WIDE: [&str; 3] =
    ["mesh.sequence=16", "attention.strategy=auto", "model.num_key_value_heads=32"];

fn choice(experiment: &Experiment, cluster: &Cluster) -> Choice {
    Choice::among(&resolved(experiment.clone()), cluster)
        .unwrap_or_else(|problems| panic!("{problems}"))
}

/// The estimate of a step with one strategy for all layers over a layout, if it can run.
fn single(strategy: Strategy, sharded: LayoutKeys, cluster: &Cluster) -> Option<Estimate> {
    let mut experiment = sliding(&WIDE);
    let attention = &mut experiment.attention;
    (attention.strategy, attention.automatic, attention.layout) = (strategy, false, Some(sharded));
    let sliding = attention.sliding.as_mut().expect("some slide");
    (sliding.strategy, sliding.automatic) = (strategy, false);
    let plan = Resolved::read(experiment, None).and_then(|resolved| Plan::new(&resolved)).ok()?;
    Estimate::of(&plan, cluster).ok()
}

#[test]
fn kinds_take_different_strategies_and_beat_any_single_one() {
    let cluster = cluster();
    let open = sliding(&WIDE);
    let choice = choice(&open, &cluster);
    let taken = &choice.layouts[choice.taken];
    println!("{}", choice.to_text());
    let [full, slides] = [&choice.tables[0], &choice.tables[1]].map(|table| table.chosen);
    assert_eq!(taken.strategies, [full, slides].map(|chosen| chosen.expect("both can run")));
    assert_ne!(full, slides);
    let best = taken.outcome.as_ref().expect("it runs").step;
    let exchanges = Exchange::ALL.map(|exchange| Strategy::Megatron { exchange });
    let mut singles = 0;
    for strategy in Strategy::ALL.into_iter().chain(exchanges) {
        for sharded in
            [LayoutKeys::Contiguous, LayoutKeys::Striped { width: 1 }, LayoutKeys::Zigzag]
        {
            let Some(one) = single(strategy, sharded, &cluster) else { continue };
            singles += 1;
            let (step, name) = (one.step, strategy.name());
            println!("{name} over {sharded:?}: {:.3} times", step / best);
            assert!(best < step, "{best} against {step}: {name} over {sharded:?}");
        }
    }
    assert!(singles > 20, "{singles} strategies were compared with");
}

#[test]
fn the_chosen_experiment_is_the_one_that_was_estimated() {
    let cluster = cluster();
    let open = sliding(&["attention.strategy=auto"]);
    let choice = choice(&open, &cluster);
    let settled = choice.settled(&open).expect("some can run");
    assert!(!settled.attention.is_open());
    let plan = Resolved::read(settled, None)
        .and_then(|resolved| Plan::new(&resolved))
        .unwrap_or_else(|problems| panic!("{problems}"));
    let estimate = Estimate::of(&plan, &cluster).unwrap_or_else(|problems| panic!("{problems}"));
    let Shared { outcome, strategies, .. } = &choice.layouts[choice.taken];
    let planned = outcome.as_ref().expect("it runs");
    // The cluster's memory was its budget; here it is this machine's.
    assert!((planned.forward, planned.bytes) == (estimate.forward, estimate.bytes));
    let groups: Vec<Strategy> = plan.groups.iter().map(|group| group.strategy).collect();
    assert_eq!(&groups, strategies);
    // The layout with the shortest step is taken.
    let steps = choice.layouts.iter().filter_map(|one| Some(one.outcome.as_ref().ok()?.step));
    assert_eq!(steps.reduce(f64::min), Some(planned.step));
}

/// The sum of what each group's layers take alone is the step of all layers.
#[test]
fn kinds_add_up() {
    let cluster = cluster();
    // What shards the state, and so sums and gathers, is the same for all.
    let open = ["attention.strategy=auto", "attention.layout=zigzag", "parallel.state=replicated"];
    let open = sliding(&open);
    let choice = choice(&open, &cluster);
    let whole = choice.layouts[0].outcome.as_ref().expect("it runs");
    let parts = choice.tables.iter().map(|table| {
        let chosen = table.chosen.expect("it runs");
        let row = table.candidates.iter().find(|row| row.strategy == chosen).expect("listed");
        row.outcome.as_ref().expect("it runs").step
    });
    // The loss and the sum of gradients are in both.
    let parts: f64 = parts.sum();
    let shape = &open.model.source;
    let annulus_experiment::ModelSource::Inline(shape) = shape else { panic!("inline") };
    let rows = f64::from(128 * 1024 / 8);
    let loss = rows * 6.0 * shape.hidden_size as f64 * shape.vocab_size.unwrap_or(0) as f64
        / cluster.rates.products;
    let common = loss + whole.gradient_sum;
    let off = (parts - common) / whole.step - 1.0;
    assert!(off.abs() < 1e-9, "{parts} - {common} is not {}", whole.step);
}

#[test]
fn only_what_is_open_is_chosen() {
    let cluster = cluster();
    let halo = sliding(&["attention.strategy=auto", "attention.sliding.strategy=halo"]);
    let found = choice(&halo, &cluster);
    assert_eq!(found.tables[1].candidates.len(), 1);
    assert_eq!(found.tables[1].chosen, Some(Strategy::Halo));
    assert!(found.tables[0].candidates.len() > 10);
    // Who holds what follows from the strategy that is written.
    let megatron = sliding(&["attention.strategy=megatron", "attention.sliding.strategy=auto"]);
    let found = choice(&megatron, &cluster);
    assert_eq!(found.layouts.len(), 1);
    assert_eq!(found.layouts[0].sharded, LayoutKeys::Zigzag);
    let settled = found.settled(&megatron).expect("some can run").attention;
    assert_eq!((settled.strategy, settled.layout), (Strategy::MEGATRON, None));
    // With nothing open all is shown, as for layers that are alike.
    let written = choice(&sliding(&["attention.sliding.strategy=halo"]), &cluster);
    assert!(written.tables.iter().all(|table| table.candidates.len() > 10));
    assert_eq!(written.layouts.len(), 3);
    // Stripes can be shared by one layout alone.
    let striped = sliding(&["attention.strategy=auto", "attention.sliding.strategy=striped"]);
    let found = choice(&striped, &cluster);
    assert_eq!(found.layouts[found.taken].sharded, LayoutKeys::Striped { width: 1 });
    let refused = found.layouts.iter().filter(|shared| shared.outcome.is_err());
    assert_eq!(refused.count(), 2);
}

#[test]
fn the_tables_of_two_groups_read_well() {
    let open = sliding(&WIDE);
    insta::assert_snapshot!(choice(&open, &cluster()).to_text());
    let json = choice(&open, &cluster()).to_json();
    assert_eq!(json["layers"].as_array().map(Vec::len), Some(2));
    assert_eq!(json["layout"], json["layouts"][choice(&open, &cluster()).taken]["layout"]);
}
