//! What a plan says before anything runs.

use std::time::{Duration, Instant};

use annulus_experiment::{Dtype, Experiment, ModelSource, Override, Resolved, parse};
use annulus_memory::Class;
use annulus_plan::Plan;
use annulus_sequence::{Heads, Strategy};

use crate::common::planned;
use crate::small::SMALL;

fn experiment(arguments: &[&str]) -> Experiment {
    let overrides: Vec<Override> =
        arguments.iter().map(|a| Override::split(a).expect("cases have a `=`")).collect();
    parse("small.yaml", SMALL, &overrides).unwrap_or_else(|problems| panic!("{problems}"))
}

fn plan(arguments: &[&str]) -> Plan {
    planned(experiment(arguments)).unwrap_or_else(|problems| panic!("{problems}"))
}

/// `SMALL`'s shape: layers, KV heads, elements per head.
const SHAPE: (u64, u64, u64) = (2, 2, 32);

/// Whether every block visits every rank, whatever its shape: other strategies are counted with their schedules.
fn travels_in_a_ring(strategy: Strategy) -> bool {
    !matches!(strategy, Strategy::Ulysses | Strategy::Usp { .. } | Strategy::Halo)
}

#[test]
fn bytes_are_the_closed_forms() {
    let (layers, heads, width) = SHAPE;
    for ranks in 1..=8 {
        for strategy in Strategy::ALL {
            let of_small = Heads { query: 4, key_value: 2 };
            if strategy.check(ranks, of_small).is_err() || !travels_in_a_ring(strategy) {
                continue;
            }
            let tokens = 1680;
            let mut experiment = experiment(&["mesh.data=1", "data.batch=3"]);
            experiment.mesh.sequence = ranks;
            experiment.attention.strategy = strategy;
            experiment.data.tokens = tokens;
            experiment.model.dtype = Dtype::Bf16;
            let plan = planned(experiment).expect("it splits");
            // Keys and values of one sequence's share, in elements.
            let block = 2 * heads * width * (tokens / ranks) as u64;
            let (hops, sequences) = (ranks as u64 - 1, 3);
            let times = layers * sequences * block;
            let forward = 2 * times * hops;
            for rank in &plan.ranks {
                assert_eq!(rank.forward, forward, "{} on {ranks}", strategy.name());
                assert_eq!(rank.forward == 0, ranks == 1);
                assert_eq!(rank.gradients == 0, ranks == 1);
            }
            let pairs: u64 = plan.ranks.iter().map(|rank| rank.pairs[0]).sum();
            assert_eq!(pairs, 3 * 1680 * 1681 / 2, "{} on {ranks}", strategy.name());
        }
    }
}

#[test]
fn a_ring_goes_back_as_far_as_it_came() {
    let (layers, heads, width) = SHAPE;
    let plan = plan(&["attention.strategy=ring", "mesh.data=1", "data.batch=1", "data.tokens=64"]);
    let elements = 2 * layers * heads * width * 16;
    for rank in &plan.ranks {
        assert_eq!(rank.forward, 3 * 4 * elements);
        // Keys and values go round once more, and three of four gradients travel home.
        assert_eq!(rank.backward, 3 * 4 * elements + 3 * 4 * elements);
    }
}

#[test]
fn every_gradient_is_sent_to_whom_sums_it_and_those_who_update_it() {
    let plan = plan(&[]);
    let ModelSource::Inline(shape) = &plan.experiment.model.source else { panic!("inline") };
    let (h, m, k) = (shape.hidden_size as u64, shape.intermediate_size as u64, 64);
    let layer = h * h + 2 * h * k + h * h + 3 * h * m + 2 * h;
    let elements = 2 * 256 * h + 2 * layer + h;
    assert_eq!(plan.shape.elements(), elements);
    // Of each of two micro-batches each of eight ranks keeps the slice that it sums; with it go three numbers.
    let sent = |processes: u64| {
        let plan = plan.over(processes as usize);
        plan.ranks.iter().map(|rank| rank.gradients).sum::<u64>()
    };
    let of_elements = |times: u64| 4 * times * elements + 8 * 24;
    assert_eq!(sent(1), of_elements(2 * 7));
    // What a slice came to goes to every other process.
    assert_eq!([sent(2), sent(4), sent(8)], [14 + 1, 14 + 3, 14 + 7].map(of_elements));
    // A process holds the state once, whatever the number of its ranks.
    for processes in [1, 2, 4, 8] {
        let plan = plan.over(processes);
        let here = 8 / processes;
        for (number, rank) in plan.ranks.iter().enumerate() {
            assert_eq!(rank.peak_by_class[Class::Optimizer], 8 * elements / here as u64);
            let is_first = number % here == 0;
            assert_eq!(rank.peak_by_class[Class::Weights], if is_first { 4 * elements } else { 0 });
        }
    }
}

#[test]
fn replicas_hold_the_same_positions() {
    let plan = plan(&[]);
    assert_eq!(plan.ranks.len(), 8);
    assert_eq!((plan.micro_batch, plan.micro_batches), (1, 2));
    for (rank, other) in plan.ranks.iter().zip(&plan.ranks[4..]) {
        assert_eq!(rank.positions, other.positions);
    }
    let held: usize = plan.ranks[..4].iter().map(|rank| rank.positions.tokens()).sum();
    assert_eq!(held, 12 * 1024);
}

#[test]
fn what_saves_memory_says_so() {
    let peak = |arguments: &[&str]| plan(arguments).ranks[0].peak_by_class;
    let all = peak(&["memory.recompute=none"]);
    let layer = peak(&["memory.recompute=layer"]);
    let chunked = peak(&["memory.recompute=layer", "memory.mlp_chunk=64", "memory.loss_chunk=64"]);
    assert!(
        all[Class::Activations] > layer[Class::Activations]
            && layer[Class::Activations] > chunked[Class::Activations]
    );
    let gathered = peak(&["attention.strategy=all-gather"]);
    let ring = peak(&["attention.strategy=ring"]);
    assert!(gathered[Class::KeyValue] > ring[Class::KeyValue], "{gathered:?} {ring:?}");
    let one = peak(&["mesh.sequence=1", "mesh.data=1", "attention.strategy=local"]);
    // Nothing travels: the gradients of its own keys and values are all there is.
    assert_eq!(one[Class::KeyValue], 12 * 1024 * 2 * 64 * 4);
    let half = peak(&["model.dtype=bf16"]);
    // The eight ranks have a master of an eighth each.
    assert_eq!(half[Class::Weights] * 8, layer[Class::Weights] * 5);
}

#[test]
fn a_plan_reads_well() {
    insta::assert_snapshot!(plan(&["data.tokens=64"]).to_text());
}

#[test]
fn a_plan_is_json() {
    let plan = plan(&["data.tokens=16", "mesh.data=1", "data.batch=1", "model.head_dim=8"]);
    let json: serde_json::Value = serde_json::from_str(&plan.to_json()).expect("JSON");
    insta::assert_snapshot!(format!("{json:#}"));
}

#[test]
fn vocabularies_must_fit() {
    let answer = |arguments: &[&str], vocabulary| {
        Resolved::read(experiment(arguments), vocabulary)
            .and_then(|resolved| Plan::new(&resolved))
            .map(|plan| plan.vocabulary())
    };
    assert_eq!(answer(&[], Some(300)), Ok(300));
    assert_eq!(answer(&["model.vocab_size=512"], Some(300)), Ok(512));
    assert_eq!(answer(&["model.vocab_size=512"], None), Ok(512));
    // A row for every byte is enough for one document; several are refused when they are opened.
    assert_eq!(answer(&["model.vocab_size=256"], Some(257)), Ok(256));
    let mut messages = String::new();
    for problems in [answer(&["model.vocab_size=100"], Some(256)), answer(&[], None)] {
        messages += &problems.expect_err("does not fit").to_string();
        messages += "\n\n";
    }
    insta::assert_snapshot!(messages);
}

#[test]
fn a_large_plan_is_soon_made() {
    let start = Instant::now();
    for strategy in ["ring", "striped", "megatron", "all-gather"] {
        let strategy = format!("attention.strategy={strategy}");
        let plan = plan(&["data.tokens=1M", "mesh.sequence=64", "mesh.data=1", &strategy]);
        assert_eq!(plan.ranks.len(), 64);
    }
    assert!(start.elapsed() < Duration::from_secs(20), "took {:?}", start.elapsed());
}

#[test]
fn the_largest_sizes_do_not_overflow() {
    let sizes = [
        "mesh={ sequence: 64 }",
        "model.hidden_size=1048576",
        "model.intermediate_size=4194304",
        "model.num_hidden_layers=4096",
        "model.num_attention_heads=4096",
        "model.num_key_value_heads=4096",
        "model.head_dim=1024",
        "model.vocab_size=256M",
    ];
    let long = ["data.tokens=1024M", "data.batch=64", "memory.micro_batch=64"];
    let many = ["data.tokens=64k", "data.batch=1048576", "memory.micro_batch=1"];
    for steps in [long, many] {
        let plan = plan(&[&sizes[..], &steps].concat());
        assert!(plan.ranks.iter().all(|rank| rank.peak_by_class.total() > 1 << 40));
    }
}

/// The plan of a small model whose heads are wider than its hidden size; `more` is more of its file.
fn of_wide_heads(tied: bool, mesh: &str, more: &str) -> Plan {
    let folder = tempfile::tempdir().expect("a folder");
    let config = format!(
        r#"{{"model_type": "llama", "hidden_size": 20, "intermediate_size": 28, "num_hidden_layers": 2,
            "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 37,
            "max_position_embeddings": 100, "tie_word_embeddings": {tied}, "torch_dtype": "float32"}}"#
    );
    std::fs::write(folder.path().join("config.json"), config).expect("written");
    let yaml = format!(
        "name: flops\nmodel: {{ path: {} }}\ndata: {{ tokens: 100, batch: 3 }}\nmesh: {mesh}\n\
         attention: {{ strategy: ring }}\noptimizer: {{ learning_rate: 1e-3 }}\nschedule: {{ steps: 1 }}\n{more}",
        folder.path().display()
    );
    let experiment = parse("flops.yaml", &yaml, &[]).unwrap_or_else(|p| panic!("{p}"));
    let resolved = Resolved::read(experiment, None).unwrap_or_else(|p| panic!("{p}"));
    Plan::new(&resolved).unwrap_or_else(|p| panic!("{p}"))
}

#[test]
fn model_flops_are_those_of_products_and_visible_pairs() {
    let plan = |tied: bool, more: &str| of_wide_heads(tied, "{ sequence: 2 }", more);
    let flops = |tied: bool, more: &str| plan(tied, more).flops() as u64;
    // Per layer: q and o 2 x 48 x 20, k and v 2 x 16 x 20, gate, up and down 3 x 28 x 20, two norms of 20; then a norm and the
    // projection to the vocabulary. Causal, a sequence shows 5050 pairs.
    let layer = 2 * 48 * 20 + 2 * 16 * 20 + 3 * 28 * 20 + 2 * 20;
    let multiplied = 2 * layer + 20 + 37 * 20;
    let pairs = 12 * 8 * 6 * 2 * 5050;
    let wanted = 3 * (6 * multiplied * 100 + pairs);
    assert_eq!([flops(false, ""), flops(true, "")], [wanted; 2]);
    // An adapter of rank 2 of every q, [48, 20]; what is frozen has no gradients of its own.
    let adapters = 2 * 2 * (48 + 20);
    let wanted = 3 * ((6 * adapters + 4 * multiplied) * 100 + pairs);
    let lora = "lora: { rank: 2, alpha: 4, targets: [q_proj]";
    assert_eq!(flops(false, &format!("{lora} }}")), wanted);
    // Forward and backward of a layer, and the loss: frozen weights, and a frozen head, give gradients of inputs alone.
    let without_norms = 2 * (layer - 2 * 20);
    let [own, adapter, head] = [without_norms, 2 * adapters / 2, 37 * 20].map(|all| all as f64);
    let kept = "memory: { recompute: none }\n";
    let products = |more: &str| plan(false, &format!("{kept}{more}")).products_per_row();
    assert_eq!(products(""), [own, 2.0 * own, 6.0 * head]);
    let [ahead, back] = [own + adapter, own + 2.0 * adapter];
    assert_eq!(products(&format!("{lora} }}")), [ahead, back, 4.0 * head]);
    assert_eq!(products(&format!("{lora}, train: [head] }}")), [ahead, back, 6.0 * head]);
}

/// Tensor-parallel ranks hold parts of what is trained.
#[test]
fn adapters_are_counted_whole_however_they_are_split() {
    let lora = "lora: { rank: 2, targets: [q_proj, down_proj], train: [norms, head] }";
    let trained = |mesh: &str| {
        let text = of_wide_heads(false, mesh, lora).to_text();
        let line = text.lines().find(|line| line.starts_with("lora ")).map(str::to_owned);
        line.unwrap_or_else(|| panic!("{text}"))
    };
    assert_eq!(trained("{ sequence: 2, tensor: 2 }"), trained("{ sequence: 2 }"));
}

#[test]
fn ranks_without_tokens_are_told() {
    let few = ["data.tokens=6", "mesh.sequence=8", "mesh.data=1", "attention.strategy=ring"];
    let said = "2 of 8 ranks hold no tokens: lower `mesh.sequence` to at most 6";
    assert!(plan(&few).warnings.contains(&said.to_owned()), "{:?}", plan(&few).warnings);
    let enough = [&few[1..], &["data.tokens=8"]].concat();
    assert!(!plan(&enough).warnings.iter().any(|said| said.contains("hold no tokens")));
}

#[test]
fn steps_that_cannot_become_the_best_checkpoint_are_told() {
    let said = |evaluate: u64, checkpoint: u64, more: &[&str]| {
        let every =
            [format!("every.evaluate={evaluate}"), format!("every.checkpoint={checkpoint}")];
        let of_best =
            ["keep_best=true", "data.evaluate=4", "schedule.steps=60", &every[0], &every[1]];
        let warnings = plan(&[&of_best, more].concat()).warnings;
        let is_it = |warning: &&String| warning.contains("`keep_best`");
        let one = warnings.iter().find(is_it)?;
        one.split_once(": ").map(|(_, steps)| steps.to_owned())
    };
    let way = "; set `every.checkpoint` (5) to a multiple of `every.evaluate`, such as 2";
    assert_eq!(said(2, 5, &[]), Some(format!("multiples of 10, the last step{way}")));
    for (evaluate, checkpoint) in [(2, 0), (11, 7), (2, 60)] {
        let steps = said(evaluate, checkpoint, &[]);
        assert!(
            steps.as_ref().is_some_and(|steps| steps.starts_with("the last step; ")),
            "{steps:?}"
        );
    }
    let after = said(2, 0, &["every.checkpoint_after=1h"]).expect("a warning");
    assert!(
        after.contains("the last step, evaluated ones that `every.checkpoint_after`"),
        "{after}"
    );
    // All that is evaluated is saved, or all that is saved is evaluated, or nothing is evaluated before the end.
    for (evaluate, checkpoint) in [(2, 2), (10, 5), (2, 10), (60, 0), (100, 7)] {
        assert_eq!(said(evaluate, checkpoint, &[]), None, "{evaluate}, {checkpoint}");
    }
    assert_eq!(said(2, 5, &["keep_best=false"]), None);
}
