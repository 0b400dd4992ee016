//! Weights, sequences and sources that a program hands over are checked against the plan before anything is computed.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use annulus_comm::{Communicator, threads};
use annulus_data::{DataError, IGNORED, Sequence, Source, Tokens};
use annulus_model::{Llama, Weights};
use annulus_plan::Plan;
use annulus_sequence::{Heads, Positions, Setting, Strategy};
use annulus_train::{
    RunOptions, ScoreOutputs, Setup, Silent, Stepper, Store, TrainError, run_phases, score,
};
use candle_core::{DType, Device, Tensor};

use crate::common::Place;

const TOKENS: usize = 48;
const ROWS: usize = 4;
const GATE: &str = "model.layers.0.mlp.gate_proj.weight";

/// A plan of two ranks, and what they compute with.
struct Scene {
    plan: Plan,
    setup: Arc<Setup>,
    weights: Weights,
}

impl Scene {
    fn new(place: &Place) -> Scene {
        let plan = place.plan(&[("mesh.sequence", "2"), ("attention.strategy", "striped")]);
        let setup = Arc::new(Setup::new(&plan, 2));
        let weights = Llama::random(&setup.config, 5).unwrap();
        Scene { plan, setup, weights }
    }

    /// A step over a source.
    fn step(&self, weights: &Weights, source: Made) -> Result<(), TrainError> {
        self.step_of(0..2, weights, source)
    }

    /// A step over a source, of the ranks `here`.
    fn step_of(
        &self,
        here: Range<usize>,
        weights: &Weights,
        source: Made,
    ) -> Result<(), TrainError> {
        let store = Store::new(&self.setup, &self.weights.clone().into(), here)?;
        Scene::run(|comm| self.stepper(comm, weights, source, &store)?.step())
    }

    /// The stepper of a rank over a source.
    fn stepper(
        &self,
        comm: Arc<dyn Communicator>,
        weights: &Weights,
        source: Made,
        store: &Arc<Store>,
    ) -> Result<Stepper, TrainError> {
        Stepper::new(&self.setup, comm, &self.plan, Arc::new(source), weights, store)
    }

    /// Runs `program` on both ranks.
    fn run<T: Send>(
        program: impl Fn(Arc<dyn Communicator>) -> Result<T, TrainError> + Send + Sync,
    ) -> Result<(), TrainError> {
        let options =
            threads::Options { world: 2, deadline: Duration::from_secs(60), stop: Arc::default() };
        threads::run(&options, program).map(drop).map_err(|failure| match failure.cause {
            annulus_comm::Cause::Error(error) => error,
            other => panic!("{other:?}"),
        })
    }

    fn score(&self, weights: &Weights, sequences: &[Sequence]) -> Result<f64, TrainError> {
        Ok(score(&self.setup, weights, sequences, ScoreOutputs::default())?.loss)
    }
}

/// A source that says to have `rows` sequences of `tokens`, and gives them if it `gives`.
#[derive(Clone, Copy, Debug)]
struct Made {
    rows: usize,
    tokens: usize,
    gives: bool,
    /// How many targets each sequence has, at its beginning.
    targets: usize,
    vocabulary: usize,
}

const RIGHT: Made =
    Made { rows: ROWS, tokens: TOKENS, gives: true, targets: TOKENS, vocabulary: 256 };

impl Source for Made {
    fn rows(&self) -> usize {
        self.rows
    }
    fn tokens(&self) -> usize {
        self.tokens
    }
    fn read(
        &self,
        _: u64,
        rows: Range<usize>,
        positions: &Positions,
        into: &mut Tokens,
    ) -> Result<(), DataError> {
        let mut sequence = sequence(self.tokens);
        sequence.targets.iter_mut().skip(self.targets).for_each(|target| *target = IGNORED);
        rows.filter(|_| self.gives).for_each(|_| into.push(&sequence, positions));
        Ok(())
    }
    fn batches(&self) -> Option<u64> {
        None
    }
    fn fingerprint(&self) -> String {
        "made".into()
    }
    fn vocabulary(&self) -> usize {
        self.vocabulary
    }
}

fn sequence(tokens: usize) -> Sequence {
    Sequence::shifted(&(0..=tokens as u32).map(|id| id * 7 % 250).collect::<Vec<_>>())
}

fn zeros(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap()
}

#[test]
fn weights_are_those_of_the_model() {
    let place = Place::new();
    let scene = Scene::new(&place);
    let sequences = [sequence(TOKENS)];
    assert!(scene.score(&scene.weights, &sequences).is_ok());
    scene.step(&scene.weights, RIGHT).unwrap();
    let turned = scene.weights[GATE].t().unwrap().contiguous().unwrap();
    let surplus = "model.layers.7.mlp.gate_proj.weight";
    let norm = "model.norm.weight";
    let cases = [
        (GATE, Some(turned), format!("`{GATE}` in `memory` is [32, 48] (expected [48, 32])")),
        (norm, Some(zeros(&[64])), format!("`{norm}` in `memory` is [64] (expected [32])")),
        (GATE, None, format!("`{GATE}` is missing (expected [48, 32])")),
        (surplus, Some(zeros(&[2])), format!("`{surplus}` [2] in `memory` is not a parameter")),
    ];
    for (name, weight, wanted) in cases {
        let mut weights = scene.weights.clone();
        match weight {
            Some(weight) => weights.insert(name.to_owned(), weight),
            None => weights.remove(name),
        };
        let store = Store::new(&scene.setup, &weights.clone().into(), 0..2).map(drop);
        let scored = scene.score(&weights, &sequences).map(drop);
        let stepped = scene.step(&weights, RIGHT);
        for found in [store, scored, stepped] {
            let found = found.unwrap_err();
            assert!(matches!(found, TrainError::Model(_)) && found.to_string().contains(&wanted));
        }
    }
}

#[test]
fn sequences_are_as_long_as_the_plan_says() {
    let place = Place::new();
    let scene = Scene::new(&place);
    let message = |sequences: &[Sequence]| {
        let error = scene.score(&scene.weights, sequences).unwrap_err();
        assert!(error.hint().is_some());
        error.to_string()
    };
    for tokens in [TOKENS - 8, TOKENS + 26] {
        let wanted =
            format!("a sequence of {tokens} inputs and {tokens} targets, expected 48 of each");
        assert_eq!(message(&[sequence(TOKENS), sequence(tokens)]), wanted);
    }
    let mut fewer = sequence(TOKENS);
    fewer.targets.pop();
    assert_eq!(message(&[fewer]), "a sequence of 48 inputs and 47 targets, expected 48 of each");
    assert_eq!(message(&[]), "0 sequences, expected a multiple of the 1 replicas");
}

#[test]
fn sources_are_those_of_the_plan() {
    let place = Place::new();
    let scene = Scene::new(&place);
    let message = |source| {
        let error = scene.step(&scene.weights, source).unwrap_err();
        assert!(error.hint().is_some());
        error.to_string()
    };
    let wanted = |found: &str| format!("a source of {found}, expected 4 sequences of 48 tokens");
    let fewer = Made { rows: 3, ..RIGHT };
    assert_eq!(message(fewer), wanted("3 sequences of 48 tokens"));
    for tokens in [TOKENS / 2, TOKENS * 2] {
        let found = format!("4 sequences of {tokens} tokens");
        assert_eq!(message(Made { tokens, ..RIGHT }), wanted(&found));
    }
    let nothing = message(Made { gives: false, ..RIGHT });
    assert!(nothing.contains("the source gave 0 ids, 0 targets"), "{nothing}");
    let other = message(Made { vocabulary: 300, ..RIGHT });
    assert_eq!(other, "a source of 300 ids, but the model has 257 tokens");
}

#[test]
fn documents_are_as_long_as_their_sequence() {
    let place = Place::new();
    let plan = place.plan(&[("attention.documents", "data")]);
    let setup = Setup::new(&plan, 2);
    let weights = Llama::random(&setup.config, 5).unwrap();
    let scored = |documents: &[usize]| {
        let sequence = Sequence { documents: documents.to_vec(), ..sequence(TOKENS) };
        score(&setup, &weights, &[sequence], ScoreOutputs::default())
    };
    for right in [&[][..], &[48], &[30, 0, 18]] {
        assert!(scored(right).is_ok(), "{right:?}");
    }
    for (wrong, sum) in [(&[30, 40][..], 70), (&[30], 30), (&[usize::MAX, 2], usize::MAX)] {
        let error = scored(wrong).unwrap_err();
        let wanted = format!("documents of {sum} tokens in all in a sequence, expected 48");
        assert_eq!((error.to_string(), error.hint().is_some()), (wanted, true));
    }
}

#[test]
fn stores_setups_and_plans_that_do_not_fit_are_errors() {
    let place = Place::new();
    let scene = Scene::new(&place);
    let error = scene.step_of(0..1, &scene.weights, RIGHT).unwrap_err();
    assert_eq!(error.to_string(), "a store of 1 ranks, expected one of the 2 of this process");
    let setup = Setup::clone(&scene.setup);
    for (wrong, wanted) in [
        (Setup { micro_batch: 0, ..setup.clone() }, "`micro_batch` of the setup is 0"),
        (Setup { sequence: 0, ..setup.clone() }, "`sequence` of the setup is 0"),
        (Setup { groups: Vec::new(), ..setup.clone() }, "`groups` of the setup are empty"),
        (Setup { block: Some(0), ..setup.clone() }, "`block` of the setup is 0"),
        (
            Setup { sequence: 4, ..setup.clone() },
            "`sequence` of the setup is 4, and its schedules are of 2 ranks",
        ),
    ] {
        let scored = score(&wrong, &scene.weights, &[sequence(TOKENS)], ScoreOutputs::default());
        let found = scored.unwrap_err().to_string();
        assert!(found.starts_with(wanted), "{found}");
        let store = Store::new(&wrong, &scene.weights.clone().into(), 0..2).map(drop);
        assert!(store.unwrap_err().to_string().starts_with(wanted));
    }
    let none = run_phases(&[], RunOptions::new("", 2), &mut Silent).unwrap_err();
    assert_eq!((none.to_string().as_str(), none.hint().is_some()), ("no plan to train", true));
}

#[test]
fn a_store_is_for_one_training() {
    let place = Place::new();
    let scene = Scene::new(&place);
    let used = |found: Result<(), TrainError>| {
        let error = found.unwrap_err();
        assert_eq!(error.to_string(), "a store that ranks have trained with before");
        assert!(error.hint().unwrap().contains("make a new `Store`"));
    };
    let new = || Store::new(&scene.setup, &scene.weights.clone().into(), 0..2).unwrap();
    let store = new();
    let stepper = |comm, store| scene.stepper(comm, &scene.weights, RIGHT, store);
    let step = |comm| stepper(comm, &store)?.step();
    Scene::run(step).unwrap();
    used(Scene::run(step));
    // In one run: a stepper after another, and beside it.
    let store = new();
    used(Scene::run(|comm| {
        stepper(comm.clone(), &store)?.step()?;
        stepper(comm, &store)?.step()
    }));
    let store = new();
    used(Scene::run(|comm| {
        let mut first = stepper(comm.clone(), &store)?;
        let second = stepper(comm, &store).map(drop);
        first.step()?;
        second
    }));
}

#[test]
fn after_a_step_that_failed_there_is_none() {
    let place = Place::new();
    let scene = Scene::new(&place);
    let store = Store::new(&scene.setup, &scene.weights.clone().into(), 0..2).unwrap();
    let nothing = Made { gives: false, ..RIGHT };
    let ran = Scene::run(|comm| {
        let mut stepper = scene.stepper(comm, &scene.weights, nothing, &store)?;
        let [first, second] = [stepper.step(), stepper.step()].map(Result::unwrap_err);
        assert!(first.to_string().contains("the source gave 0 ids"), "{first}");
        assert_eq!(second.to_string(), "a step after one that failed");
        assert!(second.hint().is_some());
        Ok(())
    });
    ran.unwrap();
}

#[test]
fn a_loss_needs_a_target_on_some_rank() {
    let place = Place::new();
    let scene = Scene::new(&place);
    let with = |targets| Made { targets, ..RIGHT };
    // Of one target only one of the ranks knows.
    scene.step(&scene.weights, with(1)).unwrap();
    let none = scene.step(&scene.weights, with(0)).unwrap_err();
    assert_eq!(none.to_string(), "no sequence of step 1 has a target");
    assert!(none.hint().unwrap().contains("-100"));
    let without = Sequence { targets: vec![IGNORED; TOKENS], ..sequence(TOKENS) };
    let scored = scene.score(&scene.weights, std::slice::from_ref(&without)).unwrap_err();
    assert_eq!(scored.to_string(), "no sequence has a target");
    assert!(scene.score(&scene.weights, &[without, sequence(TOKENS)]).is_ok());
}

#[test]
fn a_setting_is_for_the_heads_of_the_model() {
    let place = Place::new();
    let config = Scene::new(&place).setup.config.clone();
    let heads = Heads {
        query: config.shape.num_attention_heads,
        key_value: config.shape.num_key_value_heads,
    };
    let of = |heads| {
        let setting = Setting::new(Strategy::Ring, TOKENS, 2, heads);
        Setup::of_model(config.clone(), &setting, 2)
    };
    assert!(of(heads).is_ok());
    let Heads { query, key_value } = heads;
    let error = of(Heads { query: 2 * query, key_value }).unwrap_err();
    let wanted = format!(
        "a setting for {} query and {key_value} KV heads, but the model has {query} query and {key_value} KV heads",
        2 * query
    );
    assert_eq!((error.to_string(), error.hint().is_some()), (wanted, true));
}

/// A short run of two ranks.
const SHORT: [(&str, &str); 3] =
    [("schedule.steps", "2"), ("mesh.sequence", "2"), ("attention.strategy", "ring")];

/// This test program has an allocator that does not count.
#[test]
fn memory_is_logged_only_where_it_is_counted() {
    let place = Place::new();
    let outcome = place.run(&SHORT).unwrap();
    assert!(outcome.last.contains_key("comm/bytes"));
    let counted = |tag: &&String| tag.starts_with("memory/") && !tag.contains("process");
    assert_eq!(outcome.last.keys().find(counted), None);
}
