//! The output projection and the cross entropy, a chunk of tokens at a time: `kernels/cross_entropy/cross_entropy.h` between two products.

use bytemuck::NoUninit;
use candle_core::{DType, Result, Tensor, bail};

use super::super::{Processor, addresses};
use super::product::{Output, multiply};
use super::view::View;
use super::{Extent, SCRATCH, launch, of_type, off_tape, order_free, plain, sums, unwritten};
use crate::cross_entropy::{Prediction, check_shapes, check_targets};
use crate::order_free::to_grid;

/// Threads per block; `CROSS_ENTROPY_THREADS` in C.
const THREADS: u32 = 512;

/// Rows of logits start at multiples of this many elements: 16 bytes of any dtype.
const ALIGNED: usize = 8;

/// Mirrors the C struct `CrossEntropyArguments`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
struct Arguments {
    logits: u64,
    gradients: u64,
    targets: u64,
    losses: u64,
    stride: i64,
    classes: i32,
    _gap: u32,
}

/// Mirrors the C struct `PredictionArguments`.
#[derive(Clone, Copy, Debug, NoUninit)]
#[repr(C)]
struct PredictionArguments {
    logits: u64,
    targets: u64,
    losses: u64,
    predicted: u64,
    classes: i32,
    _gap: u32,
}

/// The most classes whose numbers the kernel tells apart.
const MOST_CLASSES: usize = 1 << 24;

/// [`crate::predictions`] on a processor: the host waits for it.
pub(crate) fn predictions(
    processor: &dyn Processor,
    logits: &Tensor,
    targets: &[i64],
) -> Result<Vec<Prediction>> {
    let (rows, classes) = logits.dims2()?;
    if classes > MOST_CLASSES {
        bail!("predictions: found {classes} classes, expected at most {MOST_CLASSES}");
    }
    let logits = plain(processor, logits, DType::F32)?;
    let targets = Tensor::new(targets, processor.device())?;
    // SAFETY: the kernel writes every row's.
    let (losses, predicted) = unsafe {
        (unwritten(processor, rows, DType::F64)?, unwritten(processor, rows, DType::U32)?)
    };
    let extent = Extent { grid: [rows, 1, 1], threads: THREADS, shared: SCRATCH };
    addresses(&[&logits, &targets], &[&losses, &predicted], &mut |at| {
        let arguments = PredictionArguments {
            logits: at.reads[0],
            targets: at.reads[1],
            losses: at.writes[0],
            predicted: at.writes[1],
            classes: classes as i32,
            _gap: 0,
        };
        // SAFETY: sizes and targets were checked; addresses hold until the launch is in the stream.
        unsafe { launch(processor, "prediction_f32", extent, &arguments) }
    })?;
    let (losses, predicted) = (losses.to_vec1()?, predicted.to_vec1()?);
    let one = |(loss, class)| Prediction { loss, class };
    Ok(std::iter::zip(losses, predicted).map(one).collect())
}

/// [`crate::linear_cross_entropy`] on a processor.
pub(crate) fn linear_cross_entropy(
    processor: &dyn Processor,
    x: &Tensor,
    weight: &Tensor,
    targets: &Tensor,
    chunk: usize,
) -> Result<Tensor> {
    off_tape("linear-cross-entropy", [x, weight])?;
    let pass = Pass::new(processor, x, weight, targets, chunk)?;
    pass.losses_alone()?;
    sums::total(processor, &pass.losses)?.to_dtype(DType::F32)
}

/// [`crate::linear_cross_entropy_loss`] on a processor: the host waits for it.
pub(crate) fn linear_cross_entropy_loss(
    processor: &dyn Processor,
    x: &Tensor,
    weight: &Tensor,
    targets: &Tensor,
    chunk: usize,
) -> Result<f64> {
    off_tape("linear-cross-entropy", [x, weight])?;
    let pass = Pass::new(processor, x, weight, targets, chunk)?;
    pass.losses_alone()?;
    pass.loss()
}

/// [`crate::linear_cross_entropy_gradients`] on a processor: the loss, for which the host waits, the gradient of x, and that of the weight
/// where it is `trained`.
pub(crate) fn linear_cross_entropy_gradients(
    processor: &dyn Processor,
    x: &Tensor,
    weight: &Tensor,
    targets: &Tensor,
    chunk: usize,
    trained: bool,
) -> Result<(f64, Tensor, Option<Tensor>)> {
    let pass = Pass::new(processor, x, weight, targets, chunk)?;
    let (tokens, width) = pass.x.dims2()?;
    // SAFETY: the products of all chunks write all of it.
    let dx = unsafe { unwritten(processor, (tokens, width), x.dtype()) }?;
    let dw = trained.then(|| pass.no_gradient()).transpose()?;
    let gradients = pass.gradients()?;
    for start in pass.starts() {
        let x_chunk = pass.logits(start)?;
        let dlogits = pass.turn(start, Some(&gradients))?;
        if let Some(dw) = &dw {
            pass.add_to_weight(dw, &dlogits, &x_chunk)?;
        }
        let dx_chunk = dx.narrow(0, start, x_chunk.dim(0)?)?;
        let (dlogits, weight) = (View::of(&dlogits)?, View::of(&pass.weight)?);
        multiply(processor, &View::of(&dx_chunk)?, &dlogits, &weight, Output::Overwrite)?;
    }
    Ok((pass.loss()?, dx.reshape(x.shape())?, dw))
}

/// The tensors that all chunks share.
struct Pass<'a> {
    processor: &'a dyn Processor,
    chunk: usize,
    /// The input, [tokens, D].
    x: Tensor,
    /// The weight, [V, D].
    weight: Tensor,
    /// The targets, i64 [tokens].
    targets: Tensor,
    /// The loss of each token, f64 [tokens].
    losses: Tensor,
    /// The logits of one chunk after another, f32 [chunk, V], with small gaps between rows. In the inputs' 16 bits a logit of thirty would
    /// be off by a sixteenth.
    logits: Tensor,
}

impl<'a> Pass<'a> {
    fn new(
        processor: &'a dyn Processor,
        x: &Tensor,
        weight: &Tensor,
        targets: &Tensor,
        chunk: usize,
    ) -> Result<Pass<'a>> {
        let (rows, width) = weight.dims2()?;
        check_shapes(x, weight, targets, chunk)?;
        // Looking at targets on a GPU would make the host wait: whoever makes them checks them, and one that is no class makes the loss
        // NaN.
        if targets.device().is_cpu() {
            check_targets(&targets.flatten_all()?.to_vec1()?, rows)?;
        }
        let tokens = targets.elem_count();
        // Tokens of whole blocks, at least one, where sums are order-free.
        let chunk = processor.block().map_or(chunk, |block| (chunk / block).max(1) * block);
        let chunk = chunk.min(tokens.max(1));
        // SAFETY: every token's loss is written, and of the logits what is read.
        let (losses, logits) = unsafe {
            let logits = (chunk, rows.next_multiple_of(ALIGNED));
            (unwritten(processor, tokens, DType::F64), unwritten(processor, logits, DType::F32))
        };
        Ok(Pass {
            processor,
            chunk,
            x: plain(processor, x, x.dtype())?.reshape((tokens, width))?,
            weight: plain(processor, weight, x.dtype())?,
            targets: plain(processor, targets, DType::I64)?.flatten_all()?,
            losses: losses?,
            logits: logits?.narrow(1, 0, rows)?,
        })
    }

    /// Computes the losses of all chunks, without gradients.
    fn losses_alone(&self) -> Result<()> {
        for start in self.starts() {
            self.logits(start)?;
            self.turn(start, None)?;
        }
        Ok(())
    }

    /// The sum of all losses; where sums are order-free, each block's is rounded so that they add up exactly.
    fn loss(&self) -> Result<f64> {
        let Some(block) = self.processor.block() else {
            return sums::total(self.processor, &self.losses)?.to_scalar();
        };
        let losses: Vec<f64> = self.losses.to_vec1()?;
        Ok(losses.chunks(block).map(|of_block| to_grid(of_block.iter().sum())).sum())
    }

    /// A zero gradient of the weight to add to: f32 [V, D], or a table of order-free sums.
    fn no_gradient(&self) -> Result<Tensor> {
        match self.processor.block() {
            Some(_) => order_free::nothing(self.processor, self.weight.elem_count()),
            None => Tensor::zeros(self.weight.shape(), DType::F32, self.processor.device()),
        }
    }

    /// Adds a chunk's gradient of the weight, from gradients of logits and rows of x.
    fn add_to_weight(&self, dw: &Tensor, dlogits: &Tensor, x: &Tensor) -> Result<()> {
        let (dlogits, x) = (View::of(dlogits)?, View::of(x)?);
        match self.processor.block() {
            Some(block) => order_free::add_products(self.processor, dw, &dlogits, &x, block),
            None => multiply(self.processor, &View::of(dw)?, &dlogits.t(), &x, Output::Accumulate),
        }
    }

    /// The first token of each chunk.
    fn starts(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.losses.elem_count()).step_by(self.chunk)
    }

    /// A tensor for the gradients of logits, in the dtype of x: [chunk, V].
    fn gradients(&self) -> Result<Tensor> {
        if self.x.dtype() == DType::F32 {
            return Ok(self.logits.clone());
        }
        let (chunk, rows) = self.logits.dims2()?;
        let shape = (chunk, rows.next_multiple_of(ALIGNED));
        // SAFETY: the kernel writes what is read.
        unsafe { unwritten(self.processor, shape, self.x.dtype()) }?.narrow(1, 0, rows)
    }

    /// Computes the logits of the chunk from `start` on; returns its rows of x.
    fn logits(&self, start: usize) -> Result<Tensor> {
        let tokens = self.chunk.min(self.losses.elem_count() - start);
        let x = self.x.narrow(0, start, tokens)?;
        let logits = self.logits.narrow(0, 0, tokens)?;
        let weight = View::of(&self.weight)?.t();
        multiply(self.processor, &View::of(&logits)?, &View::of(&x)?, &weight, Output::Overwrite)?;
        Ok(x)
    }

    /// Computes the losses of the chunk from `start` on, and turns its logits into their gradients, where wanted.
    fn turn(&self, start: usize, into: Option<&Tensor>) -> Result<Tensor> {
        let tokens = self.chunk.min(self.losses.elem_count() - start);
        let part = |tensor: &Tensor| tensor.narrow(0, start, tokens);
        let (targets, losses) = (part(&self.targets)?, part(&self.losses)?);
        let apart = into.filter(|into| into.dtype() != DType::F32);
        let writes: Vec<&Tensor> = [&self.logits, &losses].into_iter().chain(apart).collect();
        let kernel = of_type("cross_entropy", into.map_or(DType::F32, Tensor::dtype))?;
        let extent = Extent { grid: [tokens, 1, 1], threads: THREADS, shared: SCRATCH };
        addresses(&[&targets], &writes, &mut |at| {
            let place = at.writes.get(2).copied().unwrap_or(at.writes[0]);
            let arguments = Arguments {
                logits: at.writes[0],
                gradients: into.map_or(0, |_| place),
                targets: at.reads[0],
                losses: at.writes[1],
                stride: self.logits.stride()[0] as i64,
                classes: self.logits.dims()[1] as i32,
                _gap: 0,
            };
            // SAFETY: sizes were checked; addresses hold until the launch is in the stream; gradients are apart, or in the place
            // of logits of their type.
            unsafe { launch(self.processor, &kernel, extent, &arguments) }
        })?;
        into.unwrap_or(&self.logits).narrow(0, 0, tokens)
    }
}
