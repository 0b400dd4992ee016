//! The ranks as a grid with named axes, and the groups of ranks along them.

use std::sync::Arc;

use crate::{Communicator, Error, Label, Result, threads};

/// A direction of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Axis {
    /// Replicas that see different sequences.
    Data,
    /// Ranks that share a sequence.
    Sequence,
    /// A direction of a program's own, by its name.
    Named(&'static str),
}

/// The shape of the grid: sizes by axis, outermost first. Ranks are numbered in order, so that the last axis varies fastest. An axis
/// that is not named has size 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    axes: Vec<(Axis, usize)>,
}

impl Grid {
    /// A grid of these sizes.
    pub fn new(axes: &[(Axis, usize)]) -> Grid {
        Grid { axes: axes.to_vec() }
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

    /// The number of `rank` among those that differ from it only along the axes that `counts` names, in the order of ranks.
    fn number(&self, rank: usize, counts: impl Fn(Axis) -> bool) -> usize {
        let (mut left, mut number, mut stride) = (rank, 0, 1);
        for &(axis, size) in self.axes.iter().rev() {
            if counts(axis) {
                number += left % size * stride;
                stride *= size;
            }
            left /= size;
        }
        number
    }

    /// The set of one axis; empty where the grid has none of that name.
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
            None if self.ranks() == world.world() => return Ok(()),
            None => (
                format!("a mesh of {}", sizes.join(" × ")),
                format!("one of {} ranks", world.world()),
            ),
        };
        Err(Error::Call {
            rank: world.original(world.rank()),
            label: label(0),
            found: found.into(),
            wanted: wanted.into(),
        })
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
        let (grid, rank) = (Grid::new(axes), world.rank());
        grid.check(world.as_ref())?;
        let all = (1 << axes.len()) - 1;
        let group = |set: usize| {
            let is_along = |axis| grid.bit(axis) & set > 0;
            let (color, key) =
                (grid.number(rank, |axis| !is_along(axis)), grid.number(rank, is_along));
            world.split(label(set), color, key)
        };
        let mut groups = (0..all).map(group).collect::<Result<Vec<_>>>()?;
        groups.push(world);
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

    /// The ranks that differ from this one only along the named axes, in the order of ranks: `group(&[Axis::Sequence])` shares its
    /// sequence, the group of all axes is the world, `group(&[])` this rank alone.
    pub fn group(&self, axes: &[Axis]) -> &Arc<dyn Communicator> {
        &self.groups[axes.iter().fold(0, |set, &axis| set | self.grid.bit(axis))]
    }
}

fn label(hop: usize) -> Label {
    Label { pass: "mesh", hop, ..Label::default() }
}
