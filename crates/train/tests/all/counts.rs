//! What a layer of a step asks of a GPU's driver, forward and backward: short steps wait for the host that launches them.
#![cfg(feature = "emulator")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use annulus_ops::gpu::{Boxes, Kept, Launch, Processor, TensorMap, Uploaded};
use candle_core::{Device, Result};

use crate::common::Place;
use crate::kernels::{emulated, train};

/// Products with weights, which are cuBLAS's: seven forward, five of them again in backward, fourteen gradients.
const PRODUCTS: usize = 26;

/// Counts launches by kernel, and uploads.
#[derive(Debug)]
struct Counted {
    inner: Arc<dyn Processor>,
    calls: Mutex<BTreeMap<String, usize>>,
}

impl Counted {
    fn count(&self, what: &str) {
        *self.calls.lock().unwrap().entry(what.to_owned()).or_default() += 1;
    }
}

impl Processor for Counted {
    fn device(&self) -> &Device {
        self.inner.device()
    }
    fn architecture(&self) -> u32 {
        self.inner.architecture()
    }
    fn shared_memory(&self) -> u32 {
        self.inner.shared_memory()
    }
    fn multiprocessors(&self) -> usize {
        self.inner.multiprocessors()
    }
    fn upload(&self, bytes: &[u8]) -> Result<Uploaded> {
        self.count("upload");
        self.inner.upload(bytes)
    }
    fn counter(&self) -> Result<Uploaded> {
        self.inner.counter()
    }
    fn kept(&self) -> &Kept {
        self.inner.kept()
    }
    unsafe fn launch(&self, launch: &Launch<'_>, arguments: &[u8]) -> Result<()> {
        self.count(launch.kernel);
        // SAFETY: the caller's promise.
        unsafe { self.inner.launch(launch, arguments) }
    }
    fn tensor_map(&self, boxes: &Boxes) -> Result<TensorMap> {
        self.inner.tensor_map(boxes)
    }
}

/// What a step of so many layers asks for.
fn calls(place: &Place, layers: &str) -> BTreeMap<String, usize> {
    let counted = Counted { inner: emulated(90), calls: Mutex::default() };
    let counted = Arc::new(counted);
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
    counted.calls.lock().unwrap().clone()
}

#[test]
fn a_layer_takes_at_most_60_calls_of_a_driver() {
    let place = Place::new();
    let [fewer, more] = ["2", "3"].map(|layers| calls(&place, layers));
    let each =
        |(what, many): (&String, &usize)| (what.clone(), many - fewer.get(what).unwrap_or(&0));
    let each: BTreeMap<String, usize> = more.iter().map(each).filter(|one| one.1 > 0).collect();
    // Queries and keys are turned in one launch, forward, again, and back.
    assert_eq!(each.get("rope_bf16"), Some(&3), "{each:?}");
    let all = PRODUCTS + each.values().sum::<usize>();
    assert!(all <= 60, "{all} calls: {each:?}");
}
