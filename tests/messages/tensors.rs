//! Tensors for scoring, for attention, and ready-made batches.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};

use crate::scene::{Case, Scene, Tensors, answers};

/// `ids.safetensors`, `case.safetensors` and `batches.safetensors`, all as they should be.
pub(crate) fn write_right(scene: &Scene) {
    scene.tensors("ids.safetensors", &[("input_ids", ids(2, 16))]);
    scene.tensors("batches.safetensors", &[("tokens", ids(8, 17).reshape((4, 2, 17)).unwrap())]);
    write_case(scene, "causal", |_| ());
}

/// int64 [rows, columns], within the vocabulary.
pub(crate) fn ids(rows: usize, columns: usize) -> Tensor {
    let ids: Vec<i64> = (0..(rows * columns) as i64).map(|id| id % 250).collect();
    Tensor::from_vec(ids, (rows, columns), &Device::Cpu).unwrap()
}

/// A case of attention over 16 positions.
fn write_case(scene: &Scene, mask: &str, change: impl FnOnce(&mut Tensors)) {
    let ones = |heads: usize| Tensor::ones((1, heads, 16, 8), DType::F32, &Device::Cpu).unwrap();
    let positions = Tensor::arange(0i64, 16, &Device::Cpu).unwrap();
    let mut tensors = Tensors::from([
        ("q".to_owned(), ones(4)),
        ("k".to_owned(), ones(2)),
        ("v".to_owned(), ones(2)),
        ("dout".to_owned(), ones(4)),
        ("scale".to_owned(), Tensor::new(&[0.5f64], &Device::Cpu).unwrap()),
        ("q_pos".to_owned(), positions.clone()),
        ("k_pos".to_owned(), positions),
    ]);
    change(&mut tensors);
    let metadata = HashMap::from([("mask".to_owned(), mask.to_owned())]);
    let path = scene.path("case.safetensors");
    safetensors::serialize_to_file(&tensors, Some(metadata), &path).unwrap();
}

const ATTEND: &str = "attend --case case.safetensors --out out";

fn positions(list: &[i64]) -> Tensor {
    Tensor::new(list, &Device::Cpu).unwrap()
}

/// One tensor of a case made another.
fn altered(scene: &Scene, name: &str, alter: impl FnOnce(&Tensor) -> candle_core::Result<Tensor>) {
    write_case(scene, "full", |tensors| {
        let other = alter(&tensors[name]).unwrap();
        tensors.insert(name.to_owned(), other);
    });
}

#[test]
fn wrong_cases_of_attention() {
    let cases: &[Case] = &[
        ("no such case", |_| (), "attend --case nowhere.safetensors --out out"),
        ("a text for a case", |_| (), "attend --case text.txt --out out"),
        ("no mask", |s| s.change("case.safetensors", |_| ()), ATTEND),
        ("no mask of this name", |s| write_case(s, "causal+diagonal", |_| ()), ATTEND),
        ("a window without a width", |s| write_case(s, "window:wide", |_| ()), ATTEND),
        ("a sparse mask without a stride", |s| write_case(s, "causal+strided:0", |_| ()), ATTEND),
        ("more columns than a block has", |s| write_case(s, "fixed:4:5", |_| ()), ATTEND),
        ("global positions backwards", |s| write_case(s, "window:2+global:7-3", |_| ()), ATTEND),
        ("no values", |s| write_case(s, "full", |t| drop(t.remove("v"))), ATTEND),
        ("three dimensions", |s| altered(s, "q", |q| q.squeeze(0)), ATTEND),
        ("heads that cannot share", |s| altered(s, "q", |q| q.narrow(1, 0, 3)), ATTEND),
        ("whole numbers for queries", |s| altered(s, "q", |q| q.to_dtype(DType::I64)), ATTEND),
        ("no scale inside", |s| altered(s, "scale", |scale| scale.narrow(0, 0, 0)), ATTEND),
        ("a scale of 0", |s| altered(s, "scale", Tensor::zeros_like), ATTEND),
        ("values of another type", |s| altered(s, "v", |v| v.to_dtype(DType::BF16)), ATTEND),
        (
            "no rows",
            |s| {
                write_case(s, "full", |t| {
                    for name in ["q", "k", "v", "dout"] {
                        t.insert(name.into(), t[name].narrow(2, 0, 0).unwrap());
                    }
                })
            },
            ATTEND,
        ),
        ("too few positions", |s| with(s, "full", "q_pos", &[0, 1]), ATTEND),
        ("positions that go back", |s| with(s, "full", "k_pos", &SWAPPED), ATTEND),
        (
            "a part over several ranks",
            |s| with(s, "full", "q_pos", &LATER),
            "attend --case case.safetensors --out out --ranks 4 --strategy ring",
        ),
        ("no folder for the answer", |_| (), "attend --case case.safetensors --out nowhere/out"),
    ];
    insta::assert_snapshot!(answers(cases));
}

const IDS: [i64; 16] = [0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2];
const SWAPPED: [i64; 16] = [1, 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
const BACK: [i64; 16] = [0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0];
const LATER: [i64; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];

/// A tensor of whole numbers more.
fn with(scene: &Scene, mask: &str, name: &str, list: &[i64]) {
    write_case(scene, mask, |tensors| drop(tensors.insert(name.to_owned(), positions(list))));
}

#[test]
fn masks_that_need_a_tensor() {
    let cases: &[Case] = &[
        ("documents without ids", |s| write_case(s, "causal+documents", |_| ()), ATTEND),
        ("too few ids", |s| with(s, "documents", "doc_ids", &[0, 0, 1]), ATTEND),
        ("a document in two places", |s| with(s, "documents", "doc_ids", &BACK), ATTEND),
        ("padding that is not there", |s| write_case(s, "causal+padding", |_| ()), ATTEND),
        ("padding of more rows", |s| with(s, "padding", "padding", &[3, 4]), ATTEND),
        ("padding from below 0", |s| with(s, "padding", "padding", &[-3]), ATTEND),
        ("another mask spelled out", |s| with(s, "causal", "allowed", &[1; 256]), ATTEND),
        ("half a mask spelled out", |s| with(s, "causal", "allowed", &[1; 128]), ATTEND),
        (
            "documents of a part",
            |s| {
                write_case(s, "documents", |t| {
                    t.insert("doc_ids".into(), positions(&IDS));
                    t.insert("q_pos".into(), positions(&LATER));
                })
            },
            ATTEND,
        ),
        (
            "a strided mask of a part",
            |s| {
                write_case(s, "causal+strided:3", |t| {
                    drop(t.insert("q_pos".into(), positions(&LATER)))
                })
            },
            ATTEND,
        ),
    ];
    insta::assert_snapshot!(answers(cases));
}

const SCORE: &str = "score --model model --tokens ids.safetensors --out out";

fn write_ids(scene: &Scene, tensors: &[(&str, Tensor)]) {
    scene.tensors("ids.safetensors", tensors);
}

fn matrix(ids: &[[i64; 4]; 1]) -> Tensor {
    Tensor::new(ids, &Device::Cpu).unwrap()
}

#[test]
fn wrong_ids_to_score() {
    let cases: &[Case] = &[
        ("no such ids", |_| (), "score --model model --tokens nowhere --out out"),
        ("ids cut short", |s| s.cut("ids.safetensors", 100), SCORE),
        ("ids under another name", |s| write_ids(s, &[("ids", ids(2, 16))]), SCORE),
        (
            "one row without a batch",
            |s| write_ids(s, &[("input_ids", ids(1, 16).squeeze(0).unwrap())]),
            SCORE,
        ),
        ("an id below 0", |s| write_ids(s, &[("input_ids", matrix(&[[1, 2, -3, 4]]))]), SCORE),
        (
            "an id beyond the vocabulary",
            |s| write_ids(s, &[("input_ids", matrix(&[[1, 2, 3, 260]]))]),
            SCORE,
        ),
        ("one id", |s| write_ids(s, &[("input_ids", ids(2, 1))]), SCORE),
        (
            "ids with a fraction",
            |s| {
                write_ids(s, &[("input_ids", Tensor::new(&[[1.5f32, 2.0]], &Device::Cpu).unwrap())])
            },
            SCORE,
        ),
        (
            "labels of another shape",
            |s| write_ids(s, &[("input_ids", ids(2, 16)), ("labels", ids(2, 15))]),
            SCORE,
        ),
        (
            "a label beyond the vocabulary",
            |s| write_ids(s, &[("input_ids", ids(1, 4)), ("labels", matrix(&[[1, 2, 3, 300]]))]),
            SCORE,
        ),
        (
            "a label that is no label",
            |s| write_ids(s, &[("input_ids", ids(1, 4)), ("labels", matrix(&[[1, -5, 3, 3]]))]),
            SCORE,
        ),
        (
            "no label that counts",
            |s| {
                let labels = matrix(&[[1, -100, -100, -100]]);
                write_ids(s, &[("input_ids", ids(1, 4)), ("labels", labels)]);
            },
            SCORE,
        ),
        (
            "several ranks, no strategy",
            |_| (),
            "score --model model --tokens ids.safetensors --out out --ranks 2",
        ),
    ];
    insta::assert_snapshot!(answers(cases));
}
