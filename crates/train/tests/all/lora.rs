//! Training of adapters: the same on any ranks, resumed to the bit, alone in checkpoints, and a start for further runs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::checkpoints::forge;
use crate::common::{BASE, Place, difference, losses};
use annulus_train::{Checkpoint, Fork, Outcome, RunOptions, Silent, TrainError, measure, run};

/// Adapters of all projections, trained embeddings and norms, and dropout.
const ALL: &str = "{ rank: 4, alpha: 8, dropout: 0.1, train: [embeddings, norms], \
                   targets: [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj] }";

/// A place with a model that has been trained a little.
struct Beside {
    place: Place,
    base: PathBuf,
}

impl Beside {
    fn new(dtype: &str) -> Beside {
        let place = Place::new();
        let changes = [("schedule.stop", "3"), ("model.dtype", dtype)];
        let base = place.run_in("base", &changes).checkpoint.unwrap();
        Beside { place, base }
    }

    fn run_in(&self, output: &str, lora: &str, more: &[(&str, &str)]) -> Outcome {
        self.try_in(output, lora, more).unwrap()
    }

    fn try_in(
        &self,
        output: &str,
        lora: &str,
        more: &[(&str, &str)],
    ) -> Result<Outcome, TrainError> {
        let output = self.place.path(output);
        let model = format!("{{ path: {} }}", self.base.display());
        let own = [("output", output.to_str().unwrap()), ("model", model.as_str()), ("lora", lora)];
        run(&self.place.plan(&[&own[..], more].concat()), RunOptions::new(BASE, 4), &mut Silent)
    }
}

fn names(path: &Path) -> BTreeSet<String> {
    let tensors = candle_core::safetensors::load(path, &candle_core::Device::Cpu).unwrap();
    tensors.into_keys().collect()
}

#[test]
fn adapters_learn_alike_on_any_ranks() {
    let beside = Beside::new("f32");
    let one = losses(&beside.run_in("one", ALL, &[("memory.recompute", "none")]));
    assert!(one[19] < 0.96 * one[0], "{one:?}");
    for (index, (strategy, ranks, more)) in [
        ("striped", "4", [("memory.mlp_chunk", "7"), ("memory.recompute", "layer")]),
        ("megatron", "3", [("memory.mlp_chunk", "64"), ("memory.micro_batch", "2")]),
        ("local", "1", [("mesh.data", "2"), ("memory.micro_batch", "1")]),
    ]
    .into_iter()
    .enumerate()
    {
        let split = [("attention.strategy", strategy), ("mesh.sequence", ranks)];
        let other = beside.run_in(&format!("other-{index}"), ALL, &[&split[..], &more].concat());
        let error = difference(&losses(&other), &one);
        assert!(error < 1e-5, "{strategy} on {ranks}: {error:e}");
    }
}

#[test]
fn what_is_left_out_matters_in_training_alone() {
    let beside = Beside::new("f32");
    let lora = |dropout: &str| format!("{{ rank: 4, dropout: {dropout} }}");
    let stop = [("schedule.stop", "2"), ("optimizer.learning_rate", "1e-12")];
    let [still, dropped] =
        ["0", "0.5"].map(|dropout| beside.run_in(dropout, &lora(dropout), &stop));
    // Fresh adapters change nothing, whatever inputs dropout takes from them.
    assert_eq!(losses(&still)[0].to_bits(), losses(&dropped)[0].to_bits());
    assert!(difference(&[still.last["evaluate/loss"]], &[dropped.last["evaluate/loss"]]) < 1e-6);
    let learned = [("schedule.stop", "4")];
    let [still, dropped] = ["0", "0.5"]
        .map(|dropout| losses(&beside.run_in(&format!("l{dropout}"), &lora(dropout), &learned)));
    assert!(difference(&still, &dropped) > 1e-4);
}

#[test]
fn ten_and_ten_are_twenty_to_the_bit() {
    for dtype in ["f32", "bf16"] {
        let beside = Beside::new(dtype);
        let narrow = [("model.dtype", dtype)];
        let stop = [("model.dtype", dtype), ("schedule.stop", "10")];
        let whole = beside.run_in("whole", ALL, &narrow);
        let first = beside.run_in("halves", ALL, &stop);
        let second = beside.run_in("halves", ALL, &narrow);
        assert_eq!(second.resumed_from, Some(10));
        let both = [losses(&first), losses(&second)].concat();
        assert_eq!(both, losses(&whole), "{dtype}");
        for file in ["adapter_model.safetensors", "optimizer.safetensors"] {
            let [a, b] = [&whole, &second]
                .map(|run| fs::read(run.checkpoint.as_ref().unwrap().join(file)).unwrap());
            assert!(a == b, "{dtype}: {file}");
        }
    }
}

#[test]
fn checkpoints_hold_what_was_trained_and_nothing_else() {
    let beside = Beside::new("bf16");
    let lora = "{ rank: 2, targets: [v_proj], train: [norms] }";
    let more = [("schedule.stop", "1"), ("model.dtype", "bf16")];
    let folder = beside.run_in("run", lora, &more).checkpoint.unwrap();
    assert!(!folder.join("model.safetensors").exists());
    let own = names(&folder.join("adapter_model.safetensors"));
    let layer = |layer: usize, rest: &str| format!("base_model.model.model.layers.{layer}.{rest}");
    let mut wanted = BTreeSet::from(["base_model.model.model.norm.weight".to_owned()]);
    for (number, rest) in [0, 1].into_iter().flat_map(|number| {
        let rests = [
            "input_layernorm.weight",
            "post_attention_layernorm.weight",
            "self_attn.v_proj.lora_A.weight",
            "self_attn.v_proj.lora_B.weight",
        ];
        rests.map(|rest| (number, rest))
    }) {
        wanted.insert(layer(number, rest));
    }
    assert_eq!(own, wanted);
    let optimizer = names(&folder.join("optimizer.safetensors"));
    let short = |name: &String| name["base_model.model.".len()..].to_owned();
    let kept = own.iter().flat_map(|name| {
        ["first", "second", "master"].map(|which| format!("{which}.{}", short(name)))
    });
    assert_eq!(optimizer, kept.collect());
}

#[test]
fn a_run_goes_on_from_an_adapter() {
    let beside = Beside::new("f32");
    let lora = "{ rank: 4, targets: [q_proj, down_proj], train: [norms] }";
    let evaluate = [("schedule.stop", "4")];
    let first = beside.run_in("first", lora, &evaluate);
    let path = first.checkpoint.as_ref().unwrap().display().to_string();
    let from = format!("{}, path: {path} }}", lora.trim_end_matches(" }"));
    let still = [("schedule.stop", "1"), ("optimizer.learning_rate", "1e-12")];
    let second = beside.run_in("second", &from, &still);
    let [was, is] = [&first, &second].map(|run| run.last["evaluate/loss"]);
    assert!(difference(&[is], &[was]) < 1e-6, "{was} {is}");
}

/// Merged and exported, a model is whole, and computes the same as with its adapters.
#[test]
fn merged_adapters_are_a_model() {
    for (dtype, limit) in [("f32", 1e-5), ("bf16", 2e-2)] {
        let beside = Beside::new(dtype);
        let narrow = [("model.dtype", dtype), ("schedule.stop", "6")];
        let learned = beside.run_in("learned", ALL, &narrow);
        let checkpoint = Checkpoint::open(&learned.folder).unwrap();
        assert!(checkpoint.weights().unwrap_err().to_string().contains("adapters alone"));
        let error = checkpoint.merged(&beside.place.path("gone")).unwrap_err();
        assert!(error.hint().unwrap().contains("model.path=FOLDER"), "{error}");
        let weights = checkpoint.merged(&beside.base).unwrap();
        let out = beside.place.path("merged");
        checkpoint.export(&weights, &out, 1 << 30).unwrap();
        let model = format!("{{ path: {}, dtype: {dtype} }}", out.display());
        let still = [("schedule.stop", "1"), ("optimizer.learning_rate", "1e-12")];
        let changes = [&[("model", model.as_str())], &still[..]].concat();
        let whole = beside.place.run_in("whole", &changes);
        let [was, is] = [&learned, &whole].map(|run| run.last["evaluate/loss"]);
        assert!(difference(&[is], &[was]) < limit, "{dtype}: {was} {is}");
    }
}

#[test]
fn another_base_is_refused() {
    let beside = Beside::new("f32");
    let lora = "{ rank: 4 }";
    beside.run_in("run", lora, &[("schedule.stop", "2")]);
    let other = beside.place.run_in("another", &[("schedule.stop", "1"), ("seed", "9")]);
    let weights = other.checkpoint.unwrap().join("model.safetensors");
    fs::copy(weights, beside.base.join("model.safetensors")).unwrap();
    let error = beside.try_in("run", lora, &[]).unwrap_err();
    assert_eq!(error.exit_code(), 4);
    assert!(
        error.to_string().contains("were trained on other base weights than those in"),
        "{error}"
    );
    let output = beside.place.path("fork");
    let model = format!("{{ path: {} }}", beside.base.display());
    let own = [("output", output.to_str().unwrap()), ("model", model.as_str()), ("lora", lora)];
    let fork = Some(Fork { from: beside.place.path("run"), fresh_optimizer: false });
    let error =
        run(&beside.place.plan(&own), RunOptions { fork, ..RunOptions::new(BASE, 4) }, &mut Silent)
            .unwrap_err();
    assert!(
        error.to_string().contains("were trained on other base weights than those in"),
        "{error}"
    );
}

/// Adapters lie beside tensors, not files; of an earlier version, which kept the hash of files, beside those alone.
#[test]
fn a_base_may_be_saved_anew() {
    let beside = Beside::new("f32");
    let run = |stop: &str| beside.try_in("run", "{ rank: 4 }", &[("schedule.stop", stop)]);
    let of_files = annulus_model::fingerprint_of_files(&beside.base).unwrap();
    let save_anew = || {
        let file = beside.base.join("model.safetensors");
        let all = candle_core::safetensors::load(&file, &candle_core::Device::Cpu).unwrap();
        fs::remove_file(file).unwrap();
        annulus_model::save(&beside.base, &all.into_iter().collect(), 1 << 14).unwrap()
    };
    let second = run("2").unwrap().checkpoint.unwrap();
    let files = fs::read(beside.base.join("model.safetensors")).unwrap();
    assert!(save_anew().len() > 2);
    assert_eq!(run("3").unwrap().resumed_from, Some(2));
    fs::remove_dir_all(beside.place.path("run/step-3")).unwrap();
    forge(&second, "base", of_files.into());
    let error = run("3").unwrap_err();
    let said = ", or on the same in other files";
    assert!(error.exit_code() == 4 && error.to_string().contains(said), "{error}");
    fs::write(beside.base.join("model.safetensors"), files).unwrap();
    assert_eq!(run("3").unwrap().resumed_from, Some(2));
    // From there on it is that of tensors.
    fs::remove_dir_all(second).unwrap();
    save_anew();
    assert_eq!(run("4").unwrap().resumed_from, Some(3));
}

#[test]
fn ranks_hand_over_what_was_planned() {
    let beside = Beside::new("f32");
    let model = format!("{{ path: {} }}", beside.base.display());
    let own = [("model", model.as_str()), ("lora", ALL), ("mesh.sequence", "2")];
    let plan = beside.place.plan(&[&own[..], &[("attention.strategy", "ring")]].concat());
    for rank in measure(&plan, 1, 2).unwrap() {
        assert_eq!(rank.bytes, rank.planned_bytes);
    }
    // Two moments of the trained weights: less than of all.
    let everything = beside.place.plan(&[("model", model.as_str())]).ranks[0].peak_by_class;
    let peak = plan.ranks[0].peak_by_class;
    assert!(
        peak[annulus_memory::Class::Optimizer] < everything[annulus_memory::Class::Optimizer] / 2,
        "{peak:?} {everything:?}"
    );
}
