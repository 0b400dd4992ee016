//! The section `lora`, and the adapter_config.json that tells PEFT the same.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use annulus_experiment::{
    Dtype, Lora, Override, Problems, Resolved, Shape, parse, read_adapter, write_adapter,
    write_config,
};
use annulus_memory::Class;
use annulus_plan::Plan;
use serde_json::{Value, json};

const CONFIG: &str = r#"{ "model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "vocab_size": 256,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": false }"#;

const FULL: &str = "{ rank: 4, alpha: 6.5, rslora: true, dropout: 0.25, targets: [down_proj, q_proj], \
                    train: [head, norms, embeddings] }";

fn experiment(folder: &Path, lora: &str) -> String {
    fs::write(folder.join("config.json"), CONFIG).expect("a scratch folder");
    let folder = folder.display();
    format!(
        "name: lora\nmodel: {{ path: {folder} }}\nlora: {lora}\ndata: {{ tokens: 8 }}\n\
         optimizer: {{ learning_rate: 1 }}\nschedule: {{ steps: 1 }}\n"
    )
}

fn plan(folder: &Path, lora: &str, overrides: &[&str]) -> Result<Plan, Problems> {
    let overrides: Vec<Override> =
        overrides.iter().map(|text| Override::split(text).expect("a `=`")).collect();
    Resolved::read(parse("lora.yaml", &experiment(folder, lora), &overrides)?, Some(256))
        .and_then(|resolved| Plan::new(&resolved))
}

fn settings(plan: &Plan) -> &Lora {
    plan.experiment.lora.as_ref().expect("there is one")
}

#[test]
fn the_parameters_that_are_trained_are_counted() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let text = plan(folder.path(), FULL, &["mesh.sequence=2", "attention.strategy=ring"]);
    let plan = text.unwrap_or_else(|problems| panic!("{problems}"));
    // Both layers: q is 16 by 16, down 16 by 24; their norms, the last, and two tables.
    let adapters = 2 * 4 * (16 + 16 + 16 + 24);
    let trained = adapters + 2 * 2 * 16 + 16 + 2 * 256 * 16;
    // Each of two ranks sends what the other sums, and has moments of half; five norms of 16 are too short to be cut.
    let sent = plan.ranks.iter().map(|rank| rank.gradients).sum::<u64>();
    assert_eq!(sent, 4 * trained + 2 * 24);
    assert_eq!(plan.ranks[0].peak_by_class[Class::Optimizer], 8 * (trained / 2 + 5 * 8));
    let all = plan.shape.elements() + adapters;
    assert_eq!(plan.ranks[0].peak_by_class[Class::Weights], 4 * all);
    assert!(plan.to_text().contains(&format!("lora    rank 4, alpha 6.5: {trained} parameters")));
    let scale = settings(&plan).scale();
    assert!((scale - 6.5 / 2.0).abs() < 1e-12, "{scale}");
}

#[test]
fn what_peft_reads_reads_back_the_same() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    for lora in [FULL, "{ rank: 3 }", "{ rank: 3, targets: [v_proj], train: [norms] }"] {
        let plan = plan(folder.path(), lora, &[]).unwrap_or_else(|problems| panic!("{problems}"));
        let text = write_adapter(settings(&plan), "a/model", Some("main"), &plan.shape);
        fs::write(folder.path().join("adapter_config.json"), text).expect("a scratch folder");
        let read = read_adapter(folder.path(), &plan.shape)
            .unwrap_or_else(|problems| panic!("{problems}"));
        assert_eq!(Lora { path: None, ..read }, *settings(&plan));
    }
}

/// Adapters mean nothing under other frequencies than those that they were trained with; what differs is named.
#[test]
fn adapters_of_a_model_that_is_stretched_otherwise_are_refused() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path();
    let extended = |tokens: usize, from: &str| {
        let lora = format!("{{ rank: 4{from} }}");
        let extend = format!(
            "extend={{ rope: yarn, tokens: {tokens}, original_max_position_embeddings: 16 }}"
        );
        plan(path, &lora, &[&extend])
    };
    let first = extended(64, "").unwrap_or_else(|problems| panic!("{problems}"));
    let text = write_adapter(settings(&first), "a/model", None, &first.shape);
    fs::write(path.join("adapter_config.json"), text).expect("a scratch folder");
    fs::write(path.join("model_config.json"), write_config(&first.shape, Dtype::F32))
        .expect("a scratch folder");
    let from = format!(", path: {}", path.display());
    extended(64, &from).unwrap_or_else(|problems| panic!("{problems}"));
    let problems = extended(128, &from).expect_err("twice the factor").to_string();
    assert!(
        problems.contains("other rotary frequencies: `factor` was `4.0` and is `8.0`\n"),
        "{problems}"
    );
    assert!(problems.contains("`annulus export RUN --merge"), "{problems}");
}

/// `model.path` takes a run, and `lora.path` a checkpoint of one.
#[test]
fn a_run_in_place_of_adapters_is_answered_with_its_newest_checkpoint() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let (path, run) = (folder.path(), folder.path().join("run"));
    let from = format!("{{ rank: 4, path: {} }}", run.display());
    let said = |from: &str| match plan(path, from, &[]) {
        Ok(_) => panic!("no adapters"),
        Err(problems) => problems.to_string(),
    };
    for step in ["step-9", "step-10", "step-x"] {
        fs::create_dir_all(run.join(step)).expect("a scratch folder");
        fs::write(run.join(step).join("adapter_config.json"), "{}").expect("a scratch folder");
    }
    fs::create_dir(run.join("step-11")).expect("a scratch folder");
    let hint = format!("name a checkpoint of it: `lora.path: {}`", run.join("step-10").display());
    assert!(said(&from).contains(&hint), "{}", said(&from));
    let empty = said(&format!("{{ rank: 4, path: {} }}", run.join("step-11").display()));
    assert!(!empty.contains("a run's folder"), "{empty}");
}

#[test]
fn wrong_adapters() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path();
    let own = || plan(path, "{ rank: 4 }", &[]).unwrap_or_else(|problems| panic!("{problems}"));
    let written = write_adapter(settings(&own()), "a/model", None, &own().shape);
    let written: Value = serde_json::from_str(&written).expect("JSON");
    let mut answers = String::new();
    let mut say = |title: &str, problems: Problems| {
        let problems = problems.to_string().replace(&path.display().to_string(), "FOLDER");
        writeln!(answers, "## {title}\n\n{problems}\n").expect("strings take all");
    };
    for (title, lora, more) in [
        ("no rank", "{ alpha: 3 }", &[][..]),
        ("a projection that there is not", "{ rank: 1, targets: [qkv_proj] }", &[]),
        ("no projection", "{ rank: 1, targets: [] }", &[]),
        ("random weights", "{ rank: 1 }", &["model.weights=random"]),
        ("everything left out", "{ rank: 1, dropout: 1 }", &[]),
    ] {
        say(title, plan(path, lora, more).expect_err(title));
    }
    for (title, key, value) in [
        ("another kind", "peft_type", json!("IA3")),
        ("no rank", "r", json!(0)),
        ("directions apart", "use_dora", json!(true)),
        ("ranks by layer", "rank_pattern", json!({ "q_proj": 3 })),
        ("a pattern", "target_modules", json!(".*_proj")),
        ("a projection from elsewhere", "target_modules", json!(["query_key_value"])),
        ("a biased adapter", "bias", json!("lora_only")),
        ("one norm of three", "modules_to_save", json!(["input_layernorm"])),
        ("a base that was changed", "init_lora_weights", json!("pissa")),
    ] {
        let mut config = written.clone();
        config[key] = value;
        fs::write(path.join("adapter_config.json"), config.to_string()).expect("a scratch folder");
        say(title, read_adapter(path, &own().shape).expect_err(title));
    }
    let mut untied = written.clone();
    untied["modules_to_save"] = json!(["embed_tokens"]);
    fs::write(path.join("adapter_config.json"), untied.to_string()).expect("a scratch folder");
    let tied = Shape { tie_word_embeddings: true, ..own().shape };
    say("an embedding that is tied no more", read_adapter(path, &tied).expect_err("untied"));
    fs::write(path.join("adapter_config.json"), written.to_string()).expect("a scratch folder");
    let from = format!("{{ rank: 8, targets: [q_proj], path: {} }}", path.display());
    say("another adapter than is said", plan(path, &from, &[]).expect_err("a difference"));
    insta::assert_snapshot!(answers);
}
