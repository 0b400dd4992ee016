//! The ranks as a grid with named axes, and the groups of ranks along them.

use std::sync::Arc;

use crate::collectives::misused;
use crate::{Communicator, Label, Result, threads};

/// An axis of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Axis {
    /// Replicas that see different sequences.
    Data,
    /// Ranks that share a sequence.
    Sequence,
    /// Ranks that share positions, and layers.
    Tensor,
    /// An axis that a program defines, by its name.
    Named(&'static str),
}

/// The shape of the grid: sizes by axis, outermost first. An axis that is not named has size 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    axes: Vec<(Axis, usize)>,
    /// The difference between the numbers of neighbours along each axis.
    strides: Vec<usize>,
}

impl Grid {
    /// A grid of these sizes. Ranks are numbered in order, so that those along the last axis are neighbours.
    pub fn new(axes: &[(Axis, usize)]) -> Grid {
        let strides = vec![1; axes.len()];
        let mut grid = Grid { axes: axes.to_vec(), strides };
        grid.number_by(&(0..axes.len()).collect::<Vec<_>>());
        grid
    }

    /// Renumbers the ranks of the grid so that those along the last of `axes` are neighbours, then those along the one before it, and so
    /// on. The order of axes, and with it that of ranks in groups, stays.
    #[must_use]
    pub fn neighbours_along(mut self, axes: &[Axis]) -> Grid {
        let mut order: Vec<usize> = (0..self.axes.len()).collect();
        order.sort_by_key(|at| {
            axes.iter().position(|axis| *axis == self.axes[*at].0).map(|at| at + 1)
        });
        self.number_by(&order);
        self
    }

    /// Numbers ranks by axes in this order, of which the last varies fastest.
    fn number_by(&mut self, order: &[usize]) {
        let mut stride = 1;
        for at in order.iter().rev() {
            self.strides[*at] = stride;
            stride *= self.axes[*at].1;
        }
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.axes.iter().map(|(_, size)| size).product()
    }

    /// How many ranks there are along `axis`.
    pub fn size(&self, axis: Axis) -> usize {
        self.axes.iter().find(|(one, _)| *one == axis).map_or(1, |(_, size)| *size)
    }

    /// Where `rank` is along `axis`, `0 .. size(axis)`.
    pub fn coordinate(&self, rank: usize, axis: Axis) -> usize {
        self.number(rank, |one| one == axis)
    }

    /// The number of `rank` among those that differ from it only along the axes that `counts` names, in the order of axes.
    fn number(&self, rank: usize, counts: impl Fn(Axis) -> bool) -> usize {
        let places = self.axes.iter().zip(&self.strides).filter(|((axis, _), _)| counts(*axis));
        places.fold(0, |number, ((_, size), stride)| number * size + rank / stride % size)
    }

    /// Whether ranks are numbered in the order of axes.
    fn is_in_order(&self) -> bool {
        (0..self.ranks()).all(|rank| self.number(rank, |_| true) == rank)
    }

    /// The set of one axis, as a bit; 0 if the grid does not have it.
    fn bit(&self, axis: Axis) -> usize {
        self.axes.iter().position(|(one, _)| *one == axis).map_or(0, |at| 1 << at)
    }

    /// Refuses a grid of another number of ranks than `world` has, and an axis that is named twice.
    fn check(&self, world: &dyn Communicator) -> Result<()> {
        let names = || self.axes.iter().map(|(axis, _)| *axis);
        let twice =
            names().enumerate().find(|(at, axis)| names().take(*at).any(|one| one == *axis));
        let sizes: Vec<String> = self.axes.iter().map(|(_, size)| size.to_string()).collect();
        let (found, wanted) = match twice {
            Some((_, axis)) => (format!("a mesh with {axis:?} twice"), "each axis once".to_owned()),
            None if self.ranks() == world.world_size() => return Ok(()),
            None => (
                format!("a mesh of {}", sizes.join(" × ")),
                format!("one of {} ranks", world.world_size()),
            ),
        };
        Err(misused(world, label(0), &found, &wanted))
    }
}

/// One rank's place in the grid, and the groups that it is in.
#[derive(Clone, Debug)]
pub struct Mesh {
    grid: Grid,
    rank: usize,
    /// By set of axes: bit `i` is axis `i` of the grid.
    groups: Vec<Arc<dyn Communicator>>,
}

impl Mesh {
    /// Splits `world` into a grid of these axes, outermost first, which must have as many ranks: `[(Axis::Data, 2),
    /// (Axis::Sequence, 3)]` makes ranks 0, 1, 2 the first replica. The group of every set of axes is made here, once.
    ///
    /// # Errors
    /// When the sizes multiply to another number or an axis comes twice, and as [`Communicator::split`].
    pub fn new(world: Arc<dyn Communicator>, axes: &[(Axis, usize)]) -> Result<Mesh> {
        Mesh::of(world, Grid::new(axes))
    }

    /// Splits `world` into `grid`, as [`Mesh::new`] does.
    ///
    /// # Errors
    /// As [`Mesh::new`].
    pub fn of(world: Arc<dyn Communicator>, grid: Grid) -> Result<Mesh> {
        let rank = world.rank();
        grid.check(world.as_ref())?;
        let all = (1 << grid.axes.len()) - 1;
        let group = |set: usize| {
            let is_along = |axis| grid.bit(axis) & set > 0;
            let (color, key) =
                (grid.number(rank, |axis| !is_along(axis)), grid.number(rank, is_along));
            world.split(label(set), color, key)
        };
        let mut groups = (0..all).map(group).collect::<Result<Vec<_>>>()?;
        groups.push(if grid.is_in_order() { world } else { group(all)? });
        Ok(Mesh { grid, rank, groups })
    }

    /// The grid of one rank, without threads.
    pub fn solo() -> Mesh {
        Mesh { grid: Grid::new(&[]), rank: 0, groups: vec![threads::solo()] }
    }

    /// The shape of the grid, which says where other ranks are.
    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    /// How many ranks there are along `axis`.
    pub fn size(&self, axis: Axis) -> usize {
        self.grid.size(axis)
    }

    /// Where this rank is along `axis`, `0 .. size(axis)`.
    pub fn coordinate(&self, axis: Axis) -> usize {
        self.grid.coordinate(self.rank, axis)
    }

    /// The ranks that differ from this one only along the named axes: `group(&[Axis::Sequence])` shares its sequence, the group of all
    /// axes has all ranks, `group(&[])` this one alone. They are in the order of the grid's axes, of which the last varies fastest,
    /// however ranks are numbered: so sums have the same bits.
    pub fn group(&self, axes: &[Axis]) -> &Arc<dyn Communicator> {
        &self.groups[axes.iter().fold(0, |set, &axis| set | self.grid.bit(axis))]
    }
}

fn label(hop: usize) -> Label {
    Label { pass: "mesh", hop, ..Label::default() }
}
