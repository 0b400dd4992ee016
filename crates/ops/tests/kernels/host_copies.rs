//! Copies to the host and back, beside what the processor computes: bits and order.

use std::collections::VecDeque;
use std::sync::Arc;

use annulus_ops::Backend;
use annulus_ops::accumulate;
use annulus_ops::gpu::{Generation, HostCopy, Processor};
use annulus_ops::testing::random;
use candle_core::{DType, Device, Result, Tensor};

use crate::support::processor;

fn opened() -> Arc<dyn Processor> {
    processor(Generation::Sm80, 1).unwrap()
}

/// The bytes of a tensor.
fn bytes(tensor: &Tensor) -> Vec<u8> {
    let mut all = Vec::new();
    tensor.to_device(&Device::Cpu).unwrap().write_bytes(&mut all).unwrap();
    all
}

/// On a GPU large tensors, whose copies take a while.
fn size() -> (usize, usize) {
    if std::env::var_os("ANNULUS_KERNELS_ON").is_some() { (200, 4096) } else { (20, 64) }
}

/// `rows` by 1024 times `number`.
fn made(processor: &Arc<dyn Processor>, number: usize, rows: usize) -> Result<Tensor> {
    Tensor::full(number as f32, (rows, 1024), processor.device())
}

/// Has the stream that computes be late.
fn delay(processor: &Arc<dyn Processor>) {
    if processor.device().is_cuda() {
        let x = Tensor::ones((2048, 2048), DType::F32, processor.device()).unwrap();
        (0..4).fold(x.clone(), |y, _| y.matmul(&x).unwrap());
    }
}

/// Every dtype, views with and without gaps, from any element on, and no elements: whenever it is restored, and however often.
#[test]
fn a_tensor_comes_back_with_its_bits() {
    let processor = opened();
    let copies = processor.host_copies().unwrap();
    let wide = random("offloaded", &[7, 4096]).unwrap().to_device(processor.device()).unwrap();
    let narrow = wide.to_dtype(DType::BF16).unwrap();
    let parts = [
        narrow.narrow(1, 5, 33),
        wide.narrow(0, 2, 3),
        wide.t(),
        wide.narrow(0, 3, 0),
        Ok(narrow.clone()),
        wide.narrow(1, 9, 1),
    ];
    let uses: [fn(&mut dyn HostCopy) -> Result<()>; 5] = [
        |_| Ok(()),
        |copy| copy.release(),
        |copy| copy.prefetch(),
        |copy| copy.release().and_then(|()| copy.prefetch()),
        |copy| copy.release().and_then(|()| copy.restore()).map(drop),
    ];
    // Twice: the second time in memory that was used before.
    for (number, done) in uses.iter().chain(&uses).enumerate() {
        let begin = |part: &Result<Tensor>| copies.begin(part.as_ref().unwrap().clone());
        let mut begun: Vec<_> = parts.iter().map(|part| begin(part).unwrap()).collect();
        begun.iter_mut().try_for_each(|copy| done(&mut **copy)).unwrap();
        for (copy, part) in begun.iter_mut().zip(&parts) {
            let part = part.as_ref().unwrap();
            for _ in 0..2 {
                let found = copy.restore().unwrap();
                assert_eq!((found.dims(), found.dtype()), (part.dims(), part.dtype()));
                let wanted = part.contiguous().unwrap();
                assert!(bytes(&found) == bytes(&wanted), "use {number}: {:?}", part.dims());
            }
        }
    }
}

/// What is released lies where others are made next, and what was restored is freed while the next is copied back.
#[test]
fn memory_is_used_again_only_after_its_copy() {
    let processor = opened();
    let (times, rows) = size();
    let copies = processor.host_copies().unwrap();
    let (mut leaving, mut away) = (VecDeque::new(), Vec::new());
    for number in 0..times {
        if number % 3 == 0 {
            delay(&processor);
        }
        leaving.push_back(copies.begin(made(&processor, number, rows).unwrap()).unwrap());
        if leaving.len() > 2 {
            let mut first = leaving.pop_front().unwrap();
            first.release().unwrap();
            away.push(first);
        }
        drop([7, 8].map(|other| made(&processor, other, rows).unwrap()));
    }
    away.extend(leaving);
    let backend = Backend::Gpu(processor.clone());
    while let Some(mut last) = away.pop() {
        if let Some(next) = away.last_mut() {
            next.prefetch().unwrap();
        }
        let restored = last.restore().unwrap();
        drop(last);
        // Written over at once, and again by what takes the host's memory next.
        let sum = made(&processor, 1, rows).unwrap();
        accumulate(&backend, &sum, &restored).unwrap();
        accumulate(&backend, &restored, &sum).unwrap();
        drop(copies.begin(restored).unwrap());
        let wanted = made(&processor, away.len() + 1, rows).unwrap();
        assert!(bytes(&sum) == bytes(&wanted), "tensor {}", away.len());
    }
}

/// Tensors may become larger and smaller: memory that is too small gives way.
#[test]
fn sizes_may_change() {
    let processor = opened();
    let copies = processor.host_copies().unwrap();
    for rows in [1, 8, 3, 0, 64, 2, 64, 65] {
        let all = [1, 2, 3].map(|number| made(&processor, number, rows).unwrap());
        let mut begun = all.clone().map(|tensor| copies.begin(tensor).unwrap());
        begun.iter_mut().try_for_each(|copy| copy.release()).unwrap();
        for (copy, wanted) in begun.iter_mut().zip(&all) {
            assert!(bytes(&copy.restore().unwrap()) == bytes(wanted), "{rows} rows");
        }
    }
}

/// What is written over before it is released is copied late on the emulator: the test of training with it would see other bits.
#[cfg(feature = "emulator")]
#[test]
fn what_is_written_over_too_early_comes_back_wrong() {
    let processor: Arc<dyn Processor> = Arc::new(crate::support::emulator(80, 1));
    let copies = processor.host_copies().unwrap();
    let tensor = made(&processor, 5, 2).unwrap();
    let mut copy = copies.begin(tensor.clone()).unwrap();
    let one = made(&processor, 1, 2).unwrap();
    accumulate(&Backend::Gpu(processor.clone()), &tensor, &one).unwrap();
    copy.release().unwrap();
    let found = bytes(&copy.restore().unwrap());
    assert!(found == bytes(&made(&processor, 6, 2).unwrap()));
    let [own, other] = <[_; 2]>::try_from(crate::support::emulator(80, 1).apart(2)).unwrap();
    accumulate(&Backend::Gpu(Arc::new(own)), &tensor, &one).unwrap();
    let refused = other.host_copies().unwrap().begin(tensor).expect_err("another memory");
    assert!(refused.to_string().contains("expected one in memory 1"), "{refused}");
}
