//! The command line and the experiment's file, as far as the whole program is concerned: every key
//! is tested in `crates/experiment`.

use crate::scene::{Case, answers};

#[test]
fn wrong_command_lines() {
    let cases: &[Case] = &[
        ("no such command", |_| (), "trian tiny.yaml"),
        ("no file", |_| (), "train"),
        ("a flag that is none", |_| (), "train tiny.yaml --ranks 4"),
        ("no such strategy", |_| (), "layout zigzag"),
        ("letters for a number", |_| (), "layout ring --ranks four"),
        ("no ranks", |_| (), "layout ring --ranks 0"),
        ("no tokens", |_| (), "layout ring --tokens 0"),
        ("nothing visible", |_| (), "layout ring --window 0"),
        ("one rank's strategy on four", |_| (), "layout local --ranks 4"),
        (
            "more ranks than there can be",
            |_| (),
            "layout ring --ranks 100000000 --tokens 100000000",
        ),
        ("a word that is no replacement", |_| (), "train tiny.yaml data.tokens"),
        ("a replacement of nothing", |_| (), "train tiny.yaml data.tokns=32"),
        ("a replacement of another kind", |_| (), "train tiny.yaml data.tokens=many"),
        (
            "replacements that contradict",
            |_| (),
            "train tiny.yaml attention.strategy=ring mesh.sequence=3 mesh.weights=[1,2]",
        ),
        (
            "no kernel of this name",
            |_| (),
            "score --model model --tokens ids.safetensors --out out --kernel fast",
        ),
        ("a comparison of an experiment", |_| (), "plan tiny.yaml --compare"),
        ("a bandwidth without a unit", |_| (), "plan --compare --bandwidth fast"),
        ("a picture of nothing", |_| (), "plan tiny.yaml --svg spot.svg"),
        ("a size of a comparison", |_| (), "plan tiny.yaml --tokens 4k"),
        (
            "a cluster of another kind",
            |s| s.write("cluster.yaml", "name: a\ndevices: 8\n"),
            "plan tiny.yaml --cluster cluster.yaml",
        ),
    ];
    insta::assert_snapshot!(answers(cases));
}

#[test]
fn wrong_experiments() {
    let cases: &[Case] = &[
        ("no such file", |_| (), "train nowhere.yaml"),
        ("a folder", |_| (), "train run"),
        ("not UTF-8", |s| s.write("tiny.yaml", b"name: tin\xff\n"), "train tiny.yaml"),
        ("weights for an experiment", |s| s.write("big", vec![b' '; 2 << 20]), "check big"),
        (
            "three mistakes",
            |s| {
                s.replace("tiny.yaml", "tokens: 16", "tokns: 16");
                s.replace("tiny.yaml", "steps: 4", "steps: -4");
                s.replace("tiny.yaml", "batch: 2", "batch: two");
            },
            "train tiny.yaml",
        ),
        (
            "a bracket left open",
            |s| s.replace("tiny.yaml", "evaluate: 0 }", "evaluate: 0"),
            "plan tiny.yaml",
        ),
        (
            "a strategy that there is not",
            |s| s.replace("tiny.yaml", "output: run", "attention: { strategy: tree }"),
            "verify tiny.yaml",
        ),
        (
            "more than the machine has",
            |_| (),
            "train tiny.yaml model.hidden_size=65536 model.num_hidden_layers=80 output=new",
        ),
        ("a file for a run folder", |_| (), "train tiny.yaml output=text.txt"),
        ("a GPU without CUDA", |_| (), "train tiny.yaml device=cuda:0 output=new"),
    ];
    insta::assert_snapshot!(answers(cases));
}
