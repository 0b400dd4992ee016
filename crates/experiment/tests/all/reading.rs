//! The meaning of valid files, and files that cannot be read at all.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use annulus_experiment::{
    Bound, Decay, Dtype, Experiment, Format, Kernel, MaskKind, Mesh, ModelSource, Order, Override,
    Recompute, WeightsFrom, load, parse, parse_sweep,
};
use annulus_sequence::Strategy;

use crate::small::{SMALL, edited};

fn read(text: &str) -> Experiment {
    parse("small.yaml", text, &[]).unwrap_or_else(|problems| panic!("{problems}"))
}

fn with(arguments: &[&str]) -> Experiment {
    let overrides: Vec<Override> =
        arguments.iter().map(|a| Override::split(a).expect("cases have a `=`")).collect();
    parse("small.yaml", SMALL, &overrides).unwrap_or_else(|problems| panic!("{problems}"))
}

#[test]
fn every_rank_has_one_place_in_either_order() {
    let small = read(SMALL).mesh;
    assert_eq!(small.order, Order::SequenceFirst);
    assert_eq!(with(&["mesh.order=data_first"]).mesh.order, Order::DataFirst);
    for (data, sequence) in [(1, 1), (1, 4), (4, 1), (2, 3), (3, 2)] {
        for order in [Order::SequenceFirst, Order::DataFirst] {
            let mesh = Mesh { data, sequence, order, ..small.clone() };
            for rank in 0..mesh.ranks() {
                let replica = mesh.replica(mesh.replica_of(rank));
                assert_eq!(replica.rank(mesh.place_of(rank)), rank);
                for end in rank..=mesh.ranks() {
                    let within = replica.ranks().enumerate();
                    let within = within.filter(|(_, one)| (rank..end).contains(one));
                    assert!(within.map(|(place, _)| place).eq(replica.places_in(rank..end)));
                }
            }
        }
    }
}

#[test]
fn every_key_means_what_it_says() {
    let small = read(SMALL);
    assert_eq!((small.name.as_str(), small.seed), ("small", 7));
    assert_eq!((small.data.tokens, small.data.batch), (12 * 1024, 4));
    assert_eq!((small.mesh.data, small.mesh.sequence), (2, 4));
    assert_eq!(small.mesh.deadline, Duration::from_secs(90));
    assert_eq!(small.attention.strategy, Strategy::STRIPED);
    assert_eq!(small.memory.loss_chunk, Some(1024));
    assert_eq!(small.memory.micro_batch, Some(1));
    assert_eq!(small.optimizer.learning_rate.to_bits(), 3e-4_f64.to_bits());
    assert_eq!((small.schedule.steps, small.schedule.curve.decay), (1000, Decay::Cosine));
    assert_eq!((small.every.evaluate, small.every.checkpoint), (50, 100));
    let bound = Bound { min: None, max: Some(2.5), of_first: Some(0.5) };
    assert_eq!(small.expect, BTreeMap::from([("evaluate/loss".to_owned(), bound)]));
}

/// Keys that nothing else gives a meaning are refused only where they say something: the file of a run has all defaults.
#[test]
fn defaults_are_taken_everywhere() {
    with(&[
        "data.longer=refuse",
        "data.column=text",
        "schedule.decay=constant",
        "schedule.floor=0.1",
    ]);
    with(&["memory.offload=none", "memory.offload_folder=away"]);
    // A text to evaluate on is read by its own ending.
    with(&["data.column=body", "evaluation.path=a.jsonl"]);
    with(&["data.path=[{ path: a }, { path: b, format: jsonl }]", "data.column=body"]);
    // A sign that begins no comment.
    assert_eq!(with(&["data.path=books#1/a.txt"]).data.path[0].path, Path::new("books#1/a.txt"));
    let quoted = with(&["data.path=\"books #1/a.txt\""]);
    assert_eq!(quoted.data.path[0].path, Path::new("books #1/a.txt"));
}

#[test]
fn an_inline_shape_may_say_that_its_weights_are_random() {
    let said = with(&["model.weights=random"]);
    assert_eq!(said.model, with(&[]).model);
}

#[test]
fn what_is_left_out_has_its_default() {
    let least = "name: least
model: { hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1, num_attention_heads: 2 }
data: { tokens: 8 }
optimizer: { learning_rate: 1 }
schedule: { steps: 1 }
";
    let least = read(least);
    let ModelSource::Inline(shape) = &least.model.source else { panic!("the shape is inline") };
    assert_eq!((shape.num_key_value_heads, shape.head_dim, shape.vocab_size), (2, 4, None));
    assert_eq!((shape.rms_norm_eps, shape.rope.theta), (1e-5, 10_000.0));
    assert_eq!((least.seed, least.keep, least.model.dtype), (0, 2, Dtype::F32));
    assert_eq!(least.output, PathBuf::from("runs/least"));
    assert_eq!((least.data.format, least.data.evaluate), (Format::Text, 8));
    assert_eq!((&least.data.tokenizer, least.data.tokenizer()), (&None, "bytes"));
    assert_eq!((least.mesh.sequence, least.mesh.deadline), (1, Duration::from_secs(60)));
    assert_eq!(least.attention.strategy, Strategy::Local);
    assert_eq!(least.attention.masking.mask, MaskKind::Causal);
    assert_eq!(least.attention.kernel, Kernel::Fused);
    assert_eq!(least.memory.recompute, Recompute::Auto);
    assert_eq!((least.optimizer.betas, least.optimizer.epsilon), ((0.9, 0.95), 1e-8));
    assert_eq!((least.schedule.curve.decay, least.schedule.curve.floor), (Decay::Constant, 0.1));
    assert_eq!((least.every.log, least.every.evaluate), (1, 0));
}

#[test]
fn a_model_can_be_a_folder() {
    let at = SMALL.find("model:").expect("the file has a model");
    let to = SMALL.find("data:").expect("the file has data");
    let folder = "model: { path: checkpoints/llama, dtype: bf16, rope_theta: 8.0e6 }\n\n";
    let text = format!("{}{folder}{}", &SMALL[..at], &SMALL[to..]);
    let model = read(&text).model;
    let path = PathBuf::from("checkpoints/llama");
    assert_eq!(
        model.source,
        ModelSource::Folder { path, hub: None, weights: WeightsFrom::Pretrained }
    );
    assert_eq!((model.dtype, model.rope_theta), (Dtype::Bf16, Some(8.0e6)));
    let random = read(&text.replace("llama,", "llama, weights: random,")).model;
    assert!(matches!(random.source, ModelSource::Folder { weights: WeightsFrom::Random, .. }));
}

#[test]
fn arguments_win_over_the_file() {
    let run = with(&[
        "data.tokens=64k",
        "attention.strategy=ring",
        "optimizer.betas=[0.9, 0.99]",
        "schedule={ steps: 5 }",
        "expect.train/loss.max=3",
        "model.vocab_size=1k",
        "mesh.deadline=500ms",
        "mesh.cluster=a.yaml",
        "output=runs/other",
        "data.tokens=32k",
    ]);
    assert_eq!(run.data.tokens, 32 * 1024);
    assert_eq!(run.attention.strategy, Strategy::Ring);
    assert_eq!(run.optimizer.betas, (0.9, 0.99));
    assert_eq!((run.schedule.steps, run.schedule.curve.warmup), (5, 0));
    assert_eq!(run.expect["train/loss"].max, Some(3.0));
    assert_eq!(run.mesh.deadline, Duration::from_millis(500));
    assert_eq!(run.mesh.cluster, Some(PathBuf::from("a.yaml")));
    assert_eq!(run.output, PathBuf::from("runs/other"));
    let ModelSource::Inline(shape) = run.model.source else { panic!("the shape is inline") };
    assert_eq!(shape.vocab_size, Some(1024));
}

#[test]
fn null_on_the_command_line_takes_a_key_out_of_the_file() {
    let run = with(&["schedule.warmup=null", "expect=null"]);
    assert_eq!((run.schedule.curve.warmup, run.schedule.steps), (0, 1000));
    assert!(run.expect.is_empty());
}

#[test]
fn numbers_are_written_in_many_ways() {
    for (text, rate) in [("3e-4", 3e-4), ("3.0E-4", 3e-4), ("0.000_3", 3e-4), ("1", 1.0)] {
        let found = read(&edited("3e-4", text)).optimizer.learning_rate;
        assert_eq!(found.to_bits(), f64::to_bits(rate), "{text}");
    }
    for (text, tokens) in [("64k", 65_536), ("1M", 1 << 20), ("65_536", 65_536), ("4096", 4096)] {
        assert_eq!(read(&edited("12k", text)).data.tokens, tokens);
    }
    for (text, milliseconds) in [("60", 60_000), ("1.5s", 1500), ("20ms", 20), ("5m", 300_000)] {
        let deadline = read(&edited("90s", text)).mesh.deadline;
        assert_eq!(deadline, Duration::from_millis(milliseconds));
    }
}

#[test]
fn windows_lines_and_a_mark_of_the_byte_order_change_nothing() {
    assert_eq!(read(&SMALL.replace('\n', "\r\n")), read(SMALL));
    assert_eq!(read(&format!("\u{feff}{SMALL}")), read(SMALL));
}

#[test]
fn every_shipped_experiment_is_one() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
    let entries = fs::read_dir(folder).expect("the experiments");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let files: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    assert!(!files.is_empty());
    for file in files {
        let text = fs::read_to_string(&file).expect("readable");
        assert!(text.starts_with("# yaml-language-server: $schema="), "{}", file.display());
        let sweep =
            parse_sweep("x.yaml", &text, &[]).unwrap_or_else(|problems| panic!("{problems}"));
        if sweep.is_none() {
            load(&file, &[]).unwrap_or_else(|problems| panic!("{problems}"));
        }
    }
}

#[test]
fn files_that_are_no_experiments() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let at = |name: &str| folder.path().join(name);
    fs::write(at("latin.yaml"), b"name: small\nseed: gr\xfc\xdfe\n").expect("writable");
    fs::write(at("large.yaml"), vec![b'x'; 100 << 20]).expect("writable");
    let mut messages = String::new();
    for path in [at("absent.yaml"), folder.path().to_owned(), at("latin.yaml"), at("large.yaml")] {
        let problems = load(&path, &[]).expect_err("no experiment").to_string();
        messages += &problems.replace(&folder.path().display().to_string(), "FOLDER");
        messages += "\n\n";
    }
    insta::assert_snapshot!(messages);
}
