//! Losses and answers of conversations are those of each by itself, whatever the template, the packing and the ranks.

use std::fmt::Write as _;

use crate::common::Place;
use annulus_data::{IGNORED, Sequence};
use annulus_evaluation::{ConversationScores, Conversations, Subject, conversations};
use annulus_train::{ScoreOutputs, Scored, score};
use candle_core::D;
use serde_json::json;

const TOKENS: usize = 64;
const END: &str = "<|endoftext|>";
/// A template that says what the assistant says: its words, what ends them and a line break.
const MARKED: &str = "{% for message in messages %}<{{ message.role }}>{% if message.role == 'assistant' %}\
{% generation %}{{ message.content }}<|endoftext|>\n{% endgeneration %}\
{% else %}{{ message.content }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}<assistant>{% endif %}";
/// A template that ends answers by nothing.
const BARE: &str = "{% for message in messages %}<{{ message.role }}>{% if message.role == 'assistant' %}\
{% generation %}{{ message.content }}{% endgeneration %}{% else %}{{ message.content }}{% endif %}{% endfor %}";

/// A conversation as text, with its parts that are learned told apart.
type Turns<'a> = &'a [(&'a str, bool)];

/// What the records below are, by the template.
const TEXTS: [Turns<'_>; 5] = [
    &[("<user>hello<assistant>", false), ("abc<|endoftext|>\n", true)],
    &[
        ("<system>be brief<user>one<assistant>", false),
        ("1<|endoftext|>\n", true),
        ("<user>two<assistant>", false),
        ("22<|endoftext|>\n", true),
    ],
    &[("<user>say it again<assistant>", false), (LONG, true)],
    &[
        ("<user>again again again again again again again again again<assistant>", false),
        ("beyond<|endoftext|>\n", true),
    ],
    &[("<user>last<assistant>", false), ("done<|endoftext|>\n", true)],
];
/// An answer that ends beyond a sequence.
const LONG: &str = "again again again again again again again again again<|endoftext|>\n";

fn records() -> String {
    let said = |text: &str| text.trim_end().replace(END, "");
    let long = said(LONG);
    let again = "again ".repeat(9);
    let (user, assistant) = ("user", "assistant");
    let message = |role: &str, content: &str| json!({ "role": role, "content": content });
    let records = [
        json!({ "messages": [message(user, "hello"), message(assistant, "abc")] }),
        json!({ "messages": [
            message("system", "be brief"), message(user, "one"), message(assistant, "1"),
            message(user, "two"), message(assistant, "22"),
        ] }),
        json!({ "prompt": "say it again", "completion": long }),
        json!({ "instruction": again.trim_end(), "output": "beyond" }),
        json!({ "conversations": [{ "from": "human", "value": "last" }, { "from": "gpt", "value": "done" }] }),
    ];
    records.map(|record| format!("{record}\n")).concat()
}

fn subject(place: &Place, template: &str, changes: &[(&str, &str)]) -> Subject {
    let path = place.path("held.jsonl");
    let asked = [
        ("evaluation.path", path.to_str().unwrap()),
        ("evaluation.format", "chat"),
        ("evaluation.lengths", "[64]"),
        ("attention.documents", "data"),
        ("data.longer", "cut"),
    ];
    place.chatting(template, &[&asked[..], changes].concat())
}

fn found(subject: &Subject) -> ConversationScores {
    let Conversations { mut lengths, .. } =
        conversations(subject, &|_, _, _| ()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(lengths.len(), 1);
    lengths.pop().unwrap()
}

/// Bytes, and the token that ends a text.
fn ids(text: &str) -> Vec<u32> {
    let parts = text.split(END).map(|part| part.bytes().map(u32::from).collect::<Vec<_>>());
    parts.collect::<Vec<_>>().join(&256)
}

/// A conversation alone in a sequence, and its targets as they come.
fn alone(turns: Turns<'_>) -> Sequence {
    let (mut all, mut learned) = (Vec::new(), Vec::new());
    for (text, is_learned) in turns {
        all.extend(ids(text));
        learned.resize(all.len(), *is_learned);
    }
    all.truncate(TOKENS + 1);
    let mut sequence = Sequence::shifted(&all);
    for (target, is_learned) in sequence.targets.iter_mut().zip(&learned[1..]) {
        *target = if *is_learned { *target } else { IGNORED };
    }
    sequence.documents = vec![sequence.inputs.len()];
    sequence.documents.extend(Some(TOKENS - sequence.inputs.len()).filter(|rest| *rest > 0));
    sequence.inputs.resize(TOKENS, 0);
    sequence.targets.resize(TOKENS, IGNORED);
    sequence
}

fn scored(subject: &Subject, sequence: &Sequence, logits: bool) -> Scored {
    let setup = subject.setup(TOKENS).unwrap();
    let want = ScoreOutputs { logits, ..ScoreOutputs::default() };
    score(&setup, subject.weights.first(), std::slice::from_ref(sequence), want).unwrap()
}

/// The most likely id behind every position.
fn predicted(subject: &Subject, sequence: &Sequence) -> Vec<u32> {
    let logits = scored(subject, sequence, true).logits.unwrap();
    logits.get(0).unwrap().argmax(D::Minus1).unwrap().to_vec1().unwrap()
}

#[test]
fn every_token_of_the_assistant_counts_on_any_ranks_and_by_any_template() {
    let place = Place::new();
    place.ends_with(256);
    std::fs::write(place.path("held.jsonl"), records()).unwrap();
    let one = subject(&place, MARKED, &[]);
    // The answer of the fourth is beyond the sequence.
    let of = |turns: &Turns<'_>| (scored(&one, &alone(turns), false), alone(turns));
    let wanted = [0, 1, 2, 4].map(|index| of(&TEXTS[index]));
    let targets: u64 = wanted.iter().map(|(scored, _)| scored.targets).sum();
    let sum: f64 = wanted.iter().map(|(scored, _)| scored.loss * scored.targets as f64).sum();
    let loss = sum / targets as f64;
    let plain = MARKED.replace("{% generation %}", "").replace("{% endgeneration %}", "");
    for (template, changes) in [
        (MARKED, &[][..]),
        (&plain, &[]),
        (MARKED, &[("mesh.sequence", "3"), ("attention.strategy", "ring")]),
        (&plain, &[("mesh.data", "2"), ("data.batch", "2")]),
    ] {
        let found = found(&subject(&place, template, changes));
        assert_eq!((found.conversations, found.cut, found.left_out), (4, 1, 1), "{changes:?}");
        assert_eq!(found.targets as u64, targets);
        let off = (found.loss.mean - loss).abs() / loss;
        assert!(off < 1e-5, "{changes:?}: {} {loss}", found.loss.mean);
        assert!((found.perplexity - found.loss.mean.exp()).abs() < 1e-9);
        assert!(found.loss.standard_error.unwrap() > 0.0);
        // Up to what ends an answer: not the line break behind it. The one that is cut is none, nor is the one beyond.
        assert_eq!(wanted_of(&found), ["abc", "1", "22", "done"].map(ended));
        assert_eq!((judged(&found), found.not_whole), (4, 2));
    }
}

/// What was expected of every answer that is scored.
fn wanted_of(found: &ConversationScores) -> Vec<&str> {
    found.answers.iter().map(|one| &*one.wanted).collect()
}

fn ended(text: &str) -> String {
    format!("{text}{END}")
}

fn judged(found: &ConversationScores) -> usize {
    found.right.map_or(0, |right| right.of)
}

#[test]
fn what_is_not_whole_in_a_sequence_is_no_answer() {
    let place = Place::new();
    place.ends_with(256);
    let of_lines = |lines: &str, changes: &[(&str, &str)]| {
        std::fs::write(place.path("held.jsonl"), lines).unwrap();
        found(&subject(&place, MARKED, changes))
    };
    // The answer beyond the first sequence is whole in the next; the long one in none.
    let all = of_lines(&records(), &[("data.longer", "split")]);
    assert_eq!(wanted_of(&all), ["abc", "1", "22", "beyond", "done"].map(ended));
    let targets = TEXTS.iter().copied().flatten().filter(|(_, is_learned)| *is_learned);
    assert_eq!(all.targets, targets.map(|(text, _)| ids(text).len()).sum::<usize>());
    assert_eq!((all.conversations, judged(&all), all.not_whole), (5, 5, 1));
    // Two pieces of one conversation are one measurement.
    let lines = records();
    let record = |number: usize| lines.lines().nth(number).unwrap();
    let long = of_lines(record(2), &[("data.longer", "split")]);
    assert_eq!((long.conversations, long.not_whole, long.right), (1, 1, None));
    assert_eq!(long.loss.standard_error, None);
    // Only the line break behind the answer is cut.
    let tokens = "<user>hello<assistant>abc".len();
    let lengths = format!("[{}, {tokens}]", tokens - 1);
    std::fs::write(place.path("held.jsonl"), record(0)).unwrap();
    let subject = subject(&place, MARKED, &[("evaluation.lengths", &lengths)]);
    let lengths = conversations(&subject, &|_, _, _| ()).unwrap().lengths;
    let scored = lengths.iter().map(|found| (judged(found), found.not_whole));
    assert_eq!(scored.collect::<Vec<_>>(), [(0, 1), (1, 0)]);
}

#[test]
fn an_answer_is_right_where_greedy_decoding_gives_it() {
    let place = Place::new();
    let any = subject(&place, BARE, &[]);
    let (mut lines, mut right) = (String::new(), 0);
    for number in 0..60 {
        let question = format!("p{number}");
        let text = format!("<user>{question}<assistant>");
        let next = predicted(&any, &alone(&[(&text, false), ("?", true)]))[text.len() - 1];
        // What is no letter cannot stand in a record.
        let own = char::from_u32(next).filter(char::is_ascii_alphanumeric);
        right += usize::from(own.is_some());
        let answer = own.unwrap_or('?');
        writeln!(lines, "{}", json!({ "prompt": question, "completion": answer.to_string() }))
            .unwrap();
    }
    assert!((1..60).contains(&right), "{right}");
    std::fs::write(place.path("held.jsonl"), lines).unwrap();
    let found = found(&subject(&place, BARE, &[]));
    assert_eq!(found.right.map(|found| (found.right, found.of)), Some((right, 60)));
    let said = |one: &annulus_evaluation::Answer| one.right == (one.said == one.wanted);
    assert!(found.answers.iter().all(said));
}

#[test]
fn what_is_no_conversation_is_refused_as_in_training() {
    let place = Place::new();
    let refused = |lines: &str, changes: &[(&str, &str)]| {
        std::fs::write(place.path("held.jsonl"), lines).unwrap();
        conversations(&subject(&place, MARKED, changes), &|_, _, _| ()).unwrap_err()
    };
    let silent = r#"{"messages": [{"role": "user", "content": "hello"}]}"#;
    let error = refused(&format!("{}{silent}\n", records()), &[]);
    let said = error.to_string();
    assert!(said.contains("held.jsonl") && said.contains("line 6"), "{said}");
    assert!(said.contains("no message is the `assistant`'s"), "{said}");
    assert_eq!(error.exit_code(), 3);
    let error = refused(&records(), &[("data.longer", "refuse")]);
    let said = error.to_string();
    let wanted = "held.jsonl`, line 3: the document has 84 tokens, more than the 65 that fit";
    assert!(said.contains(wanted), "{said}");
    let hint = error.hint().unwrap();
    assert!(hint.starts_with("raise `evaluation.lengths`, or set `data.longer`"), "{hint}");
    let beyond = records().lines().nth(3).unwrap().to_owned();
    let error = refused(&beyond, &[]);
    assert!(error.to_string().contains("no document has a token to learn"), "{error}");
    let error = refused("\n", &[]);
    let said = error.to_string();
    assert!(
        said.starts_with("there is no conversation in `") && said.contains("held.jsonl"),
        "{said}"
    );
    assert!(error.hint().is_some_and(|hint| hint.contains("`evaluation.path`")));
}
