//! Training computes what PyTorch computes, however it is split over ranks.

use crate::common::{Place, difference, golden, losses, number, plan, state};
use annulus_train::{Ending, Outcome, RunOptions, Silent, run};

#[test]
fn the_loss_falls_and_the_folder_is_complete() {
    let place = Place::new();
    let outcome = place.run(&[]).unwrap();
    assert_eq!((outcome.ending, outcome.step), (Ending::Finished, 20));
    let losses = losses(&outcome);
    assert!(losses[0] > 5.0 && losses[19] < 0.75 * losses[0], "{losses:?}");
    assert!(outcome.last["evaluate/loss"] < 0.75 * losses[0]);
    let bigram = outcome.last["evaluate/bigram_entropy"];
    assert!(bigram > 0.0 && bigram < 2.0, "{bigram}");

    for name in ["experiment.yaml", "given.yaml", "manifest.json", "metrics.jsonl", "LATEST"] {
        assert!(outcome.folder.join(name).is_file(), "{name}");
    }
    let latest = std::fs::read_to_string(outcome.folder.join("LATEST")).unwrap();
    assert_eq!(latest.trim(), "step-20");
    for name in [
        "config.json",
        "model.safetensors",
        "generation_config.json",
        "optimizer.safetensors",
        "state.json",
    ] {
        assert!(outcome.folder.join("step-20").join(name).is_file(), "{name}");
    }
    let metrics = std::fs::read_to_string(outcome.folder.join("metrics.jsonl")).unwrap();
    assert_eq!(metrics.lines().count(), 20);
    for (index, text) in metrics.lines().enumerate() {
        let line: serde_json::Value = serde_json::from_str(text).unwrap();
        assert_eq!(line["step"], index as u64 + 1);
        assert_eq!(number(text, "train/loss").to_bits(), losses[index].to_bits());
        assert_eq!(line["comm/bytes"], serde_json::json!([0]));
        for tag in
            ["train/grad_norm", "train/lr", "speed/tokens_per_second", "speed/tflops", "speed/mfu"]
        {
            assert!(line[tag].as_f64().unwrap() > 0.0, "{tag}");
        }
    }
}

/// The first point of the validation curve is that of the weights that training begins with.
#[test]
fn a_run_is_evaluated_before_its_first_step() {
    let place = Place::new();
    let lines = |outcome: &Outcome| -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(outcome.folder.join("metrics.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let (start, stop) = (("every.evaluate_on_start", "true"), ("schedule.stop", "2"));
    let first = place.run_in("run", &[start, stop]);
    let of_first = lines(&first);
    let loss = of_first[0]["evaluate/loss"].as_f64().unwrap();
    assert_eq!(of_first.iter().map(|line| &line["step"]).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(of_first[0].get("train/loss"), None);
    assert_eq!((first.first["evaluate/loss"], first.logged_at["evaluate/loss"]), (loss, 2));
    // A step that moves nothing leaves the weights as they are at the start.
    let still = [("optimizer.learning_rate", "1e-30"), ("optimizer.weight_decay", "0")];
    for ranks in ["1", "3"] {
        let keys =
            [("mesh.sequence", ranks), ("attention.strategy", "striped"), ("schedule.stop", "1")];
        let still = place.run_in(&format!("still-{ranks}"), &[&still[..], &keys].concat());
        assert_eq!(lines(&still).len(), 1, "it is off by default");
        let at = still.last["evaluate/loss"];
        assert!((at - loss).abs() < 1e-5 * loss, "{ranks} ranks: {at} {loss}");
    }
    // A resumed run has been evaluated, and so has its start.
    let resumed = place.run_in("run", &[start, ("schedule.stop", "4")]);
    assert_eq!(resumed.resumed_from, Some(2));
    let steps: Vec<_> = lines(&resumed).iter().map(|line| line["step"].clone()).collect();
    assert_eq!(steps, [0, 1, 2, 3, 4]);
    assert_eq!(lines(&resumed)[..3], of_first[..]);
}

#[test]
fn every_strategy_on_any_ranks_is_local() {
    let place = Place::new();
    let short = [("schedule.stop", "6")];
    let local = losses(&place.run_in("local", &short));
    for strategy in ["ring", "striped", "megatron", "all-gather"] {
        for ranks in ["1", "2", "3", "4"] {
            let changes = [short[0], ("attention.strategy", strategy), ("mesh.sequence", ranks)];
            let plan = place.plan(&changes);
            let outcome = place.run_in(&format!("{strategy}-{ranks}"), &changes);
            let error = difference(&losses(&outcome), &local);
            assert!(error < 1e-5, "{strategy} on {ranks}: {error:e}");
            let metrics = std::fs::read_to_string(outcome.folder.join("metrics.jsonl")).unwrap();
            let line: serde_json::Value =
                serde_json::from_str(metrics.lines().last().unwrap()).unwrap();
            let wanted: Vec<u64> =
                plan.ranks.iter().map(|r| r.forward + r.backward + r.gradients).collect();
            assert_eq!(line["comm/bytes"], serde_json::json!(wanted), "{strategy} on {ranks}");
        }
    }
}

#[test]
fn meshes_and_micro_batches_are_one_rank() {
    let place = Place::new();
    let short = [("schedule.stop", "6")];
    let one = losses(&place.run_in("one", &short));
    for strategy in ["ring", "striped"] {
        for (data, sequence, micro) in
            [("2", "2", "1"), ("2", "2", "2"), ("4", "1", "1"), ("1", "2", "1"), ("1", "2", "4")]
        {
            let name = format!("{strategy}-{data}-{sequence}-{micro}");
            let changes = [
                short[0],
                ("attention.strategy", strategy),
                ("mesh.data", data),
                ("mesh.sequence", sequence),
                ("memory.micro_batch", micro),
            ];
            let error = difference(&losses(&place.run_in(&name, &changes)), &one);
            assert!(error < 1e-5, "{name}: {error:e}");
        }
    }
}

/// A wide stripe, or a weight of 0, leaves a rank without tokens.
#[test]
fn a_rank_without_tokens_trains_beside_others() {
    let place = Place::new();
    let short = [("schedule.stop", "3"), ("attention.strategy", "striped")];
    let one = losses(&place.run_in("one", &[("schedule.stop", "3")]));
    let stripe = [("mesh.sequence", "3"), ("attention.stripe", "24")];
    let weights = [("mesh.sequence", "3"), ("mesh.weights", "[0, 1, 1]")];
    let tensor = [("mesh.sequence", "2"), ("mesh.tensor", "2"), ("mesh.weights", "[0, 1]")];
    for (name, split) in [("stripe", &stripe[..]), ("weights", &weights), ("tensor", &tensor)] {
        for pieces in [&[][..], &[("memory.mlp_chunk", "4")]] {
            let name = format!("{name}-{}", pieces.len());
            let all = [&short[..], split, pieces].concat();
            let error = difference(&losses(&place.run_in(&name, &all)), &one);
            assert!(error < 1e-5, "{name}: {error:e}");
        }
    }
}

/// Sums are in the order of replicas and places, whichever ranks are neighbours.
#[test]
fn results_are_the_same_bits_whichever_ranks_are_neighbours() {
    let place = Place::new();
    for (sequence, strategy) in [("2", "striped"), ("3", "ring")] {
        let run_to = |stop: &str, name: &str, order: &str| {
            let changes = [
                ("schedule.stop", stop),
                ("attention.strategy", strategy),
                ("mesh.data", "2"),
                ("mesh.sequence", sequence),
                ("mesh.order", order),
                ("memory.micro_batch", "1"),
            ];
            place.run_in(&format!("{name}-{sequence}"), &changes)
        };
        let run = |order: &str| run_to("4", order, order);
        let [one, other] = ["sequence_first", "data_first"].map(run);
        let bits = |run: &Outcome| losses(run).into_iter().map(f64::to_bits).collect::<Vec<_>>();
        assert_eq!(bits(&one), bits(&other));
        // A run may resume in the other order.
        run_to("2", "turned", "data_first");
        let turned = run_to("4", "turned", "sequence_first");
        let [one, other, turned] =
            [one, other, turned].map(|run| state(&run.folder.join("step-4")));
        assert!(one == other && one == turned, "weights or moments differ over {sequence} ranks");
    }
}

#[test]
fn what_is_kept_changes_nothing() {
    let place = Place::new();
    let short = [("schedule.stop", "4"), ("mesh.sequence", "2"), ("attention.strategy", "striped")];
    let layer = place.run_in("layer", &short);
    let variants: [&[(&str, &str)]; 4] = [
        &[("memory.recompute", "none")],
        &[("memory.mlp_chunk", "7")],
        &[("memory.recompute", "none"), ("memory.mlp_chunk", "1000")],
        &[("memory.loss_chunk", "5"), ("every.log", "3")],
    ];
    for (index, variant) in variants.into_iter().enumerate() {
        let changes: Vec<_> = short.iter().chain(variant).copied().collect();
        let outcome = place.run_in(&format!("variant-{index}"), &changes);
        let error = difference(&losses(&outcome), &losses(&layer));
        assert!(error < 1e-6, "{variant:?}: {error:e}");
    }
}

#[test]
fn recomputing_changes_not_a_bit() {
    let place = Place::new();
    for dtype in ["f32", "bf16"] {
        let run = |recompute: &str| {
            let changes = [
                ("schedule.stop", "4"),
                ("mesh.sequence", "2"),
                ("attention.strategy", "ring"),
                ("model.dtype", dtype),
                ("memory.recompute", recompute),
            ];
            place.run_in(&format!("{dtype}-{recompute}"), &changes)
        };
        let [layer, none] = ["layer", "none"].map(run);
        assert_eq!(losses(&layer), losses(&none), "{dtype}");
        let [layer, none] = [layer, none].map(|outcome| state(&outcome.checkpoint.unwrap()));
        assert!(layer == none, "{dtype}: weights or moments differ");
    }
}

#[test]
fn looking_changes_not_a_bit() {
    let place = Place::new();
    let ring = [("mesh.sequence", "2"), ("attention.strategy", "ring"), ("schedule.stop", "6")];
    let seldom = place.run_in("seldom", &[&ring[..], &[("every.log", "0")]].concat());
    let often = [("every.evaluate", "1"), ("every.checkpoint", "1"), ("keep", "2")];
    let often = place.run_in("often", &[&ring[..], &often].concat());
    assert_eq!(losses(&seldom), losses(&often));
    let [seldom, often] = [seldom, often].map(|outcome| state(&outcome.checkpoint.unwrap()));
    assert_eq!(seldom, often);
}

#[test]
fn recall_counts_right_answers_alike_on_any_ranks() {
    let place = Place::new();
    let recall = "name: recall\nmodel: {hidden_size: 32, intermediate_size: 48, \
        num_hidden_layers: 1, num_attention_heads: 4}\n\
        data: {format: recall, tokens: 96, batch: 4, evaluate: 16}\n\
        optimizer: {learning_rate: 1e-2}\nschedule: {steps: 8}\n";
    let accuracy = |name: &str, changes: &[(&str, &str)]| {
        let output = place.path(name);
        let mut all = vec![("output", output.to_str().unwrap())];
        all.extend_from_slice(changes);
        let outcome = run(&plan(recall, &all), RunOptions::new(recall, 4), &mut Silent).unwrap();
        assert!(!outcome.last.contains_key("evaluate/bigram_entropy"));
        outcome.last["evaluate/accuracy"]
    };
    let one = accuracy("one", &[]);
    // 16 sequences of 12 answers; among 16 values, a guess gets one in 16 right.
    assert!(one > 0.01 && one < 0.5, "{one}");
    assert!((one * 192.0 - (one * 192.0).round()).abs() < 1e-9);
    let four = [("mesh.sequence", "2"), ("mesh.data", "2"), ("attention.strategy", "striped")];
    assert!((accuracy("four", &four) - one).abs() < 1.5 / 192.0);
    let tensor = [("mesh.sequence", "2"), ("mesh.tensor", "4"), ("attention.strategy", "ring")];
    assert!((accuracy("tensor", &tensor) - one).abs() < 1.5 / 192.0);
}

#[test]
fn bf16_weights_follow_their_masters() {
    let place = Place::new();
    let wide = losses(&place.run_in("wide", &[]));
    let changes = [("model.dtype", "bf16"), ("mesh.sequence", "2"), ("attention.strategy", "ring")];
    let narrow = losses(&place.run_in("narrow", &changes));
    let error = difference(&narrow, &wide);
    assert!(error > 1e-6 && error < 0.05, "{error:e}");
}

#[test]
fn losses_are_those_of_pytorch() {
    for (name, schedule) in [
        ("constant-decay", "decay: constant"),
        ("warmup-cosine", "decay: cosine, warmup: 5, floor: 0.1"),
    ] {
        let Some(folder) = golden(&format!("training/{name}")) else {
            eprintln!("skipped: no reference outputs here");
            return;
        };
        let decay = if name == "constant-decay" { "0.1" } else { "0" };
        for (strategy, ranks) in [("local", "1"), ("striped", "4")] {
            let output = tempfile::tempdir().unwrap();
            let text = format!(
                "name: golden\nmodel: {{path: {0}}}\ndata: {{path: {0}/tokens.safetensors, \
                 format: batches, tokens: 64, batch: 4}}\noptimizer: {{learning_rate: 0.01, \
                 weight_decay: {decay}}}\nschedule: {{steps: 20, {schedule}}}\noutput: {1}\n\
                 mesh: {{sequence: {ranks}}}\n\
                 attention: {{strategy: {strategy}}}\n",
                folder.display(),
                output.path().display()
            );
            let outcome = run(&plan(&text, &[]), RunOptions::new(&*text, 4), &mut Silent).unwrap();
            let wanted: serde_json::Value =
                serde_json::from_str(&std::fs::read_to_string(folder.join("losses.json")).unwrap())
                    .unwrap();
            let wanted = wanted["loss"].as_array().unwrap();
            let wanted: Vec<f64> = wanted.iter().map(|loss| loss.as_f64().unwrap()).collect();
            let error = difference(&losses(&outcome), &wanted);
            assert!(error < 1e-4, "{name} {strategy}: {error:e}");
            eprintln!("{name} {strategy} on {ranks}: {error:e}");
        }
    }
}
