//! Text generated with kept KV is the same as that of reading everything again for every token.

use crate::common::Place;
use annulus_data::Sequence;
use annulus_model::Llama;
use annulus_train::{DeviceWeights, GenerateRequest, Sampling, Setup, Verdict, generate, judge};
use candle_core::DType;

const PROMPT: &[u8] = b"alpha 0 alpha;\nbeta 7 beta;\ngamma 1 ga";

fn weights(setup: &Setup) -> DeviceWeights {
    let weights = Llama::random(&setup.config, 5).unwrap();
    let wide = weights.into_iter().map(|(name, weight)| {
        // Scaled up, so that probabilities are far from even and tokens differ.
        let weight = if name.ends_with("norm.weight") { weight } else { (weight * 12.0).unwrap() };
        (name, weight)
    });
    setup.placed(&wide.collect()).unwrap()
}

fn setup(place: &Place, tokens: usize, changes: &[(&str, &str)]) -> Setup {
    let tokens = tokens.to_string();
    let plan = place.plan(&[&[("data.tokens", tokens.as_str())], changes].concat());
    Setup { micro_batch: 1, ..Setup::new(&plan, 4) }
}

/// The most likely token after all `ids`, which are read at once.
fn next(place: &Place, weights: &DeviceWeights, ids: &[u32], changes: &[(&str, &str)]) -> u32 {
    let mut targets = vec![-100; ids.len()];
    targets[ids.len() - 1] = 0;
    let sequence = Sequence { inputs: ids.to_vec(), targets, documents: Vec::new() };
    let setup = setup(place, ids.len(), changes);
    let found = judge(&setup, weights, 1, &|_| Ok(sequence.clone()), &|| ()).unwrap();
    let Verdict { predicted, .. } = found[0][0];
    predicted
}

#[test]
fn greedy_tokens_are_those_of_reading_everything_again() {
    let place = Place::new();
    let prompt: Vec<u32> = PROMPT.iter().map(|&byte| byte.into()).collect();
    let wanted = GenerateRequest { tokens: 14, ends: Vec::new(), sampling: Sampling::default() };
    for changes in [
        &[][..],
        &[("attention.window", "9")],
        &[("attention.window", "9"), ("attention.sinks", "2")],
        &[("attention.window", "9"), ("attention.global", "[3-7]")],
    ] {
        let one = setup(&place, prompt.len(), changes);
        let weights = weights(&one);
        let mut ids = prompt.clone();
        while ids.len() < prompt.len() + wanted.tokens {
            ids.push(next(&place, &weights, &ids, changes));
        }
        let recomputed = &ids[prompt.len()..];
        assert!(recomputed.iter().any(|id| *id != recomputed[0]), "{recomputed:?}");
        for (ranks, strategy) in
            [("1", "local"), ("3", "striped"), ("3", "megatron"), ("4", "ring")]
        {
            let split = [("mesh.sequence", ranks), ("attention.strategy", strategy)];
            let setup = setup(&place, prompt.len(), &[changes, &split[..]].concat());
            let found = generate(&setup, &weights, &prompt, &wanted, &|_| ()).unwrap();
            assert_eq!(found, recomputed, "{ranks} {strategy} {changes:?}");
        }
    }
}

#[test]
fn it_ends_where_it_is_to_and_draws_alike_on_any_ranks() {
    let place = Place::new();
    let prompt: Vec<u32> = PROMPT.iter().map(|&byte| byte.into()).collect();
    let one = setup(&place, prompt.len(), &[]);
    let three = [("mesh.sequence", "3"), ("attention.strategy", "striped")];
    let three = setup(&place, prompt.len(), &three);
    let weights = weights(&one);
    let sampling = Sampling { temperature: 0.8, top_k: Some(50), top_p: 0.95, seed: 3 };
    let wanted = GenerateRequest { tokens: 12, ends: Vec::new(), sampling };
    let found = generate(&one, &weights, &prompt, &wanted, &|_| ()).unwrap();
    assert_eq!(found.len(), 12);
    assert_eq!(generate(&three, &weights, &prompt, &wanted, &|_| ()).unwrap(), found);
    let ending = GenerateRequest { ends: vec![found[4]], ..wanted.clone() };
    let until = found.iter().position(|id| *id == found[4]).unwrap();
    assert_eq!(generate(&three, &weights, &prompt, &ending, &|_| ()).unwrap(), found[..=until]);
    let none = GenerateRequest { tokens: 0, ..wanted };
    assert_eq!(generate(&one, &weights, &prompt, &none, &|_| ()).unwrap(), [0; 0]);
    assert!(generate(&one, &weights, &prompt[1..], &none, &|_| ()).is_err());
}

#[test]
fn prompts_sampling_and_weights_that_do_not_fit_are_refused() {
    let place = Place::new();
    let prompt: Vec<u32> = PROMPT.iter().map(|&byte| byte.into()).collect();
    let setup = setup(&place, prompt.len(), &[]);
    let placed = weights(&setup);
    let message = |placed: &DeviceWeights, prompt: &[u32], sampling| {
        let wanted = GenerateRequest { tokens: 1, ends: Vec::new(), sampling };
        let error = generate(&setup, placed, prompt, &wanted, &|_| ()).unwrap_err();
        (error.to_string(), error.hint().unwrap().clone())
    };
    let greedy = Sampling::default();
    for (sampling, wanted) in [
        (Sampling { temperature: -0.5, ..greedy }, "a temperature of -0.5"),
        (Sampling { temperature: f64::NAN, ..greedy }, "a temperature of NaN"),
        (Sampling { temperature: f64::INFINITY, ..greedy }, "a temperature of inf"),
        (Sampling { top_k: Some(0), ..greedy }, "`top_k` of 0 tokens"),
        (Sampling { top_p: f64::NAN, ..greedy }, "`top_p` of NaN"),
        (Sampling { top_p: 1.5, ..greedy }, "`top_p` of 1.5"),
        (Sampling { top_p: -0.1, ..greedy }, "`top_p` of -0.1"),
    ] {
        let (found, _) = message(&placed, &prompt, sampling);
        assert!(found.starts_with(wanted), "{found}");
    }
    let (found, hint) = message(&placed, &prompt[1..], greedy);
    assert_eq!(
        found,
        format!("a prompt of {} tokens, expected {}", prompt.len() - 1, prompt.len())
    );
    assert!(!hint.contains("--prompt"), "{hint}");
    let mut narrow = setup.clone();
    narrow.config.dtype = DType::BF16;
    let (found, _) = message(&weights(&narrow), &prompt, greedy);
    assert!(found.contains("is BF16 [") && found.contains("expected F32 ["), "{found}");
    let whole = Llama::random(&setup.config, 5).unwrap();
    let mut fewer = whole.clone();
    fewer.remove("model.norm.weight");
    let mut more = whole;
    more.insert("surplus".to_owned(), more["model.norm.weight"].clone());
    for (wrong, wanted) in [(fewer, "`model.norm.weight` is missing"), (more, "`surplus` [32]")] {
        let found = setup.placed(&wrong).unwrap_err().to_string();
        assert!(found.contains(wanted), "{found}");
    }
}
