//! A training step of a Llama: `step`.
//!
//! One sequence of random tokens, AdamW: what anybody would write first with transformers, which `python/llama_step.py` does with
//! the weights and tokens of the small model on a CPU.

use std::path::{Path, PathBuf};
use std::time::Instant;

use annulus_experiment::Device;
use annulus_train::Stepped;
use anyhow::{Result, bail};
use serde_json::json;

use crate::arguments::{self, Dtype, word};
use crate::crew::Crew;
use crate::device;
use crate::llama::Step;
use crate::longest;
use crate::record::quoted;
use crate::resident::Watch;
use crate::session::{Verdict, measure};
use crate::statistics::Quartiles;
use crate::subject::{Fields, Sample, Side, Subject, fields};

/// Steps whose losses must agree; later ones drift apart, as AdamW makes much of little gradients.
const COMPARED: usize = 4;

/// How far losses of the same step may be apart, relative, where they are summed in another order.
fn tolerance(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F32 => 1e-5,
        Dtype::Bf16 => 1e-3,
    }
}

/// One point after the other.
pub(crate) fn run(arguments: &arguments::Step) -> Result<Verdict> {
    let arguments::Step { model, common, export, longest, .. } = arguments;
    let once = common.serve || export.is_some() || longest.is_some();
    if once && arguments.tokens.len() > 1 {
        bail!("`--serve`, `--export` and `--longest` take one number of `--tokens`");
    }
    if arguments.transformers && (model.dtype != Dtype::F32 || model.device != Device::Cpu) {
        bail!("`--against-transformers` compares steps in f32 on the CPU");
    }
    if let Some(nearest) = *longest {
        return longest::run(arguments, nearest);
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
    let arguments::Step { model, recompute, offload, ranks, strategy, .. } = arguments;
    model.experiment(tokens, *ranks, *strategy, *recompute, *offload, "text")
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
    /// Tokens of a chunk of the loss, and of the feed-forward.
    chunks: [usize; 2],
    /// Operations of the model in a step.
    operations: f64,
    device: candle_core::Device,
    crew: Crew<Stepped>,
    watch: Option<Watch>,
}

impl Point {
    /// A point with its ranks set up.
    pub(crate) fn of(arguments: &arguments::Step, tokens: usize) -> Result<Point> {
        Point::new(&Step::on_random_tokens(&experiment(arguments, tokens))?, arguments)
    }

    fn new(step: &Step, arguments: &arguments::Step) -> Result<Point> {
        let (setup, tokens) = (step.setup(arguments.threads)?, step.plan.experiment.data.tokens);
        Ok(Point {
            arguments: arguments.clone(),
            tokens,
            parameters: step.plan.shape.elements(),
            chunks: [step.plan.memory.loss_chunk, step.plan.memory.mlp_chunk],
            operations: step.plan.flops(),
            device: setup.device(),
            crew: step.crew(&setup)?,
            watch: None,
        })
    }
}

impl Side for Point {
    fn sample(&mut self) -> Result<Sample> {
        let watch = *self.watch.get_or_insert_with(Watch::start);
        let start = Instant::now();
        let steps = self.crew.go()?;
        let seconds = start.elapsed().as_secs_f64();
        let mut fields = found(steps[0], watch);
        fields.extend(device::memory(&self.device));
        Ok(Sample { seconds, fields })
    }
}

impl Subject for Point {
    fn describe(&self) -> Fields {
        let arguments::Step { model, recompute, offload, ranks, strategy, threads, .. } =
            &self.arguments;
        let deterministic = model.deterministic || self.device.is_cpu();
        let mut line = fields(json!({
            "bench": "step", "tokens": self.tokens, "model": word(&model.size),
            "parameters": self.parameters, "dtype": word(&model.dtype),
            "deterministic": deterministic, "recompute": recompute.word(), "offload": offload.word(), "ranks": ranks,
            "strategy": strategy.name(), "threads": threads, "planned_chunks": model.planned_chunks,
            "loss_chunk": self.chunks[0], "mlp_chunk": self.chunks[1],
        }));
        line.extend(device::describe(&self.device));
        line
    }

    fn threads(&self) -> usize {
        self.arguments.threads
    }

    fn summary(&self, seconds: Quartiles, samples: &[Sample]) -> Fields {
        let speed = self.tokens as f64 / seconds.median;
        let mut line = fields(json!({ "tokens_per_second": speed }));
        line.extend(utilisation(self.operations / seconds.median / 1e12, &self.arguments.peak));
        line.extend(samples.last().into_iter().flat_map(|last| last.fields.clone()));
        line
    }

    fn agreement(&self, samples: &[Vec<Sample>; 2]) -> Result<Fields> {
        agreement(self.arguments.model.dtype, samples)
    }
}

/// The model's TFLOP/s, and their share of peaks.
fn utilisation(tflops: f64, peaks: &[f64]) -> Fields {
    if peaks.is_empty() {
        return fields(json!({ "tflops": tflops }));
    }
    let shares: Vec<f64> = peaks.iter().map(|peak| tflops / peak).collect();
    fields(json!({ "tflops": tflops, "peak_tflops": peaks, "mfu": shares }))
}

/// Loss, norm, and the memory of all ranks so far.
pub(crate) fn found(step: Stepped, watch: Watch) -> Fields {
    fields(json!({
        "loss": step.loss, "norm": step.norm, "rss_base_mib": watch.base(),
        "rss_peak_mib": Watch::peak(), "rss_above_mib": watch.growth(),
    }))
}

/// Losses of the first steps of both sides, from the same weights, as fields; and the verdict on them.
pub(crate) fn losses(dtype: Dtype, [ours, theirs]: &[Vec<Sample>; 2]) -> (Fields, Verdict) {
    // What is no number is written as null, and must not pass for silence.
    let loss = |sample: &Sample| Some(sample.fields.get("loss")?.as_f64().unwrap_or(f64::NAN));
    let losses = |samples: &[Sample]| samples.iter().map_while(loss).collect::<Vec<f64>>();
    let pairs: Vec<_> = std::iter::zip(losses(ours), losses(theirs)).take(COMPARED).collect();
    let apart = pairs.iter().map(|(a, b)| ((a - b) / b).abs());
    let apart = apart.max_by(f64::total_cmp).unwrap_or(f64::NAN);
    let limit = tolerance(dtype);
    let verdict = if apart <= limit {
        Verdict::Fine
    } else {
        let message = format!("losses differ by {apart:.1e}, more than {limit:.0e}: {pairs:?}");
        Verdict::Missed(message)
    };
    (fields(json!({ "losses": pairs, "losses_apart": apart })), verdict)
}

/// Losses side by side, where the peer tells them, and its memory.
fn agreement(dtype: Dtype, samples: &[Vec<Sample>; 2]) -> Result<Fields> {
    let [_, theirs] = samples;
    let mut line = Fields::new();
    if theirs.first().is_some_and(|sample| sample.fields.contains_key("loss")) {
        let (losses, verdict) = losses(dtype, samples);
        if let Verdict::Missed(why) = verdict {
            bail!(why);
        }
        line.extend(losses);
    }
    let last = theirs.last().into_iter().flat_map(|sample| &sample.fields);
    let memory = last.filter(|(key, _)| key.starts_with("rss_"));
    line.extend(memory.map(|(key, value)| (format!("their_{key}"), value.clone())));
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(losses: &[f64]) -> Vec<Sample> {
        let fields = |loss: &f64| fields(json!({ "loss": loss, "rss_above_mib": 7 }));
        losses.iter().map(|loss| Sample { seconds: 1.0, fields: fields(loss) }).collect()
    }

    fn compared(dtype: Dtype, theirs: &[f64]) -> Result<Fields> {
        agreement(dtype, &[samples(&[5.0, 4.0, 3.0, 2.0, 1.0]), samples(theirs)])
    }

    #[test]
    fn losses_of_the_first_steps_must_agree() -> Result<()> {
        let fields = compared(Dtype::F32, &[5.0, 4.000_01, 3.0, 2.0, 9.0])?;
        assert_eq!(fields["their_rss_above_mib"], 7);
        assert!(fields["losses_apart"].as_f64().is_some_and(|apart| apart > 2e-6));
        let error = compared(Dtype::F32, &[5.0, 4.1, 3.0, 2.0, 1.0]).err();
        let said = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(said.starts_with("losses differ by 2.4e-2, more than 1e-5"), "{said}");
        assert!(compared(Dtype::F32, &[f64::NAN; 5]).is_err());
        assert!(compared(Dtype::Bf16, &[5.004; 1]).is_ok());
        assert_ne!(losses(Dtype::F32, &[Vec::new(), samples(&[1.0])]).1, Verdict::Fine);
        let silent = vec![Sample { seconds: 1.0, ..Sample::default() }; 5];
        assert!(agreement(Dtype::F32, &[samples(&[1.0; 5]), silent])?.is_empty());
        Ok(())
    }

    /// On a machine with GPUs every minute counts: one that is missing is told before a billion weights are drawn.
    #[test]
    fn a_missing_device_is_told_before_weights_are_drawn() -> Result<()> {
        let words = ["step", "--model", "1b", "--device", "cuda:99"];
        let arguments::Command::Step(step) = arguments::Command::of(&words) else {
            bail!("no step")
        };
        let start = Instant::now();
        assert!(Point::of(&step, 1024).is_err());
        assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
        Ok(())
    }

    #[test]
    fn shares_of_peaks_are_told_where_peaks_are_given() {
        assert_eq!(json!(utilisation(2.0, &[])), json!({ "tflops": 2.0 }));
        let wanted = json!({ "tflops": 2.0, "peak_tflops": [8.0, 4.0], "mfu": [0.25, 0.5] });
        assert_eq!(json!(utilisation(2.0, &[8.0, 4.0])), wanted);
    }
}
