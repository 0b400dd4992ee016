//! Buffers that the ranks of a process take, compared with the proof: for all ranks in one process what they make, for a rank alone what is
//! alive.

use annulus_sequence::{Alive, Heads, Mask, Pass, Schedule, prove, taken};

use super::{schedules, variants, window};

fn check(schedule: &Schedule) {
    let (what, world) = (format!("{} {:?}", schedule.strategy, schedule.pass), schedule.world());
    let proof = prove(schedule).expect("a schedule of ours");
    for (rank, together) in taken(schedule, 0..world).into_iter().enumerate() {
        assert_eq!(together.received, Alive::default(), "{what}: rank {rank}");
        assert_eq!(together.made, proof.made[rank], "{what}: rank {rank}");
    }
    for rank in 0..world {
        let (alone, alive) = (taken(schedule, rank..rank + 1)[0], proof.alive[rank]);
        let lent = |of: Alive| [of.queries, of.key_values, of.halves];
        assert_eq!(lent(alone.received), lent(alive), "{what}: rank {rank}");
        assert!(alone.received.outputs <= alive.outputs, "{what}: rank {rank}");
        let sums = alone.received.gradients.max(alone.made.gradients);
        assert!(sums <= alive.gradients, "{what}: rank {rank}");
    }
    // Of two processes neither takes more than its ranks would apart.
    for process in [0..world / 2, world / 2..world] {
        for (place, both) in taken(schedule, process.clone()).into_iter().enumerate() {
            let alone = proof.alive[process.start + place];
            // What a rank lends on, its neighbours may still read.
            let most = 2 * process.len() * alone.key_values;
            assert!(both.received.key_values <= most, "{what}: {process:?}, {place}");
            let none = schedule.pass == Pass::Forward;
            assert!(!none || both.made.gradients == 0, "{what}: {process:?}, {place}");
        }
    }
}

#[test]
fn a_process_takes_what_its_ranks_make_and_receive() {
    for mask in [Mask::causal(), Mask::full(), window(9)] {
        for world in [2, 3, 4, 6] {
            let heads = Heads { query: 12, key_value: 12 };
            for strategy in variants(world, heads) {
                let split = strategy.split(&mask, 12 * world, world, heads).unwrap();
                schedules(strategy, &split).iter().for_each(check);
            }
        }
    }
}
