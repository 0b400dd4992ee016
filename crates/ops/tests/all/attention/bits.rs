//! The same bits with any number of workers, from run to run, and however tiles are grouped in calls.

use std::cell::Cell;

use annulus_ops::attention::{AttentionKernel, BackwardTile};
use annulus_sequence::{Mask, Positions, Run};
use candle_core::{DType, Error};

use super::support::{Case, Heads, Shard, bits, fused};

/// Two tiles of keys before and among the queries.
fn shards(case: &Case, queries: usize, keys: usize) -> Vec<Shard> {
    let at = |start, len| Positions::new(vec![Run::contiguous(start, len)]);
    let queries = at(keys, queries);
    [at(0, keys), at(keys, keys)]
        .iter()
        .map(|keys| case.shard(&Mask::causal(), &queries, keys))
        .collect()
}

#[test]
fn any_number_of_workers() {
    // One KV head is fewer than two workers, six are enough for two but badly split over four.
    for heads in [Heads(1, 1, 1, 32), Heads(1, 4, 1, 16), Heads(2, 6, 3, 8)] {
        let case = Case::random(heads, 500, 600);
        for case in [case.clone(), case.rounded(DType::BF16)] {
            let shards = shards(&case, 500, 600);
            let expected = bits(&case.run(&fused(1), &shards));
            for workers in [1, 2, 3, 4, 4] {
                let found = bits(&case.run(&fused(workers), &shards));
                assert!(found == expected, "{heads:?}: {workers} workers differ from one");
            }
        }
    }
}

#[test]
fn tiles_in_one_call_or_in_several() {
    let case = Case::random(Heads(1, 2, 1, 16), 300, 300);
    let shards = shards(&case, 300, 300);
    let kernel = fused(2);
    let apart = case.run(&kernel, &shards);

    let mut state = kernel.begin(&case.q, case.scale).unwrap();
    let tiles: Vec<_> = shards.iter().map(Shard::tile).collect();
    kernel.forward(&tiles, &mut *state, &|| Ok(())).unwrap();
    let attended = kernel.finish(state).unwrap();
    let mut state = kernel.begin_backward(&case.q, &attended, &case.gradient, case.scale).unwrap();
    let mut gradients = Vec::new();
    for tile in tiles {
        let tiles = vec![BackwardTile { tile, carried: None }];
        gradients.extend(kernel.backward(tiles, &mut *state, &|| Ok(())).unwrap());
    }
    let dq = kernel.finish_backward(state).unwrap();
    let together = super::support::Results { attended, dq, gradients };
    assert!(bits(&together) == bits(&apart));
}

#[test]
fn progress_is_called_here_and_its_error_ends_the_call() {
    let case = Case::random(Heads(1, 8, 8, 4), 1300, 1300);
    let positions = Positions::all(1300);
    let shard = case.shard(&Mask::full(), &positions, &positions);
    let kernel = fused(2);
    // A cell cannot leave this thread, so neither can the calls that count in it.
    let calls = Cell::new(0);
    let count = || {
        calls.set(calls.get() + 1);
        Ok(())
    };
    let mut state = kernel.begin(&case.q, case.scale).unwrap();
    kernel.forward(&[shard.tile()], &mut *state, &count).unwrap();
    assert!(calls.get() > 1, "forward called progress {} times", calls.get());
    let attended = kernel.finish(state).unwrap();

    let stop = || Err(Error::Msg("stop".to_owned()));
    let mut state = kernel.begin(&case.q, case.scale).unwrap();
    let error = kernel.forward(&[shard.tile()], &mut *state, &stop).unwrap_err();
    assert_eq!(error.to_string(), "stop");
    let mut state = kernel.begin_backward(&case.q, &attended, &case.gradient, case.scale).unwrap();
    let tiles = vec![BackwardTile { tile: shard.tile(), carried: None }];
    let error = kernel.backward(tiles, &mut *state, &stop).unwrap_err();
    assert_eq!(error.to_string(), "stop");
}
