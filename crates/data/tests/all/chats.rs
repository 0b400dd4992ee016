//! Conversations: what the assistant says is learned, by either way of telling it; what is wrong is named.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use annulus_data::{
    Cache, Chat, DataError, Longer, Packed, Packing, Records, Sequence, Source, Texts, Tokenizer,
    Window, train_tokenizer,
};
use tempfile::TempDir;

const MARKED: &str = "{%- for message in messages %}
{{- '<' + message['role'] + '>' }}
{%- if message['role'] == 'assistant' %}
    {%- generation -%}
    {{ message['content'].strip() + eos_token }}
    {%- endgeneration %}
{%- else %}
{{- message['content'] }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<assistant>' }}{% endif %}";

const RECORDS: &str = r#"{"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ishmael."}, {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Damp, drizzly November."}]}

{"messages": [{"role": "system", "content": "Whales"}, {"role": "user", "content": "Where?"}, {"role": "assistant", "content": "At sea."}]}
"#;

struct Scene(TempDir);

impl Scene {
    /// A tokenizer that was trained here, with `template`, and `records`.
    fn new(template: &str, records: &str) -> Scene {
        let scene = Scene(tempfile::tempdir().unwrap());
        fs::write(scene.path("text.txt"), "Call me Ishmael. Some years ago, at sea. ".repeat(20))
            .unwrap();
        let inputs = [scene.path("text.txt")];
        train_tokenizer(&inputs, Records::Text, 300, &scene.path("tokenizer.json")).unwrap();
        let config = format!(
            r#"{{"eos_token": {{"content": "<|endoftext|>"}}, "chat_template": {template:?}}}"#
        );
        fs::write(scene.path("tokenizer_config.json"), config).unwrap();
        fs::write(scene.path("chats.jsonl"), records).unwrap();
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn tokenizer(&self) -> Tokenizer {
        Tokenizer::open(self.path("tokenizer.json").to_str().unwrap()).unwrap()
    }

    fn cache(&self) -> Result<Cache, DataError> {
        let (inputs, folder) = ([self.path("chats.jsonl")], self.path("cache"));
        let tokenizer = self.tokenizer();
        let texts = Texts::new(&inputs, Records::Chats, &tokenizer);
        Cache::open(&texts, &folder, false, &mut |_| {})
    }

    /// What is learned, record by record, and everything.
    fn learned(&self) -> Vec<(String, String)> {
        let (cache, tokenizer) = (self.cache().unwrap(), self.tokenizer());
        let ends = cache.documents().iter().skip(1).copied().chain([cache.tokens()]);
        let records = cache.documents().iter().zip(ends).map(|(&start, end)| {
            let mut ids = vec![0; (end - start) as usize];
            cache.read(start, &mut ids).unwrap();
            let learned = (start..end).filter(|place| cache.learns(*place));
            let learned: Vec<u32> = learned.map(|place| ids[(place - start) as usize]).collect();
            (tokenizer.decode(&learned).unwrap(), tokenizer.decode(&ids).unwrap())
        });
        records.collect()
    }

    fn error(&self) -> String {
        let error = self.cache().unwrap_err();
        let hint = error.hint().unwrap();
        let text = format!("{error}: {hint}");
        text.replace(self.0.path().to_str().unwrap(), "…")
    }
}

fn wanted() -> Vec<(String, String)> {
    let end = "<|endoftext|>";
    vec![
        (
            format!("Ishmael.{end}Damp, drizzly November.{end}"),
            format!(
                "<user>Who?<assistant>Ishmael.{end}<user>Why?<assistant>Damp, drizzly \
                 November.{end}"
            ),
        ),
        (format!("At sea.{end}"), format!("<system>Whales<user>Where?<assistant>At sea.{end}")),
    ]
}

#[test]
fn what_the_assistant_says_is_learned() {
    let scene = Scene::new(MARKED, RECORDS);
    assert!(Chat::open(&scene.tokenizer()).unwrap().is_marked());
    assert_eq!(scene.learned(), wanted());
    // The same without marks, told by what comes on top of the conversation so far.
    let scene = Scene::new(&plain(), RECORDS);
    assert!(!Chat::open(&scene.tokenizer()).unwrap().is_marked());
    assert_eq!(scene.learned(), wanted());
}

/// `MARKED` without its marks: what is said is told turn by turn.
fn plain() -> String {
    let plain = MARKED.replace("{%- generation -%}", "").replace("{%- endgeneration %}", "");
    plain.replace("    \n", "").replace("    {{ message", "{{- message")
}

#[test]
fn what_is_context_alone_is_not_learned() {
    let answer = r#"{"role": "assistant", "content": "Ishmael."#;
    for (said, other) in [
        (r#""weight": 0"#, r#""weight": 1"#),
        (r#""weight": 0.0"#, r#""weight": 1.0"#),
        (r#""train": false"#, r#""train": true"#),
        (r#""training": false"#, r#""training": null"#),
    ] {
        let records = RECORDS.replace(&format!("{answer}\""), &format!("{answer}\", {said}"));
        for template in [MARKED, &plain()] {
            let mut wanted = wanted();
            wanted[0].0 = wanted[0].0.replace("Ishmael.<|endoftext|>", "");
            assert_eq!(Scene::new(template, &records).learned(), wanted, "{said}");
        }
        let records = records.replace(said, other);
        assert_eq!(Scene::new(MARKED, &records).learned(), wanted(), "{other}");
    }
    for (said, wanted) in [
        (r#""weight": 0.5"#, "the weight of message 2 is 0.5, expected 0 or 1"),
        (r#""train": "no""#, "the `train` of message 2 is \"no\", expected true or false"),
    ] {
        let records = RECORDS.replace(&format!("{answer}\""), &format!("{answer}\", {said}"));
        let error = Scene::new(MARKED, &records).error();
        assert!(error.contains(wanted), "{error}");
    }
    // Messages of a prompt are context.
    let prompt = RECORDS
        .replace("\"messages\"", "\"prompt\"")
        .replace(r#""Ishmael."}, {"#, r#""Ishmael."}], "completion": [{"#);
    let first = format!("{}\n", prompt.lines().next().unwrap());
    for template in [MARKED, &plain()] {
        let learned = Scene::new(template, &first).learned();
        assert_eq!(learned[0].0, "Damp, drizzly November.<|endoftext|>");
    }
    // Where the template tells fewer answers than there are, those that are learned are not known.
    let once = MARKED.replace("message['role'] == 'assistant'", "loop.last");
    let records = RECORDS.replace(&format!("{answer}\""), &format!("{answer}\", \"weight\": 0"));
    let error = Scene::new(&once, &records).error();
    assert!(error.contains("1 `{% generation %}` for 2 messages"), "{error}");
}

/// A template that looks at the first message, as Qwen2.5's does.
#[test]
fn an_assistant_may_begin() {
    let look = "{%- if messages[0]['role'] != 'system' %}{{- '<system>Help.' }}{% endif %}";
    let records = r#"{"messages": [{"role": "assistant", "content": "Ahoy."}, {"role": "user", "content": "?"}, {"role": "assistant", "content": "At sea."}]}"#;
    let scene = Scene::new(&(look.to_owned() + &plain()), records);
    let (learned, all) = scene.learned().remove(0);
    assert_eq!(
        all,
        "<system>Help.<assistant>Ahoy.<|endoftext|><user>?<assistant>At sea.<|endoftext|>"
    );
    assert_eq!(learned, "Ahoy.<|endoftext|>At sea.<|endoftext|>");
}

#[test]
fn a_template_of_its_own_file_comes_first() {
    let scene = Scene::new("{{ raise_exception('the wrong one') }}", RECORDS);
    fs::write(scene.path("chat_template.jinja"), MARKED).unwrap();
    assert_eq!(scene.learned(), wanted());
}

#[test]
fn wrong_records_are_named_with_their_lines() {
    let good = RECORDS.lines().next().unwrap();
    let mut said = Vec::new();
    for bad in [
        "{\"messages\": [",
        "[1]",
        "{\"text\": \"a\"}",
        "{\"messages\": \"hello\"}",
        "{\"messages\": []}",
        "{\"messages\": [{\"content\": \"a\"}]}",
        "{\"messages\": [{\"role\": \"bot\", \"content\": \"a\"}]}",
        "{\"messages\": [{\"role\": 7, \"content\": \"a\"}]}",
        "{\"messages\": [{\"role\": \"user\"}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": [\"a\"]}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}",
        "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\u{fdd0}\"}]}",
        r#"{"messages": [{"role": "assistant", "content": null, "tool_calls": null}]}"#,
        r#"{"messages": [{"role": "assistant", "content": null, "tool_calls": []}]}"#,
        r#"{"messages": [{"role": "assistant", "content": "a", "tool_calls": "[]"}]}"#,
        r#"{"messages": [{"role": "assistant", "content": "a"}], "tools": 7}"#,
        r#"{"messages": [{"role": "assistant", "content": "a"}], "tools": ["{}"]}"#,
        r#"{"messages": [{"role": "assistant", "content": "a"}], "tools": "[{"}"#,
        r#"{"messages": [{"role": "assistant", "content": "a"}], "tools": "{}"}"#,
        "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}], \"tools\": [{\"a\": \"\u{fdd1}\"}]}",
        r#"{"messages": [{"role": "assistant", "content": "a"}], "tools": [{"a": 100000000000000000000}]}"#,
        r#"{"messages": [{"role": "assistant", "content": "a"}], "tools": "[{\"a\": 100000000000000000000}]"}"#,
    ] {
        let scene = Scene::new(MARKED, &format!("{good}\n\n{bad}\n"));
        said.push(scene.error());
    }
    insta::assert_snapshot!(said.join("\n"));
}

/// Columns of parquet files say of every message that it calls no tools, and many data sets have tools as a text.
#[test]
fn tools_are_a_list_also_where_they_are_a_text() {
    let template = "{% for tool in tools or [] %}[{{ tool.name }}]{% endfor %}".to_owned() + MARKED;
    let said = r#""messages": [{"role": "assistant", "content": "a", "tool_calls": null}]"#;
    let rendered = |tools: &str| {
        let scene = Scene::new(&template, &format!("{{{said}, \"tools\": {tools}}}\n"));
        scene.learned().remove(0).1
    };
    let none = "<assistant>a<|endoftext|>";
    for (tools, wanted) in [
        (r#"[{"name": "look"}, {"name": "go"}]"#, "[look][go]"),
        (r#""[{\"name\": \"look\"}, {\"name\": \"go\"}]""#, "[look][go]"),
        ("null", ""),
        (r#""""#, ""),
        (r#""null""#, ""),
        (r#""[]""#, ""),
    ] {
        assert_eq!(rendered(tools), format!("{wanted}{none}"), "{tools}");
    }
}

/// As transformers renders them; the day's date alone is not there.
#[test]
fn templates_see_what_transformers_shows_them() {
    let said = r#""messages": [{"role": "assistant", "content": "a"}]"#;
    let record =
        format!(r#"{{{said}, "tools": [{{"a": true, "b": ["it's", null, 1e16], "c": 0.00001}}]}}"#);
    for (template, wanted) in [
        ("{{ tools }}", r#"[{'a': True, 'b': ["it's", None, 1e+16], 'c': 1e-05}]"#),
        ("{{ 'x' ~ tools[0].b }}", r#"x["it's", None, 1e+16]"#),
        ("{{ tools[0].c }}{{ tools[0].c | string }}{{ ['a'] }}", "1e-051e-05['a']"),
        ("{{ 'x' ~ messages }}", "x[{'role': 'assistant', 'content': 'a'}]"),
        ("{{ documents is none }}{{ strftime_now is defined }}", "TrueFalse"),
        (
            "{% set next = cycler('a', 'b') %}{% set comma = joiner() %}{% for i in range(3) %}{{ comma() }}{{ next.next() }}{% endfor %}",
            "a, b, a",
        ),
    ] {
        let scene = Scene::new(&(template.to_owned() + MARKED), &format!("{record}\n"));
        let wanted = format!("{wanted}<assistant>a<|endoftext|>");
        assert_eq!(scene.learned().remove(0).1, wanted, "{template}");
    }
}

/// As Jinja reads them, whatever program wrote the file.
#[test]
fn line_breaks_of_templates_are_normalized() {
    let scene = Scene::new(&MARKED.replace('\n', "\r\n"), RECORDS);
    assert_eq!(scene.learned(), wanted());
    fs::write(scene.path("chat_template.jinja"), MARKED.replace('\n', "\r")).unwrap();
    assert_eq!(scene.learned(), wanted());
    fs::write(scene.path("chat_template.jinja"), "a\r\nb".to_owned() + MARKED).unwrap();
    assert!(scene.learned()[1].1.starts_with("a\nb<system>"));
}

/// A tag that is only mentioned marks nothing, and what is set within marks ends with them.
#[test]
fn comments_mention_marks_and_marks_are_a_scope() {
    let mention = "{# Use {% generation %} to mark. #}{% raw %}{% endgeneration %}{% endraw %}";
    let scene = Scene::new(&(mention.to_owned() + &plain()), RECORDS);
    assert!(!Chat::open(&scene.tokenizer()).unwrap().is_marked());
    assert!(scene.learned()[1].1.starts_with("{% endgeneration %}<system>"));
    let set = MARKED.replace("{%- generation -%}", "{%- generation -%}{% set q = 1 -%}");
    let scene = Scene::new(&(set + "{{ q }}"), RECORDS);
    assert_eq!(scene.learned(), wanted());
}

#[test]
fn wrong_templates_are_named() {
    let mut said = Vec::new();
    for template in [
        "{% for message in messages %}",
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.nothing.at_all }}",
        "{{ strftime_now('%d %b %Y') }}",
        "{{ '%s' % 1 }}",
        "{{ 'a-b'.partition('-') }}",
        "{% generation %}{% endgeneration %}",
        // What a turn is rendered as depends on what follows.
        "{{ messages | length }}{% for message in messages %}{{ message.content }}{% endfor %}",
    ] {
        said.push(Scene::new(template, RECORDS).error());
    }
    let scene = Scene::new(MARKED, RECORDS);
    fs::remove_file(scene.path("tokenizer_config.json")).unwrap();
    said.push(scene.error());
    said.push(Chat::open(&Tokenizer::Bytes).unwrap_err().to_string());
    insta::assert_snapshot!(said.join("\n"));
}

fn sequences(scene: &Scene, tokens: usize, longer: Longer) -> Result<Vec<Sequence>, DataError> {
    let packing = Arc::new(Packing::new(Arc::new(scene.cache()?), tokens, longer)?);
    let count = packing.stats().sequences;
    let packed = Packed::new(packing, Window::HeldOut, count, 1, 0)?;
    (0..count).map(|step| Ok(packed.batch(step)?.remove(0))).collect()
}

/// Documents are whole, never foretell each other, and padding is never learned.
#[test]
fn documents_are_packed_whole() {
    let scene = Scene::new(MARKED, RECORDS);
    let cache = scene.cache().unwrap();
    let (second, all) = (cache.documents()[1] as usize, cache.tokens() as usize);
    let mut ids = vec![0; all];
    cache.read(0, &mut ids).unwrap();
    let one = sequences(&scene, all, Longer::Refuse).unwrap().remove(0);
    assert_eq!(one.documents, [second - 1, all - second - 1, 2]);
    assert_eq!(one.inputs[..second - 1], ids[..second - 1]);
    assert_eq!(one.inputs[second - 1..all - 2], ids[second..all - 1]);
    let starts = [(0, 0, second - 1), (second - 1, second, all - second - 1)];
    let mut wanted = vec![-100; all];
    for (at, place, length) in starts {
        for offset in 0..length {
            if cache.learns((place + offset + 1) as u64) {
                wanted[at + offset] = i64::from(ids[place + offset + 1]);
            }
        }
    }
    assert_eq!(one.targets, wanted);
    // One in each where both do not fit.
    let apart = sequences(&scene, second - 1, Longer::Refuse).unwrap();
    assert_eq!(apart.len(), 2);
    assert!(apart.iter().all(|sequence| sequence.inputs.len() == second - 1));
}

#[test]
fn what_is_too_long_is_said() {
    let scene = Scene::new(MARKED, RECORDS);
    let cache = Arc::new(scene.cache().unwrap());
    let first = cache.documents()[1] as usize;
    let error = Packing::new(cache.clone(), first - 2, Longer::Refuse).unwrap_err();
    let message =
        format!("document 1 has {first} tokens, more than the {} that fit a sequence", first - 1);
    assert_eq!(error.to_string(), message);
    assert!(error.hint().unwrap().contains("`data.longer`"));
    let fit = Packing::new(cache.clone(), first - 2, Longer::Cut).unwrap().stats();
    assert_eq!((fit.documents, fit.cut, fit.dropped), (2, 1, 0));
    let packing = Packing::new(cache.clone(), first - 2, Longer::Drop).unwrap();
    let fit = packing.stats();
    assert_eq!((fit.documents, fit.cut, fit.dropped, fit.sequences), (1, 0, 1, 1));
    let error = Packed::new(Arc::new(packing), Window::Train, 1, 1, 0).unwrap_err();
    let wanted = "sequences that the documents fill: 1 found, 2 needed; 1 document is left out: too long, or nothing \
                  to learn in what fits";
    assert_eq!(error.to_string(), wanted);
    // What is cut before anything is learned needs longer sequences, not shorter ones.
    let packing = Packing::new(cache.clone(), 2, Longer::Cut).unwrap();
    assert_eq!((packing.stats().sequences, packing.stats().dropped), (0, 2));
    let error = Packed::new(Arc::new(packing), Window::Train, 1, 1, 0).unwrap_err();
    assert!(error.to_string().contains("2 documents are left out"), "{error}");
    assert!(error.hint().unwrap().starts_with("raise `data.tokens`"));
    let packing = Packing::new(cache, first, Longer::Refuse).unwrap();
    let error = Packed::new(Arc::new(packing), Window::Train, 5, 1, 0).unwrap_err().to_string();
    assert!(error.ends_with(" needed"), "{error}");
}

#[test]
fn training_draws_every_packed_sequence_once_an_epoch() {
    let scene = Scene::new(MARKED, &RECORDS.repeat(7));
    let packing =
        Arc::new(Packing::new(Arc::new(scene.cache().unwrap()), 100, Longer::Refuse).unwrap());
    let count = packing.stats().sequences;
    assert!(count > 4);
    let order = |seed| -> Vec<Vec<u32>> {
        let packed = Packed::new(packing.clone(), Window::Train, 1, 1, seed).unwrap();
        (0..count - 1).map(|step| packed.batch(step).unwrap().remove(0).inputs).collect()
    };
    let sorted = |mut order: Vec<Vec<u32>>| {
        order.sort();
        order
    };
    assert_eq!(order(1), order(1));
    assert_eq!(sorted(order(1)), sorted(order(2)));
}
