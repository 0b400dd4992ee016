//! Prompts that grow: what is written for whole sequences of training does not hold for them, and what depends on the length is that of
//! the whole.

use annulus_evaluation::Subject;
use annulus_train::{GenerateRequest, Sampling, generate};

use crate::common::Place;

const PROMPT: &[u8] = b"alph";
const TOKENS: usize = 30;

/// The most likely tokens behind `prompt`.
fn greedy(subject: &Subject, prompt: &[u32], tokens: usize) -> Vec<u32> {
    let setup = subject.setup_of_prompt(prompt.len(), prompt.len() + tokens).unwrap();
    let wanted = GenerateRequest { tokens, ends: Vec::new(), sampling: Sampling::default() };
    generate(&setup, &subject.weights, prompt, &wanted, &|_| ()).unwrap()
}

/// A text that is generated from a short prompt goes on as from a long one, whatever the mask.
#[test]
fn a_short_prompt_goes_on_as_a_long_one() {
    let place = Place::new();
    place.slides(11);
    let whole = [("data.tokens", "11")];
    let data = [("attention.documents", "data"), ("data.format", "jsonl"), ("data.path", "text")];
    let sinks = [("attention.window", "11"), ("attention.sinks", "2")];
    let of_data = [&data[..], &sinks].concat();
    let cases: [&[(&str, &str)]; 5] = [
        &of_data,
        &whole,
        &[("attention.documents", "[24, 24]")],
        &[("attention.padding", "40")],
        &[("attention.global", "[0-7]"), ("attention.window", "11")],
    ];
    for changes in cases {
        let subject = place.subject(changes);
        let prompt: Vec<u32> = PROMPT.iter().map(|&byte| byte.into()).collect();
        let all = greedy(&subject, &prompt, TOKENS);
        assert!(all.iter().any(|id| *id != all[0]), "{all:?}");
        for first in [9, 20] {
            let longer = [&prompt, &all[..first]].concat();
            let rest = greedy(&subject, &longer, TOKENS - first);
            assert_eq!(rest, all[first..], "{changes:?}, from {first}");
        }
    }
}
