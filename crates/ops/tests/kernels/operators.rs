//! All operators but attention: on a processor they are what they are on the CPU.

use annulus_ops::gpu::Generation;
use annulus_ops::order_free::values_at;
use annulus_ops::testing::{error, random, to_f64, unchecked_embedding_backward};
use annulus_ops::{
    AdamW, Backend, Moments, Parameter, accumulate, add_all, contiguous, embedding,
    global_norm_squared, linear_cross_entropy, linear_cross_entropy_gradients,
};
use candle_core::{DType, Device, Result, Tensor};

use crate::cases::{Case, cases};
use crate::support::{asked, processor, strength};

/// What operators are held to: of the largest element, in 16 bits one rounding.
fn bound(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 1.0 / 256.0,
        DType::F16 => 1.0 / 2048.0,
        _ => 1e-6,
    }
}

/// Processors, each with another order of threads.
pub(crate) fn backends() -> impl Iterator<Item = Backend> {
    let seeds = if strength() > 2 { 1..=8 } else { 1..=2 };
    seeds.filter_map(|seed| processor(Generation::Sm80, seed)).map(Backend::Gpu)
}

pub(crate) fn device(backend: &Backend) -> &Device {
    let Backend::Gpu(processor) = backend else { panic!("a GPU") };
    processor.device()
}

fn there(backend: &Backend, tensors: &[Tensor]) -> Result<Vec<Tensor>> {
    tensors.iter().map(|tensor| tensor.to_device(device(backend))).collect()
}

fn back(tensor: &Tensor) -> Result<Tensor> {
    tensor.to_device(&Device::Cpu)
}

/// The cases that are asked for. A GPU has no tensors without elements.
fn chosen(backend: &Backend) -> Result<Vec<Case>> {
    let on_host = device(backend).is_cpu();
    let whole = |case: &Case| on_host || case.shapes.iter().flatten().all(|size| *size > 0);
    Ok(cases()?.into_iter().filter(|case| asked(case.name) && whole(case)).collect())
}

/// Results in `dtype` near those of the CPU for the same numbers in f32.
fn check(backend: &Backend, case: &Case, inputs: &[Tensor], dtype: DType) -> Result<()> {
    let wide = inputs.iter().map(|x| back(x)?.to_dtype(DType::F32)).collect::<Result<Vec<_>>>()?;
    let wanted = (case.by_hand)(&Backend::cpu(2), &wide)?;
    let found = (case.by_hand)(backend, inputs)?;
    assert_eq!(found.len(), wanted.len());
    for (index, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
        let off = error(&back(found)?, wanted)?;
        let what = format!("{} {:?} {dtype:?}: {index}", case.name, case.shapes);
        let bound = roundings(case, dtype) * bound(dtype);
        assert!(off <= bound, "{what} is off by {off:e}");
    }
    Ok(())
}

/// How often a result is rounded on its way. cuBLAS rounds a product before it adds it to 16 bits, to which a bias was added.
fn roundings(case: &Case, dtype: DType) -> f64 {
    if case.name == "projected-onto" && dtype != DType::F32 { 3.0 } else { 1.0 }
}

#[test]
fn operators_are_those_of_the_cpu() -> Result<()> {
    let flip = |x: &Tensor| x.transpose(0, x.dims().len() - 1);
    for backend in backends() {
        for case in chosen(&backend)? {
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                let inputs = case.inputs()?;
                let inputs =
                    inputs.iter().map(|x| x.to_dtype(dtype)).collect::<Result<Vec<_>>>()?;
                let inputs = there(&backend, &inputs)?;
                check(&backend, &case, &inputs, dtype)?;
                let views = inputs.iter().map(|x| flip(&flip(x)?.contiguous()?));
                check(&backend, &case, &views.collect::<Result<Vec<_>>>()?, dtype)?;
            }
        }
    }
    Ok(())
}

#[test]
fn operators_give_the_same_bits_whatever_the_order_of_threads() -> Result<()> {
    for case in cases()?.into_iter().filter(|case| case.name != "projections") {
        let bits = |seed| {
            let backend = Backend::Gpu(processor(Generation::Sm80, seed).unwrap());
            let found = (case.by_hand)(&backend, &there(&backend, &case.inputs()?)?)?;
            let bits = found.iter().map(|x| back(x)?.flatten_all()?.to_vec1::<f32>());
            let bits = bits.collect::<Result<Vec<_>>>()?.concat();
            Ok::<_, candle_core::Error>(bits.into_iter().map(f32::to_bits).collect::<Vec<_>>())
        };
        if chosen(&Backend::Gpu(processor(Generation::Sm80, 1).unwrap()))?
            .iter()
            .any(|one| one.name == case.name)
        {
            assert!(bits(11)? == bits(12)?, "{} {:?}", case.name, case.shapes);
        }
    }
    Ok(())
}

#[test]
fn inputs_on_the_tape_are_refused() -> Result<()> {
    let backend = backends().next().unwrap();
    for case in chosen(&backend)? {
        let inputs = there(&backend, &case.inputs()?)?;
        let result = (case.by_tape)(&backend, &inputs);
        if ["projected-onto", "side-by-side"].contains(&case.name) {
            assert!(!result?.is_empty());
            continue;
        }
        let message = result.unwrap_err().to_string();
        assert!(message.contains("found an input on the tape"), "{}: {message}", case.name);
    }
    Ok(())
}

#[test]
fn logits_of_ten_thousand_have_the_loss_of_f64() -> Result<()> {
    for backend in backends() {
        for dtype in [DType::F32, DType::BF16] {
            let tensor = |values: [[f32; 2]; 2]| {
                Tensor::new(&values, &Device::Cpu)?.to_dtype(dtype)?.to_device(device(&backend))
            };
            let (x, weight) =
                (tensor([[1e4, -1e4], [-1e4, 1e4]])?, tensor([[1.0, 0.0], [0.0, 1.0]])?);
            let targets = Tensor::new(&[0_i64, 0], device(&backend))?;
            let found = linear_cross_entropy_gradients(&backend, &x, &weight, &targets, 1)?;
            let large = f64::from(x.to_dtype(DType::F32)?.max_all()?.to_scalar::<f32>()?);
            assert_eq!(found.loss, 2.0 * large);
            let dx = back(&found.x)?.to_dtype(DType::F32)?;
            assert_eq!(dx.to_vec2::<f32>()?, [[0.0, 0.0], [-1.0, 1.0]]);
        }
    }
    Ok(())
}

/// Ids that are on the host are looked at; others are no reason to wait, and show in what comes of them.
#[test]
fn ids_that_there_are_not_are_named_or_seen() -> Result<()> {
    let backend = backends().next().unwrap();
    let table = random("table", &[5, 8])?.to_device(device(&backend))?;
    let ids = Tensor::new(&[[1_u32, 7]], &Device::Cpu)?;
    let message = embedding(&backend, &ids, &table).unwrap_err().to_string();
    assert!(message.contains("found token 7 at index 1, expected one below 5"), "{message}");
    let (x, targets) = (table.narrow(0, 0, 2)?, Tensor::new(&[1_i64, 5], &Device::Cpu)?);
    let loss = linear_cross_entropy(&backend, &x, &table, &targets, 2);
    let message = loss.unwrap_err().to_string();
    assert!(message.contains("found target 5 at index 1"), "{message}");
    if !device(&backend).is_cpu() {
        let here = Tensor::new(&[[1_u32, 3]], &Device::Cpu)?;
        let message = embedding(&backend, &here, &table).unwrap_err().to_string();
        assert!(message.contains("found a tensor on Cpu, expected one on Cuda"), "{message}");
        let y = embedding(&backend, &ids.to_device(device(&backend))?, &table)?;
        assert_eq!(back(&y.get(0)?.get(1)?)?.to_vec1::<f32>()?, [0.0; 8]);
        let targets = targets.to_device(device(&backend))?;
        assert!(
            linear_cross_entropy(&backend, &x, &table, &targets, 2)?.to_scalar::<f32>()?.is_nan()
        );
    }
    Ok(())
}

/// Tokens that are not of the table come between those that are, by their lower digits. Their gradients are left out, and nobody else's.
#[test]
fn tokens_that_there_are_not_change_no_gradient() -> Result<()> {
    if !asked("embedding") {
        return Ok(());
    }
    let (count, width) = (300, 8);
    for rows in [1_usize, 5, 512, 600] {
        let known = |t: usize| t % 3 != 1;
        let beyond = |t: usize| [rows as u32, 1 << 9 | 1, 1 << 18, u32::MAX][t / 3 % 4];
        let id = |t: usize| if known(t) { (t % 2 * (rows - 1)) as u32 } else { beyond(t) };
        let is_known = |t: &usize| (id(*t) as usize) < rows;
        let ids: Vec<u32> = (0..count).map(id).collect();
        let dy = random("dy", &[count, width])?;
        let all = to_f64(&dy)?;
        let mut wanted = vec![0.0; rows * width];
        for t in (0..count).filter(is_known) {
            for column in 0..width {
                wanted[ids[t] as usize * width + column] += all[t * width + column];
            }
        }
        let wanted = Tensor::new(wanted, &Device::Cpu)?;
        for (backend, block) in backends().zip([None, Some(16)]) {
            let backend = backend.in_blocks(block);
            let Backend::Gpu(processor) = &backend else { panic!("a GPU") };
            let [ids, dy] = [&Tensor::new(&*ids, &Device::Cpu)?, &dy]
                .map(|tensor| tensor.to_device(processor.device()));
            let found = unchecked_embedding_backward(&**processor, &ids?, rows, &dy?)?;
            let found = match block {
                None => found.flatten_all()?,
                Some(_) => values_at(&backend, &found, 0..rows * width)?,
            };
            let off = error(&back(&found)?, &wanted)?;
            assert!(off <= 1e-6, "{rows} rows, {block:?}: off by {off:e}");
        }
    }
    Ok(())
}

#[test]
fn views_of_any_order_are_copied() -> Result<()> {
    for backend in backends() {
        for dtype in [DType::BF16, DType::F32, DType::I64] {
            let x = (random("x", &[3, 4, 5, 16])? * 100.0)?.to_dtype(dtype)?;
            let x = x.to_device(device(&backend))?;
            let views = [
                x.transpose(0, 2)?,
                x.transpose(1, 2)?,
                x.narrow(3, 3, 9)?.transpose(0, 1)?,
                x.narrow(0, 1, 1)?.narrow(2, 2, 2)?,
                x.get(1)?.get(2)?.get(0)?.broadcast_as((6, 16))?,
                x.unsqueeze(1)?.broadcast_as((3, 7, 4, 5, 16))?,
            ];
            for view in views {
                let copy = contiguous(&backend, &view)?;
                assert!(copy.is_contiguous());
                assert!(
                    error(&back(&copy)?, &back(&view)?)? == 0.0,
                    "{dtype:?} {:?}",
                    view.shape()
                );
            }
        }
    }
    Ok(())
}

#[test]
fn sums_are_made_in_place() -> Result<()> {
    for backend in backends() {
        for shape in [&[3, 5, 7][..], &[70_001], &[1]] {
            let (to, from) = (random("to", shape)?, random("from", shape)?);
            let wanted = (&to + &from)?;
            let [to, from] = [&to, &from].map(|tensor| tensor.copy()?.to_device(device(&backend)));
            let (to, from) = (to?, from?);
            accumulate(&backend, &to, &from)?;
            assert!(error(&back(&to)?, &wanted)? < 1e-7);
        }
        let square = random("x", &[3, 3])?.copy()?.to_device(device(&backend))?;
        assert!(accumulate(&backend, &square, &square.t()?.copy()?).is_err());
    }
    Ok(())
}

#[test]
fn what_all_ranks_have_is_added_in_the_order_of_the_cpu() -> Result<()> {
    for backend in backends() {
        for many in [1, 2, 3, 5, 7, 8, 9, 16, 19] {
            let parts = (0..many).map(|rank| random(&format!("part {rank}"), &[3, 677]));
            let parts = parts.collect::<Result<Vec<_>>>()?;
            let wanted = add_all(&Backend::cpu(2), &parts)?;
            let sum = add_all(&backend, &there(&backend, &parts)?)?;
            assert_eq!(error(&back(&sum)?, &wanted)?, 0.0, "{many} parts");
        }
        let [a, b] = [random("a", &[3, 5])?, random("b", &[5, 3])?];
        assert!(add_all(&backend, &there(&backend, &[a, b])?).is_err());
        assert!(add_all(&backend, &[]).is_err());
    }
    Ok(())
}

#[test]
fn the_norm_is_that_of_the_cpu() -> Result<()> {
    let tensors = [random("a", &[301, 257])?, random("b", &[1])?, random("c", &[65_537])?];
    for backend in backends() {
        for dtype in [DType::F32, DType::BF16] {
            let narrow = tensors.iter().map(|x| x.to_dtype(dtype)).collect::<Result<Vec<_>>>()?;
            let wanted = global_norm_squared(&Backend::cpu(2), &narrow)?;
            let found = global_norm_squared(&backend, &there(&backend, &narrow)?)?;
            assert!((found / wanted - 1.0).abs() < 1e-12, "{found} {wanted}");
        }
        assert_eq!(global_norm_squared(&backend, [])?, 0.0);
        let nan = Tensor::new(&[1.0, f32::NAN], device(&backend))?;
        assert!(global_norm_squared(&backend, [&nan])?.is_nan());
    }
    Ok(())
}

/// Parameters of several shapes, more than a chunk among them, with what they are updated from and what follows them.
struct State {
    masters: Vec<Tensor>,
    moments: Vec<Moments>,
    copies: Vec<Tensor>,
}

const SHAPES: [&[usize]; 4] = [&[257, 300], &[3], &[65_536], &[1, 1]];

impl State {
    fn new(device: &Device, dtype: DType) -> Result<State> {
        let named = |index: usize, shape: &&[usize]| random(&format!("master {index}"), shape);
        let masters = SHAPES.iter().enumerate().map(|(index, shape)| named(index, shape)?.copy());
        let masters =
            masters.map(|master| master?.to_device(device)).collect::<Result<Vec<_>>>()?;
        let copy = |master: &Tensor| master.to_dtype(dtype)?.copy();
        Ok(State {
            moments: masters.iter().map(Moments::zeros).collect::<Result<_>>()?,
            copies: masters.iter().map(copy).collect::<Result<_>>()?,
            masters,
        })
    }

    fn step(&self, backend: &Backend, step: u64) -> Result<()> {
        let gradient =
            |(index, shape): (usize, &&[usize])| random(&format!("{step} {index}"), shape);
        let gradients = SHAPES.iter().enumerate().map(gradient).collect::<Result<Vec<_>>>()?;
        let gradients = gradients.iter().map(|one| one.to_device(self.masters[0].device()));
        let gradients = gradients.collect::<Result<Vec<_>>>()?;
        let parameter = |index: usize| Parameter {
            master: &self.masters[index],
            gradient: &gradients[index],
            moments: &self.moments[index],
            copy: (self.copies[0].dtype() != DType::F32).then(|| &self.copies[index]),
            decays: index.is_multiple_of(2),
        };
        let parameters: Vec<_> = (0..SHAPES.len()).map(parameter).collect();
        let (learning_rate, betas, epsilon) = (0.01, (0.9, 0.95), 1e-8);
        let settings = AdamW { learning_rate, betas, epsilon, weight_decay: 0.1, step };
        settings.update_all(backend, &parameters, 0.7)
    }

    fn all(&self) -> Result<Vec<Tensor>> {
        let moments = self.moments.iter().flat_map(|both| [&both.first, &both.second]);
        self.masters.iter().chain(moments).chain(&self.copies).map(back).collect()
    }
}

#[test]
fn all_parameters_are_updated_in_one_launch_as_each_by_itself() -> Result<()> {
    for backend in backends() {
        for dtype in [DType::F32, DType::BF16] {
            let wanted = State::new(&Device::Cpu, dtype)?;
            let found = State::new(device(&backend), dtype)?;
            for step in 1..=3 {
                wanted.step(&Backend::cpu(2), step)?;
                found.step(&backend, step)?;
            }
            for (index, (found, wanted)) in found.all()?.iter().zip(wanted.all()?).enumerate() {
                let off = error(found, &wanted)?;
                assert!(off <= bound(found.dtype()), "{index} {dtype:?} is off by {off:e}");
            }
        }
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused_as_on_the_cpu() -> Result<()> {
    let backend = backends().next().unwrap();
    let state = State::new(device(&backend), DType::F32)?;
    let (learning_rate, betas, epsilon, weight_decay) = (0.1, (0.9, 0.9), 1e-8, 0.0);
    let settings = AdamW { learning_rate, betas, epsilon, weight_decay, step: 1 };
    let [square, row] = [&state.masters[0], &state.masters[1]];
    let wrong = settings.update(&backend, square, row, 1.0, &state.moments[0]).unwrap_err();
    assert!(
        wrong.to_string().contains("found [3], expected the parameter's [257, 300]"),
        "{wrong}"
    );
    let mut refused = 0;
    let whole = |case: &&Case| case.shapes.iter().flatten().all(|size| *size > 0);
    let chosen = chosen(&backend)?;
    for case in chosen.iter().filter(whole) {
        let mut inputs = there(&backend, &case.inputs()?)?;
        let last = inputs.pop().unwrap().flatten_all()?;
        inputs.push(Tensor::cat(&[&last, &last, &last], 0)?.reshape((3, ()))?);
        let said = |backend: &Backend, inputs: &[Tensor]| {
            let result = (case.by_hand)(backend, inputs);
            result.err().map(|error| error.to_string().lines().next().unwrap().to_owned())
        };
        let on_host = inputs.iter().map(back).collect::<Result<Vec<_>>>()?;
        let found = said(&backend, &inputs);
        assert_eq!(found, said(&Backend::serial(), &on_host), "{}", case.name);
        refused += usize::from(found.is_some());
    }
    assert!(refused > 0 || chosen.is_empty());
    Ok(())
}
