//! Losses by length and by position are those of the sequences themselves, on any ranks.

use std::fmt::Write as _;

use crate::common::Place;
use annulus_data::Sequence;
use annulus_evaluation::{Files, Perplexity, Subject, perplexity};
use annulus_train::{ScoreOutputs, Setup, score};

const LENGTHS: [usize; 3] = [19, 40, 97];
const WINDOWS: usize = 5;
const TARGETS: usize = 9;

/// A subject whose experiment is changed.
fn subject(place: &Place, changes: &[(&str, &str)]) -> Subject {
    let text = place.path("text.txt");
    let asked = [
        ("evaluation.path", text.to_str().unwrap()),
        ("evaluation.lengths", "[97, 19, 40]"),
        ("evaluation.windows", "5"),
        ("evaluation.targets", "9"),
        ("evaluation.against", "40"),
    ];
    place.subject(&[&asked[..], changes].concat())
}

fn found(place: &Place, changes: &[(&str, &str)]) -> Perplexity {
    perplexity(&subject(place, changes), &|_, _, _| ()).unwrap_or_else(|error| panic!("{error}"))
}

/// The end of a window: the last window ends with the text, the first as early as the longest length allows.
fn end(window: usize, text: &[u8]) -> usize {
    let first = LENGTHS[2] + 1;
    first + (text.len() - first) * window / (WINDOWS - 1)
}

/// The losses of the last targets of windows of `tokens` with these ends.
fn losses(place: &Place, text: &[u8], tokens: usize, ends: &[usize]) -> Vec<f64> {
    let subject = subject(place, &[]);
    let setup: Setup = subject.setup(tokens).unwrap();
    let loss = |&end: &usize| {
        let ids: Vec<u32> = text[end - tokens - 1..end].iter().map(|&byte| byte.into()).collect();
        let mut sequence = Sequence::shifted(&ids);
        sequence.targets[..tokens - TARGETS].fill(-100);
        let one = std::slice::from_ref(&sequence);
        score(&setup, subject.weights.first(), one, ScoreOutputs::default()).unwrap().loss
    };
    ends.iter().map(loss).collect()
}

/// As the perplexity of a sliding window is defined: every target behind the first full window, once.
#[test]
fn windows_without_gaps_score_every_token_once() {
    let place = Place::new();
    let text = std::fs::read(place.path("text.txt")).unwrap();
    let ring = [("mesh.sequence", "3"), ("attention.strategy", "ring")];
    let found = found(&place, &[&ring[..], &[("evaluation.windows", "all")]].concat());
    let ends: Vec<usize> = (LENGTHS[2] + 1..=text.len()).step_by(TARGETS).collect();
    assert_eq!((found.windows, found.positions.len()), (ends.len(), 0));
    assert!(text.len() - ends.last().unwrap() < TARGETS);
    let some = || (0..ends.len()).step_by(37);
    let ends_of_some: Vec<usize> = some().map(|window| ends[window]).collect();
    for (length, tokens) in found.lengths.iter().zip(LENGTHS) {
        assert_eq!(length.by_window.len(), ends.len());
        let wanted = losses(&place, &text, tokens, &ends_of_some);
        for (window, wanted) in some().zip(&wanted) {
            let found = length.by_window[window];
            assert!((found - wanted).abs() < 1e-5 * wanted, "{tokens}: {found} {wanted}");
        }
    }
    let folder = place.path("evaluation");
    Files::create(&folder, 0).unwrap().perplexity(&found).unwrap();
    assert!(folder.join("loss-by-length.svg").exists());
    assert!(!folder.join("loss-by-position.svg").exists());
}

#[test]
fn every_length_has_the_same_targets_and_its_own_context() {
    let place = Place::new();
    let found = found(&place, &[]);
    let text = std::fs::read(place.path("text.txt")).unwrap();
    for (length, tokens) in found.lengths.iter().zip(LENGTHS) {
        assert_eq!(length.tokens, tokens);
        let ends: Vec<usize> = (0..WINDOWS).map(|window| end(window, &text)).collect();
        let by_window = losses(&place, &text, tokens, &ends);
        for (found, wanted) in length.by_window.iter().zip(&by_window) {
            assert!((found - wanted).abs() < 1e-5 * wanted, "{tokens}: {found} {wanted}");
        }
        let mean = by_window.iter().sum::<f64>() / WINDOWS as f64;
        assert!((length.loss.mean - mean).abs() < 1e-5 * mean);
        assert!((length.perplexity - length.loss.mean.exp()).abs() < 1e-9);
    }
}

#[test]
fn differences_are_of_windows() {
    let found = found(&Place::new(), &[]);
    let base = &found.lengths[1];
    assert_eq!(base.difference, None);
    for length in [&found.lengths[0], &found.lengths[2]] {
        let difference = length.difference.unwrap();
        assert_eq!(difference.against, 40);
        let pairs = length.by_window.iter().zip(&base.by_window);
        let by_window: Vec<f64> = pairs.map(|(own, base)| own - base).collect();
        let mean = by_window.iter().sum::<f64>() / WINDOWS as f64;
        let variance: f64 = by_window.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / 4.0;
        assert!((difference.loss.mean - mean).abs() < 1e-12);
        let error = difference.loss.standard_error.unwrap();
        assert!((error - (variance / 5.0).sqrt()).abs() < 1e-12);
    }
}

#[test]
fn positions_cover_the_longest_sequences() {
    let found = found(&Place::new(), &[]);
    let mut at = 0;
    for bucket in &found.positions {
        assert_eq!(bucket.from, at);
        at = bucket.to;
    }
    assert_eq!(at, 97);
    // 97 positions by fours: the last 9 are the targets.
    let [.., a, b, c] = &found.positions[..] else { panic!("{:?}", found.positions) };
    assert_eq!([a.from, b.from, c.from, c.to], [88, 92, 96, 97]);
    let mean = (4.0 * (a.loss.mean + b.loss.mean) + c.loss.mean) / 9.0;
    assert!((mean - found.lengths[2].loss.mean).abs() < 1e-9, "{mean}");
}

#[test]
fn any_ranks_say_the_same() {
    let place = Place::new();
    let one = found(&place, &[]);
    for changes in [
        [("mesh.sequence", "3"), ("attention.strategy", "striped")],
        [("mesh.sequence", "4"), ("attention.strategy", "megatron")],
        [("mesh.data", "2"), ("data.batch", "2")],
    ] {
        let other = found(&place, &changes);
        for (a, b) in other.lengths.iter().zip(&one.lengths) {
            for (a, b) in a.by_window.iter().zip(&b.by_window) {
                assert!((a - b).abs() < 1e-5 * b, "{changes:?}: {a} {b}");
            }
        }
        for (a, b) in other.positions.iter().zip(&one.positions) {
            assert!((a.loss.mean - b.loss.mean).abs() < 1e-5 * b.loss.mean, "{changes:?}");
        }
    }
}

#[test]
fn files_are_written_and_tensorboard_has_the_pictures() {
    let place = Place::new();
    let found = found(&place, &[]);
    let mut files = Files::create(&place.path("out"), 7).unwrap();
    files.perplexity(&found).unwrap();
    assert_eq!(files.written.len(), 5);
    let json = std::fs::read_to_string(place.path("out/perplexity.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let read = json["lengths"][2]["loss"]["mean"].as_f64().unwrap();
    assert!((read - found.lengths[2].loss.mean).abs() < 1e-12);
    let folder = std::fs::read_dir(place.path("out")).unwrap();
    let events = folder.map(|entry| entry.unwrap().path());
    let events = events.filter(|path| path.to_string_lossy().contains("tfevents"));
    let events: Vec<_> =
        events.flat_map(|path| annulus_tensorboard::read(&path).unwrap()).collect();
    let pictures = events.iter().filter_map(|event| match &event.payload {
        annulus_tensorboard::Payload::Image { tag, png, .. } => Some((event.step, tag, png)),
        _ => None,
    });
    let pictures: Vec<_> = pictures.collect();
    assert_eq!(pictures.len(), 2);
    for (step, tag, png) in pictures {
        let name = tag.strip_prefix("evaluation/").unwrap();
        assert_eq!(
            (step, png),
            (7, &std::fs::read(place.path(&format!("out/{name}.png"))).unwrap())
        );
    }
}

/// As in training, other documents change nothing.
#[test]
fn documents_see_themselves_alone_where_the_model_learned_so() {
    let place = Place::new();
    let by_window = |first: char, documents: &[(&str, &str)]| {
        let mut text = format!("{{\"text\": \"{}\"}}\n", String::from(first).repeat(60));
        for number in 0..12 {
            writeln!(text, "{{\"text\": \"{number:30} in words\"}}").unwrap();
        }
        let path = place.path(&format!("{first}.jsonl"));
        std::fs::write(&path, text).unwrap();
        let asked = [
            ("evaluation.path", path.to_str().unwrap()),
            ("evaluation.lengths", "[97]"),
            ("evaluation.against", "97"),
            ("evaluation.windows", "2"),
            ("data.path", path.to_str().unwrap()),
            ("data.format", "jsonl"),
        ];
        found(&place, &[&asked[..], documents].concat()).lengths[0].by_window.clone()
    };
    let masked = [("attention.documents", "data")];
    let [a, b] = ['a', 'b'].map(|first| by_window(first, &masked));
    assert_eq!(a, b, "the first 60 tokens are another document's");
    let [a, b] = ['a', 'b'].map(|first| by_window(first, &[]));
    assert_ne!(a[0], b[0]);
    // What a document begins with is no target where documents are packed whole.
    let more = [masked[0], ("evaluation.targets", "45")];
    let packed = [more[0], more[1], ("data.pack", "documents")];
    assert_ne!(by_window('a', &packed)[1], by_window('a', &more)[1]);
}

#[test]
fn a_perplexity_without_bounds_is_read_as_it_was_written() {
    let place = Place::new();
    let mut found = found(&place, &[]);
    found.lengths[0].perplexity = f64::INFINITY;
    let written = serde_json::to_string(&found).unwrap();
    let read: Perplexity = serde_json::from_str(&written).unwrap();
    assert!(written.contains("\"perplexity\":null") && read.lengths[0].perplexity.is_infinite());
}

#[test]
fn what_cannot_be_asked_is_refused() {
    let place = Place::new();
    let error = |changes: &[(&str, &str)]| {
        perplexity(&subject(&place, changes), &|_, _, _| ()).unwrap_err().to_string()
    };
    let short = error(&[("evaluation.windows", "2000")]);
    assert!(short.contains("too few for 2000 windows of 97: 18089 are needed"), "{short}");
    std::fs::write(place.path("gone.txt"), "").unwrap();
    let gone = place.path("gone.txt");
    let empty = error(&[("evaluation.path", gone.to_str().unwrap())]);
    assert_eq!(empty, format!("there is no text in `{}`", gone.display()));
}
