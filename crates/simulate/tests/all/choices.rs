//! `strategy: auto` and the sweet spot.

use std::cell::Cell;

use annulus_experiment::Experiment;
use annulus_plan::label;
use annulus_sequence::{Route, Strategy};
use annulus_simulate::{Choice, Cluster, Grid, Longest, Meshes, Scale, longest, plans_measured};

use crate::support::{cluster, experiment, plain, resolved};

pub(crate) fn automatic(arguments: &[&str]) -> Experiment {
    experiment(&[&["attention.strategy=auto"], arguments].concat())
}

fn among(arguments: &[&str], cluster: &Cluster) -> Choice {
    Choice::among(&resolved(automatic(arguments)), cluster).unwrap_or_else(|p| panic!("{p}"))
}

#[test]
fn every_strategy_is_in_the_table() {
    let choice = among(&[], &cluster());
    let strategies: Vec<Strategy> =
        choice.tables[0].candidates.iter().map(|c| c.strategy).collect();
    let missing = Strategy::ALL
        .into_iter()
        .map(Strategy::name)
        .find(|name| strategies.iter().all(|strategy| strategy.name() != *name));
    assert_eq!(missing, None);
    let local = &choice.tables[0].candidates[0].outcome;
    assert_eq!(local, &Err(String::from("`local` runs on 1 rank, found 8")));
    let steps: Vec<f64> =
        choice.tables[0].ranking().iter().map(|(_, estimate)| estimate.step).collect();
    assert!(steps.len() > 3 && steps.is_sorted(), "{steps:?}");
}

#[test]
fn under_a_causal_mask_an_even_deal_is_taken() {
    let choice = among(&[], &cluster());
    let chosen = choice.tables[0].chosen.expect("some can run");
    assert!(["striped", "megatron", "usp"].contains(&chosen.name()), "{}", choice.to_text());
    assert!(choice.why()[0].starts_with(&format!("auto takes `{}`", chosen.name())));
    let ring = choice.why().into_iter().find(|line| line.contains("`ring`")).expect("a line");
    assert!(ring.ends_with("ranks wait longer for the slowest"), "{ring}");
}

#[test]
fn where_ranks_help_each_other_an_even_deal_is_taken_of_those_as_good() {
    let helping = Cluster { helping: true, ..plain(8, 1e12, 1e15) };
    let choice = among(&[], &helping);
    let table = &choice.tables[0];
    let balance = |name: &str| {
        let found = table.ranking().into_iter().find(|(strategy, _)| strategy.name() == name);
        found.expect("it can run").1.balance
    };
    let chosen = table.chosen.expect("some can run");
    assert!(balance(chosen.name()) < 1.01 && balance("ring") > 1.8, "{}", choice.to_text());
    let ring = choice.why().into_iter().find(|line| line.contains("`ring`")).expect("a line");
    assert!(ring.ends_with("about as good"), "{ring}");
}

#[test]
fn on_one_rank_nothing_is_split() {
    let choice = among(&["mesh.sequence=1", "data.tokens=8k"], &cluster());
    assert_eq!(choice.tables[0].chosen, Some(Strategy::Local), "{}", choice.to_text());
}

#[test]
fn the_longest_sequence_is_found_or_known_to_be_beyond_what_is_tried() {
    let longest = |memory: &str| {
        let text = crate::support::CLUSTER.replace("80GB", memory);
        let cluster = Cluster::parse("h100.yaml", &text).unwrap_or_else(|p| panic!("{p}"));
        longest(&resolved(experiment(&["data.tokens=8k"])), &cluster)
    };
    let Longest::Tokens(tokens) = longest("80GB") else { panic!("80 GB end somewhere") };
    assert!(tokens.is_multiple_of(8 * 1024) && tokens > 1 << 17, "{tokens}");
    let beyond = longest("800TB");
    assert_eq!((beyond, beyond.tokens()), (Longest::AtLeast(1 << 28), None));
    let line = "longest sequences that fit: at least 262144k tokens (longer ones are not tried)";
    assert_eq!(beyond.to_text().as_deref(), Some(line));
    assert_eq!(longest("1GB"), Longest::Unknown);
}

#[test]
fn what_does_not_fit_is_not_taken() {
    let tokens = ["data.tokens=1M", "parallel.state=replicated"];
    let roomy = among(&tokens, &cluster());
    let fullest = |choice: &Choice, strategy| {
        let found = choice.tables[0].ranking().into_iter().find(|(of, _)| *of == strategy);
        found.map(|(_, estimate)| estimate.fullest()).expect("it can run")
    };
    let [gathered, ring] =
        [Strategy::ALL_GATHER, Strategy::Ring].map(|strategy| fullest(&roomy, strategy));
    assert!(gathered > ring);
    // Three quarters may be taken.
    let tight = Cluster { memory: Some((gathered - 3) / 3 * 4), ..cluster() };
    let tight = among(&tokens, &tight);
    let of_gathered = |choice: &Choice| {
        let lines = choice.why().into_iter();
        lines.filter(|line| line.contains("`all-gather`")).collect::<String>()
    };
    assert!(of_gathered(&tight).ends_with("it does not fit"), "{:?}", tight.why());
    let tiny = among(&tokens, &Cluster { memory: Some(1 << 30), ..cluster() });
    let least = tiny.tables[0].ranking().iter().map(|(_, estimate)| estimate.fullest()).min();
    assert_eq!(tiny.tables[0].chosen.map(|chosen| fullest(&tiny, chosen)), least);
    assert!(tiny.why()[0].contains("none fits"), "{:?}", tiny.why());
    assert!(of_gathered(&tiny).ends_with("it needs more memory"), "{:?}", tiny.why());
}

#[test]
fn a_plan_settles_what_is_left_open() {
    let (asked, fast) = (Cell::new(0), plain(8, 1e12, 1e12));
    let measure = |ranks: usize| {
        asked.set(ranks);
        fast.clone()
    };
    let plans = plans_measured(&resolved(automatic(&[])), measure);
    let plan = plans.unwrap_or_else(|p| panic!("{p}")).remove(0);
    assert_eq!(asked.get(), 8);
    let budget = plan.experiment.memory.budget(&plan.experiment.host);
    let fast = Cluster { memory: Some(budget / 8), ..fast };
    let chosen = among(&[], &fast).tables[0].chosen.expect("chosen");
    let attention = &plan.experiment.attention;
    assert_eq!((attention.strategy, attention.automatic), (chosen, false));
    assert!(plan.to_text().contains(&format!("auto takes `{}`", chosen.name())));
    // What is written is not asked about.
    let named = plans_measured(&resolved(experiment(&[])), |_| panic!("nobody needs to know"));
    assert!(named.is_ok_and(|plans| plans[0].choice.is_none()));
}

#[test]
fn a_cluster_that_is_named_is_chosen_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("cluster.yaml");
    std::fs::write(&path, crate::support::CLUSTER).expect("written");
    let named = format!("mesh.cluster={}", path.display());
    let named = resolved(automatic(&[&named]));
    let plans = plans_measured(&named, |_| panic!("it is described"));
    let chosen = plans.unwrap_or_else(|p| panic!("{p}")).remove(0).choice.expect("chosen");
    assert_eq!(chosen.whole, Choice::among(&named, &cluster()).expect("eight devices").to_text());
}

#[test]
fn an_open_choice_is_written_as_one_reads_it() {
    let open = automatic(&["mesh.cluster=h100.yaml"]);
    let text = open.to_yaml();
    let again = annulus_experiment::parse("again.yaml", &text, &[]).expect("reads back");
    assert!(again.attention.automatic && again == open, "{text}");
}

#[test]
fn auto_takes_no_exchange() {
    let given = annulus_experiment::Override::split("attention.exchange=p2p").expect("`=`");
    let text = automatic(&[]).to_yaml();
    let problems = annulus_experiment::parse("a.yaml", &text, &[given]).expect_err("two masters");
    assert!(problems.to_string().contains("chooses the `exchange` too"), "{problems}");
}

#[test]
fn a_table_reads_well() {
    insta::assert_snapshot!(among(&["data.tokens=64k"], &cluster()).to_text());
}

#[test]
fn shares_by_speed_are_the_stragglers_remedy() {
    let mut slow = cluster();
    slow.slowdown.insert(2, 2.0);
    let named = |weights: &[&str]| {
        let strategy = ["attention.strategy=megatron", "data.tokens=128k"];
        let experiment = experiment(&[&strategy[..], weights].concat());
        Choice::among(&resolved(experiment.clone()), &slow).unwrap_or_else(|p| panic!("{p}"))
    };
    let weighing = named(&[]).weighing.expect("devices differ");
    assert_eq!(
        (weighing.weights.as_slice(), weighing.written),
        (&[2, 2, 1, 2, 2, 2, 2, 2][..], false)
    );
    // At best seven and a half devices work where four did.
    assert!(weighing.gain() > 1.4 && weighing.gain() <= 1.875, "{weighing:?}");
    let lines = named(&[]).why().join("\n");
    assert!(lines.contains("`mesh.weights: [2, 2, 1, 2, 2, 2, 2, 2]` would make"), "{lines}");
    let written = named(&["mesh.weights=[2, 2, 1, 2, 2, 2, 2, 2]"]).weighing.expect("written");
    assert_eq!((written.written, written.weighed), (true, weighing.weighed));
    assert_eq!(among(&[], &cluster()).weighing, None);
}

/// Where the strategy is open, equal and weighted shards each have the best for them: the ring that a slow device favours gains nothing
/// from weights, but with them another strategy is faster.
#[test]
fn weights_are_advised_with_the_strategy_that_they_favour() {
    let mut slow = cluster();
    slow.slowdown.insert(9, 2.0);
    let mesh = ["data.tokens=64k", "mesh.data=2", "data.batch=2"];
    let choice = among(&mesh, &slow);
    let weighing = choice.weighing.clone().expect("a gain");
    let lines = choice.why().join("\n");
    let weights = [&mesh[..], &["mesh.weights=[2, 1, 2, 2, 2, 2, 2, 2]"]].concat();
    let weighed = among(&weights, &slow);
    let [equal, better] = [&choice, &weighed].map(|choice| {
        let (name, estimate) = choice.tables[0].ranking()[0];
        (label(name), estimate.step)
    });
    assert!(
        weighing.equal <= 1.01 * equal.1 && weighing.weighed <= 1.01 * better.1,
        "{weighing:?}"
    );
    assert!(weighing.gain() > 1.3 && weighing.split != weighing.equal_split, "{weighing:?}");
    let wanted = format!(
        "{:.2} times as fast: `auto` would take `{}` with",
        weighing.gain(),
        weighing.split
    );
    assert!(lines.contains(&wanted), "{lines}");
    // The same numbers where the weights are written.
    let written = weighed.weighing.expect("written");
    assert_eq!((written.equal, written.weighed), (weighing.equal, weighing.weighed));
    // Nothing is advised that gains nothing.
    slow.slowdown.insert(9, 1.01);
    assert_eq!(among(&mesh, &slow).weighing, None);
}

/// What is wrong with the model is said, not that no strategy can run.
#[test]
fn a_model_that_cannot_be_extended_is_refused() {
    let extend = ["data.tokens=128k", "extend={ rope: yarn, tokens: 128k }"];
    let unable = resolved(automatic(&extend));
    let why = Choice::among(&unable, &cluster()).expect_err("of which length?").to_string();
    assert!(why.contains("max_position_embeddings"), "{why}");
}

/// In bf16 with f32 gradients, queries take 8 units per head, and keys with values 12.
#[test]
fn queries_travel_back_where_few_share_a_key() {
    let lightest = |heads: &str| {
        let choice = among(&[heads], &cluster());
        assert!(
            choice.tables[0].routes.is_sorted_by_key(|cost| cost.bytes),
            "{:?}",
            choice.tables[0].routes
        );
        let chosen = choice.tables[0].chosen.expect("some can run");
        assert_eq!(choice.tables[0].routes.len(), chosen.routes().len());
        choice.tables[0].routes[0].how
    };
    assert_eq!(lightest("model.num_key_value_heads=32"), Route::Queries);
    assert_eq!(lightest("model.num_key_value_heads=16"), Route::Reversed);
    assert_eq!(lightest("model.num_key_value_heads=8"), Route::Reversed);
}

#[test]
fn a_grid_takes_the_best_shape_for_every_number_of_devices() {
    let experiment = experiment(&["model.num_hidden_layers=2"]);
    let usp =
        Grid::of(&resolved(experiment.clone()), Strategy::Usp { shape: Some([4, 2]) }, &cluster());
    assert_eq!(usp.strategy, Strategy::USP);
    assert!(usp.cells.iter().flatten().all(Option::is_some), "{}", usp.to_text());
}

fn grid(cluster: &Cluster) -> Grid {
    Grid::of(&resolved(experiment(&["model.num_hidden_layers=2"])), Strategy::STRIPED, cluster)
}

#[test]
fn sweet_spots_lie_between_waiting_and_not_fitting() {
    let grid = grid(&Cluster { memory: Some(54_000_000_000), ..cluster() });
    assert_eq!(grid.devices, [1, 2, 4, 8, 16]);
    let last = grid.devices.len() - 1;
    for column in 0..=last {
        let cells: Vec<_> = grid.cells.iter().map(|row| row[column].expect("it splits")).collect();
        // Longer sequences wait less and need more.
        assert!(cells.is_sorted_by(|a, b| a.efficiency < b.efficiency + 0.02), "{cells:?}");
        assert!(cells.is_sorted_by(|a, b| a.fits >= b.fits), "{cells:?}");
    }
    let (least, most) = grid.sweet(last).expect("a sweet spot");
    assert!(least > 4096 && most < 4 << 20, "{}", grid.to_text());
    // More devices take longer sequences.
    assert!(grid.sweet(2).is_none_or(|(_, fewer)| fewer < most), "{}", grid.to_text());
}

#[test]
fn a_sweet_spot_is_drawn() {
    let mut small = cluster();
    (small.nodes, small.devices_per_node) = (1, 4);
    let grid = grid(&small);
    insta::assert_snapshot!("sweet_spot", grid.to_text());
    let svg = grid.to_svg("a < b");
    assert_eq!(svg.matches("<rect").count(), 1 + 3 * 11);
    assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.contains("a &lt; b"));
    assert_eq!(svg, grid.to_svg("a < b"));
}

/// From what fits easily to what fits nowhere; the rows are what `auto` chooses there.
#[test]
fn the_best_strategy_by_length_and_devices() {
    let resolved = resolved(experiment(&["attention.strategy=usp", "parallel.state=replicated"]));
    let mut told = Vec::new();
    let scale = Scale::of(&resolved, &cluster(), |row| told.push(row.in_short()));
    let in_short: Vec<String> = scale.rows.iter().map(annulus_simulate::Row::in_short).collect();
    assert_eq!(told, in_short);
    let sizes: Vec<(usize, usize)> =
        scale.rows.iter().map(|row| (row.tokens, row.devices)).collect();
    // The first length that fits nowhere is the last.
    let wanted =
        (16..=22).step_by(2).flat_map(|power| [8, 16].map(|devices| (1 << power, devices)));
    assert_eq!(sizes, wanted.collect::<Vec<_>>());
    let steps: Vec<f64> =
        scale.rows.iter().map(|row| row.outcome.as_ref().unwrap().2.step).collect();
    // Of 64k tokens a second node's links cost more than its devices gain.
    let gains: Vec<bool> = steps.chunks(2).map(|of_length| of_length[1] < of_length[0]).collect();
    assert_eq!(gains, [false, true, true, true], "{steps:?}");
    let fits: Vec<bool> = scale.rows.iter().map(|row| row.outcome.as_ref().unwrap().1).collect();
    assert!(fits[0] && fits[1] && !fits[6] && !fits[7], "{fits:?}");
    let same = ["data.tokens=1M", "mesh.sequence=16", "parallel.state=replicated"];
    let choice = among(&same, &cluster());
    let (name, _, estimate) = scale.rows[5].outcome.as_ref().unwrap();
    assert_eq!(*name, label(choice.tables[0].chosen.unwrap()));
    assert_eq!(estimate, choice.tables[0].ranking()[0].1);
    let text = scale.to_text();
    assert!(text.lines().count() == 12 && text.contains(" !\n"), "{text}");
    assert_eq!(scale.to_json()[7]["fits"], false);
    let mut alone = scale.rows[0].clone();
    alone.devices = 1;
    assert!(alone.in_short().starts_with("64k tokens on 1 device: "), "{}", alone.in_short());
}

/// Meshes of as many ranks with tensor parallelism are listed too, each with the answer that its own file would get.
#[test]
fn meshes_of_as_many_ranks_are_beside_each_other() {
    let open = resolved(automatic(&["mesh.sequence=4", "mesh.tensor=2"]));
    let choice = Choice::among(&open, &cluster()).unwrap_or_else(|problems| panic!("{problems}"));
    let meshes = Meshes::of(&open, &cluster(), &choice);
    let json = meshes.to_json();
    let all = json.as_array().expect("a list");
    let steps: Vec<f64> = all.iter().filter_map(|mesh| mesh["step"].as_f64()).collect();
    assert!(steps.len() == 4 && steps.is_sorted(), "{json}");
    for mesh in all {
        let (sequence, tensor) = (&mesh["sequence"], &mesh["tensor"]);
        let keys = [format!("mesh.sequence={sequence}"), format!("mesh.tensor={tensor}")];
        let own = among(&keys.each_ref().map(String::as_str), &cluster());
        let best = own.tables[0].ranking()[0].1.step;
        // Of steps within a hundredth the one that needs the least memory is taken.
        let step = mesh["step"].as_f64().expect("a number");
        assert!((step / best - 1.0).abs() < 0.01, "{mesh}: {best}");
        assert_eq!(mesh["written"], *tensor == 2, "{mesh}");
    }
    assert!(meshes.to_text().expect("four").contains("sequence=4 tensor=2"));
    // A model that cannot be shared so is left out.
    let few = resolved(automatic(&["model.num_key_value_heads=2"]));
    let choice = Choice::among(&few, &cluster()).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(Meshes::of(&few, &cluster(), &choice).to_json().as_array().map(Vec::len), Some(2));
}
