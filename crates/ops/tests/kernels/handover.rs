//! Blocks that one rank's thread makes and another's reads, as ranks of one process hand them over: without a copy and without
//! waiting for the GPU.

use std::sync::Arc;
use std::sync::mpsc::channel;

use annulus_ops::gpu::Processor;
use annulus_ops::testing::random;
use candle_core::{Device, Tensor};

use crate::support::processor;

const TIMES: usize = 1000;

/// What block `index` holds.
fn block(seed: &Tensor, index: usize) -> Tensor {
    seed.affine(1.0 + index as f64, 0.5).unwrap().sqr().unwrap()
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    let values = tensor.to_device(&Device::Cpu).unwrap().flatten_all().unwrap();
    values.to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

#[test]
fn a_thousand_blocks_arrive_as_they_were_made() {
    let processor: Arc<dyn Processor> = processor(80, 1).unwrap();
    let seed = random("block", &[64, 257]).unwrap();
    let (sender, receiver) = channel::<Tensor>();
    let (own, maker) = (seed.clone(), processor.clone());
    let making = std::thread::spawn(move || {
        let seed = own.to_device(maker.device()).unwrap();
        for index in 0..TIMES {
            // Freed at once on this side: the other may not have read it yet.
            sender.send(block(&seed, index)).unwrap();
        }
    });
    let of_device = seed.to_device(processor.device()).unwrap();
    for index in 0..TIMES {
        let arrived = receiver.recv().unwrap();
        let doubled = (&arrived + &arrived).unwrap();
        drop(arrived);
        let wanted = block(&of_device, index);
        assert!(bits(&doubled) == bits(&(&wanted + &wanted).unwrap()), "block {index}");
    }
    making.join().unwrap();
}
