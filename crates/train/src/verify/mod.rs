//! Holds every strategy to dense attention in f64, on the user's own shape and mask.
//!
//! Three tests for every strategy on every number of ranks: attention on random inputs against the dense reference; which key a query sees,
//! read off the output itself; loss and every parameter gradient of the whole model against one rank with the reference kernel.

mod measure;

use annulus_data::Sequence;
use annulus_experiment::{Kernel, Plan};
use annulus_model::{Llama, Weights};
use annulus_ops::attention::{Dense, dense};
use annulus_sequence::{Heads, Positions, Return, Strategy};
use candle_core::{Result, Tensor};

use self::measure::{distance, error, one_hot, question, sequence, values, visibility_error};
use crate::whole::{Answer, Question, Split, attend};
use crate::{Scored, Setup, TrainError, Want, score};

/// How far a tensor may be from its reference.
pub struct Limits;

impl Limits {
    /// out, lse, dq, dk, dv against dense f64: max|a - b| / max|b|.
    pub const ATTENTION: f64 = 5e-6;
    /// The loss, relative.
    pub const LOSS: f64 = 1e-5;
    /// Parameter gradients: |a - b| / |b| in the Euclidean norm.
    pub const GRADIENT: f64 = 2e-5;
    /// Visible keys: the output is 1 / count in f32, to one unit in the last place.
    pub const VISIBILITY: f64 = 1.0;
}

/// The model's test looks at the loss and at every gradient.
const WANT: Want = Want { logits: false, gradients: true };

/// One line of the report.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// A tensor, how far it is off, and how far it may be.
    Error {
        /// The strategy.
        strategy: Strategy,
        /// On how many ranks.
        ranks: usize,
        /// `out`, `lse`, `dq`, `dk`, `dv`, `visibility`, `loss` or `gradient NAME` (the worst parameter).
        tensor: String,
        /// As the limit's own measure has it; infinite if a value is not finite or a support is not exact.
        error: f64,
        /// What is allowed.
        limit: f64,
    },
    /// Why a pair was not tried.
    Skipped {
        /// The strategy.
        strategy: Strategy,
        /// On how many ranks.
        ranks: usize,
        /// Why.
        reason: String,
    },
}

/// Verifies `plan` on 1 to `most` ranks of every strategy; `tell` gets every line as it is known. Returns all lines.
pub fn verify(
    plan: &Plan,
    most: usize,
    cores: usize,
    tell: &mut dyn FnMut(&Line),
) -> std::result::Result<Vec<Line>, TrainError> {
    let bench = Bench::new(plan, cores)?;
    let mut lines = Vec::new();
    for strategy in Strategy::ALL {
        for ranks in 1..=most {
            for line in bench.pair(strategy, ranks)? {
                tell(&line);
                lines.push(line);
            }
        }
    }
    Ok(lines)
}

/// Inputs and references, made once.
struct Bench<'a> {
    plan: &'a Plan,
    cores: usize,
    random: Question,
    dense: Dense,
    weights: Weights,
    sequences: Vec<Sequence>,
    reference: Scored,
}

impl<'a> Bench<'a> {
    fn new(plan: &'a Plan, cores: usize) -> std::result::Result<Bench<'a>, TrainError> {
        let random = question(plan)?;
        let all = Positions::all(plan.experiment.data.tokens);
        let Question { q, k, v, gradient, mask, scale } = &random;
        let dense = dense(q, k, v, gradient, mask, &all, &all, *scale)?;
        let mut setup = Setup::new(plan, cores);
        (setup.strategy, setup.data, setup.sequence) = (Strategy::Local, 1, 1);
        (setup.layout, setup.returning) = (None, Return::default());
        setup.kernel = Kernel::Reference;
        let weights = Llama::random(&setup.config, plan.experiment.seed)?;
        let sequences = vec![sequence(plan, setup.config.vocab_size)];
        let reference = score(&setup, &weights, &sequences, WANT)?;
        Ok(Bench { plan, cores, random, dense, weights, sequences, reference })
    }

    fn pair(&self, strategy: Strategy, ranks: usize) -> std::result::Result<Vec<Line>, TrainError> {
        let (mask, tokens) = (&self.plan.mask, self.plan.experiment.data.tokens);
        if let Err(error) = strategy.split(mask, tokens, ranks, heads(self.plan)) {
            return Ok(vec![Line::Skipped { strategy, ranks, reason: error.to_string() }]);
        }
        let ways = strategy.returns().iter();
        let ways = ways.map(|how| self.attention(&self.split(strategy, ranks, *how)));
        let ways = ways.collect::<std::result::Result<Vec<_>, _>>()?;
        let mut lines = ways.into_iter().reduce(worse).unwrap_or_default();
        lines.push(self.visibility(strategy, ranks)?);
        lines.extend(self.model(strategy, ranks)?);
        Ok(lines)
    }

    fn split(&self, strategy: Strategy, ranks: usize, returning: Return) -> Split {
        let experiment = &self.plan.experiment;
        let (kernel, deadline) = (experiment.attention.kernel, experiment.mesh.deadline);
        let (cores, deterministic, processor, layout) = (self.cores, true, None, None);
        Split {
            strategy,
            layout,
            ranks,
            returning,
            kernel,
            deterministic,
            deadline,
            cores,
            processor,
        }
    }

    fn attention(&self, split: &Split) -> std::result::Result<Vec<Line>, TrainError> {
        let Answer { out, lse, dq, dk, dv } = attend(&self.random, split)?;
        let dense = &self.dense;
        let pairs = [
            ("out", out, &dense.out),
            ("lse", lse, &dense.lse),
            ("dq", dq, &dense.dq),
            ("dk", dk, &dense.dk),
            ("dv", dv, &dense.dv),
        ];
        let compare = |(name, ours, theirs): (&str, Tensor, &Tensor)| {
            let error = error(&values(&ours)?, &values(theirs)?);
            Ok(line(split.strategy, split.ranks, name, error, Limits::ATTENTION))
        };
        Ok(pairs.into_iter().map(compare).collect::<Result<_>>()?)
    }

    /// q = k = 0 and v = one-hot of the position, as many positions at a time as all values are wide: out[i, j] is 1 / count(i) where i sees j, else 0.
    fn visibility(
        &self,
        strategy: Strategy,
        ranks: usize,
    ) -> std::result::Result<Line, TrainError> {
        let tokens = self.plan.experiment.data.tokens;
        let (heads, width) = (heads(self.plan), self.plan.shape.head_dim);
        let split = self.split(strategy, ranks, Return::Reversed);
        let mut worst = 0.0f64;
        for first in (0..tokens).step_by(heads.key_value * width) {
            let question = one_hot(tokens, (heads, width), first, &self.plan.mask)?;
            let out = values(&attend(&question, &split)?.out)?;
            for (head, out) in out.chunks_exact(tokens * width).enumerate() {
                let first = first + head / heads.group() * width;
                if first < tokens {
                    worst = worst.max(visibility_error(out, &self.plan.mask, tokens, first));
                }
            }
        }
        Ok(line(strategy, ranks, "visibility", worst, Limits::VISIBILITY))
    }

    fn model(
        &self,
        strategy: Strategy,
        ranks: usize,
    ) -> std::result::Result<Vec<Line>, TrainError> {
        let mut setup = Setup::new(self.plan, self.cores);
        (setup.strategy, setup.data, setup.sequence) = (strategy, 1, ranks);
        (setup.layout, setup.returning) = (None, Return::default());
        let ours = score(&setup, &self.weights, &self.sequences, WANT)?;
        let loss = (ours.loss - self.reference.loss).abs() / self.reference.loss.abs();
        let (mut name, mut gradient) = (String::new(), 0.0f64);
        let (Some(a), Some(b)) = (&ours.gradients, &self.reference.gradients) else {
            return Ok(Vec::new());
        };
        for (parameter, reference) in b {
            let off = a.get(parameter).map_or(Ok(f64::INFINITY), |ours| {
                Ok::<_, candle_core::Error>(distance(&values(ours)?, &values(reference)?))
            })?;
            // Not `>`: what is not a number must not pass.
            if name.is_empty() || !(off <= gradient) {
                (name, gradient) = (parameter.clone(), off);
            }
        }
        Ok(vec![
            line(strategy, ranks, "loss", loss, Limits::LOSS),
            line(strategy, ranks, &format!("gradient {name}"), gradient, Limits::GRADIENT),
        ])
    }
}

fn heads(plan: &Plan) -> Heads {
    let shape = &plan.shape;
    Heads { query: shape.num_attention_heads, key_value: shape.num_key_value_heads }
}

fn line(strategy: Strategy, ranks: usize, tensor: &str, error: f64, limit: f64) -> Line {
    Line::Error { strategy, ranks, tensor: tensor.to_owned(), error, limit }
}

/// Of two ways to do the same, what is further off, tensor by tensor.
fn worse(a: Vec<Line>, b: Vec<Line>) -> Vec<Line> {
    let off = |line: &Line| match line {
        Line::Error { error, .. } => *error,
        Line::Skipped { .. } => 0.0,
    };
    std::iter::zip(a, b).map(|(a, b)| if off(&b) > off(&a) { b } else { a }).collect()
}
