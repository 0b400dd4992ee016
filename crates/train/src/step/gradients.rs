//! Gradients of one rank by name, f32, and their sums over ranks, which go on while backward does.
//!
//! Those of every micro-batch are summed over ranks, and the sums over micro-batches: so no rank holds more than a few stages whole, and
//! the bits do not depend on who holds what.

use std::collections::{BTreeSet, VecDeque};

use annulus_comm::{AllGather, Axis, Communicator, Label, Mesh, Reduce, ReduceScatter};
use annulus_memory::{Class, scope};
use annulus_model::{Stage, Weights};
use annulus_ops::order_free::{is_order_free, places, sum_of, sum_of_squares, values_at};
use annulus_ops::{Backend, accumulate, add_all, charge, check_gradients, global_norm_squared};
use annulus_trace::{Begun, Doing, begin};
use candle_core::Tensor;

use crate::step::division::Division;
use crate::step::parameters::Parameters;
use crate::{Result, TrainError};

/// What travels under this pass is counted as gradient bytes.
pub(crate) const PASS: &str = "gradient sum";

/// Stages whose sums are on their way at once: one more waits for the oldest, so that what is on its way takes little memory. The
/// planner counts with it.
const IN_FLIGHT: usize = annulus_plan::SUMS_IN_FLIGHT;

/// Gradients of a sum of losses, accumulated over what this rank has seen.
#[derive(Debug, Default)]
pub(crate) struct Gradients(Weights);

impl Gradients {
    /// Adds one, f32; in place where there is one already.
    pub(crate) fn add(
        &mut self,
        backend: &Backend,
        name: &str,
        gradient: Tensor,
    ) -> candle_core::Result<()> {
        if let Some(sum) = self.0.get(name) {
            accumulate(backend, sum, &gradient)?;
        } else {
            charge([&gradient], Class::Gradients);
            self.0.insert(name.to_owned(), gradient);
        }
        Ok(())
    }

    /// Checks that every parameter that is `trained` got a gradient: a stage that forgot one would train without it, in
    /// silence.
    pub(crate) fn check<'a>(&self, trained: impl Iterator<Item = &'a str>) -> Result<()> {
        check_gradients(trained, |name| self.0.contains_key(name))
            .map_err(|missing| TrainError::Internal(missing.to_string()))
    }

    /// Whole gradients, summed over data and sequence: the same bits on every rank.
    pub(crate) fn sum(
        self,
        backend: &Backend,
        (mesh, parameters): (&Mesh, &Parameters),
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

/// Of every stage, the parameters that are `trained` and that no stage before has: backward has their gradients when it has gone
/// through the stage.
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

/// Sums over all ranks, of which this one makes its slice.
#[derive(Debug)]
pub(crate) struct Sums<'a> {
    division: &'a Division,
    parameters: &'a Parameters,
    /// Whether gradients are tables of order-free sums until all of a step are there.
    order_free: bool,
    step: u64,
    /// Whether the micro-batch is the last of the step.
    is_last: bool,
    /// How many calls there were.
    hops: usize,
    summing: VecDeque<(Elements, ReduceScatter)>,
    gathering: Vec<(Elements, AllGather)>,
    /// The slices that this rank has summed, flat.
    summed: Weights,
}

/// Parameters by name, and how many elements they have.
type Elements = Vec<(String, usize)>;

/// What the sums came to.
#[derive(Debug)]
pub(crate) struct Summed {
    /// The slices that this rank updates, flat.
    pub(crate) slices: Weights,
    /// Of the whole gradient, the same on every rank.
    pub(crate) norm: f64,
}

impl Sums<'_> {
    /// Of the gradients of `parameters`.
    pub(crate) fn new<'a>(
        (division, backend): (&'a Division, &Backend),
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

    /// What is posted next is of another micro-batch, the last or not. Sums of the one before have ended then: no whole gradient of it
    /// lies there while the next runs forward, and only those of the last are passed on.
    pub(crate) fn next(&mut self, backend: &Backend, is_last: bool) -> Result<()> {
        self.drain(backend)?;
        self.is_last = is_last;
        Ok(())
    }

    /// Waits for all sums that are on their way.
    fn drain(&mut self, backend: &Backend) -> Result<()> {
        while !self.summing.is_empty() {
            self.advance(backend)?;
        }
        Ok(())
    }

    /// Where the next call belongs.
    pub(crate) fn label(&mut self) -> Label {
        self.hops += 1;
        Label { step: self.step, pass: PASS, hop: self.hops - 1, layer: 0 }
    }

    /// Posts the gradients `names`, which are complete on this rank: they are `gradients`' no more.
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

    /// The gradient of a parameter over tensor-parallel ranks.
    fn over_parts(&self, name: &str, own: Tensor) -> Result<Tensor> {
        if !self.parameters.whole.contains(name) {
            return Ok(own);
        }
        let _gradients = scope(Class::Gradients);
        let label = Label { step: self.step, pass: PASS, ..Label::default() };
        Ok(self.division.tensor.all_reduce(label, &own, Reduce::Sum)?)
    }

    /// Waits for the oldest sums, adds them to those of earlier micro-batches, and passes on what mirrors update, too.
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
        if self.is_last && division.mirrors.world() > 1 {
            let label = self.label();
            let count = |index: usize, rank| division.mirrored(elements[index].1, rank).len();
            let posted = AllGather::post(division.mirrors.as_ref(), label, own, count)?;
            self.gathering.push((elements, posted));
        }
        Ok(())
    }

    /// Records a wait, where there is something to wait for.
    fn waited(&self, begun: Begun, elements: &Elements, bytes: u64) {
        if self.division.all.world() > 1 {
            begun.end(|| named(elements, bytes, self.division.all.as_ref()));
        }
    }

    /// Waits for all.
    pub(crate) fn end(mut self, backend: &Backend) -> Result<Summed> {
        self.drain(backend)?;
        let label = self.label();
        // What all tensor-parallel ranks have counts once.
        let whole = &self.parameters.whole;
        let counts = |name: &String| self.division.counts_whole() || !whole.contains(name);
        let some =
            self.summed.iter().filter(|(name, slice)| slice.elem_count() > 0 && counts(name));
        let some = some.map(|(_, slice)| slice);
        let norm = if self.order_free {
            self.division.total_of_squares(label, &sum_of_squares(backend, some)?)?.sqrt()
        } else {
            self.division.total(label, global_norm_squared(backend, some)?)?.sqrt()
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

/// What is waited for: the sums of a stage, which is called by its first parameter; for which so many bytes were sent `among` ranks.
fn named(elements: &Elements, bytes: u64, among: &dyn Communicator) -> Doing {
    let name = elements.first().map(|(name, _)| name.clone()).unwrap_or_default();
    Doing::Sum { name, bytes, among: Some(among.ends()) }
}
