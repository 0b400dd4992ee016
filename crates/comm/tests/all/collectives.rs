//! Collectives against a plain computation, and their bits against themselves.

use std::thread::sleep;
use std::time::Duration;

use crate::support::{Comm, PATIENT, bits, hop, noise, on, receive, send, tensor, within};
use annulus_comm::{
    AllGather, Communicator, Error, Reduce, ReduceScatter, Result, all_gather_values,
};
use candle_core::{DType, Device, Tensor};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

const WORLDS: std::ops::RangeInclusive<usize> = 1..=8;
const DTYPES: [DType; 6] =
    [DType::F32, DType::F64, DType::BF16, DType::F16, DType::I64, DType::U32];

/// What every rank brings; whole numbers for the whole-number types.
fn brought(rank: usize, count: usize, dtype: DType) -> Tensor {
    let mut values = noise(rank + 1, count);
    if dtype.is_int() {
        for value in &mut values {
            *value = (*value * 1000.0).abs().floor();
        }
    }
    tensor(&values, dtype)
}

/// The tree of the documentation, written down once more: halves of the largest power of two.
fn plain_sum(parts: &[Tensor]) -> Tensor {
    if let [one] = parts {
        return one.clone();
    }
    let (left, right) = parts.split_at(parts.len().next_power_of_two() / 2);
    let dtype = left[0].dtype();
    let wide = if matches!(dtype, DType::BF16 | DType::F16) { DType::F32 } else { dtype };
    let [left, right] = [left, right].map(|parts| plain_sum(parts).to_dtype(wide));
    let sum = left.and_then(|left| left + right).and_then(|sum| sum.to_dtype(dtype));
    sum.expect("parts of one shape")
}

fn check_sum(world: usize, count: usize, dtype: DType) {
    let parts: Vec<_> = (0..world).map(|rank| brought(rank, count, dtype)).collect();
    let wanted = bits(&plain_sum(&parts));
    let sums = on(world, |comm| {
        let own = brought(comm.rank(), count, dtype);
        let reduced = comm.all_reduce(hop(0), &own, Reduce::Sum)?;
        assert_eq!((reduced.dims(), reduced.dtype()), (own.dims(), dtype));
        Ok(bits(&reduced))
    });
    for (rank, sum) in sums.into_iter().enumerate() {
        assert_eq!(sum, wanted, "world {world}, rank {rank}, {count} of {dtype:?}");
    }
}

#[test]
fn all_reduce_sums_every_type_and_size() {
    for world in WORLDS {
        for dtype in DTYPES {
            for count in [0, 1, 2, 7, 8, 9, 1000] {
                check_sum(world, count, dtype);
            }
        }
    }
}

/// Which of `count` elements a rank sums: the last rank the first, and not evenly.
fn range(world: usize, count: usize, rank: usize) -> std::ops::Range<usize> {
    let bound = |slot: usize| count * slot * slot / (world * world);
    let slot = world - 1 - rank;
    bound(slot)..bound(slot + 1)
}

#[test]
fn what_was_posted_is_summed_and_gathered_with_the_same_bits() {
    let counts = [0, 1, 5, 64, 1000];
    for world in WORLDS {
        let whole = |count| {
            plain_sum(&(0..world).map(|rank| brought(rank, count, DType::F32)).collect::<Vec<_>>())
        };
        on(world, |comm| {
            let (rank, comm) = (comm.rank(), comm.as_ref());
            let own = counts.map(|count| brought(rank, count, DType::F32));
            let post = |which: std::ops::Range<usize>| {
                let posted = hop(which.start);
                let own = &own[which];
                ReduceScatter::post(comm, posted, own, |index, r| {
                    range(world, own[index].elem_count(), r)
                })
            };
            // Both are on their way, and the later one is waited for first.
            let (first, second) = (post(0..3)?, post(3..5)?);
            let add = |parts: Vec<Tensor>| Ok(plain_sum(&parts));
            let later = second.wait(add)?;
            let sums = [first.wait(add)?, later].concat();
            for (count, sum) in counts.iter().zip(&sums) {
                let range = range(world, *count, rank);
                assert_eq!(sum.dims(), [range.len()]);
                let wanted = whole(*count).narrow(0, range.start, range.len())?;
                assert_eq!(bits(sum), bits(&wanted), "world {world}, rank {rank} of {count}");
            }
            // Pieces in the order of ranks, which is the opposite of that of elements.
            let elements = |index: usize, r| range(world, counts[index], r).len();
            let all = AllGather::post(comm, hop(9), sums, elements)?.wait()?;
            for (count, gathered) in counts.into_iter().zip(&all).skip(1) {
                let pieces = (0..world).map(|r| range(world, count, r));
                let pieces = pieces.map(|at| whole(count).narrow(0, at.start, at.len()));
                let pieces = pieces.collect::<candle_core::Result<Vec<_>>>()?;
                let wanted = pieces.iter().flat_map(bits).collect::<Vec<u8>>();
                assert_eq!(bits(gathered), wanted, "world {world}, rank {rank} of {count}");
            }
            Ok(())
        });
    }
}

#[test]
fn a_gather_brings_every_tensor_to_the_root_alone() {
    for world in WORLDS {
        let root = world / 2;
        on(world, |comm| {
            // Of another length on every rank.
            let wanted = || (0..world).map(|rank| brought(rank, rank, DType::F32));
            let gathered =
                comm.gather(hop(0), &brought(comm.rank(), comm.rank(), DType::F32), root)?;
            assert_eq!(gathered.is_some(), comm.rank() == root);
            for (one, wanted) in gathered.iter().flatten().zip(wanted()) {
                assert_eq!(bits(one), bits(&wanted));
            }
            assert!(gathered.is_none_or(|all| all.len() == world));
            Ok(())
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::with_cases(32)
    })]
    #[test]
    fn all_reduce_sums_any_size(world in 1_usize..=8, count in 0_usize..200, dtype in 0..DTYPES.len()) {
        check_sum(world, count, DTYPES[dtype]);
    }
}

#[test]
fn all_reduce_keeps_shapes_and_scalars() {
    for world in WORLDS {
        on(world, |comm| {
            let scalar = Tensor::new(comm.rank() as i64, &Device::Cpu)?;
            let sum = comm.all_reduce(hop(0), &scalar, Reduce::Sum)?;
            assert_eq!(sum.to_scalar::<i64>()?, (world * (world - 1) / 2) as i64);
            // Not contiguous: what counts is the order of elements, not of memory.
            let turned = Tensor::arange(0f32, 35.0, &Device::Cpu)?.reshape((5, 7))?.t()?;
            let sum = comm.all_reduce(hop(1), &turned, Reduce::Sum)?;
            assert_eq!(sum.to_vec2::<f32>()?, (turned * world as f64)?.to_vec2::<f32>()?);
            Ok(())
        });
    }
}

#[test]
fn the_largest_is_nan_if_any_is() {
    for world in WORLDS {
        for lost in 0..world {
            for dtype in [DType::F32, DType::F64, DType::BF16] {
                let largest = on(world, |comm| {
                    let rank = comm.rank();
                    let second = if rank == lost { f64::NAN } else { f64::INFINITY };
                    let own = tensor(&[rank as f64, second, -(rank as f64)], dtype);
                    let largest = comm.all_reduce(hop(0), &own, Reduce::Max)?;
                    Ok(largest.to_dtype(DType::F64)?.to_vec1::<f64>()?)
                });
                for found in largest {
                    assert_eq!((found[0], found[2]), ((world - 1) as f64, 0.0));
                    assert!(found[1].is_nan(), "world {world}, rank {lost}'s NaN was lost");
                }
            }
        }
        let whole = on(world, |comm| {
            let own = Tensor::new(&[comm.rank() as i64 - 3], &Device::Cpu)?;
            Ok(comm.all_reduce(hop(0), &own, Reduce::Max)?.to_vec1::<i64>()?)
        });
        assert!(whole.iter().all(|found| *found == [world as i64 - 4]));
    }
}

#[test]
fn all_gather_takes_different_shapes() {
    for world in WORLDS {
        on(world, |comm| {
            let gathered =
                comm.all_gather(hop(0), &brought(comm.rank(), comm.rank(), DType::F32))?;
            assert_eq!(gathered.len(), world);
            for (rank, found) in gathered.iter().enumerate() {
                assert_eq!(found.dims(), [rank]);
                assert_eq!(bits(found), bits(&brought(rank, rank, DType::F32)));
            }
            Ok(())
        });
    }
}

#[test]
fn reduce_scatter_sums_the_parts_for_each_rank() {
    let part = |from: usize, to: usize| tensor(&noise(10 * from + to, 1 + to), DType::F32);
    for world in WORLDS {
        on(world, |comm| {
            let rank = comm.rank();
            let parts: Vec<_> = (0..world).map(|to| part(rank, to)).collect();
            let wanted: Vec<_> = (0..world).map(|from| part(from, rank)).collect();
            let sum = comm.reduce_scatter(hop(1), parts)?;
            assert_eq!(bits(&sum), bits(&plain_sum(&wanted)));
            Ok(())
        });
    }
}

#[test]
fn values_of_all_ranks_are_gathered_by_rank() {
    for world in WORLDS {
        on(world, |comm| {
            let of = |rank: usize| vec![rank as f64; rank + 1];
            let found = all_gather_values(&*comm, hop(0), &of(comm.rank()))?;
            assert_eq!(found, (0..world).map(of).collect::<Vec<_>>());
            Ok(())
        });
    }
}

#[test]
fn broadcast_reaches_everybody_from_any_root() {
    for world in WORLDS {
        on(world, |comm| {
            for root in 0..world {
                let own = tensor(&[root as f64], DType::F32);
                let given = (comm.rank() == root).then_some(&own);
                assert_eq!(bits(&comm.broadcast(hop(root), given, root)?), bits(&own));
            }
            Ok(())
        });
    }
}

#[test]
fn a_barrier_holds_everybody_until_the_last_is_there() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    for world in WORLDS {
        let arrived = AtomicUsize::new(0);
        on(world, |comm| {
            for round in 1..=3 {
                sleep(Duration::from_millis(comm.rank() as u64));
                arrived.fetch_add(1, Ordering::SeqCst);
                comm.barrier(hop(round))?;
                assert!(arrived.load(Ordering::SeqCst) >= round * world);
            }
            Ok(())
        });
    }
}

/// Everything that adds, with sleeps that differ in every round; the bits of all that came out.
fn sums(comm: &dyn Communicator, round: usize) -> Result<Vec<u8>> {
    let (rank, world) = (comm.rank(), comm.world_size());
    let nap = || sleep(Duration::from_micros((rank * 7919 + round * 104_729) as u64 % 700));
    nap();
    let own = brought(rank, 129, DType::F32);
    let mut all = bits(&comm.all_reduce(hop(0), &own, Reduce::Sum)?);
    nap();
    let parts = (0..world).map(|to| brought(rank * 8 + to, 33, DType::BF16)).collect();
    let scattered = comm.reduce_scatter(hop(1), parts)?;
    nap();
    all.extend(comm.all_gather(hop(2), &scattered)?.iter().flat_map(bits));
    all.extend(bits(&comm.all_reduce(hop(3), &own.narrow(0, 0, 2)?, Reduce::Sum)?));
    Ok(all)
}

#[test]
fn bits_depend_neither_on_rank_nor_on_timing() {
    for world in [3, 7, 8] {
        let all =
            on(world, |comm| (0..50).map(|round| sums(&*comm, round)).collect::<Result<Vec<_>>>());
        for found in all.iter().flatten() {
            assert_eq!(found, &all[0][0], "world {world}");
        }
    }
}

#[test]
fn what_arrives_brings_no_graph() {
    on(2, |comm| {
        let weight = candle_core::Var::new(&[1f32, 2.0], &Device::Cpu)?;
        let tracked = (weight.as_tensor() * 3.0)?;
        for gathered in comm.all_gather(hop(0), &tracked)? {
            assert!(!gathered.track_op());
        }
        let moves = vec![send(weight.as_tensor(), comm.rank()), receive(comm.rank())];
        assert!(!comm.exchange(hop(1), moves)?.wait()?[0].is_variable());
        Ok(())
    });
}

#[test]
fn calls_that_cannot_be_served_say_so() {
    let refused = |program: fn(Comm) -> Result<()>| {
        let failure = within(2, PATIENT, program).unwrap_err();
        failure.to_string().split_once(": ").unwrap().1.replace("rank 1", "rank 0")
    };
    let found = refused(|comm| comm.reduce_scatter(hop(2), vec![]).map(drop));
    assert_eq!(
        found,
        "rank 0 (step 7, layer 3, forward, hop 2): 0 parts, expected one for each of 2 ranks"
    );
    let found = refused(|comm| comm.exchange(hop(0), vec![receive(2)])?.wait().map(drop));
    assert_eq!(
        found,
        "rank 0 (step 7, layer 3, forward, hop 0): a move with rank 2, expected one of 2 ranks"
    );
    let failure = within(2, PATIENT, |comm| comm.broadcast(hop(0), None, 1)).unwrap_err();
    assert!(matches!(failure.cause, annulus_comm::Cause::Error(Error::Call { rank: 1, .. })));
}
