//! Training with GPU kernels matches training on the CPU: steps, evaluation, checkpoints; on the emulator, or on the GPU that
//! `ANNULUS_KERNELS_ON=cuda:0` names.
#![cfg(any(feature = "cuda", feature = "emulator"))]

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::common::{BASE, Place, difference, losses, state};
use annulus_data::Sequence;
use annulus_model::Llama;
use annulus_ops::gpu::Processor;
use annulus_ops::testing::error;
use annulus_train::{
    Ending, Outcome, Processors, RunOptions, ScoreOutputs, Setup, Silent, run, score,
};

/// Head dimensions that kernels have, and more rows per rank than a block of any kernel.
pub(crate) const SHAPE: [(&str, &str); 9] = [
    ("model.hidden_size", "64"),
    ("model.intermediate_size", "96"),
    ("model.num_attention_heads", "2"),
    ("model.num_key_value_heads", "1"),
    ("model.head_dim", "64"),
    ("data.tokens", "160"),
    ("data.batch", "2"),
    ("data.evaluate", "1"),
    ("schedule.stop", "3"),
];

/// YaRN: a temperature besides frequencies.
const YARN: &str =
    "{ rope_type: yarn, factor: 4, original_max_position_embeddings: 64, attention_factor: 1.25 }";

/// The named GPU, or the emulator as a processor of `architecture`.
pub(crate) fn processor(architecture: u32) -> Arc<dyn Processor> {
    match std::env::var("ANNULUS_KERNELS_ON") {
        Ok(name) => {
            let index = name.strip_prefix("cuda:").and_then(|index| index.parse().ok());
            annulus_ops::gpu::open(index.expect("cuda:N")).unwrap()
        }
        Err(_) => emulated(architecture),
    }
}

#[cfg(feature = "emulator")]
pub(crate) fn emulated(architecture: u32) -> Arc<dyn Processor> {
    Arc::new(emulator(architecture))
}

#[cfg(feature = "emulator")]
pub(crate) fn emulator(architecture: u32) -> annulus_ops::gpu::Emulator {
    use std::path::{Path, PathBuf};

    use annulus_ops::gpu::Emulator;

    let library = std::env::var_os("ANNULUS_EMULATOR").map_or_else(
        || {
            let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels");
            let into = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulator");
            Emulator::compile(&kernels, &into).unwrap()
        },
        PathBuf::from,
    );
    Emulator::open(&library, architecture, 2).unwrap()
}

#[cfg(not(feature = "emulator"))]
pub(crate) fn emulated(_: u32) -> Arc<dyn Processor> {
    panic!("ANNULUS_KERNELS_ON=cuda:N is wanted: this was built without the emulator");
}

/// Trains into the folder `output`, with the kernels of a processor or on the CPU.
pub(crate) fn train(
    place: &Place,
    output: &str,
    processor: Option<Arc<dyn Processor>>,
    changes: &[(&str, &str)],
) -> Outcome {
    let output = place.path(output);
    let own = [("output", output.to_str().unwrap())];
    let plan = place.plan(&[&SHAPE[..], &own, changes].concat());
    let mut options = RunOptions::new(BASE, 2);
    options.processors = processor.map(Processors::from).unwrap_or_default();
    run(&plan, options, &mut Silent).unwrap()
}

/// Checks that losses of steps and of an evaluation, and norms, are within `bound` of the CPU's.
fn check(architecture: u32, bound: f64, changes: &[(&str, &str)]) {
    let place = Place::new();
    let wanted = train(&place, "cpu", None, changes);
    let found = train(&place, "kernels", Some(processor(architecture)), changes);
    assert_eq!((found.ending, found.step), (Ending::Finished, 3));
    let off = difference(&losses(&found), &losses(&wanted));
    assert!(off <= bound, "{changes:?}: losses are off by {off:e}");
    for tag in ["evaluate/loss", "train/grad_norm"] {
        let off = (found.last[tag] / wanted.last[tag] - 1.0).abs();
        assert!(off <= bound, "{changes:?}: {tag} is off by {off:e}");
    }
    // Sums in another order give other bits: equal ones would mean that the kernels did not run.
    let [found, wanted] = [found, wanted].map(|outcome| state(&outcome.checkpoint.unwrap()));
    assert!(found != wanted);
}

#[test]
fn losses_are_those_of_the_cpu_in_f32() {
    let ring = [("mesh.sequence", "2"), ("attention.strategy", "ring")];
    check(80, 1e-5, &[]);
    check(80, 1e-5, &ring);
    let all =
        [("memory.recompute", "none"), ("memory.mlp_chunk", "37"), ("memory.loss_chunk", "50")];
    let parts = [
        ("memory.micro_batch", "1"),
        ("model.attention_bias", "true"),
        ("model.tie_word_embeddings", "true"),
    ];
    let striped = [("mesh.sequence", "2"), ("attention.strategy", "striped")];
    check(80, 1e-5, &[&all[..], &parts, &striped].concat());
    let normed = [("model.model_type", "qwen3"), ("model.rope_parameters", YARN)];
    check(80, 1e-5, &[&normed[..], &striped].concat());
    let nope = [("model.model_type", "smollm3"), ("model.no_rope_layer_interval", "2")];
    check(80, 1e-5, &[&nope[..], &striped, &[("memory.recompute", "none")]].concat());
    let tensor = [("mesh.tensor", "2"), ("model.num_key_value_heads", "2")];
    check(80, 1e-5, &[&tensor[..], &striped].concat());
}

/// Which weights are dropped depends neither on CPU or GPU nor on the kernel generation; an evaluation drops none.
#[test]
fn kernels_leave_out_what_the_cpu_does() {
    let dropout = ("attention.dropout", "0.3");
    let striped = [("mesh.sequence", "2"), ("attention.strategy", "striped"), dropout];
    check(80, 1e-5, &striped);
    check(90, 1e-2, &[&striped[..], &[("model.dtype", "bf16")]].concat());
    let atomic = [("model.dtype", "bf16"), ("attention.deterministic", "false")];
    check(80, 1e-2, &[&striped[..], &atomic].concat());
}

/// Losses, norm and hashes of the state of a short run with kernels, of 4 blocks of tokens.
fn bits(place: &Place, output: &str, changes: &[(&str, &str)]) -> (Vec<u64>, String) {
    let own = [
        ("model.num_hidden_layers", "1"),
        ("model.head_dim", "16"),
        ("model.num_key_value_heads", "2"),
        ("model.intermediate_size", "64"),
        ("data.tokens", "64"),
        ("schedule.stop", "2"),
        ("every.hash", "1"),
    ];
    let found = train(place, output, Some(processor(80)), &[&own[..], changes].concat());
    let losses = losses(&found).into_iter().map(f64::to_bits).collect();
    let norm = found.last["train/grad_norm"].to_bits();
    let hashes = std::fs::read_to_string(place.path(output).join("hashes.jsonl")).unwrap();
    (losses, format!("{norm:x} {hashes}"))
}

#[test]
fn order_free_sums_by_kernels_have_one_set_of_bits_on_any_ranks() {
    let cases: [&[(&str, &str)]; 2] = [
        &[],
        &[
            ("model.dtype", "bf16"),
            ("model.attention_bias", "true"),
            ("attention.window", "50"),
            ("attention.dropout", "0.2"),
            ("memory.loss_chunk", "50"),
        ],
    ];
    let ways: [&[(&str, &str)]; 4] = [
        &[("mesh.sequence", "1"), ("attention.strategy", "local")],
        &[("mesh.sequence", "2"), ("attention.strategy", "ring"), ("memory.micro_batch", "1")],
        &[("mesh.sequence", "2"), ("attention.strategy", "ulysses"), ("mesh.data", "2")],
        &[("mesh.sequence", "4"), ("attention.strategy", "striped"), ("memory.recompute", "layer")],
    ];
    let of = |case: &[(&str, &str)], sums: &str, ways: &[&[(&str, &str)]]| {
        let place = Place::new();
        let own = [("reproducible", sums)];
        let all = ways.iter().enumerate().map(|(index, way)| {
            bits(&place, &format!("way-{index}"), &[&own[..], case, *way].concat())
        });
        all.collect::<BTreeSet<_>>().len()
    };
    for case in cases {
        assert_eq!(of(case, "strict", &ways), 1, "{case:?}");
    }
    // Sums in other orders have other bits.
    assert_eq!(of(&[], "layout", &ways[1..]), 3);
}

#[test]
fn order_free_sums_by_kernels_are_those_of_the_cpu() {
    let strict =
        [("reproducible", "strict"), ("mesh.sequence", "2"), ("attention.strategy", "ring")];
    check(
        80,
        1e-5,
        &[&strict[..], &[("model.model_type", "qwen3"), ("model.tie_word_embeddings", "true")]]
            .concat(),
    );
}

#[test]
fn heads_that_no_kernel_adds_up_order_free_are_refused() {
    let place = Place::new();
    let changes = [("reproducible", "strict"), ("model.head_dim", "264")];
    let plan = place.plan(&[&SHAPE[..], &changes].concat());
    let options = RunOptions { processors: processor(80).into(), ..RunOptions::new(BASE, 2) };
    let said = run(&plan, options, &mut Silent).unwrap_err().to_string();
    assert!(said.contains("heads of at most 256 elements on this GPU, found 264"), "{said}");
}

#[test]
fn scores_that_no_kernel_keeps_are_refused() {
    let place = Place::new();
    let changes = [("mesh.sequence", "2"), ("attention.strategy", "li-ring")];
    let plan = place.plan(&[&SHAPE[..], &changes].concat());
    let options = RunOptions { processors: processor(80).into(), ..RunOptions::new(BASE, 2) };
    let error = run(&plan, options, &mut Silent).unwrap_err();
    assert!(error.to_string().contains("`li-ring` stores all attention scores"), "{error}");
}

#[test]
fn losses_are_those_of_the_cpu_in_bf16() {
    let bf16 = [("model.dtype", "bf16")];
    let ring = [("mesh.sequence", "2"), ("attention.strategy", "ring")];
    check(80, 1e-2, &[&bf16[..], &ring].concat());
    let atomic = [("memory.recompute", "none"), ("attention.deterministic", "false")];
    check(90, 1e-2, &[&bf16[..], &ring, &atomic].concat());
    let tensor = [("mesh.tensor", "2"), ("model.num_key_value_heads", "2")];
    check(80, 1e-2, &[&bf16[..], &tensor].concat());
    // Rows that merge several softmaxes from results by token; norms of heads; biases of grouped heads.
    let dilated = [("attention.window", "40"), ("attention.dilation", "3")];
    let normed = [("model.model_type", "qwen3")];
    check(90, 1e-2, &[&bf16[..], &ring, &dilated, &normed].concat());
    let ulysses = [("mesh.sequence", "2"), ("attention.strategy", "ulysses")];
    let heads = [("model.num_attention_heads", "4"), ("model.num_key_value_heads", "2")];
    let biases = [("model.attention_bias", "true"), ("parallel.state", "zero3")];
    check(90, 1e-2, &[&bf16[..], &ulysses, &heads, &biases].concat());
}

#[test]
fn logits_and_gradients_are_those_of_the_cpu() {
    let place = Place::new();
    let ring = [("mesh.sequence", "2"), ("attention.strategy", "ring")];
    let cpu = Setup::new(&place.plan(&[&SHAPE[..], &ring].concat()), 2);
    let kernels = cpu.clone().on(processor(80));
    let weights = Llama::random(&cpu.config, 5).unwrap();
    let id = |index: usize| (index * index % 257) as u32;
    let target = |index: usize| if index % 7 == 4 { -100 } else { i64::from(id(index + 1)) };
    let sequence = |first: usize| Sequence {
        inputs: (first..first + 160).map(id).collect(),
        targets: (first..first + 160).map(target).collect(),
        documents: Vec::new(),
    };
    let want = ScoreOutputs { logits: true, gradients: true };
    let [wanted, found] = [&cpu, &kernels]
        .map(|setup| score(setup, &weights, &[sequence(0), sequence(1000)], want).unwrap());
    assert!((found.loss / wanted.loss - 1.0).abs() < 1e-6);
    assert!(error(&found.logits.unwrap(), &wanted.logits.unwrap()).unwrap() < 5e-6);
    let (found, wanted) = (found.gradients.unwrap(), wanted.gradients.unwrap());
    assert!(found.keys().eq(wanted.keys()));
    for (name, wanted) in &wanted {
        let off = error(&found[name], wanted).unwrap();
        assert!(off < 5e-6, "{name} is off by {off:e}");
    }
    let beyond = Sequence { inputs: vec![400; 160], ..sequence(0) };
    let message = score(&kernels, &weights, &[beyond], want).unwrap_err().to_string();
    assert!(message.contains("found token 400 at index 0, expected one below 257"), "{message}");
}

#[test]
fn a_run_by_kernels_goes_on_to_the_bit() {
    let place = Place::new();
    let ring = [("mesh.sequence", "2"), ("attention.strategy", "ring"), ("model.dtype", "bf16")];
    let whole = train(&place, "whole", Some(processor(80)), &ring);
    let first = train(
        &place,
        "parts",
        Some(processor(80)),
        &[&ring[..], &[("schedule.stop", "1")]].concat(),
    );
    assert_eq!(first.step, 1);
    let rest = train(&place, "parts", Some(processor(80)), &ring);
    assert_eq!(rest.resumed_from, Some(1));
    assert_eq!(losses(&rest), losses(&whole)[1..]);
    assert_eq!(state(&rest.checkpoint.unwrap()), state(&whole.checkpoint.unwrap()));
}
