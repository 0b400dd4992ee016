//! Groups of ranks, and the mesh.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use annulus_comm::{
    Axis, Cause, Checked, Communicator, Error, Fault, Faulty, Grid, Mesh, Metered, Reduce, When,
};
use candle_core::{DType, Device, Tensor};

use crate::support::{Comm, PATIENT, hop, noise, on, receive, send, stand_still, tensor, within};

/// The world's numbers of a group's ranks, asked of each of them.
fn gathered(group: &dyn Communicator, world_rank: usize) -> annulus_comm::Result<Vec<usize>> {
    let own = tensor(&[world_rank as f64], DType::I64);
    let all = group.all_gather(hop(0), &own)?;
    all.iter().map(|one| Ok(one.to_vec1::<i64>()?[0] as usize)).collect()
}

#[test]
fn a_split_orders_by_key_then_rank() {
    for world in 1..=8 {
        on(world, |comm| {
            let rank = comm.rank();
            // Backwards in pairs: 7 6 … would be keys alone; equal keys keep the order of ranks.
            let group = comm.split(hop(0), rank % 3, world - rank / 2)?;
            let mut wanted: Vec<_> = (0..world).filter(|other| other % 3 == rank % 3).collect();
            wanted.sort_by_key(|other| (world - other / 2, *other));
            assert_eq!(group.world_size(), wanted.len());
            assert_eq!(wanted[group.rank()], rank);
            assert_eq!(gathered(&*group, rank)?, wanted);
            let named: Vec<_> = (0..group.world_size()).map(|one| group.global_rank(one)).collect();
            assert_eq!(named, wanted);
            Ok(())
        });
    }
}

#[test]
fn ranks_that_there_are_not_are_an_error() {
    on(4, |comm| {
        let group = comm.split(hop(0), comm.rank() % 2, comm.rank())?;
        assert_eq!(group.global_rank(2), 2, "no rank of the group: a number that names itself");
        let why = group.watch(hop(1), 2).look().unwrap_err().to_string();
        assert!(why.contains("a move with rank 2, expected one of 2 ranks"), "{why}");
        comm.barrier(hop(2))
    });
}

#[test]
fn groups_work_at_the_same_time() {
    for world in [4, 6, 8] {
        on(world, |comm| {
            let rank = comm.rank();
            let halves = comm.split(hop(0), rank / 2, rank)?;
            let others = comm.split(hop(1), rank % 2, rank)?;
            let again = halves.split(hop(2), 0, 0)?;
            // Groups run at their own pace, with equal labels, over the same pairs of ranks.
            for round in 0..(100 * (1 + rank / 2)) {
                let own = tensor(&[rank as f64, round as f64], DType::I64);
                let sum = halves.all_reduce(hop(5), &own, Reduce::Sum)?.to_vec1::<i64>()?;
                assert_eq!(sum, [(rank / 2 * 4 + 1) as i64, 2 * round as i64]);
            }
            let late = again.exchange(hop(5), vec![receive(1 - again.rank())])?;
            let sum = others.all_reduce(hop(5), &tensor(&[1.0], DType::U32), Reduce::Sum)?;
            assert_eq!(sum.to_vec1::<u32>()?, [world as u32 / 2]);
            drop(late);
            comm.barrier(hop(5))
        });
    }
}

#[test]
fn groups_of_the_same_ranks_do_not_mix() {
    on(2, |comm| {
        let peer = 1 - comm.rank();
        let groups = [comm.clone(), comm.split(hop(0), 0, 0)?, comm.split(hop(1), 0, 0)?];
        let post = |index: usize| {
            let own = tensor(&[index as f64], DType::I64);
            groups[index].exchange(hop(2), vec![send(&own, peer), receive(peer)])
        };
        let pending = [post(0)?, post(1)?, post(2)?];
        for (index, pending) in pending.into_iter().enumerate().rev() {
            assert_eq!(pending.wait()?[0].to_vec1::<i64>()?, [index as i64]);
        }
        Ok(())
    });
}

#[test]
fn the_mesh_is_replicas_of_sequences() {
    for (data, sequence) in [(1, 1), (2, 2), (1, 6), (6, 1), (2, 3), (3, 2), (4, 2)] {
        on(data * sequence, |comm| {
            let rank = comm.rank();
            let mesh = Mesh::new(comm, &[(Axis::Data, data), (Axis::Sequence, sequence)])?;
            let (replica, place) = (rank / sequence, rank % sequence);
            let replicas: Vec<_> = (0..data).map(|one| one * sequence + place).collect();
            let places: Vec<_> = (0..sequence).map(|one| replica * sequence + one).collect();
            let group = |axes: &[Axis]| gathered(&**mesh.group(axes), rank);
            assert_eq!(group(&[Axis::Data])?, replicas);
            assert_eq!(group(&[Axis::Sequence])?, places);
            assert_eq!(mesh.group(&[Axis::Sequence]).rank(), place);
            assert_eq!(
                group(&[Axis::Sequence, Axis::Data])?,
                (0..data * sequence).collect::<Vec<_>>()
            );
            assert_eq!(group(&[])?, [rank]);
            Ok(())
        });
    }
    assert_eq!(Mesh::solo().group(&[Axis::Sequence]).world_size(), 1);
}

/// Whichever ranks are neighbours, groups are in the order of axes, and sums have the same bits.
#[test]
fn a_mesh_may_have_the_ranks_of_any_axis_as_neighbours() {
    let both = [Axis::Data, Axis::Sequence];
    for (data, sequence) in [(2, 2), (2, 3), (1, 4), (3, 1)] {
        let axes = [(Axis::Data, data), (Axis::Sequence, sequence)];
        let parts: Vec<Tensor> = (0..data * sequence)
            .map(|one| Tensor::new(noise(one, 5), &Device::Cpu).expect("numbers"))
            .collect();
        let sums = [Axis::Data, Axis::Sequence].map(|axis| {
            let grid = Grid::new(&axes).neighbours_along(&[axis]);
            let sums = on(data * sequence, |comm| {
                let (rank, mesh) = (comm.rank(), Mesh::of(comm, grid.clone())?);
                let (replica, place) = match axis {
                    Axis::Data => (rank % data, rank / data),
                    _ => (rank / sequence, rank % sequence),
                };
                let at = both.map(|axis| mesh.coordinate(axis));
                assert_eq!(at, [replica, place]);
                assert_eq!(both.map(|axis| mesh.group(&[axis]).rank()), at);
                let group = mesh.group(&both);
                assert_eq!(group.rank(), replica * sequence + place);
                let sum = group.all_reduce(hop(0), &parts[group.rank()], Reduce::Sum)?;
                Ok(sum.to_vec1::<f64>()?)
            });
            assert!(sums.iter().all(|sum| *sum == sums[0]));
            sums
        });
        assert_eq!(sums[0], sums[1]);
    }
}

/// All ways to name axes of a grid, by every rank, against a search through all ranks.
#[test]
fn a_mesh_has_any_axes_and_the_group_of_any_of_them() {
    const STAGE: Axis = Axis::Named("stage");
    let sizes = [[2, 3, 2], [3, 2, 1], [1, 5, 1], [1, 1, 3], [1, 1, 1]];
    for [data, stage, sequence] in sizes {
        let axes = [(Axis::Data, data), (STAGE, stage), (Axis::Sequence, sequence)];
        // By rank: the last axis varies fastest.
        let mut places = Vec::new();
        for replica in 0..data {
            for at in 0..stage {
                places.extend((0..sequence).map(|place| [replica, at, place]));
            }
        }
        let grid = Grid::new(&axes);
        assert_eq!(grid.ranks(), places.len());
        on(places.len(), |comm| {
            let rank = comm.rank();
            let mesh = Mesh::new(comm, &axes)?;
            assert_eq!(mesh.grid(), &grid);
            for (at, (axis, size)) in axes.into_iter().enumerate() {
                assert_eq!((mesh.size(axis), mesh.coordinate(axis)), (size, places[rank][at]));
                let of_others = (0..places.len()).map(|other| grid.coordinate(other, axis));
                assert!(of_others.eq(places.iter().map(|place| place[at])));
            }
            assert_eq!(
                (mesh.size(Axis::Named("none")), mesh.coordinate(Axis::Named("none"))),
                (1, 0)
            );
            for set in 0..8 {
                let named = (0..3).filter(|at| set >> at & 1 == 1);
                // In any order.
                let named: Vec<Axis> = named.rev().map(|at| axes[at].0).collect();
                let is_beside = |other: &usize| {
                    (0..3).all(|at| set >> at & 1 == 1 || places[*other][at] == places[rank][at])
                };
                let wanted: Vec<usize> = (0..places.len()).filter(is_beside).collect();
                let group = mesh.group(&named);
                assert_eq!(gathered(&**group, rank)?, wanted, "{named:?} of {axes:?}");
                assert_eq!(wanted[group.rank()], rank);
            }
            Ok(())
        });
    }
}

#[test]
fn an_axis_that_comes_twice_is_refused() {
    let twice = [(Axis::Data, 2), (Axis::Data, 2)];
    let failure = within(4, PATIENT, |comm| Mesh::new(comm, &twice).map(drop));
    let text = failure.expect_err("which one is meant?").to_string();
    assert!(text.ends_with(": a mesh with Data twice, expected each axis once"), "{text}");
}

#[test]
fn a_mesh_of_another_size_is_refused() {
    let failure = within(4, PATIENT, |comm| {
        Mesh::new(comm, &[(Axis::Data, 3), (Axis::Sequence, 2)]).map(drop)
    });
    let Cause::Error(error) = failure.expect_err("6 is not 4").cause else { panic!("no error") };
    let text = error.to_string();
    assert!(text.ends_with(": a mesh of 3 × 2, expected one of 4 ranks"), "{text}");
}

/// Three groups of two; rank 4 breaks in its own.
fn in_groups(comm: &Comm, act: impl Fn() -> annulus_comm::Result<()>) -> annulus_comm::Result<()> {
    let group = comm.split(hop(0), comm.rank() / 2, 0)?;
    for round in 0..20 {
        sleep(Duration::from_millis(2));
        if comm.rank() == 4 && round == 3 {
            act()?;
        }
        group.barrier(hop(round))?;
    }
    // Groups that heard nothing yet meet the end here.
    comm.barrier(hop(1))
}

#[test]
fn a_failure_in_one_group_ends_all() {
    let failure = within(6, PATIENT, |comm| in_groups(&comm, || panic!("on purpose")));
    assert_eq!(failure.expect_err("rank 4 dies").to_string(), "rank 4: panicked: on purpose");
    let told = AtomicBool::new(false);
    let failure = within(6, Duration::from_millis(300), |comm| {
        let ended = in_groups(&comm, || {
            stand_still(&told);
            Ok(())
        });
        told.fetch_or(ended.is_err(), Ordering::Relaxed);
        ended
    });
    let cause = failure.expect_err("rank 4 stands still").cause;
    assert!(matches!(cause, Cause::Error(Error::Deadline { rank: 5, peer: 4, .. })), "{cause}");
}

#[test]
fn wrappers_split_into_wrappers() {
    let when = When { rank: 9, ..When::default() };
    on(4, |comm| {
        let metered = Metered::new(Checked::new(Faulty::new(comm, when, Fault::Die)));
        let mesh = Mesh::new(metered.clone(), &[(Axis::Data, 2), (Axis::Sequence, 2)])?;
        let group = mesh.group(&[Axis::Data]);
        assert_eq!(group.global_rank(1 - group.rank()), (metered.rank() + 2) % 4);
        group.all_reduce(hop(0), &tensor(&[1.0; 6], DType::F32), Reduce::Sum)?;
        assert_eq!(metered.take().bytes["forward"], 24);
        Ok(())
    });
}
