//! Compares every strategy with dense attention in f64, on the user's own shape and mask.
//!
//! Three tests for every strategy on every number of ranks: attention on random inputs against the dense reference; which key a query sees,
//! read off the output itself; loss and every parameter gradient of the whole model against one rank with the reference kernel.

pub(crate) mod bits;
mod limits;
mod measure;
pub mod whole;

use annulus_comm::World;
use annulus_data::Sequence;
use annulus_experiment::{Experiment, Kernel};
use annulus_model::{Config, Llama, Weights};
use annulus_ops::attention::{Dense, dense};
use annulus_plan::Plan;
use annulus_sequence::{Documents, Mask, Pass, Positions, Route, Rule, Strategy, Wire};
use candle_core::{DType, Result, Tensor};

pub use self::limits::Limits;
use self::measure::{distance, norm, one_hot, question, sequence, values, visibility_error};
use self::whole::{Answer, Question, Split, attend};
use crate::setup::device;
use crate::setup::processors::Processors;
use crate::setup::shared::ranks_here;
use crate::{LayerGroupSchedules, ScoreOutputs, Scored, Setup, TrainError, score, shared};

/// The results that the model's test compares: the loss and every gradient.
const OUTPUTS: ScoreOutputs = ScoreOutputs { logits: false, gradients: true };

/// One line of the report of `verify`.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// A tensor's error, and its limit.
    Error {
        /// The strategy that computed the tensor.
        strategy: Strategy,
        /// The number of ranks.
        ranks: usize,
        /// Whether layout, `mesh.weights` and `attention.backward` are the experiment's, not the strategy's defaults.
        own: bool,
        /// `out`, `lse`, `dq`, `dk`, `dv`, `visibility`, `loss` or `gradient NAME` (the worst parameter).
        tensor: String,
        /// The error in the limit's measure; infinite if a value is not finite or a support is not exact.
        error: f64,
        /// The largest allowed error.
        limit: f64,
    },
    /// A strategy that was not tried on a number of ranks.
    Skipped {
        /// The strategy that was not tried.
        strategy: Strategy,
        /// The number of ranks.
        ranks: usize,
        /// Whether layout, `mesh.weights` and `attention.backward` are the experiment's, not the strategy's defaults.
        own: bool,
        /// Why it was not tried.
        reason: String,
    },
}

/// Verifies `plan` as it splits its own sequences, and every strategy on 1 to `most` ranks, on the devices and over the processes of
/// `setup`, which is that of the plan. Calls `tell` with every line as it is known; returns all lines.
///
/// A CPU computes in f32, whatever the experiment's dtype, since the split is what is verified; a GPU in the experiment's, as each dtype
/// has its own kernels. Values travel as they are computed, gradients in f32, and no weight is dropped. Where the data tells documents
/// apart, they are random ones. Numbers of ranks that the processes cannot share evenly are skipped, as is what a GPU has no kernel for;
/// each process computes the references, and all return the same lines.
///
/// # Errors
/// A schedule without a proof, more processes than ranks, and any failure of a rank.
pub fn verify(
    plan: &Plan,
    setup: &Setup,
    most: usize,
    tell: &mut dyn FnMut(&Line),
) -> std::result::Result<Vec<Line>, TrainError> {
    let world = &setup.processes;
    let bench = shared(world, || {
        fits(plan)?;
        if most < world.processes() {
            ranks_here(world, most)?;
        }
        Bench::new(plan, comparable(setup))
    })?;
    let mut lines = Vec::new();
    let bare = |strategy| (1..=most).map(move |ranks| (strategy, ranks));
    let bare = Strategy::ALL.into_iter().flat_map(bare);
    let bare = bare.map(|(strategy, ranks)| bench.bare(strategy, ranks));
    for way in bench.own(most).into_iter().chain(bare) {
        let of_way = way.map_or_else(|skipped| Ok(vec![skipped]), |way| bench.way(&way))?;
        for line in of_way {
            tell(&line);
            lines.push(line);
        }
    }
    Ok(lines)
}

/// The most products of a query with a key that dense attention may take: some minutes.
const MOST_PRODUCTS: u128 = 1 << 35;

/// An error if dense attention on the plan's sequence would take too long.
fn fits(plan: &Plan) -> std::result::Result<(), TrainError> {
    let (tokens, shape) = (plan.experiment.data.tokens, &plan.shape);
    let width = (shape.num_attention_heads * shape.head_dim) as u128;
    let products = |tokens: usize| (tokens as u128).pow(2) * width;
    if products(tokens) <= MOST_PRODUCTS {
        return Ok(());
    }
    let most = (0..).map(|power| 1 << power).take_while(|one| products(*one) <= MOST_PRODUCTS);
    let most: usize = most.last().unwrap_or(1);
    Err(TrainError::configuration(
        format!("{tokens} tokens are too many for dense attention, which `verify` compares with"),
        format!("add `data.tokens={most}` to the command: the strategies are the same"),
    ))
}

/// A way to split a sequence that is verified.
struct Way {
    /// The setup: one replica, in the dtype of [`comparable`].
    setup: Setup,
    /// The proportions of positions that ranks hold; `None`: all alike.
    weights: Option<Vec<usize>>,
    /// Whether the way is the experiment's, with all its keys.
    own: bool,
}

/// Inputs and references of all tests, computed once.
struct Bench<'a> {
    plan: &'a Plan,
    setup: Setup,
    /// Inputs and dense results of attention, for each layer group's mask.
    questions: Vec<(Question, Dense)>,
    weights: Weights,
    sequences: Vec<Sequence>,
    reference: Scored,
}

impl<'a> Bench<'a> {
    fn new(plan: &'a Plan, setup: Setup) -> std::result::Result<Bench<'a>, TrainError> {
        let weights = Llama::random(&setup.config, plan.experiment.seed)?;
        let sequences = vec![sequence(plan, setup.config.vocab_size, setup.packed)];
        let reference = reference(&setup, &weights, &sequences)?;

        let documents = Documents::of_lengths(&sequences[0].documents);
        let packed = setup.packed.then(|| Rule::Documents(vec![documents]));
        let all = Positions::all(plan.experiment.data.tokens);
        let answered = |group: &LayerGroupSchedules| {
            let mask = packed.iter().cloned().fold(group.mask.clone(), Mask::and);
            let question = question(plan, mask)?.to_dtype(setup.config.dtype)?;
            let Question { q, k, v, gradient, mask, scale } = &question;
            let dense = dense([q, k, v, gradient], mask, [&all, &all], *scale, None)?;
            Ok((question, dense))
        };
        let questions = setup.groups.iter().map(answered).collect::<Result<_>>()?;
        Ok(Bench { plan, setup, questions, weights, sequences, reference })
    }

    /// The experiment's own way, if it is not its strategy's default.
    fn own(&self, most: usize) -> Option<std::result::Result<Way, Line>> {
        let setup = self.setup.clone();
        let strategy = setup.groups[0].strategy;
        let alike = setup.groups.iter().all(|group| group.strategy == strategy);
        let Experiment { attention, mesh, .. } = &self.plan.experiment;
        let own = attention.layout.is_none() && mesh.weights.is_none();
        let bare = alike && own && Strategy::ALL.contains(&strategy);
        let weights = mesh.weights.clone();
        let way = Way { setup, weights, own: true };
        (!bare && way.setup.sequence <= most).then(|| way.checked())
    }

    /// The strategy's default way, or the line that it cannot be tried.
    fn bare(&self, strategy: Strategy, ranks: usize) -> std::result::Result<Way, Line> {
        let setup = self.setup.split(strategy, ranks, Route::default());
        let setup = setup.map_err(|error| Line::Skipped {
            strategy,
            ranks,
            own: false,
            reason: error.to_string(),
        })?;
        Way { setup, weights: None, own: false }.checked()
    }

    /// All lines of one way; of several layer groups, the largest error of each tensor.
    fn way(&self, way: &Way) -> std::result::Result<Vec<Line>, TrainError> {
        way.setup.join()?;
        let mut lines: Option<Vec<Line>> = None;
        for (group, (question, dense)) in way.setup.groups.iter().zip(&self.questions) {
            let attention = |how: &Route| way.attention(group, *how, question, dense);
            let ways = group.strategy.routes().iter().map(attention);
            let ways = ways.collect::<std::result::Result<Vec<_>, _>>()?;
            let mut of_group = ways.into_iter().reduce(worse).unwrap_or_default();
            of_group.push(self.visibility(way, group, &question.mask)?);
            lines = Some(lines.into_iter().fold(of_group, worse));
        }
        let mut lines = lines.unwrap_or_default();
        lines.extend(self.model(way)?);
        Ok(lines)
    }

    /// Reads off the output which keys each query sees: q = k = 0 and v one-hot of the position, as many positions at a time as all values
    /// are wide; then out[i, j] is 1 / count(i) where i sees j, else 0.
    fn visibility(
        &self,
        way: &Way,
        group: &LayerGroupSchedules,
        mask: &Mask,
    ) -> std::result::Result<Line, TrainError> {
        let tokens = self.plan.experiment.data.tokens;
        let (heads, width) = (self.plan.heads(), self.plan.shape.head_dim);
        let mut worst = 0.0f64;
        for first in (0..tokens).step_by(heads.key_value * width) {
            let question = one_hot(tokens, heads, width, first, mask)?.to_dtype(way.dtype())?;
            let out = values(&attend(&question, &way.split(group))?.out)?;
            for (head, out) in out.chunks_exact(tokens * width).enumerate() {
                let first = first + head / heads.group() * width;
                if first < tokens {
                    worst = worst.max(visibility_error(out, width, mask, first, way.dtype()));
                }
            }
        }
        let Limits { visibility, strided_visibility, .. } = way.limits();
        let limit = if mask.is_thinned() { strided_visibility } else { visibility };
        Ok(way.line("visibility", worst, limit))
    }

    fn model(&self, way: &Way) -> std::result::Result<Vec<Line>, TrainError> {
        let ours = score(&way.setup, &self.weights, &self.sequences, OUTPUTS)?;
        let loss = (ours.loss - self.reference.loss).abs() / self.reference.loss.abs();
        let (mut name, mut gradient) = (String::new(), 0.0f64);
        let (Some(a), Some(b)) = (&ours.gradients, &self.reference.gradients) else {
            return Ok(Vec::new());
        };
        let norms = b.values().map(|reference| Ok(norm(&values(reference)?)));
        let largest = norms.collect::<Result<Vec<f64>>>()?.into_iter().fold(0.0, f64::max);
        for (parameter, reference) in b {
            let off = a.get(parameter).map_or(Ok(f64::INFINITY), |ours| {
                Ok::<_, candle_core::Error>(distance(&values(ours)?, &values(reference)?, largest))
            })?;
            // Not `>`: NaN must not pass.
            if name.is_empty() || !(off <= gradient) {
                (name, gradient) = (parameter.clone(), off);
            }
        }
        let limits = way.limits();
        Ok(vec![
            way.line("loss", loss, limits.loss),
            way.line(&format!("gradient {name}"), gradient, limits.parameters),
        ])
    }
}

impl Way {
    /// The way on the GPUs that its ranks can share, or the line that processes or GPUs cannot compute it.
    fn checked(self) -> std::result::Result<Way, Line> {
        let Way { setup, weights, own } = self;
        let computed = |setup: &Setup| {
            let here = ranks_here(&setup.processes, setup.sequence)?;
            let processors = setup.processors.shared_by(here.len());
            device::check_tokens(setup.shards(), &processors)?;
            let strategies = setup.groups.iter().map(|group| group.strategy);
            device::check_all(strategies, setup.block, &setup.config, &processors)?;
            Ok(processors)
        };
        let skipped = |error: TrainError| Line::Skipped {
            strategy: setup.groups[0].strategy,
            ranks: setup.sequence,
            own,
            reason: error.to_string(),
        };
        let processors = computed(&setup).map_err(skipped)?;
        Ok(Way { setup: setup.on(processors), weights, own })
    }

    /// The errors of a layer group's attention, by one backward route, against the dense results.
    fn attention(
        &self,
        group: &LayerGroupSchedules,
        how: Route,
        question: &Question,
        dense: &Dense,
    ) -> std::result::Result<Vec<Line>, TrainError> {
        let split = Split { route: how, ..self.split(group) };
        let Answer { out, lse, dq, dk, dv } = attend(question, &split)?;
        let limits = self.limits();
        let norms = [&dense.dq, &dense.dk, &dense.dv].map(|tensor| Ok(norm(&values(tensor)?)));
        let largest =
            norms.into_iter().collect::<Result<Vec<f64>>>()?.into_iter().fold(0.0, f64::max);
        let tensors = [
            ("out", out, &dense.out, limits.out),
            ("lse", lse, &dense.lse, limits.lse),
            ("dq", dq, &dense.dq, limits.gradients),
            ("dk", dk, &dense.dk, limits.gradients),
            ("dv", dv, &dense.dv, limits.gradients),
        ];
        let compare = |(name, ours, theirs, limit): (&str, Tensor, &Tensor, f64)| {
            let error = limits.error(name, &values(&ours)?, &values(theirs)?, largest);
            Ok(self.line(name, error, limit))
        };
        Ok(tensors.into_iter().map(compare).collect::<Result<_>>()?)
    }

    /// How attention of a layer group is split.
    fn split(
        &self,
        LayerGroupSchedules { strategy, route, schedules, .. }: &LayerGroupSchedules,
    ) -> Split {
        let setup = &self.setup;
        Split {
            strategy: *strategy,
            layout: Some(schedules.of(Pass::Forward).layout),
            ranks: setup.sequence,
            weights: self.weights.clone(),
            route: *route,
            kernel: setup.kernel,
            deterministic: setup.deterministic,
            deadline: setup.deadline,
            cores: setup.cores.clone(),
            processes: setup.processes.clone(),
            processors: setup.processors.clone(),
        }
    }

    fn dtype(&self) -> DType {
        self.setup.config.dtype
    }

    fn limits(&self) -> Limits {
        Limits::of(self.dtype())
    }

    fn line(&self, tensor: &str, error: f64, limit: f64) -> Line {
        let (strategy, ranks, own) = (self.setup.groups[0].strategy, self.setup.sequence, self.own);
        Line::Error { strategy, ranks, own, tensor: tensor.to_owned(), error, limit }
    }
}

/// The setup that is verified: one replica, whatever the comm dtypes; in f32 on a CPU.
fn comparable(setup: &Setup) -> Setup {
    let dtype = if setup.processors.is_empty() { DType::F32 } else { setup.config.dtype };
    let config = Config { dtype, ..setup.config.clone() };
    Setup { data: 1, wire: Wire::default(), config, ..setup.clone() }
}

/// Loss and gradients of the same weights in f32, on one rank of this process, by the reference kernel on the CPU.
fn reference(
    setup: &Setup,
    weights: &Weights,
    sequences: &[Sequence],
) -> std::result::Result<Scored, TrainError> {
    let config = Config { dtype: DType::F32, ..setup.config.clone() };
    let wide =
        |(name, weight): (&String, &Tensor)| Ok((name.clone(), weight.to_dtype(DType::F32)?));
    let weights = weights.iter().map(wide).collect::<Result<Weights>>()?;
    let alone = Setup {
        config,
        kernel: Kernel::Reference,
        processes: World::alone(),
        processors: Processors::default(),
        ..setup.split(Strategy::Local, 1, Route::default())?
    };
    score(&alone, &weights, sequences, OUTPUTS)
}

/// The larger of two errors, tensor by tensor.
fn worse(a: Vec<Line>, b: Vec<Line>) -> Vec<Line> {
    let off = |line: &Line| match line {
        Line::Error { error, .. } => *error,
        Line::Skipped { .. } => 0.0,
    };
    std::iter::zip(a, b).map(|(a, b)| if off(&b) > off(&a) { b } else { a }).collect()
}
