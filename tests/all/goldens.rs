//! The program against outputs of `transformers` and PyTorch: models, attention, where the material is there; a little of it always is.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use annulus_ops::attention::{Dense, dense};
use annulus_ops::testing::{random, to_f64};
use annulus_sequence::{Documents, Mask, Positions, Rule};
use annulus_tests::{distance, error, root, run, shared, tensors};
use candle_core::{Device, Tensor};

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

const LOGITS: f64 = 2e-5;
const LOSS: f64 = 1e-5;
const GRADIENT: f64 = 1e-4;
const ATTENTION: f64 = 5e-6;

/// A model's score on one rank and on several equals what `transformers` computed.
#[track_caller]
fn check_model(folder: &Path, split: &[&str]) {
    let scratch = tempfile::tempdir().unwrap();
    let (model, golden) = (folder.to_string_lossy(), folder.join("golden.safetensors"));
    let tokens = golden.to_string_lossy();
    let arguments =
        ["score", "--model", &model, "--tokens", &tokens, "--out", "out", "--gradients"];
    run(ANNULUS, scratch.path(), &[&arguments, split].concat()).ended(0);
    let (ours, theirs) = (tensors(&scratch.path().join("out")), tensors(&golden));
    let what = format!("{} {split:?}", folder.display());
    assert!(error(&ours["logits"], &theirs["logits"]) < LOGITS, "{what}: logits");
    assert!(error(&ours["loss"], &theirs["loss"]) < LOSS, "{what}: loss");
    let mut gradients = 0;
    for (name, theirs) in theirs.iter().filter(|(name, _)| name.starts_with("grad.")) {
        let off = distance(&ours[name], theirs);
        assert!(off < GRADIENT, "{what}: {name} is {off:.1e} off");
        gradients += 1;
    }
    assert_eq!(gradients, ours.keys().filter(|name| name.starts_with("grad.")).count(), "{what}");
}

#[test]
fn models_score_as_transformers_scores_them() {
    let Some(models) = shared("golden/A/models") else { return };
    let mut folders = 0;
    for entry in std::fs::read_dir(&models).unwrap() {
        let folder = entry.unwrap().path();
        folders += 1;
        check_model(&folder, &[]);
        check_model(&folder, &["--ranks", "4", "--strategy", "striped"]);
    }
    assert_eq!(folders, 14, "in `{}`", models.display());
    check_model(&models.join("llama-gqa"), &["--ranks", "3", "--strategy", "megatron"]);
    check_model(&models.join("llama-gqa"), &["--ranks", "2", "--strategy", "all-gather"]);
}

/// How a sequence is split over four ranks: every strategy with every exchange, each backward route where there are several.
const SPLITS: [&str; 21] = [
    "ring",
    "ring --backward travelling",
    "ring --backward queries",
    "ring --layout balanced --stripe 3",
    "striped",
    "striped --stripe 3 --backward queries",
    "megatron",
    "megatron --exchange all-gather",
    "megatron --exchange a2a",
    "megatron --exchange a2a+p2p",
    "ulysses",
    "usp",
    "usp --shape 2,2 --backward queries",
    "double-ring --shape 2,2",
    "double-ring --backward travelling",
    "all-gather",
    "all-gather --groups 2",
    "broadcast",
    "halo",
    "li-ring",
    "li-ring --backward travelling",
];

#[test]
fn attention_equals_dense_attention_in_double_precision() {
    let own = root().join("tests/fixtures/attention");
    let all = shared("golden/A/attention").map_or_else(Vec::new, |folder| cases(&folder));
    let mut ran = Ran::default();
    for case in cases(&own).iter().chain(&all) {
        ran.check(case, &[]);
        ran.check(case, &["--kernel", "reference"]);
        if case.file_name().unwrap().to_string_lossy().starts_with("cross-") {
            continue;
        }
        for split in SPLITS {
            let words: Vec<&str> = split.split(' ').collect();
            ran.check(case, &[&["--ranks", "4", "--strategy"], &words[..]].concat());
        }
    }
    println!("{} answers, {:.1e} off at most; {} refused", ran.exact, ran.worst, ran.refused);
    assert!(ran.exact > SPLITS.len() / 2, "{} answers", ran.exact);
}

/// Every word of a mask in a case, spelled out beside it: the file is refused where the two differ.
#[test]
fn every_mask_has_its_words() {
    use Rule::{Causal, Dilated, Fixed, Global, KeyPadding, Prefix, Sinks, Strided, Window};
    let lengths: [&[usize]; 2] = [&[5, 1, 15, 8], &[17, 12]];
    let documents = || Rule::Documents(lengths.map(Documents::of_lengths).to_vec());
    let padding = || KeyPadding(vec![29, 13]);
    let masks: [(&str, Vec<Rule>); 10] = [
        ("full+padding", vec![padding()]),
        ("causal+documents+padding", vec![Causal, documents(), padding()]),
        ("prefix:4+documents", vec![Prefix(4), documents()]),
        ("prefix:7+padding:20", vec![Prefix(7), KeyPadding(vec![20])]),
        ("causal+window:5+sinks:2+documents", vec![Causal, Window(5), Sinks(2), documents()]),
        ("window:3+global:0,9-11", vec![Window(3), Global(vec![0..1, 9..12])]),
        ("causal+dilated:4:3", vec![Causal, Dilated { window: 4, dilation: 3 }]),
        ("causal+strided:5", vec![Causal, Strided { stride: 5 }]),
        ("causal+fixed:6:2", vec![Causal, Fixed { block: 6, columns: 2 }]),
        ("fixed:5+sinks:1", vec![Fixed { block: 5, columns: 1 }, Sinks(1)]),
    ];
    for (name, rules) in masks {
        let mask = rules.into_iter().fold(Mask::full(), Mask::and);
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("case.safetensors");
        let wanted = write_case(&path, name, &mask, &lengths);
        for split in ["local", "striped --ranks 3", "ring --ranks 4 --layout balanced"] {
            let words = ["attend", "--case", "case.safetensors", "--out", "out", "--strategy"];
            let words: Vec<&str> = words.into_iter().chain(split.split(' ')).collect();
            run(ANNULUS, scratch.path(), &words).ended(0);
            let ours = tensors(&scratch.path().join("out"));
            for (tensor, wanted) in &wanted {
                let off = error(&ours[*tensor], wanted);
                assert!(off <= ATTENTION, "{name} {split}: {tensor} is {off:.1e} off");
            }
        }
    }
}

/// A case of two batch rows, and what dense attention makes of it.
fn write_case(
    path: &Path,
    name: &str,
    mask: &Mask,
    lengths: &[&[usize]],
) -> Vec<(&'static str, Vec<f64>)> {
    const TOKENS: usize = 29;
    let of = |name, heads| random(name, &[2, heads, TOKENS, 8]).unwrap();
    let [q, k, v, dout] = [of("q", 4), of("k", 2), of("v", 2), of("dout", 4)];
    let all = Positions::all(TOKENS);
    let dense = dense([&q, &k, &v, &dout], mask, [&all, &all], 0.5, None).unwrap();
    let ids = |lengths: &&[usize]| -> Vec<i64> {
        let ids = lengths.iter().zip(0..).flat_map(|(length, id)| vec![id; *length]);
        ids.collect()
    };
    let pairs = |row| (0..TOKENS * TOKENS).map(move |pair| (row, pair / TOKENS, pair % TOKENS));
    let allowed = (0..2).flat_map(pairs).map(|(row, q, k)| u8::from(mask.allows_in(row, q, k)));
    let ids: Vec<i64> = lengths.iter().flat_map(ids).collect();
    let tensor = |values: Vec<i64>, shape: &[usize]| Tensor::from_vec(values, shape, &Device::Cpu);
    let positions = tensor((0..TOKENS as i64).collect(), &[TOKENS]).unwrap();
    let tensors = [
        ("scale", Tensor::new(&[0.5f64], &Device::Cpu).unwrap()),
        ("q_pos", positions.clone()),
        ("k_pos", positions),
        ("doc_ids", tensor(ids, &[2, TOKENS]).unwrap()),
        ("padding", tensor(vec![29, 13], &[2]).unwrap()),
        ("allowed", Tensor::from_iter(allowed, &Device::Cpu).unwrap()),
        ("q", q),
        ("k", k),
        ("v", v),
        ("dout", dout),
    ];
    let metadata = HashMap::from([("mask".to_owned(), name.to_owned())]);
    safetensors::serialize_to_file(tensors, Some(metadata), path).unwrap();
    let Dense { out, lse, dq, dk, dv } = dense;
    [("out", out), ("lse", lse), ("dq", dq), ("dk", dk), ("dv", dv)]
        .map(|(name, tensor)| (name, to_f64(&tensor).unwrap()))
        .to_vec()
}

/// The cases in a folder, by name.
fn cases(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_case = |path: &PathBuf| path.extension().is_some_and(|end| end == "safetensors");
    let mut cases: Vec<PathBuf> = entries.filter(is_case).collect();
    cases.sort();
    cases
}

#[derive(Default)]
struct Ran {
    exact: usize,
    worst: f64,
    refused: usize,
}

impl Ran {
    /// A split that does not run on the case's heads says so.
    #[track_caller]
    fn check(&mut self, case: &Path, split: &[&str]) {
        let scratch = tempfile::tempdir().unwrap();
        let arguments = ["attend", "--case", &case.to_string_lossy(), "--out", "out"];
        let ran = run(ANNULUS, scratch.path(), &[&arguments, split].concat());
        if ran.code == Some(2) && ran.stderr.contains(" heads ") && ran.stderr.contains("hint: ") {
            self.refused += 1;
            return;
        }
        ran.ended(0);
        let (ours, theirs) = (tensors(&scratch.path().join("out")), tensors(case));
        for name in ["out", "lse", "dq", "dk", "dv"] {
            let off = error(&ours[name], &theirs[name]);
            assert!(off <= ATTENTION, "{} {split:?}: {name} is {off:.1e} off", case.display());
            self.worst = self.worst.max(off);
        }
        self.exact += 1;
    }
}
