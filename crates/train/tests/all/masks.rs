//! Packed documents, sparse masks and uneven shards through a whole model.

use annulus_data::Sequence;
use annulus_model::{Llama, Weights};
use annulus_sequence::{Route, Strategy};
use annulus_train::{ScoreOutputs, Scored, Setup, score};
use candle_core::{DType, Tensor};

use crate::common::Place;

/// The error of `a` against `b`: max|a - b| / max|b|.
fn error(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.dims(), b.dims());
    let flat = |tensor: &Tensor| -> Vec<f64> {
        tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    };
    let (a, b) = (flat(a), flat(b));
    let largest = b.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    let off = a.iter().zip(&b).fold(0.0f64, |most, (a, b)| most.max((a - b).abs()));
    if largest == 0.0 { off } else { off / largest }
}

fn sequence(seed: usize, documents: &[usize]) -> Sequence {
    let tokens: usize = documents.iter().sum();
    let ids: Vec<u32> = (0..=tokens).map(|i| ((i * i * 7 + seed * 31) % 251) as u32).collect();
    Sequence { documents: documents.to_vec(), ..Sequence::shifted(&ids) }
}

fn scored(setup: &Setup, weights: &Weights, sequences: &[Sequence]) -> Scored {
    score(setup, weights, sequences, ScoreOutputs { logits: true, gradients: true }).unwrap()
}

/// The setup on one rank.
fn alone(setup: &Setup) -> Setup {
    setup.split(Strategy::Local, 1, Route::default()).unwrap()
}

#[test]
fn packing_documents_changes_nothing() {
    let place = Place::new();
    let plan = place.plan(&[
        ("data.tokens", "47"),
        ("attention.documents", "data"),
        ("attention.window", "9"),
        ("attention.sinks", "2"),
        ("attention.strategy", "striped"),
        ("attention.stripe", "2"),
        ("mesh.sequence", "3"),
        ("mesh.weights", "[3, 1, 2]"),
    ]);
    let setup = Setup::new(&plan, 3);
    let weights = Llama::random(&setup.config, 5).unwrap();
    let sequences = [sequence(1, &[17, 25, 5]), sequence(2, &[1, 46])];
    let packed = scored(&setup, &weights, &sequences);
    let logits = packed.logits.unwrap();
    let mut loss = 0.0;
    for (row, sequence) in sequences.iter().enumerate() {
        let mut start = 0;
        for &tokens in &sequence.documents {
            let ids = &sequence.inputs[start..start + tokens];
            let targets = sequence.targets[start..start + tokens].to_vec();
            let document = Sequence { inputs: ids.to_vec(), targets, documents: Vec::new() };
            let single = alone(&Setup { tokens, packed: false, ..setup.clone() });
            let found = scored(&single, &weights, &[document]);
            let part = logits.narrow(0, row, 1).unwrap().narrow(1, start, tokens).unwrap();
            let off = error(&part, &found.logits.unwrap());
            assert!(off < 1e-5, "document at {start} of sequence {row}: {off:e}");
            loss += found.loss * found.targets as f64;
            start += tokens;
        }
    }
    assert!((packed.loss * packed.targets as f64 / loss - 1.0).abs() < 1e-6);
}

#[test]
fn uneven_shards_and_sparse_masks_compute_the_same_step() {
    let place = Place::new();
    let masks: [&[(&str, &str)]; 4] = [
        &[("attention.pattern", "strided"), ("attention.stride", "6")],
        &[("attention.window", "5"), ("attention.dilation", "3"), ("attention.sinks", "1")],
        &[("attention.window", "7"), ("attention.global", "[0-1, 20, 40-46]")],
        &[("attention.documents", "[13, 34]"), ("attention.prefix", "4")],
    ];
    for mask in masks {
        for (strategy, weights) in [
            ("ring", "[4, 1, 2]"),
            ("ring", "[1, 0, 2]"),
            ("megatron", "[1, 1, 1]"),
            ("striped", "[5, 3, 1]"),
        ] {
            let split = [
                ("data.tokens", "47"),
                ("attention.strategy", strategy),
                ("mesh.sequence", "3"),
                ("mesh.weights", weights),
            ];
            let setup = Setup::new(&place.plan(&[mask, &split].concat()), 3);
            let model = Llama::random(&setup.config, 5).unwrap();
            let sequences = [sequence(3, &[47]), sequence(4, &[47])];
            let [wanted, found] =
                [&alone(&setup), &setup].map(|setup| scored(setup, &model, &sequences));
            let off = error(&found.logits.unwrap(), &wanted.logits.unwrap());
            assert!(off < 1e-5, "{mask:?} {strategy}: {off:e}");
            let (found, wanted) = (found.gradients.unwrap(), wanted.gradients.unwrap());
            for (name, wanted) in &wanted {
                let off = error(&found[name], wanted);
                assert!(off < 2e-5, "{mask:?} {strategy} {name}: {off:e}");
            }
        }
    }
}

/// Two layers, one of which slides: the same step on 1, 3 and 4 ranks with any strategy; and another step than if both slid, or none.
#[test]
fn layers_that_differ_compute_the_same_step_however_they_are_split() {
    let place = Place::new();
    let plan = |more: &[(&str, &str)]| {
        let sliding = [("attention.sliding.layers", "[1]"), ("attention.sliding.window", "7")];
        place.plan(&[&[("data.tokens", "47")], &sliding[..], more].concat())
    };
    let sequences = [sequence(3, &[47]), sequence(4, &[47])];
    let one = alone(&Setup::new(&plan(&[]), 1));
    let model = Llama::random(&one.config, 5).unwrap();
    let wanted = scored(&one, &model, &sequences);
    let logits = wanted.logits.unwrap();
    for mask in 0..2 {
        let mut same = one.clone();
        let mask = same.groups[mask].mask.clone();
        same.groups.iter_mut().for_each(|kind| kind.mask = mask.clone());
        let same = alone(&same);
        let off = error(&scored(&same, &model, &sequences).logits.unwrap(), &logits);
        assert!(off > 1e-3, "layers are alike: {off:e}");
    }
    for (ranks, strategy, sliding, layout) in [
        ("4", "megatron", "halo", "zigzag"),
        ("4", "ring", "ulysses", "contiguous"),
        ("4", "ulysses", "ring", "striped"),
        ("3", "double-ring", "halo", "contiguous"),
        ("3", "ring", "all-gather", "balanced"),
        ("1", "ring", "halo", "contiguous"),
    ] {
        let setup = Setup::new(
            &plan(&[
                ("mesh.sequence", ranks),
                ("attention.strategy", strategy),
                ("attention.sliding.strategy", sliding),
                ("attention.layout", layout),
            ]),
            4,
        );
        let what = format!("{strategy} and {sliding} on {ranks}");
        let found = scored(&setup, &model, &sequences);
        let off = error(&found.logits.unwrap(), &logits);
        assert!(off < 1e-5, "{what}: {off:e}");
        let (found, wanted) = (found.gradients.unwrap(), wanted.gradients.as_ref().unwrap());
        for (name, wanted) in wanted {
            let off = error(&found[name], wanted);
            assert!(off < 2e-5, "{what} {name}: {off:e}");
        }
    }
}

#[test]
fn runs_with_documents_of_the_data_and_weights_train() {
    let place = Place::new();
    let outcome = place.run(&[
        ("schedule.steps", "3"),
        ("schedule.warmup", "0"),
        ("attention.documents", "data"),
        ("attention.strategy", "ring"),
        ("mesh.sequence", "3"),
        ("mesh.weights", "[2, 1, 1]"),
        ("data.tokens", "45"),
    ]);
    assert!(outcome.is_ok(), "{outcome:?}");
}

/// Sequences of three whole documents and padding take as many operations as if the file listed these, whoever reads what.
#[test]
fn operations_are_counted_in_the_documents_that_were_read() {
    let place = Place::new();
    let text = place.path("documents.jsonl");
    // A token that begins a document, and one of each byte but the last, which is only a target.
    std::fs::write(&text, "{\"text\": \"fifteen letters\"}\n".repeat(600)).unwrap();
    let data = [
        ("data.path", text.to_str().unwrap()),
        ("data.format", "jsonl"),
        ("data.pack", "documents"),
    ];
    let steps = [("schedule.steps", "4"), ("schedule.warmup", "0"), ("every.log", "2")];
    let listed = place.plan(&[("attention.documents", "[15, 15, 15, 3]")]);
    let wanted = listed.flops() / (4.0 * 48.0);
    assert!(wanted < 0.99 * place.plan(&[]).flops() / (4.0 * 48.0));
    for [sequence, data_parallel, tensor] in [["1", "1", "1"], ["2", "2", "1"], ["2", "1", "2"]] {
        let split = [
            ("attention.documents", "data"),
            ("attention.strategy", "ring"),
            ("mesh.sequence", sequence),
            ("mesh.data", data_parallel),
            ("mesh.tensor", tensor),
            ("memory.micro_batch", "1"),
        ];
        let name = format!("run-{sequence}-{data_parallel}-{tensor}");
        let found = place.run_in(&name, &[&data[..], &steps, &split].concat()).last;
        let found = found["speed/tflops"] * 1e12 / found["speed/tokens_per_second"];
        assert!((found / wanted - 1.0).abs() < 1e-9, "{name}: {found} instead of {wanted} a token");
    }
}
