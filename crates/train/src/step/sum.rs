//! Sums of losses and targets, typed by where they are complete, so that the mean of one rank cannot be computed.

use std::iter::Sum;
use std::ops::AddAssign;

use annulus_comm::{Axis, Label, Mesh, Reduce};
use annulus_trace::{Activity, begin};
use candle_core::{Device, Tensor};

use crate::Result;

/// A sum over what this rank has seen. It can be added to, and completed over ranks; it cannot be divided, compared or logged.
#[derive(Clone, Copy, Debug, Default)]
pub struct Partial {
    sum: f64,
    count: u64,
}

/// A sum over the whole mesh, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Total {
    sum: f64,
    count: f64,
}

impl Partial {
    /// `sum` over `count` targets on this rank.
    pub fn new(sum: f64, count: u64) -> Partial {
        Partial { sum, count }
    }

    /// The sum over all ranks: 16 bytes to the communicator, none on one rank.
    ///
    /// # Errors
    /// Those of [`Communicator::all_reduce`](annulus_comm::Communicator::all_reduce).
    pub fn total(self, mesh: &Mesh, label: Label) -> Result<Total> {
        let group = mesh.group(&[Axis::Data, Axis::Sequence, Axis::Tensor]);
        let own = [self.sum, self.count as f64];
        if group.world_size() == 1 {
            return Ok(Total { sum: own[0], count: own[1] });
        }
        let own = Tensor::new(&own, &Device::Cpu)?;
        let summing = begin();
        let all: Vec<f64> = group.all_reduce(label, &own, Reduce::Sum)?.to_vec1()?;
        let (bytes, among) = (size_of_val(&all[..]) as u64, Some(group.ends()));
        summing.end(|| Activity::Sum { name: String::from("loss"), bytes, among });
        Ok(Total { sum: all[0], count: all[1] })
    }
}

impl AddAssign for Partial {
    fn add_assign(&mut self, other: Partial) {
        self.sum += other.sum;
        self.count += other.count;
    }
}

impl Sum for Total {
    fn sum<I: Iterator<Item = Total>>(totals: I) -> Total {
        let add = |a: Total, b: Total| Total { sum: a.sum + b.sum, count: a.count + b.count };
        totals.reduce(add).unwrap_or(Total { sum: 0.0, count: 0.0 })
    }
}

impl Total {
    /// The sum divided by its count; 0 if that is 0.
    pub fn mean(self) -> f64 {
        if self.count == 0.0 { 0.0 } else { self.sum / self.count }
    }
    /// The count of what was summed, to divide by; at least 1.
    pub fn divisor(self) -> f64 {
        self.count.max(1.0)
    }
    /// The count of what was summed.
    pub fn count(self) -> u64 {
        self.count as u64
    }
}
