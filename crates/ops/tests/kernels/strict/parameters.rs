//! What is summed over tokens, products with weights, and tables of order-free sums: none depends on who has which blocks.

use annulus_ops::gpu::Generation;
use annulus_ops::order_free::{
    add_sums, is_order_free, of_shape, sum_of_squares, values, values_at,
};
use annulus_ops::testing::{error, error_l2, random};
use annulus_ops::{
    Affine, Backend, embedding_backward, input_gradient, linear_cross_entropy_gradients,
    linear_cross_entropy_loss, parameter_gradients, projected_onto, projections, rms_norm,
    rms_norm_backward,
};
use candle_core::{DType, Device, Result, Tensor};

use crate::support::{asked, processor};

const BLOCK: usize = 16;
const BLOCKS: usize = 6;
const TYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];
/// Outputs and inputs: whole tiles, parts of them, rows that go over the ends of a table's rows.
const SIZES: [(usize, usize); 5] = [(70, 64), (7, 5), (33, 128), (3, 300), (150, 64)];

/// Of kernels whose threads take turns as `seed` draws; none where such kernels are not asked for.
fn backend(seed: u64) -> Option<Backend> {
    let processor = processor(Generation::Sm80, seed).filter(|_| asked("order_free"))?;
    Some(Backend::Gpu(processor).in_blocks(Some(BLOCK)))
}

fn device(backend: &Backend) -> Device {
    let Backend::Gpu(processor) = backend else { panic!("a GPU") };
    processor.device().clone()
}

/// As many rows as all blocks have, or so many.
fn numbers(backend: &Backend, name: &str, shape: &[usize], dtype: DType) -> Tensor {
    random(name, shape).unwrap().to_dtype(dtype).unwrap().to_device(&device(backend)).unwrap()
}

/// The rows of some blocks.
fn of(all: &Tensor, blocks: &[usize]) -> Tensor {
    let rows = |block: &usize| all.narrow(0, block * BLOCK, BLOCK).unwrap();
    Tensor::cat(&blocks.iter().map(rows).collect::<Vec<_>>(), 0).unwrap()
}

fn bits(table: &Tensor) -> Vec<u32> {
    assert!(is_order_free(table));
    table.to_device(&Device::Cpu).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn narrow_bits(tensor: &Tensor) -> Vec<u32> {
    let wide = tensor.to_device(&Device::Cpu).unwrap().to_dtype(DType::F32).unwrap();
    let all: Vec<f32> = wide.flatten_all().unwrap().to_vec1().unwrap();
    all.into_iter().map(f32::to_bits).collect()
}

/// Holds tables that `make` makes of all blocks at once to those of some blocks and of others, added up; gives the former.
fn check(what: &str, make: impl Fn(&Backend, &[usize]) -> Result<Tensor>) -> Option<Tensor> {
    let all = make(&backend(1)?, &[0, 1, 2, 3, 4, 5]).unwrap();
    let other = backend(2)?;
    let parts = make(&other, &[5, 1]).unwrap();
    for blocks in [&[0, 4, 2][..], &[3]] {
        add_sums(&other, &parts, &make(&other, blocks).unwrap()).unwrap();
    }
    assert!(bits(&all) == bits(&parts), "{what}: other bits");
    assert!(bits(&all).iter().any(|integer| *integer > 0), "{what}: nothing");
    Some(all)
}

fn near(what: &str, found: &Tensor, wanted: &Tensor, bound: f64) {
    let off = error(&found.to_device(&Device::Cpu).unwrap(), wanted).unwrap();
    assert!(off <= bound, "{what} is off by {off:e}");
}

fn wide(tensor: &Tensor) -> Tensor {
    tensor.to_device(&Device::Cpu).unwrap().to_dtype(DType::F64).unwrap()
}

/// Inputs of which half of the columns, by fours, are more than a bin below the others.
fn sloping(backend: &Backend, inputs: usize, dtype: DType) -> Tensor {
    let by: Vec<f32> = (0..inputs).map(|i| if i % 8 < 4 { 1.0 } else { 1e-4 }).collect();
    let by = Tensor::new(by, &Device::Cpu).unwrap();
    let all = random("x", &[BLOCKS * BLOCK, inputs]).unwrap().broadcast_mul(&by).unwrap();
    all.to_dtype(dtype).unwrap().to_device(&device(backend)).unwrap()
}

#[test]
fn gradients_of_weights_and_biases_have_the_same_bits_whoever_has_which_blocks() {
    for (index, (outputs, inputs)) in SIZES.into_iter().enumerate() {
        let dtype = TYPES[index % 3];
        let onto = |backend: &Backend, blocks: &[usize], sum: Option<&Tensor>| {
            let dy = numbers(backend, "dy", &[BLOCKS * BLOCK, outputs], dtype);
            let [dy, x] = [dy, sloping(backend, inputs, dtype)].map(|all| of(&all, blocks));
            let weight = numbers(backend, "weight", &[outputs, inputs], dtype);
            let bias = numbers(backend, "bias", &[outputs], dtype);
            let affine = Affine { weight: &weight, bias: Some(&bias) };
            parameter_gradients(backend, &x, [affine], [&dy], [sum]).map(|[made]| made)
        };
        let both = |backend: &Backend, blocks: &[usize]| onto(backend, blocks, None);
        let what = format!("{outputs} x {inputs} {dtype:?}");
        let weight = |backend: &Backend, blocks: &[usize]| Ok(both(backend, blocks)?.weight);
        let Some(all) = check(&what, weight) else { return };
        let backend = backend(1).unwrap();
        let sum = both(&backend, &[5, 1]).unwrap().weight;
        for blocks in [&[0, 4, 2][..], &[3]] {
            onto(&backend, blocks, Some(&sum)).unwrap();
        }
        assert!(bits(&sum) == bits(&all), "{what}: other bits in place");
        let dy = wide(&numbers(&backend, "dy", &[BLOCKS * BLOCK, outputs], dtype));
        let x = wide(&sloping(&backend, inputs, dtype));
        let found = values_at(&backend, &all, 0..outputs * inputs).unwrap();
        let wanted = dy.t().unwrap().matmul(&x).unwrap().flatten_all().unwrap();
        // Tensor cores add in f32, but do not round to nearest.
        near(&what, &found, &wanted, if dtype == DType::F32 { 3e-7 } else { 3e-6 });
        let bias = |backend: &Backend, blocks: &[usize]| Ok(both(backend, blocks)?.bias.unwrap());
        let all = check(&what, bias).unwrap();
        let found = values_at(&backend, &all, 0..outputs).unwrap();
        near(&what, &found, &dy.sum(0).unwrap(), 3e-7);
    }
}

#[test]
fn gradients_of_norms_have_the_same_bits_whoever_has_which_blocks() {
    for (width, dtype) in [(20, DType::F32), (1100, DType::BF16), (64, DType::F16)] {
        let both = |backend: &Backend, blocks: &[usize]| {
            let tensor = |name| numbers(backend, name, &[BLOCKS * BLOCK, width], dtype);
            let [x, dy] = ["x", "dy"].map(|name| of(&tensor(name), blocks));
            let weight = numbers(backend, "weight", &[width], dtype);
            rms_norm_backward(backend, &x, &weight, 1e-5, &dy, None)
        };
        let what = format!("{width} {dtype:?}");
        let table = |backend: &Backend, blocks: &[usize]| Ok(both(backend, blocks)?.1);
        let Some(all) = check(&what, table) else { return };
        let backend = backend(1).unwrap();
        let tensor = |name: &str, shape: &[usize]| {
            let narrow = numbers(&backend, name, shape, dtype).to_device(&Device::Cpu).unwrap();
            narrow.to_dtype(DType::F32).unwrap()
        };
        let [x, dy] = ["x", "dy"].map(|name| tensor(name, &[BLOCKS * BLOCK, width]));
        let weight = tensor("weight", &[width]);
        let wanted = rms_norm_backward(&Backend::cpu(1), &x, &weight, 1e-5, &dy, None).unwrap().1;
        near(&what, &values_at(&backend, &all, 0..width).unwrap(), &wanted, 1e-6);
    }
}

/// The sums of a block are made in the same order as on the CPU, and so tables have the same bits.
#[test]
fn gradients_of_an_embedding_are_those_of_the_cpu() {
    for (rows, width, dtype) in [(131, 5, DType::F32), (9, 64, DType::BF16), (40, 96, DType::F16)] {
        let ids: Vec<u32> =
            (0..BLOCKS * BLOCK).map(|t| ((t * t * 37 + t / 7) % 4 * (rows / 4)) as u32).collect();
        let make = |backend: &Backend, on: &Device, blocks: &[usize]| {
            let ids = of(&Tensor::new(&*ids, on)?, blocks);
            let dy = random("dy", &[BLOCKS * BLOCK, width])?.to_dtype(dtype)?;
            // The CPU takes no f16.
            let dy = if on.is_cpu() && matches!(backend, Backend::Cpu(_)) {
                dy.to_dtype(DType::F32)?
            } else {
                dy
            };
            embedding_backward(backend, &ids, rows, &of(&dy.to_device(on)?, blocks))
        };
        let what = format!("{rows} x {width} {dtype:?}");
        let table = |backend: &Backend, blocks: &[usize]| make(backend, &device(backend), blocks);
        let Some(all) = check(&what, table) else { return };
        let cpu = Backend::cpu(1).in_blocks(Some(BLOCK));
        let wanted = make(&cpu, &Device::Cpu, &[0, 1, 2, 3, 4, 5]).unwrap();
        assert!(bits(&all) == bits(&wanted), "{what}: not the CPU's");
    }
}

#[test]
fn losses_and_their_gradients_have_the_same_bits_whoever_has_which_blocks() {
    let (width, classes) = (24, 37);
    for dtype in [DType::F32, DType::BF16] {
        let run = |backend: &Backend, blocks: &[usize], chunk: usize| {
            let x = of(&numbers(backend, "x", &[BLOCKS * BLOCK, width], dtype), blocks);
            let weight = numbers(backend, "weight", &[classes, width], dtype);
            let target = |t: usize| if t % 5 == 3 { -100 } else { (t * 7 % classes) as i64 };
            let targets: Vec<i64> = (0..BLOCKS * BLOCK).map(target).collect();
            let targets = of(&Tensor::new(targets, &device(backend)).unwrap(), blocks);
            let made =
                linear_cross_entropy_gradients(backend, &x, &weight, &targets, chunk).unwrap();
            let loss = linear_cross_entropy_loss(backend, &x, &weight, &targets, chunk).unwrap();
            assert!(loss.to_bits() == made.loss.to_bits());
            made
        };
        let Some(first) = backend(1) else { return };
        let all = run(&first, &[0, 1, 2, 3, 4, 5], 1000);
        // Chunks are whole blocks: of 1 that is one, of 40 two.
        check("weight", |backend, blocks| Ok(run(backend, blocks, blocks.len() * 20).weight));
        let second = backend(2).unwrap();
        let parts = [&[4, 0][..], &[2, 1, 5, 3]].map(|blocks| run(&second, blocks, 1));
        assert!((parts[0].loss + parts[1].loss).to_bits() == all.loss.to_bits());
        assert!(narrow_bits(&of(&all.x, &[4, 0])) == narrow_bits(&parts[0].x));
        add_sums(&second, &parts[0].weight, &parts[1].weight).unwrap();
        assert!(bits(&parts[0].weight) == bits(&all.weight));
    }
}

#[test]
fn rows_have_the_same_bits_whatever_rows_are_beside_them() {
    for (index, (outputs, inputs)) in SIZES.into_iter().enumerate() {
        let dtype = TYPES[index % 3];
        let Some(backend) = backend(3) else { return };
        let tensor = |name, shape: &[usize]| numbers(&backend, name, shape, dtype);
        let (x, weight) = (tensor("x", &[150, inputs]), tensor("weight", &[outputs, inputs]));
        let (bias, onto) = (tensor("bias", &[outputs]), tensor("onto", &[150, outputs]));
        let norm = tensor("norm", &[inputs]);
        let affine = Affine { weight: &weight, bias: Some(&bias) };
        let run = |first: usize, rows: usize| {
            let [x, onto] = [&x, &onto].map(|all| all.narrow(0, first, rows).unwrap());
            let [y] = projections(&backend, &x, [affine]).unwrap();
            let onto = projected_onto(&backend, &onto, &x, affine).unwrap();
            let dx = input_gradient(&backend, [affine, affine], [&y, &onto]).unwrap();
            [y, onto, dx, rms_norm(&backend, &x, &norm, 1e-5).unwrap()]
        };
        let all = run(0, 150);
        for (first, rows) in [(0, 1), (37, 64), (149, 1), (63, 87)] {
            for (index, (all, some)) in all.iter().zip(run(first, rows)).enumerate() {
                let wanted = narrow_bits(&all.narrow(0, first, rows).unwrap());
                assert!(narrow_bits(&some) == wanted, "{index} of {outputs} x {inputs}, {first}");
            }
        }
        let wanted = wide(&x).matmul(&wide(&weight).t().unwrap()).unwrap();
        let wanted = wanted.broadcast_add(&wide(&bias)).unwrap();
        let off = error_l2(&all[0].to_device(&Device::Cpu).unwrap(), &wanted).unwrap();
        let bound = if dtype == DType::F32 { 2e-7 } else { 3e-3 };
        assert!(off <= bound, "{outputs} x {inputs} {dtype:?} is off by {off:e}");
    }
}

/// Tables are the CPU's: the same integers mean the same, and add up to the same.
#[test]
fn tables_are_added_and_read_as_on_the_cpu() {
    let Some(gpu) = backend(1) else { return };
    let cpu = Backend::cpu(1).in_blocks(Some(BLOCK));
    let table = |name: &str, by: f64| {
        let dy = (random(name, &[BLOCK, 150]).unwrap() * by).unwrap();
        let x = random("one", &[BLOCK, 1]).unwrap();
        let weight = random("weight", &[150, 1]).unwrap();
        let affine = Affine { weight: &weight, bias: None };
        parameter_gradients(&cpu, &x, [affine], [&dy], [None]).map(|[made]| made.weight).unwrap()
    };
    let on = device(&gpu);
    // What has gaps: nothing may be added to it.
    let gaps = |table: Tensor| table.reshape((3, ())).unwrap().t().unwrap();
    for (backend, on) in [(&gpu, &on), (&cpu, &Device::Cpu)] {
        let table = table("a", 1.0).to_device(on).unwrap();
        let (before, view) = (bits(&table), gaps(table.clone()));
        let refused = add_sums(backend, &view, &view.copy().unwrap()).unwrap_err().to_string();
        assert!(refused.contains("order-free sums: found"), "{refused}");
        assert!(bits(&table) == before);
    }
    // Bins apart by none, one, two and more than there are; nothing; what is no number.
    let others = [1.0, 3e-4, 1e4, 3e-8, 1e9, 1e-20, 0.0, f64::NAN].map(|by| table("b", by));
    for other in others {
        let sum = table("a", 1.0);
        let found = sum.to_device(&on).unwrap().copy().unwrap();
        add_sums(&gpu, &found, &other.to_device(&on).unwrap()).unwrap();
        add_sums(&cpu, &sum, &other).unwrap();
        assert!(bits(&found) == bits(&sum));
        let [found, wanted] = [(&gpu, &found), (&cpu, &sum)].map(|(backend, table)| {
            let all = narrow_bits(&values(backend, table).unwrap());
            (all, narrow_bits(&values_at(backend, table, 70..131).unwrap()))
        });
        let is_same =
            |a: &u32, b: &u32| a == b || f32::from_bits(*a).is_nan() && f32::from_bits(*b).is_nan();
        let same = |a: &[u32], b: &[u32]| {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b))
        };
        assert!(same(&found.0, &wanted.0) && same(&found.1, &wanted.1) && found.1.len() == 61);
    }
    let nothing = of_shape(&[3, 7, 5], &on).unwrap();
    assert_eq!(narrow_bits(&values(&gpu, &nothing).unwrap()), [0; 105]);
}

#[test]
fn what_is_infinite_makes_its_row_nan_and_no_other() {
    let Some(backend) = backend(1) else { return };
    let numbers = |name, width| numbers(&backend, name, &[BLOCK, width], DType::F32);
    let weight = numbers("weight", 64).narrow(0, 0, 3).unwrap();
    for bad in [f32::INFINITY, f32::NAN, 1e38] {
        let bad = Tensor::new(&[[1.0_f32, bad, 1.0]], &device(&backend)).unwrap();
        let dy = numbers("dy", 3).broadcast_mul(&bad).unwrap();
        let affine = Affine { weight: &weight, bias: None };
        let x = numbers("x", 64);
        let [made] = parameter_gradients(&backend, &x, [affine], [&dy], [None]).unwrap();
        let found = narrow_bits(&values_at(&backend, &made.weight, 0..192).unwrap());
        let is_nan: Vec<bool> =
            found.into_iter().map(|bits| f32::from_bits(bits).is_nan()).collect();
        assert!(is_nan.chunks(64).map(|row| row.iter().all(|nan| *nan)).eq([false, true, false]));
        assert!(is_nan.into_iter().filter(|nan| *nan).count() == 64);
    }
}

#[test]
fn squares_are_those_of_the_cpu() {
    let Some(gpu) = backend(1) else { return };
    let ends = Tensor::new(&[f32::MAX, f32::from_bits(1), 0.0, -3.0], &Device::Cpu).unwrap();
    let some = (random("x", &[70_001]).unwrap() * 3e-5).unwrap();
    let bad = Tensor::new(&[1.0, f32::INFINITY, f32::NAN], &Device::Cpu).unwrap();
    for tensors in [vec![&ends, &some], vec![&some, &bad], vec![]] {
        let there: Vec<Tensor> =
            tensors.iter().map(|tensor| tensor.to_device(&device(&gpu)).unwrap()).collect();
        let found = sum_of_squares(&gpu, &there).unwrap();
        assert_eq!(found, sum_of_squares(&Backend::cpu(1), tensors).unwrap());
    }
}

#[test]
fn tokens_that_are_no_whole_blocks_are_refused() {
    let Some(backend) = backend(1) else { return };
    let tensor = |name, shape: &[usize]| numbers(&backend, name, shape, DType::F32);
    let (x, dy, weight) = (tensor("x", &[33, 4]), tensor("dy", &[33, 3]), tensor("w", &[3, 4]));
    let affine = Affine { weight: &weight, bias: None };
    let said = parameter_gradients(&backend, &x, [affine], [&dy], [None]).unwrap_err().to_string();
    assert!(said.contains("found 33 tokens, expected whole blocks of 16"), "{said}");
}
