//! Answers to tasks, the same on any number of ranks.

use crate::common::Place;
use annulus_data::Task;
use annulus_evaluation::{Files, Subject, TaskResults, tasks};
use annulus_train::{ScoreOutputs, score};
use candle_core::D;

const ASKED: [(&str, &str); 4] = [
    ("evaluation.tasks", "[needle, variables, perplexity]"),
    ("evaluation.lengths", "[700, 901]"),
    ("evaluation.depths", "3"),
    ("evaluation.samples", "2"),
];

fn subject(place: &Place, changes: &[(&str, &str)]) -> Subject {
    place.subject(&[&ASKED[..], changes].concat())
}

fn found(place: &Place, changes: &[(&str, &str)]) -> TaskResults {
    let found = tasks(&subject(place, changes), &|_, _, _| ());
    found.unwrap_or_else(|error| panic!("{error}")).unwrap()
}

#[test]
fn answers_are_judged_by_the_logits_of_their_tokens() {
    let place = Place::new();
    let found = found(&place, &[]);
    assert_eq!((found.tasks(), found.lengths()), (vec!["needle", "variables"], vec![700, 901]));
    assert_eq!(found.cells.len(), 2 * (3 + 1));
    let subject = subject(&place, &[]);
    for cell in &found.cells {
        let task = Task::from_name(&cell.task).unwrap();
        assert_eq!(cell.answers.len(), 2);
        for (sample, answer) in cell.answers.iter().enumerate() {
            let (depth, tokenizer) = (cell.depth.unwrap_or(0.5), subject.tokenizer().unwrap());
            let question = task.question(cell.tokens, depth, sample as u64, 3, tokenizer).unwrap();
            let one = [question.sequence(cell.tokens)];
            let setup = subject.setup(cell.tokens).unwrap();
            let want = ScoreOutputs { logits: true, gradients: false };
            let scored = score(&setup, subject.weights.first(), &one, want).unwrap();
            assert!((scored.loss - answer.loss).abs() < 1e-5 * scored.loss);
            let all: Vec<u32> = scored
                .logits
                .unwrap()
                .argmax(D::Minus1)
                .unwrap()
                .squeeze(0)
                .unwrap()
                .to_vec1()
                .unwrap();
            let said = &all[question.prompt.len() - 1..][..question.answer.len()];
            assert_eq!(answer.said, tokenizer.decode(said).unwrap());
            assert_eq!(answer.right, said == question.answer);
            assert!(!answer.right || (answer.parts - 1.0).abs() < 1e-12, "{answer:?}");
            assert_eq!(answer.wanted, tokenizer.decode(&question.answer).unwrap());
        }
    }
}

#[test]
fn any_ranks_answer_the_same() {
    let place = Place::new();
    let one = found(&place, &[]);
    let four = found(&place, &[("mesh.sequence", "4"), ("attention.strategy", "striped")]);
    assert_eq!(four.ranks, 4);
    for (a, b) in four.cells.iter().zip(&one.cells) {
        assert_eq!((a.right, &a.task, a.depth), (b.right, &b.task, b.depth));
        for (a, b) in a.answers.iter().zip(&b.answers) {
            assert_eq!((&a.said, a.right), (&b.said, b.right));
            assert!((a.loss - b.loss).abs() < 1e-5 * b.loss);
        }
    }
}

#[test]
fn files_have_a_map_of_what_is_asked_by_depth() {
    let place = Place::new();
    let mut files = Files::create(&place.path("out"), 0).unwrap();
    files.tasks(&found(&place, &[])).unwrap();
    let names = files.written.iter().map(|path| path.file_name().unwrap().to_str().unwrap());
    let wanted =
        ["tasks.json", "needle.svg", "needle.png", "tasks-by-length.svg", "tasks-by-length.png"];
    assert_eq!(names.collect::<Vec<_>>(), wanted);
    let svg = std::fs::read_to_string(place.path("out/needle.svg")).unwrap();
    assert!(svg.contains(">700</text>") && svg.contains(">50</text>"));
}

#[test]
fn questions_are_never_cut() {
    let place = Place::new();
    let error = tasks(&subject(&place, &[("evaluation.lengths", "[90]")]), &|_, _, _| ());
    let error = error.unwrap_err();
    assert!(error.to_string().contains("a question of `needle` takes 1"), "{error}");
    assert!(error.hint().is_some());
    let nothing = subject(&place, &[("evaluation.tasks", "[perplexity]")]);
    assert_eq!(tasks(&nothing, &|_, _, _| ()).unwrap(), None);
}
