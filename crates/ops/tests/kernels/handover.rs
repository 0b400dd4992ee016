//! Blocks that one rank's thread makes and another's reads, as ranks of one process hand them over: on one device without a copy, between
//! two by one; and without waiting for the GPU.

use std::sync::Arc;
use std::sync::mpsc::{channel, sync_channel};

use annulus_ops::gpu::{Generation, Handover, Processor};
use annulus_ops::testing::random;
use annulus_ops::{Backend, accumulate};
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
    let processor: Arc<dyn Processor> = processor(Generation::Sm80, 1).unwrap();
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

/// Two processors that do not reach each other's memory, or whose streams do not know of each other: of one GPU, and where there are
/// more, of two.
fn pairs() -> Vec<[Arc<dyn Processor>; 2]> {
    let Ok(name) = std::env::var("ANNULUS_KERNELS_ON") else { return vec![emulated()] };
    let own: usize = name.strip_prefix("cuda:").and_then(|index| index.parse().ok()).unwrap();
    let other = (0..annulus_ops::gpu::gpus().unwrap().len()).find(|other| *other != own);
    let pairs = [Some([own, own]), other.map(|other| [own, other])];
    let opened = |pair: [usize; 2]| annulus_ops::gpu::open_all(&pair).unwrap().try_into().unwrap();
    pairs.into_iter().flatten().map(opened).collect()
}

#[cfg(feature = "emulator")]
fn emulated() -> [Arc<dyn Processor>; 2] {
    let both = crate::support::emulator(80, 1).apart(2).into_iter();
    let both: Vec<Arc<dyn Processor>> = both.map(|one| Arc::new(one) as _).collect();
    both.try_into().unwrap()
}

#[cfg(not(feature = "emulator"))]
fn emulated() -> [Arc<dyn Processor>; 2] {
    panic!("ANNULUS_KERNELS_ON=cuda:N is wanted: this was built without the emulator");
}

/// How many blocks are handed over, of how many rows: on a GPU large ones, whose copies take a while.
fn size() -> (usize, usize) {
    if std::env::var_os("ANNULUS_KERNELS_ON").is_some() { (500, 4096) } else { (20, 64) }
}

/// `rows` by 1024 numbers in the memory of a processor, made by it: `number`, and so on.
fn made(processor: &Arc<dyn Processor>, number: usize, rows: usize) -> Tensor {
    let device = processor.device();
    let one = Tensor::full(number as f32, (rows, 1024), device).unwrap();
    let all = Tensor::ones((rows, 1024), candle_core::DType::F32, device).unwrap();
    // By a kernel, so that the emulator knows when.
    accumulate(&Backend::Gpu(processor.clone()), &all, &one).unwrap();
    all
}

/// Has the stream of a processor be late, where it has one.
fn delay(processor: &Arc<dyn Processor>) {
    if processor.device().is_cuda() {
        let x = Tensor::ones((2048, 2048), candle_core::DType::F32, processor.device()).unwrap();
        (0..4).fold(x.clone(), |y, _| y.matmul(&x).unwrap());
    }
}

/// Whether all elements are this number.
fn is_all(tensor: &Tensor, number: usize) -> bool {
    let values = tensor.flatten_all().unwrap();
    let [least, most] = [values.min(0), values.max(0)].map(|one| one.unwrap().to_scalar::<f32>());
    (least.unwrap(), most.unwrap()) == (number as f32, number as f32)
}

/// The sender drops what it sends, and its next blocks lie there at once; the receiver is late to copy, or the sender is to write.
#[test]
fn what_is_dropped_at_once_is_handed_over() {
    for [from, to] in pairs() {
        let (times, rows) = size();
        let (sender, receiver) = sync_channel::<Handover>(3);
        let maker = from.clone();
        let making = std::thread::spawn(move || {
            for number in 0..times {
                if number % 3 == 0 {
                    delay(&maker);
                }
                let tensor = made(&maker, number, rows);
                let handover = Handover::begin(&maker, &tensor).unwrap();
                drop(tensor);
                sender.send(handover).unwrap();
                // What was freed is given out again, and written.
                drop((made(&maker, 7, rows), made(&maker, 8, rows)));
            }
        });
        for number in 0..times {
            if number % 3 == 1 {
                delay(&to);
            }
            let copy = receiver.recv().unwrap().end(&*to).unwrap();
            // The last handle of the source went with the handover.
            assert!(copy.device().same_device(to.device()));
            assert!(is_all(&copy, number + 1), "block {number}");
        }
        making.join().unwrap();
    }
}

/// The sender writes over what it has sent as soon as the receiver has it: the copy is in no stream but the receiver's.
#[test]
fn what_is_written_over_at_once_was_handed_over() {
    for [from, to] in pairs() {
        let (times, rows) = size();
        let (backend, tensor) = (Backend::Gpu(from.clone()), made(&from, 0, rows));
        let one = Tensor::ones((rows, 1024), candle_core::DType::F32, from.device()).unwrap();
        for number in 0..times {
            let handover = Handover::begin(&from, &tensor).unwrap();
            delay(&to);
            let copy = handover.end(&*to).unwrap();
            accumulate(&backend, &tensor, &one).unwrap();
            assert!(is_all(&copy, number + 1), "block {number}");
        }
        assert!(is_all(&tensor, times + 1));
    }
}

/// Views, too: what is sent lies without gaps, from any element on.
#[test]
fn a_part_is_handed_over_alone() {
    for [from, to] in pairs() {
        let all = Tensor::arange(0.0_f32, 24.0, from.device()).unwrap().reshape((4, 6)).unwrap();
        let parts = [all.narrow(0, 1, 2), all.narrow(1, 2, 3), all.t()];
        for part in parts.map(Result::unwrap) {
            let copy = Handover::begin(&from, &part).unwrap().end(&*to).unwrap();
            assert_eq!(copy.dims(), part.dims());
            assert!(copy.is_contiguous() && bits(&copy) == bits(&part.contiguous().unwrap()));
        }
    }
}

/// What a GPU would do wrong now and then the emulator finds every time.
#[cfg(feature = "emulator")]
mod mistakes {
    use annulus_ops::linear;
    use candle_core::Result;

    use super::*;

    fn said<T>(result: Result<T>) -> String {
        let error = result.err().expect("a mistake");
        error.to_string().lines().take(2).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_tensor_of_another_memory_is_refused() {
        let [own, other] = emulated();
        let (here, there) = (made(&own, 1, 2), made(&other, 1, 2));
        let backend = Backend::Gpu(own.clone());
        let wanted = "in memory 1, expected one in memory 0";
        let found = said(accumulate(&backend, &here, &there));
        assert!(found.contains(wanted), "{found}");
        let found = said(accumulate(&backend, &there, &here));
        assert!(found.contains(wanted), "{found}");
        // No kernel, but a library's product.
        let found = said(linear(&backend, &here, &there, None));
        assert!(found.contains(wanted), "{found}");
        let found = said(Handover::begin(&own, &there).and_then(|one| one.end(&*other)));
        assert!(found.contains("in memory 1") || found.contains("was given as"), "{found}");
    }

    #[test]
    fn a_copy_before_what_writes_it_is_found() {
        let [from, to] = emulated();
        let tensor = made(&from, 1, 2);
        let found = said(to.fetch(&tensor, &*from));
        assert!(found.contains("may not have written yet"), "{found}");
        // A mark of before does not do.
        let early = from.mark().unwrap();
        let late = made(&from, 2, 2);
        to.wait_for(&early).unwrap();
        to.fetch(&tensor, &*from).unwrap();
        let found = said(to.fetch(&late, &*from));
        assert!(found.contains("may not have written yet"), "{found}");
    }

    #[test]
    fn what_is_written_over_before_it_was_copied_is_found() {
        let [from, to] = emulated();
        let backend = Backend::Gpu(from.clone());
        let (tensor, one) = (made(&from, 1, 2), made(&from, 2, 2));
        to.wait_for(&from.mark().unwrap()).unwrap();
        to.fetch(&tensor, &*from).unwrap();
        // It may be read meanwhile.
        accumulate(&backend, &one, &tensor).unwrap();
        let found = said(accumulate(&backend, &tensor, &one));
        assert!(found.contains("may not have copied yet"), "{found}");
        from.wait_for(&to.mark().unwrap()).unwrap();
        accumulate(&backend, &tensor, &one).unwrap();
    }
}
