//! Conversations: only what the assistant says is learned, the same on any number of ranks.

use std::fmt::Write as _;

use annulus_data::{Records, train_tokenizer};
use annulus_tests::run;
use annulus_tests::runs::{Place, difference, losses, metrics};

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus-under-test");

const TEMPLATE: &str = "{% for message in messages %}<{{ message.role }}>{% if message.role == \
'assistant' %}{% generation %}{{ message.content }}</s>{% endgeneration %}{% else %}\
{{ message.content }}{% endif %}{% endfor %}";

const CHAT: [&str; 6] = [
    "data.format=chat",
    "data.path=chats.jsonl",
    "data.tokenizer=tokenizer.json",
    "data.tokens=96",
    "attention.documents=data",
    "data.evaluate=3",
];

/// How far losses may be off, relatively, when they are summed in another order.
const REORDERED: f64 = 1e-5;

fn place() -> Place {
    let place = Place::new(ANNULUS);
    let (input, out) = ([place.path("text.txt")], place.path("tokenizer.json"));
    train_tokenizer(&input, Records::Text, 300, &out).expect("a tokenizer");
    place.write("chat_template.jinja", TEMPLATE);
    let words = ["alpha", "beta", "gamma", "delta"];
    let mut lines = String::new();
    for n in 0..40 {
        let (asked, answer) = (words[n % 4].repeat(n % 3 + 1), words[(n + 1) % 4]);
        let turns = format!(
            r#"{{"role": "user", "content": "{asked} {n}"}}, {{"role": "assistant", "content": "{answer}"}}"#
        );
        writeln!(lines, r#"{{"messages": [{turns}]}}"#).expect("a text");
    }
    place.write("chats.jsonl", &lines);
    place
}

#[test]
fn losses_of_one_rank_are_those_of_four() {
    let place = place();
    let train = |output: &str, changes: &[&str]| {
        place.train(output, &[&CHAT[..], changes].concat()).ended(0);
        losses(&place.path(output))
    };
    let one = train("one", &["mesh.sequence=1", "attention.strategy=local"]);
    assert!(!one.is_empty());
    let splits = [
        ("striped", ["mesh.sequence=4", "attention.strategy=striped"]),
        // Contiguous: the last rank has little but padding, and often no target.
        ("ring", ["mesh.sequence=4", "attention.strategy=ring"]),
        ("megatron", ["mesh.sequence=4", "attention.strategy=megatron"]),
    ];
    for (output, changes) in splits {
        let off = difference(&train(output, &changes), &one);
        assert!(off < REORDERED, "{output}: {off:e}");
    }
}

#[test]
fn texts_beside_chats_are_read_to_their_end() {
    let place = place();
    let text = std::fs::read_to_string(place.path("text.txt")).expect("a text");
    (0..5).for_each(|number| place.write(&format!("{number}.text"), &text));
    let train = |output: &str, sources: &str, changes: &[&str]| {
        let path = format!("data.path=[{sources}, {{ path: chats.jsonl, format: chat }}]");
        let own = ["mesh.sequence=1", "attention.strategy=local", "schedule.steps=3", &path];
        place.train(output, &[&CHAT[2..], &own[..], changes].concat())
    };
    let said = train("run", "'*.text'", &[]).ended(0).stderr.clone();
    assert!(!said.contains("cut") && !said.contains("before their own"), "{said}");
    // How each source is packed is in the resolved file, which means the same.
    let resolved = std::fs::read_to_string(place.path("run/experiment.yaml")).expect("a file");
    for line in ["{ path: chats.jsonl, format: chat, pack: documents }", "pack: stream"] {
        assert!(resolved.contains(line), "{resolved}");
    }
    run(ANNULUS, &place.path(""), &["train", "run/experiment.yaml", "output=again"]).ended(0);
    assert_eq!(losses(&place.path("again")), losses(&place.path("run")));
    let read = run(ANNULUS, &place.path(""), &["evaluate", "run"]);
    assert!(read.ended(0).stderr.contains("held-out part of `data.path`\n"), "{}", read.stderr);
    let texts = read.stdout.find(" windows, ± standard error").expect("of the texts");
    let chats = read.stdout.find("the assistant's tokens of conversations").expect("of the chats");
    assert!(texts < chats, "{}", read.stdout);
    // As whole documents they are too long.
    let said = train("whole", "'*.text'", &["data.pack=documents"]).ended(3).stderr.clone();
    assert!(said.contains("more than the 97 that fit a sequence"), "{said}");
    let cut = "{ path: '*.text', pack: documents, longer: cut }";
    let said = train("cut", cut, &["attention.documents=null"]).ended(0).stderr.clone();
    assert!(said.contains("5 of 5 documents are cut to 96 tokens"), "{said}");
    assert!(said.contains("see the documents before their own"), "{said}");
    let idle = "{ path: '*.text', longer: cut }";
    let said = train("idle", idle, &[]).ended(2).stderr.clone();
    assert!(said.contains("`data.path.0.longer` has no effect"), "{said}");
    let stream = "'*.text', { path: chats.jsonl, format: chat, pack: stream }";
    let said = train("stream", stream, &[]).ended(2).stderr.clone();
    assert!(said.contains("`format: chat` cannot be packed as `stream`"), "{said}");
}

#[test]
fn best_fit_is_the_same_on_any_ranks_and_after_a_resume() {
    let place = place();
    let train = |output: &str, changes: &[&str]| {
        place.train(output, &[&CHAT[..], &["schedule.steps=6"], changes].concat())
    };
    let best = "data.pack=best-fit";
    let said = train("whole", &[best]).ended(0).stderr.clone();
    assert!(said.contains(" sequences for training: 6 steps of 2 are "), "{said}");
    train("halves", &[best, "schedule.stop=2"]).ended(0);
    let other = train("halves", &["data.pack=documents"]);
    assert!(other.ended(4).stderr.contains("`data.pack` was `best-fit`"), "{}", other.stderr);
    train("halves", &[best]).ended(0);
    assert_eq!(losses(&place.path("halves")), losses(&place.path("whole")));
    train("one", &[best, "mesh.sequence=1", "attention.strategy=local"]).ended(0);
    let off = difference(&losses(&place.path("one")), &losses(&place.path("whole")));
    assert!(off < REORDERED, "{off:e}");
}

/// The sequences of a step are found in the files again.
#[test]
fn what_a_step_has_read_is_shown() {
    let place = place();
    place.train("run", &[&CHAT[..], &["schedule.steps=6"]].concat()).ended(0);
    let show = |what: &[&str]| run(ANNULUS, &place.path(""), &[&["data", "show"], what].concat());
    let shown = show(&["run", "--step", "3"]);
    let text = &shown.ended(0).stdout;
    assert!(text.contains(" sequences for training: 6 steps of 2 are "), "{text}");
    assert!(text.contains("\nsequence 2: 96 tokens in "), "{text}");
    assert!(text.contains("  positions 0 to ") && text.contains("chats.jsonl`, line "), "{text}");
    assert!(!text.contains("target in the loss"), "{text}");
    assert!(!shown.stderr.contains("have changed"), "{}", shown.stderr);
    assert_ne!(show(&["run", "--step", "4"]).ended(0).stdout, *text);
    let some = show(&["run", "--step", "3", "--tokens", "5"]);
    assert_eq!(some.ended(0).stdout.lines().count(), text.lines().count() + 2 * (1 + 5));
    assert!(show(&["run", "--step", "7"]).ended(2).stderr.contains("there is no step 7"));
    let said = show(&["text.txt", "--step", "3"]).ended(2).stderr.clone();
    assert!(said.contains("`--step` is for experiments and runs"), "{said}");
    let lines = std::fs::read_to_string(place.path("chats.jsonl")).expect("it was written");
    place.write("chats.jsonl", &lines.replace("alpha", "omega"));
    assert!(show(&["run", "--step", "3"]).ended(0).stderr.contains("have changed"));
}

#[test]
fn how_the_assistants_text_is_found_is_said() {
    let place = place();
    let asked = ["data", "show", "chats.jsonl", "--chat", "--tokenizer", "tokenizer.json"];
    let shown = || run(ANNULUS, &place.path(""), &asked).ended(0).stdout.clone();
    let marked = shown();
    let wanted = "the template's `{% generation %}` marks the assistant's text\n";
    assert!(marked.starts_with(wanted), "{marked}");
    let plain = TEMPLATE.replace("{% generation %}", "").replace("{% endgeneration %}", "");
    place.write("chat_template.jinja", &plain);
    let found = shown();
    let wanted = "the template has no `{% generation %}`: rendering it turn by turn finds ";
    assert!(found.starts_with(wanted), "{found}");
}

/// What is left out is said.
#[test]
fn what_is_too_long_is_warned_of() {
    let place = place();
    let long = format!(
        r#"{{"messages": [{{"role": "assistant", "content": "{}"}}]}}"#,
        "alpha 1 ".repeat(99)
    );
    let lines = std::fs::read_to_string(place.path("chats.jsonl")).expect("it was written");
    place.write("chats.jsonl", &format!("{lines}{long}\n"));
    let one = ["mesh.sequence=1", "attention.strategy=local", "schedule.steps=3"];
    for (longer, code, said) in [
        ("data.longer=drop", 0, "warning: 1 of 41 documents are left out: too long"),
        ("data.longer=cut", 0, "warning: 1 of 41 documents are cut to 96 tokens"),
        ("data.longer=refuse", 3, "`chats.jsonl`, line 41: the document has "),
    ] {
        let ran = place.train(longer, &[&CHAT[..], &one[..], &[longer]].concat());
        ran.ended(code);
        assert!(ran.stderr.contains(said), "{}", ran.stderr);
    }
}

#[test]
fn the_loss_of_chats_that_were_held_out_is_the_one_that_training_logs() {
    let place = place();
    // Marked by the template, and found turn by turn; conversations that see each other, too.
    let plain = TEMPLATE.replace("{% generation %}", "").replace("{% endgeneration %}", "");
    let plain = format!("{plain}{{% if add_generation_prompt %}}<assistant>{{% endif %}}");
    for (output, template, changes) in [
        ("marked", TEMPLATE, &[][..]),
        ("plain", &plain, &["data.pack=best-fit"]),
        ("seen", TEMPLATE, &["attention.documents=null"]),
    ] {
        place.write("chat_template.jinja", template);
        place.train(output, &[&CHAT[..], &["schedule.steps=2"], changes].concat()).ended(0);
        let logged = metrics(&place.path(output)).last().expect("a step")["evaluate/loss"].clone();
        let logged = logged.as_f64().expect("a loss");
        for ranks in [&[][..], &["mesh.sequence=1", "attention.strategy=local"], &["mesh.data=2"]] {
            let asked = [&["evaluate", output, "--json"], ranks].concat();
            let ran = run(ANNULUS, &place.path(""), &asked);
            let found = ran.ended(0).json()[0]["conversations"]["lengths"][0].clone();
            let off = (found["loss"]["mean"].as_f64().expect("a loss") - logged).abs() / logged;
            assert!(off < REORDERED, "{output}, {ranks:?}: {off:e}");
            assert_eq!(ran.json()[0]["perplexity"], serde_json::Value::Null);
            let sees = ran.stderr.contains("see the documents before their own");
            assert_eq!(sees, output == "seen", "{}", ran.stderr);
        }
    }
}

#[test]
fn conversations_of_another_file_are_scored_and_tabled() {
    let place = place();
    place.train("run", &[&CHAT[..], &["schedule.steps=2"]].concat()).ended(0);
    let evaluate =
        |more: &[&str]| run(ANNULUS, &place.path(""), &[&["evaluate", "run"], more].concat());
    let lines = std::fs::read_to_string(place.path("chats.jsonl")).expect("it was written");
    let some: Vec<&str> = lines.lines().take(5).collect();
    place.write("held.jsonl", &some.join("\n"));
    // As the run's data are conversations, lines are.
    let ran = evaluate(&["evaluation.path=held.jsonl"]);
    assert!(
        ran.ended(0).stderr.contains("reading the conversations in `held.jsonl`"),
        "{}",
        ran.stderr
    );
    assert!(ran.stdout.contains("conversations right answers\n"), "{}", ran.stdout);
    let text = std::fs::read_to_string(place.path("run/evaluation/conversations.json"));
    let found: serde_json::Value = serde_json::from_str(&text.expect("a file")).expect("JSON");
    let found = &found["lengths"][0];
    assert_eq!((&found["conversations"], &found["right"]["of"]), (&5.into(), &5.into()));
    assert!(found["answers"][0]["wanted"].as_str().expect("a text").ends_with("</s>"));
    // A base model beside it, by the same tokenizer and packing.
    let base = ["evaluation.format=chat", "data.tokenizer=tokenizer.json", "data.tokens=96"];
    let more = ["evaluation.path=held.jsonl", "attention.documents=data", "data.longer=cut"];
    let words = [&["evaluate", "run/step-2", "--json", "--out", "other"], &more[..]].concat();
    let of_step = run(ANNULUS, &place.path(""), &words).ended(0).json();
    run(ANNULUS, &place.path(""), &["export", "run", "--out", "model"]).ended(0);
    let words = [&["evaluate", "model", "--json", "--out", "other"], &base[..], &more].concat();
    let of_model = run(ANNULUS, &place.path(""), &words).ended(0).json();
    let loss = |found: &[serde_json::Value]| {
        let length = &found[0]["conversations"]["lengths"][0];
        (length["loss"]["mean"].as_f64().expect("a loss"), length["targets"].clone())
    };
    let [(of_model, targets), (of_step, same)] = [&of_model[..], &of_step].map(loss);
    assert!((of_model - of_step).abs() < REORDERED * of_step, "{of_model} {of_step}");
    assert_eq!(targets, same);
    // How many answers are in pieces is said.
    let pieces = ["evaluation.path=held.jsonl", "evaluation.lengths=[12]", "data.longer=split"];
    let scored = &evaluate(&[&pieces[..], &["--json"]].concat()).ended(0).json()[0];
    let scored = scored["conversations"]["lengths"][0].clone();
    assert_eq!((&scored["not_whole"], &scored["right"]["of"]), (&1.into(), &4.into()));
    let said = "\nnot scored: 1 answer not whole in 12 tokens; what is there counts in the loss\n";
    let ran = evaluate(&pieces);
    assert!(ran.ended(0).stdout.contains(said), "{}", ran.stdout);
    // Texts are read as before.
    evaluate(&["evaluation.path=text.txt", "evaluation.targets=16"]).ended(0);
    let said = evaluate(&["evaluation.path=chats.jsonl"]).ended(0).stderr.clone();
    assert!(said.contains("leave `evaluation.path` out"), "{said}");
    let said = evaluate(&["evaluation.format=chat"]).ended(2).stderr.clone();
    assert!(said.contains("there is no `evaluation.path`"), "{said}");
}

/// A template needs no data: it is looked for however large the texts beside the conversations are.
#[test]
fn check_misses_a_template_beside_a_large_text() {
    let place = place();
    std::fs::remove_file(place.path("chat_template.jinja")).expect("it was written");
    place.write("large.text", &"the harbour was quiet\n".repeat(60_000));
    let path = "data.path=[large.text, { path: chats.jsonl, format: chat }]";
    let asked = [&["check", "experiment.yaml"], &CHAT[2..], &[path]].concat();
    let ran = run(ANNULUS, &place.path(""), &asked);
    assert!(ran.ended(3).stderr.contains("no `chat_template`"), "{}", ran.stderr);
}
