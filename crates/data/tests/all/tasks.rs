//! Questions can be answered from their texts alone, fill their length, and are never cut.

use std::collections::BTreeMap;

use annulus_data::{Question, Task, Tokenizer};

/// A tokenizer with a token before every text, made of byte pairs of English.
fn pairs(folder: &std::path::Path) -> Tokenizer {
    let (text, file) = (folder.join("text.txt"), folder.join("tokenizer.json"));
    let sentence = "The secret number of the kettle is 1234567. The river runs past 98765. ";
    std::fs::write(&text, sentence.repeat(50)).unwrap();
    annulus_data::train_tokenizer(&[text], annulus_data::Records::Text, 300, &file).unwrap();
    let mut json: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let end = json["added_tokens"][0].clone();
    let (id, content) = (end["id"].clone(), end["content"].clone());
    json["post_processor"] = serde_json::json!({
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": content, "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}}
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {content.as_str().unwrap(): {"id": content, "ids": [id], "tokens": [content]}}
    });
    std::fs::write(&file, json.to_string()).unwrap();
    Tokenizer::open(file.to_str().unwrap()).unwrap()
}

fn texts(question: &Question, tokenizer: &Tokenizer) -> (String, String) {
    (tokenizer.decode(&question.prompt).unwrap(), tokenizer.decode(&question.answer).unwrap())
}

#[test]
fn questions_fill_their_length_and_are_functions_of_what_is_given() {
    let folder = tempfile::tempdir().unwrap();
    for tokenizer in [Tokenizer::Bytes, pairs(folder.path())] {
        for task in Task::ALL {
            for tokens in [1200, 5000] {
                let of =
                    |sample, seed| task.question(tokens, 0.3, sample, seed, &tokenizer).unwrap();
                let question = of(1, 2);
                let (length, name) = (question.tokens(), task.name());
                assert!((tokens - 120..=tokens).contains(&length), "{name}: {length} of {tokens}");
                assert_eq!(question, of(1, 2));
                assert_ne!(question, of(2, 2), "{name}");
                assert_ne!(question, of(1, 3), "{name}");
                let begin = tokenizer.before();
                let begins = question.prompt.iter().filter(|id| begin.contains(id)).count();
                assert_eq!(begins, begin.len(), "one token that begins a text");
                assert!(question.prompt.starts_with(begin));
            }
        }
    }
}

#[test]
fn what_is_asked_for_is_told_at_its_depth() {
    for task in [Task::Needle, Task::Passkey, Task::Lines] {
        for depth in [0.0, 0.25, 0.5, 1.0] {
            let question = task.question(4096, depth, 3, 1, &Tokenizer::Bytes).unwrap();
            let (text, answer) = texts(&question, &Tokenizer::Bytes);
            let found = text.find(answer.trim()).expect("it is told") as f64 / text.len() as f64;
            assert!((found - depth).abs() < 0.08, "{}: {found} for {depth}", task.name());
        }
    }
}

#[test]
fn answers_are_those_of_the_texts() {
    let asked = |task: Task| {
        let question = task.question(6000, 0.0, 5, 1, &Tokenizer::Bytes).unwrap();
        let (text, answer) = texts(&question, &Tokenizer::Bytes);
        (text, answer.trim().to_owned(), question.parts)
    };
    let (text, answer, _) = asked(Task::MultiKey);
    assert_eq!(text.matches("The secret number of the").count(), 4 + 1);
    let thing = text.rsplit_once("number of the ").unwrap().1.trim_end_matches(" is").to_owned();
    assert!(text.contains(&format!("The secret number of the {thing} is {answer}. ")));
    let (text, answer, parts) = asked(Task::MultiValue);
    let places: Vec<usize> = parts.iter().map(|part| text.find(part.as_str()).unwrap()).collect();
    assert!(parts.len() == 4 && places.is_sorted() && answer == parts.join(", "));

    let (text, _, parts) = asked(Task::Variables);
    let mut known: Vec<String> = Vec::new();
    let value = text.rsplit_once("the value ").unwrap().1.split(' ').next().unwrap().to_owned();
    for set in text.split("SET ").skip(1) {
        let (name, to) = set.split_once('.').unwrap().0.split_once(" = ").unwrap();
        assert!(to == value || known.contains(&to.to_owned()), "{set}");
        known.push(name.to_owned());
    }
    assert_eq!(known, parts);

    for (task, count) in [(Task::CommonWords, 10), (Task::FrequentWords, 3)] {
        let (text, _, parts) = asked(task);
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let (words, _) = text.split_once('\n').unwrap().1.split_once('\n').unwrap();
        for word in words
            .split(' ')
            .filter(|word| word.len() == 6 && word.is_ascii() && !word.contains('.'))
        {
            *counts.entry(word).or_default() += 1;
        }
        let mut ranked: Vec<(usize, &str)> =
            counts.iter().map(|(word, count)| (*count, *word)).collect();
        ranked.sort_unstable_by(|a, b| b.cmp(a));
        assert!(ranked[count - 1].0 > ranked[count].0, "{ranked:?}");
        let mut most: Vec<&str> = ranked[..count].iter().map(|ranked| ranked.1).collect();
        let mut parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        most.sort_unstable();
        parts.sort_unstable();
        assert_eq!(most, parts, "{}", task.name());
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let error = Task::Needle.question(64, 0.5, 0, 0, &Tokenizer::Bytes).unwrap_err();
    assert!(error.to_string().starts_with("a question of `needle` takes "), "{error}");
    assert!(error.hint().unwrap().contains("evaluation.lengths"));
}
