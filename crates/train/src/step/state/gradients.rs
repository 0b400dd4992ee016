//! Gradients of one rank by name, f32, and their sums over ranks, which overlap backward.
//!
//! Gradients are summed over ranks for every micro-batch, and these sums over micro-batches: so no rank holds more than a few stages'
//! gradients whole, and the bits do not depend on which rank holds which slices.

use std::collections::{BTreeSet, VecDeque};

use annulus_comm::{AllGather, Axis, Communicator, Label, Mesh, Reduce, ReduceScatter};
use annulus_memory::{Class, scope};
use annulus_model::{GradientSink, Stage, Weights};
use annulus_ops::order_free::{is_order_free, places, sum_of, sum_of_squares, values_at};
use annulus_ops::{Backend, accumulate, add_all, charge, check_gradients, global_norm_squared};
use annulus_trace::{Activity, Begun, begin};
use candle_core::Tensor;

use crate::step::measure::alive::computing;
use crate::step::state::division::Division;
use crate::step::state::parameters::Parameters;
use crate::{Result, TrainError};

/// The pass of messages that count as gradient bytes.
pub(crate) const PASS: &str = "gradient sum";

/// The most stages whose gradients are being summed over ranks at once: one more waits for the oldest, which bounds their memory. The
/// planner counts with the same number.
const IN_FLIGHT: usize = annulus_plan::SUMS_IN_FLIGHT;

/// Gradients of a sum of losses, accumulated over the micro-batches that this rank has computed.
#[derive(Debug, Default)]
pub(crate) struct Gradients(Weights);

impl Gradients {
    /// The gradients as a sink, for a stage that computes on `backend`.
    pub(crate) fn sink<'a>(&'a mut self, backend: &'a Backend) -> AddTo<'a> {
        AddTo { gradients: self, backend }
    }

    /// An error unless every parameter of `trained` has a gradient: otherwise a stage that forgot one would leave it untrained without a
    /// word.
    pub(crate) fn check<'a>(&self, trained: impl Iterator<Item = &'a str>) -> Result<()> {
        check_gradients(trained, |name| self.0.contains_key(name))
            .map_err(|missing| TrainError::Internal(missing.to_string()))
    }

    /// Every gradient whole, summed over the data and sequence axes: the same bits on every rank.
    pub(crate) fn sum(
        self,
        backend: &Backend,
        mesh: &Mesh,
        parameters: &Parameters,
        step: u64,
    ) -> Result<Weights> {
        let group = mesh.group(&[Axis::Data, Axis::Sequence]);
        let _gradients = scope(Class::Gradients);
        let sum = |(hop, (name, gradient)): (usize, (String, Tensor))| {
            let label = Label { step, pass: PASS, hop, layer: 0 };
            if !is_order_free(&gradient) {
                return Ok((name, group.all_reduce(label, &gradient, Reduce::Sum)?));
            }
            let all = sum_of(backend, &group.all_gather(label, &gradient)?)?;
            let shape = &parameters.shapes[&name];
            let sum = values_at(backend, &all, 0..shape.elem_count())?.reshape(shape)?;
            Ok((name, sum))
        };
        self.0.into_iter().enumerate().map(sum).collect()
    }
}

/// Adds the gradients of a stage's backward to their sums.
pub(crate) struct AddTo<'a> {
    gradients: &'a mut Gradients,
    backend: &'a Backend,
}

impl GradientSink for AddTo<'_> {
    fn sum(&self, name: &str) -> Option<Tensor> {
        self.gradients.0.get(name).cloned()
    }
    fn add(&mut self, name: &str, gradient: Tensor) -> candle_core::Result<()> {
        if let Some(sum) = self.gradients.0.get(name) {
            accumulate(self.backend, sum, &gradient)?;
        } else {
            charge([&gradient], Class::Gradients);
            self.gradients.0.insert(name.to_owned(), gradient);
        }
        Ok(())
    }
}

/// By stage, its `trained` parameters that no earlier stage has: their gradients are complete when backward has finished the stage.
pub(crate) fn by_stage(
    stages: &[Box<dyn Stage>],
    trained: &BTreeSet<String>,
) -> Result<Vec<Vec<String>>> {
    let mut left = trained.clone();
    let mut of_stage = |names: &[String]| -> Vec<String> {
        names.iter().filter(|name| left.remove(*name)).cloned().collect()
    };
    let by_stage = stages.iter().map(|stage| of_stage(stage.parameters())).collect();
    match left.first() {
        None => Ok(by_stage),
        Some(name) => Err(TrainError::Internal(format!("no stage has the parameter `{name}`"))),
    }
}

/// Running sums of gradients over all ranks, of which this rank computes its slices.
#[derive(Debug)]
pub(crate) struct Sums<'a> {
    division: &'a Division,
    parameters: &'a Parameters,
    /// Whether gradients are tables of order-free sums until the step's last micro-batch is summed.
    order_free: bool,
    step: u64,
    /// Whether the micro-batch is the last of the step.
    is_last: bool,
    /// How many calls were posted: the next one's hop.
    hops: usize,
    summing: VecDeque<(Elements, ReduceScatter)>,
    gathering: Vec<(Elements, AllGather)>,
    /// The slices that this rank has summed so far, flat.
    summed: Weights,
}

/// Parameters by name, and how many elements they have.
type Elements = Vec<(String, usize)>;

/// A step's gradients, summed over ranks and micro-batches.
#[derive(Debug)]
pub(crate) struct Summed {
    /// The slices that this rank updates, flat.
    pub(crate) slices: Weights,
    /// The norm of the whole gradient, the same on every rank.
    pub(crate) norm: f64,
}

impl Sums<'_> {
    /// No sums yet, for the gradients of `parameters`.
    pub(crate) fn new<'a>(
        division: &'a Division,
        backend: &Backend,
        parameters: &'a Parameters,
        step: u64,
    ) -> Sums<'a> {
        Sums {
            division,
            parameters,
            order_free: backend.block().is_some(),
            step,
            is_last: false,
            hops: 0,
            summing: VecDeque::new(),
            gathering: Vec::new(),
            summed: Weights::new(),
        }
    }

    /// Begins another micro-batch, which may be the last. It first ends the sums of the one before, so that none of its whole gradients
    /// takes memory during the next forward pass; only the last one's sums are passed on to mirrors.
    pub(crate) fn next(&mut self, backend: &Backend, is_last: bool) -> Result<()> {
        self.drain(backend)?;
        self.is_last = is_last;
        Ok(())
    }

    /// Waits for all sums that are under way.
    fn drain(&mut self, backend: &Backend) -> Result<()> {
        while !self.summing.is_empty() {
            self.advance(backend)?;
        }
        Ok(())
    }

    /// The label of the next call.
    pub(crate) fn label(&mut self) -> Label {
        self.hops += 1;
        Label { step: self.step, pass: PASS, hop: self.hops - 1, layer: 0 }
    }

    /// Posts the gradients `names`, which are complete on this rank, and takes them out of `gradients`.
    pub(crate) fn post(
        &mut self,
        backend: &Backend,
        gradients: &mut Gradients,
        names: &[String],
    ) -> Result<()> {
        gradients.check(names.iter().map(String::as_str))?;
        let own = names.iter().filter_map(|name| Some((name, gradients.0.remove(name)?)));
        let own = own.map(|(name, own)| Ok((name, self.over_parts(name, own)?)));
        let own: Vec<(&String, Tensor)> = own.collect::<Result<_>>()?;
        if own.is_empty() {
            return Ok(());
        }
        let count = |name: &String| self.parameters.shapes[name].elem_count();
        let elements: Elements =
            own.iter().map(|(name, _)| ((*name).clone(), count(name))).collect();
        let own: Vec<Tensor> = own.into_iter().map(|(_, own)| own).collect();
        let _gradients = scope(Class::Gradients);
        let (division, label) = (self.division, self.label());
        let range = |index: usize, rank| {
            let summed = division.summed(elements[index].1, rank);
            if is_order_free(&own[index]) { places(summed) } else { summed }
        };
        let posted = ReduceScatter::post(division.all.as_ref(), label, &own, range)?;
        self.summing.push_back((elements, posted));
        if self.summing.len() > IN_FLIGHT { self.advance(backend) } else { Ok(()) }
    }

    /// A parameter's gradient: all-reduced over tensor-parallel ranks if each has the whole parameter.
    fn over_parts(&self, name: &str, own: Tensor) -> Result<Tensor> {
        if !self.parameters.whole.contains(name) {
            return Ok(own);
        }
        let _gradients = scope(Class::Gradients);
        let label = Label { step: self.step, pass: PASS, ..Label::default() };
        Ok(self.division.tensor.all_reduce(label, &own, Reduce::Sum)?)
    }

    /// Waits for the oldest sums and adds them to those of earlier micro-batches; in the last micro-batch also posts them to the mirrors.
    fn advance(&mut self, backend: &Backend) -> Result<()> {
        let Some((elements, posted)) = self.summing.pop_front() else { return Ok(()) };
        let _gradients = scope(Class::Gradients);
        let (summing, bytes) = (begin(), posted.sent());
        let add = if self.order_free { sum_of } else { add_all };
        let mut own = posted.wait(|parts| Ok(add(backend, &parts)?))?;
        self.waited(summing, &elements, bytes);
        for ((name, count), slice) in elements.iter().zip(&mut own) {
            if let Some(sum) = self.summed.get(name).filter(|sum| sum.elem_count() > 0) {
                accumulate(backend, sum, slice)?;
                *slice = sum.clone();
            } else {
                self.summed.insert(name.clone(), slice.clone());
            }
            if self.is_last && self.order_free {
                *slice = values_at(backend, slice, self.division.own_sums(*count))?;
                self.summed.insert(name.clone(), slice.clone());
            }
        }
        let division = self.division;
        if self.is_last && division.mirrors.world_size() > 1 {
            let label = self.label();
            let count = |index: usize, rank| division.mirrored(elements[index].1, rank).len();
            let posted = AllGather::post(division.mirrors.as_ref(), label, own, count)?;
            self.gathering.push((elements, posted));
        }
        Ok(())
    }

    /// Records a wait in the trace, where something was waited for.
    fn waited(&self, begun: Begun, elements: &Elements, bytes: u64) {
        if self.division.all.world_size() > 1 {
            begun.end(|| named(elements, bytes, self.division.all.as_ref()));
        }
    }

    /// Waits for all sums and returns them.
    pub(crate) fn end(mut self, backend: &Backend) -> Result<Summed> {
        self.drain(backend)?;
        let label = self.label();
        // Parameters that all tensor-parallel ranks have count once.
        let whole = &self.parameters.whole;
        let counts = |name: &String| self.division.counts_whole() || !whole.contains(name);
        let some =
            self.summed.iter().filter(|(name, slice)| slice.elem_count() > 0 && counts(name));
        let some = some.map(|(_, slice)| slice);
        // A device is waited for until it has computed all gradients.
        let comm = self.division.all.as_ref();
        let norm = if self.order_free {
            let own = computing(comm, backend, || sum_of_squares(backend, some))?;
            self.division.total_of_squares(label, &own)?.sqrt()
        } else {
            let own = computing(comm, backend, || global_norm_squared(backend, some))?;
            self.division.total(label, own)?.sqrt()
        };
        let _gradients = scope(Class::Gradients);
        let mut slices = self.summed;
        for (elements, posted) in self.gathering {
            let (gathering, bytes) = (begin(), posted.sent());
            let whole = posted.wait()?;
            gathering.end(|| named(&elements, bytes, self.division.mirrors.as_ref()));
            slices.extend(elements.into_iter().map(|(name, _)| name).zip(whole));
        }
        Ok(Summed { slices, norm })
    }
}

/// The wait for a stage's sums, as traces name it: the stage by its first parameter, with `bytes` sent `among` ranks.
fn named(elements: &Elements, bytes: u64, among: &dyn Communicator) -> Activity {
    let name = elements.first().map(|(name, _)| name.clone()).unwrap_or_default();
    Activity::Sum { name, bytes, among: Some(among.ends()) }
}
