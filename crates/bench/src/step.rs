//! A training step of a small Llama: `step`.
//!
//! 3 million parameters, one sequence of random bytes, AdamW: what anybody would write first with
//! transformers, which `python/llama_step.py` does with the same weights and tokens.

use std::path::{Path, PathBuf};
use std::time::Instant;

use annulus_experiment::Recompute;
use annulus_sequence::Strategy;
use annulus_train::Stepped;
use anyhow::{Result, bail};
use serde_json::{Value, json};

use crate::arguments;
use crate::crew::Crew;
use crate::llama::Step;
use crate::record::quoted;
use crate::resident::Watch;
use crate::session::{Verdict, measure};
use crate::statistics::Quartiles;
use crate::subject::{Fields, Sample, Subject};

/// Of the model.
pub(crate) const LAYERS: usize = 4;
/// Of queries.
pub(crate) const HEADS: usize = 8;
/// Of keys and values.
pub(crate) const KEY_VALUE_HEADS: usize = 4;
/// Elements per head.
pub(crate) const HEAD_DIM: usize = 32;

/// Steps whose losses must agree; later ones drift apart, as AdamW makes much of little gradients.
const COMPARED: usize = 4;
/// How far losses may be apart, relative.
const TOLERANCE: f64 = 1e-5;

/// One point after the other.
pub(crate) fn run(arguments: &arguments::Step) -> Result<Verdict> {
    if (arguments.common.serve || arguments.export.is_some()) && arguments.tokens.len() > 1 {
        bail!("`--serve` and `--export` take one number of `--tokens`");
    }
    let mut verdict = Verdict::Fine;
    for &tokens in &arguments.tokens {
        let step = Step::on_random_tokens(&experiment(arguments, tokens))?;
        if let Some(folder) = &arguments.export {
            step.export(folder)?;
            return Ok(Verdict::Fine);
        }
        let mut common = arguments.common.clone();
        if arguments.transformers {
            let folder = root().join(format!("target/bench/step-{tokens}"));
            step.export(&folder)?;
            common.against = Some(transformers(arguments, &folder));
        }
        let mut point = Point::new(&step, arguments)?;
        verdict = verdict.or(measure(&common, &mut point)?);
    }
    Ok(verdict)
}

/// The experiment that is measured.
fn experiment(arguments: &arguments::Step, tokens: usize) -> String {
    let arguments::Step { recompute, ranks, strategy, .. } = arguments;
    text(tokens, *ranks, *strategy, *recompute, "text")
}

/// An experiment of the small Llama, on data of a format.
pub(crate) fn text(
    tokens: usize,
    ranks: usize,
    strategy: Strategy,
    recompute: Recompute,
    format: &str,
) -> String {
    let (recompute, strategy) = (recompute.word(), strategy.name());
    format!(
        "\
name: bench
model:
  hidden_size: 256
  intermediate_size: 688
  num_hidden_layers: {LAYERS}
  num_attention_heads: {HEADS}
  num_key_value_heads: {KEY_VALUE_HEADS}
  vocab_size: 258
  rms_norm_eps: 1e-6
  tie_word_embeddings: false
data: {{ format: {format}, tokens: {tokens}, batch: 1, evaluate: 0 }}
mesh: {{ sequence: {ranks} }}
attention: {{ strategy: {strategy} }}
memory: {{ recompute: {recompute} }}
optimizer: {{ learning_rate: 1e-4, betas: [0.9, 0.999], weight_decay: 0.01, clip: 0 }}
schedule: {{ steps: 1000 }}
"
    )
}

/// The command that takes the same step with transformers.
fn transformers(arguments: &arguments::Step, folder: &Path) -> String {
    let installed = || root().join("target/python/transformers-5/bin/python");
    let python = arguments.python.clone().unwrap_or_else(installed);
    let script = root().join("crates/bench/python/llama_step.py");
    let paths = [python, script, folder.to_owned()].map(|path| quoted(&path.to_string_lossy()));
    let (recompute, threads) = (arguments.recompute.word(), arguments.threads);
    format!("{} --serve --threads {threads} --recompute {recompute}", paths.join(" "))
}

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    folder.ancestors().nth(2).map(Path::to_path_buf).unwrap_or_default()
}

/// One size of step.
pub(crate) struct Point {
    arguments: arguments::Step,
    tokens: usize,
    parameters: u64,
    crew: Crew<Stepped>,
    watch: Option<Watch>,
}

impl Point {
    /// With its ranks set up.
    pub(crate) fn of(arguments: &arguments::Step, tokens: usize) -> Result<Point> {
        Point::new(&Step::on_random_tokens(&experiment(arguments, tokens))?, arguments)
    }

    fn new(step: &Step, arguments: &arguments::Step) -> Result<Point> {
        Ok(Point {
            arguments: arguments.clone(),
            tokens: step.plan.experiment.data.tokens,
            parameters: step.plan.shape.elements(),
            crew: step.crew(arguments.threads)?,
            watch: None,
        })
    }
}

impl Subject for Point {
    fn describe(&self) -> Fields {
        let arguments::Step { recompute, ranks, strategy, threads, .. } = &self.arguments;
        Fields::from_iter(
            [
                ("bench", json!("step")),
                ("tokens", json!(self.tokens)),
                ("parameters", json!(self.parameters)),
                ("recompute", json!(recompute.word())),
                ("ranks", json!(ranks)),
                ("strategy", json!(strategy.name())),
                ("threads", json!(threads)),
            ]
            .map(|(key, value)| (key.to_owned(), value)),
        )
    }

    fn threads(&self) -> usize {
        self.arguments.threads
    }

    fn sample(&mut self) -> Result<Sample> {
        let watch = *self.watch.get_or_insert_with(Watch::start);
        let start = Instant::now();
        let steps = self.crew.go()?;
        let seconds = start.elapsed().as_secs_f64();
        Ok(Sample { seconds, fields: found(steps[0], watch) })
    }

    fn summary(&self, seconds: Quartiles, samples: &[Sample]) -> Fields {
        let mut fields = Fields::new();
        let speed = self.tokens as f64 / seconds.median;
        fields.insert("tokens_per_second".into(), json!(speed));
        if let Some(last) = samples.last() {
            fields.extend(last.fields.clone());
        }
        fields
    }

    fn agreement(&self, ours: &[Sample], theirs: &[Sample]) -> Result<Fields> {
        agreement(ours, theirs)
    }
}

/// Loss, norm, and the memory of all ranks so far.
pub(crate) fn found(step: Stepped, watch: Watch) -> Fields {
    let fields = [
        ("loss", json!(step.loss)),
        ("norm", json!(step.norm)),
        ("rss_base_mib", json!(watch.base())),
        ("rss_peak_mib", json!(Watch::peak())),
        ("rss_above_mib", json!(watch.growth())),
    ];
    Fields::from_iter(fields.map(|(key, value)| (key.to_owned(), value)))
}

/// Losses side by side, where the peer tells them, and its memory.
fn agreement(ours: &[Sample], theirs: &[Sample]) -> Result<Fields> {
    // What is no number is written as null, and must not pass for silence.
    let loss = |sample: &Sample| Some(sample.fields.get("loss")?.as_f64().unwrap_or(f64::NAN));
    let losses = |samples: &[Sample]| samples.iter().map_while(loss).collect::<Vec<f64>>();
    let (own, other) = (losses(ours), losses(theirs));
    let mut fields = Fields::new();
    if !other.is_empty() {
        let pairs: Vec<_> = std::iter::zip(own, other).take(COMPARED).collect();
        let apart = pairs.iter().map(|(a, b)| ((a - b) / b).abs());
        let apart = apart.max_by(f64::total_cmp).unwrap_or(f64::NAN);
        if !(apart <= TOLERANCE) {
            bail!("losses differ by {apart:.1e}, more than {TOLERANCE:.0e}: {pairs:?}");
        }
        fields.insert("losses".into(), json!(pairs));
        fields.insert("losses_apart".into(), json!(apart));
    }
    let last = theirs.last().into_iter().flat_map(|sample| &sample.fields);
    let memory = last.filter(|(key, _)| key.starts_with("rss_"));
    fields.extend(
        memory.map(|(key, value): (&String, &Value)| (format!("their_{key}"), value.clone())),
    );
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(losses: &[f64]) -> Vec<Sample> {
        let sample = |&loss: &f64| Sample {
            seconds: 1.0,
            fields: Fields::from_iter([
                ("loss".to_owned(), json!(loss)),
                ("rss_above_mib".to_owned(), json!(7)),
            ]),
        };
        losses.iter().map(sample).collect()
    }

    #[test]
    fn losses_of_the_first_steps_must_agree() -> Result<()> {
        let ours = samples(&[5.0, 4.0, 3.0, 2.0, 1.0]);
        let fields = agreement(&ours, &samples(&[5.0, 4.000_01, 3.0, 2.0, 9.0]))?;
        assert_eq!(fields["their_rss_above_mib"], 7);
        assert!(fields["losses_apart"].as_f64().is_some_and(|apart| apart > 2e-6));
        let error = agreement(&ours, &samples(&[5.0, 4.1, 3.0, 2.0, 1.0])).err();
        let said = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(said.starts_with("losses differ by 2.4e-2, more than 1e-5"), "{said}");
        assert!(agreement(&ours, &samples(&[f64::NAN; 5])).is_err());
        Ok(())
    }

    #[test]
    fn a_peer_that_tells_no_losses_is_only_timed() -> Result<()> {
        let theirs = vec![Sample { seconds: 1.0, ..Sample::default() }; 5];
        assert!(agreement(&samples(&[1.0; 5]), &theirs)?.is_empty());
        Ok(())
    }
}
