//! Calls to a GPU's driver for a layer of a step, forward and backward: short steps wait for the host that launches them.
#![cfg(feature = "emulator")]

use std::collections::BTreeMap;
use std::sync::Arc;

use annulus_ops::testing::Counted;

use crate::common::Place;
use crate::kernels::{emulated, train};

/// The number of calls, by name, in a step of a model with `layers` layers.
fn calls(place: &Place, layers: &str) -> BTreeMap<String, usize> {
    let counted = Arc::new(Counted::new(emulated(90)));
    let changes = [
        ("model.num_hidden_layers", layers),
        ("model.num_key_value_heads", "2"),
        ("model.dtype", "bf16"),
        ("memory.recompute", "layer"),
        ("schedule.stop", "1"),
        ("data.evaluate", "0"),
        ("data.batch", "1"),
    ];
    train(place, layers, Some(counted.clone()), &changes);
    counted.calls()
}

#[test]
fn a_layer_takes_at_most_40_calls_of_a_driver() {
    let place = Place::new();
    let [fewer, more] = ["2", "3"].map(|layers| calls(&place, layers));
    let each =
        |(what, many): (&String, &usize)| (what.clone(), many - fewer.get(what).unwrap_or(&0));
    let each: BTreeMap<String, usize> = more.iter().map(each).filter(|one| one.1 > 0).collect();
    // Queries and keys are rotated, and values copied, in one launch: in forward, in its recomputation, and in backward.
    assert_eq!(each.get("rope_bf16"), Some(&3), "{each:?}");
    // Only the residual streams, to which products are added, are left.
    assert_eq!(each.get("gather_16_bits"), Some(&2), "{each:?}");
    assert_eq!(each.get("upload"), None, "{each:?}");
    let all: usize = each.values().sum();
    assert!(all <= 40, "{all} calls: {each:?}");
}
