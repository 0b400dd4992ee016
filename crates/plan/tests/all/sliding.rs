//! Layers with a sliding window beside layers that see all keys: files, plans, and errors.

use annulus_experiment::{
    Experiment, KeyDifference, LayoutKeys, Override, Resolved, Sliding, differences, parse,
};
use annulus_memory::Class;
use annulus_plan::{Plan, Proving};
use annulus_sequence::{Exchange, Layout, Route, Rule, Strategy};

use crate::common::{plan_of, planned};
use crate::small::SMALL;

/// Four layers, the last of which sees all keys.
const LAYERS: &str = "num_hidden_layers: 4";
const SLIDING: &str = "layers: [0-2]; window: 512";

/// `SMALL` with lines under `attention`, and others under its `sliding`.
fn with(strategy: &str, sliding: &str) -> String {
    let lines = |indent: &str, lines: &str| lines.replace("; ", &format!("\n{indent}"));
    let strategy = format!("strategy: {}", lines("  ", strategy));
    let sliding = format!("{strategy}\n  sliding:\n    {}", lines("    ", sliding));
    let text = SMALL.replace("strategy: striped", &sliding);
    text.replace("num_hidden_layers: 2", LAYERS)
}

fn experiment(strategy: &str, sliding: &str) -> Experiment {
    let text = with(strategy, sliding);
    parse("small.yaml", &text, &[]).unwrap_or_else(|problems| panic!("{problems}\n{text}"))
}

fn plan(strategy: &str, sliding: &str) -> Plan {
    plan_of(&with(strategy, sliding))
}

fn read(strategy: &str, more: &str) -> Sliding {
    let sliding = experiment(strategy, &format!("{SLIDING}; {more}"));
    let again = parse("again.yaml", &sliding.to_yaml(), &[]).unwrap_or_else(|p| panic!("{p}"));
    assert_eq!(again, sliding);
    sliding.attention.sliding.expect("some layers slide")
}

#[test]
fn what_is_not_written_is_as_in_the_other_layers() {
    let halo = read("ring; backward: queries", "strategy: halo");
    assert_eq!((halo.layers.as_slice(), halo.window), (std::slice::from_ref(&(0..3)), 512));
    assert_eq!((halo.strategy, halo.backward), (Strategy::Halo, None));
    let ring = experiment("ring; backward: queries", SLIDING).attention.sliding.expect("written");
    assert_eq!((ring.strategy, ring.backward), (Strategy::Ring, Some(Route::Queries)));
    let back = read("ring; backward: queries", "backward: auto");
    assert_eq!((back.strategy, back.backward), (Strategy::Ring, None));
    let shaped = read("usp; shape: [2, 2]", "shape: [4, 1]");
    assert_eq!(shaped.strategy, Strategy::Usp { shape: Some([4, 1]) });
    let exchange = read("megatron; exchange: a2a+p2p; shape: [2, 2]", "exchange: a2a+p2p");
    let both = Exchange::Both { shape: Some([2, 2]) };
    assert_eq!(exchange.strategy, Strategy::Megatron { exchange: both });
    // Who holds what is said once.
    let stripes = Strategy::Striped { width: 64 };
    assert_eq!(read("striped; stripe: 64", "strategy: striped").strategy, stripes);
    assert_eq!(read("ring; layout: striped; stripe: 64", "strategy: striped").strategy, stripes);
    assert!(read("auto", "backward: auto").automatic);
    assert!(!read("auto", "strategy: halo").automatic);
}

/// A model's own sliding windows are as the experiment's; writing them again changes nothing.
#[test]
fn layers_of_a_model_slide_by_themselves() {
    let model = |keys: &str| {
        SMALL
            .replace("num_hidden_layers: 2", &format!("{LAYERS}\n  {}", keys.replace("; ", "\n  ")))
            .replace("strategy: striped", "strategy: ring")
    };
    let plan = |text: &str, changes: &[&str]| {
        let changes: Vec<Override> = changes.iter().filter_map(|c| Override::split(c)).collect();
        let experiment =
            parse("model.yaml", text, &changes).unwrap_or_else(|p| panic!("{p}\n{text}"));
        planned(experiment)
    };
    let mixed = model(
        "model_type: qwen3; sliding_window: 512; use_sliding_window: true; max_window_layers: 1",
    );
    let found = plan(&mixed, &[]).unwrap_or_else(|problems| panic!("{problems}"));
    let [others, sliding] = found.groups.as_slice() else { panic!("{:?}", found.groups) };
    assert_eq!((others.layers.as_slice(), sliding.layers.as_slice()), (&[0][..], &[1, 2, 3][..]));
    assert!(sliding.mask.rules().contains(&Rule::Window(512)));
    assert!(!others.mask.rules().iter().any(|rule| matches!(rule, Rule::Window(_))));
    let again =
        parse("experiment.yaml", &found.experiment.to_yaml(), &[]).expect("what is resolved reads");
    assert_eq!(again, found.experiment);
    let resolved = Resolved::read(again.clone(), Some(256)).expect("it says so already");
    assert_eq!(resolved.experiment, again);
    let halo =
        plan(&mixed, &["attention.sliding={ layers: [1, 2, 3], window: 512, strategy: halo }"]);
    assert_eq!(halo.expect("right").groups[1].strategy, Strategy::Halo);

    let all = model("model_type: mistral; sliding_window: 512");
    let found = plan(&all, &[]).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!((found.groups.len(), found.experiment.attention.masking.window), (1, Some(512)));
    assert!(found.groups[0].mask.rules().contains(&Rule::Window(512)));
    let short = plan(&all, &["data.tokens=512"]).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(short.experiment.attention.masking.window, None, "it hides nothing");

    for (text, change) in [
        (&mixed, "attention.window=512"),
        (&mixed, "attention.sliding={ layers: [0-2], window: 512 }"),
        (&mixed, "attention.sliding={ layers: [1-3], window: 256 }"),
        (&all, "attention.window=256"),
        (&all, "attention.sliding={ layers: [1-3], window: 512 }"),
    ] {
        let problems = plan(text, &[change]).expect_err(change).to_string();
        assert!(problems.contains("says otherwise, but "), "{problems}");
    }
}

/// Other programs attend as the stored config.json says, which may have a window.
#[test]
fn all_that_a_config_cannot_store_is_named_with_what_it_stores() {
    let mistral = SMALL.replace(
        "num_hidden_layers: 2",
        "num_hidden_layers: 2\n  model_type: mistral\n  sliding_window: 512",
    );
    let sinks = "attention.sinks=4";
    for (text, changes, keys, attend) in [
        (
            &*mistral,
            &[sinks][..],
            "`attention.sinks`",
            "attend by its `sliding_window` of 512 alone",
        ),
        (
            SMALL,
            &[sinks, "attention.window=512"],
            "`attention.sinks`, `attention.window`",
            "attend to all earlier tokens",
        ),
    ] {
        let changes: Vec<Override> = changes.iter().filter_map(|c| Override::split(c)).collect();
        let experiment = parse("model.yaml", text, &changes).unwrap_or_else(|p| panic!("{p}"));
        let warnings = planned(experiment).unwrap_or_else(|p| panic!("{p}")).warnings;
        let found =
            warnings.iter().find(|said| said.contains(" cannot store ")).expect("a warning");
        assert!(found.contains(&format!("cannot store {keys}: ")), "{found}");
        assert!(found.ends_with(&format!(" of an export, {attend}")), "{found}");
    }
    for (tokens, warns) in [("512", true), ("1k", false)] {
        let tokens = format!("data.tokens={tokens}");
        let changes: Vec<Override> =
            [sinks, &tokens].iter().filter_map(|c| Override::split(c)).collect();
        let experiment = parse("model.yaml", &mistral, &changes).unwrap_or_else(|p| panic!("{p}"));
        let warnings = planned(experiment).unwrap_or_else(|p| panic!("{p}")).warnings;
        let said = "`attention.sinks` has no effect: the model's own window";
        assert_eq!(warnings.iter().any(|warning| warning.starts_with(said)), warns, "{warnings:?}");
    }
}

#[test]
fn kinds_of_layers_have_their_own_masks_and_strategies() {
    let plan = plan("megatron; sinks: 4", &format!("{SLIDING}; strategy: halo"));
    let [others, sliding] = plan.groups.as_slice() else { panic!("{:?}", plan.groups) };
    assert_eq!((others.layers.as_slice(), sliding.layers.as_slice()), (&[3][..], &[0, 1, 2][..]));
    assert_eq!((others.strategy, sliding.strategy), (Strategy::MEGATRON, Strategy::Halo));
    // Without a window there is nothing that sinks show in spite of it.
    assert!(
        !others.mask.rules().iter().any(|rule| matches!(rule, Rule::Window(_) | Rule::Sinks(_)))
    );
    assert!(sliding.mask.rules().contains(&Rule::Window(512)));
    assert!(sliding.mask.rules().contains(&Rule::Sinks(4)));
    assert_eq!(plan.experiment.layout(), Layout::Zigzag);
    let settled = plan.experiment.attention;
    assert_eq!(settled.backward, Some(others.route.how));
    assert_eq!(settled.sliding.and_then(|sliding| sliding.backward), Some(sliding.route.how));
}

/// Every number is the sum, or the maximum, over models whose layers are all in one group.
#[test]
fn plans_are_those_of_the_kinds_together() {
    let both = plan("striped", &format!("{SLIDING}; strategy: halo"));
    let alike = |arguments: &[&str]| {
        let arguments: Vec<Override> =
            arguments.iter().filter_map(|a| Override::split(a)).collect();
        let text = SMALL.replace("num_hidden_layers: 2", LAYERS);
        let experiment = parse("small.yaml", &text, &arguments).unwrap_or_else(|p| panic!("{p}"));
        planned(experiment).unwrap_or_else(|p| panic!("{p}"))
    };
    let full = alike(&[]);
    let slide = ["attention.strategy=halo", "attention.layout=striped", "attention.window=512"];
    let slides = alike(&slide);
    for (rank, (full, slides)) in both.ranks.iter().zip(full.ranks.iter().zip(&slides.ranks)) {
        assert_eq!(rank.positions, full.positions);
        assert_eq!(rank.pairs, [full.pairs[0], slides.pairs[0]]);
        assert_eq!(4 * rank.forward, full.forward + 3 * slides.forward);
        assert_eq!(4 * rank.backward, full.backward + 3 * slides.backward);
        assert_eq!(rank.gradients, full.gradients);
        assert_eq!(rank.peak, full.peak.max(slides.peak));
        assert_eq!(
            rank.peak_by_class[Class::Workspace],
            full.peak_by_class[Class::Workspace].max(slides.peak_by_class[Class::Workspace])
        );
        assert_eq!(
            rank.peak_by_class[Class::KeyValue],
            full.peak_by_class[Class::KeyValue].max(slides.peak_by_class[Class::KeyValue])
        );
        assert_eq!(rank.peak_by_class[Class::Weights], full.peak_by_class[Class::Weights]);
    }
    assert_eq!(both.groups[0].slowest_pairs, full.groups[0].slowest_pairs);
    assert_eq!(both.groups[1].slowest_pairs, slides.groups[0].slowest_pairs);
}

#[test]
fn a_plan_of_two_kinds_reads_well() {
    let mut experiment =
        experiment("ring; layout: zigzag", "layers: [0-1, 3]; window: 9; strategy: halo");
    experiment.data.tokens = 64;
    let plan = planned(experiment.clone()).unwrap_or_else(|p| panic!("{p}"));
    let json: serde_json::Value = serde_json::from_str(&plan.to_json()).expect("JSON");
    let proving = Proving::of(&plan.resolved()).unwrap_or_else(|p| panic!("{p}"));
    // How long it took is another each time.
    let proved = proving.to_text();
    let proved = proved.lines().map(|line| line.split(", proved in").next().unwrap_or(line));
    let proved: Vec<&str> = proved.collect();
    let layers = &json["layers"];
    let text = plan.to_text();
    insta::assert_snapshot!(format!("{text}\n{layers:#}\n\n{}", proved.join("\n")));
    assert!(json["ranks"][0].get("pairs").is_none());
}

#[test]
fn which_layers_slide_may_not_change_on_resume_and_how_they_are_split_may() {
    let began = experiment("ring", &format!("{SLIDING}; strategy: halo"));
    let other = experiment("megatron", &format!("{SLIDING}; strategy: usp; shape: [2, 2]"));
    assert_eq!(differences(&began, &other), []);
    let keys = |other: &Experiment| {
        let all = differences(&began, other);
        let said = |one: &KeyDifference| format!("{}: {}, {}", one.key, one.was(), one.is());
        all.iter().map(said).collect::<Vec<_>>()
    };
    let wider = experiment("ring", "layers: [0-2]; window: 513");
    assert_eq!(keys(&wider), ["attention.sliding.window: 512, 513"]);
    let fewer = experiment("ring", "layers: [0, 2]; window: 512");
    assert_eq!(keys(&fewer), ["attention.sliding.layers: [0-2], [0, 2]"]);
    let mut none = began.clone();
    none.attention.sliding = None;
    assert_eq!(keys(&none).len(), 2);
}

#[test]
fn balanced_blocks_are_sharded_by_what_most_layers_see() {
    let plan = plan("ring; layout: balanced; stripe: 64", SLIDING);
    let all = plan_of_all("ring; layout: balanced; stripe: 64");
    assert_eq!(plan.experiment.attention.layout, Some(LayoutKeys::Balanced { width: Some(64) }));
    assert_eq!(plan.ranks[1].positions, all.ranks[1].positions);
}

fn plan_of_all(strategy: &str) -> Plan {
    let mut experiment = experiment(strategy, SLIDING);
    experiment.attention.sliding = None;
    planned(experiment).unwrap_or_else(|problems| panic!("{problems}"))
}

#[test]
fn wrong_sliding_layers() {
    let cases = [
        ("ring", "window: 512"),
        ("ring", "layers: [0-2]"),
        ("ring", "layers: 0-2; window: 512"),
        ("ring", "layers: [even]; window: 512"),
        ("ring", "layers: [2-0]; window: 512"),
        ("ring", "layers: []; window: 512"),
        ("ring", "layers: [0-2, 2]; window: 512"),
        ("ring", "layers: [3, 0-2]; window: 512"),
        ("ring", "layers: [0-3]; window: 512"),
        ("ring", "layers: [3-7]; window: 512"),
        ("ring", "layers: [0-2]; window: 0"),
        ("ring", "layers: [0-2]; window: 512; layout: zigzag"),
        ("ring", "layers: [0-2]; window: 512; mask: full"),
        ("ring", "layers: [0-2]; window: 512; strategy: halow"),
        ("ring", "layers: [0-2]; window: 512; strategy: local"),
        ("ring", "layers: [0-2]; window: 512; strategy: striped"),
        ("ring; layout: zigzag", "layers: [0-2]; window: 512; strategy: striped"),
        ("ring", "layers: [0-2]; window: 512; exchange: a2a"),
        ("ring", "layers: [0-2]; window: 512; groups: 2"),
        ("ring", "layers: [0-2]; window: 512; strategy: usp; shape: [3, 2]"),
        ("ring", "layers: [0-2]; window: 512; strategy: all-gather; groups: 3"),
        ("ring", "layers: [0-2]; window: 512; strategy: halo; backward: queries"),
        ("ring", "layers: [0-2]; window: 512; strategy: auto; backward: queries"),
        ("ring", "layers: [0-2]; window: 512; strategy: auto; shape: [2, 2]"),
        ("auto", "layers: [0-2]; window: 512; shape: [2, 2]"),
        ("local", "layers: [0-2]; window: 512"),
        ("halo; backward: queries", "layers: [0-2]; window: 512"),
    ];
    let answer = |(strategy, sliding): (&str, &str)| {
        let read = parse("small.yaml", &with(strategy, sliding), &[]);
        read.and_then(planned).map(|_| ()).expect_err(sliding)
    };
    let answers = cases.map(|case| format!("## {} | {}\n\n{}\n", case.0, case.1, answer(case)));
    insta::assert_snapshot!(answers.join("\n"));
}
