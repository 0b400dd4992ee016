//! The last projection and the cross entropy, a chunk of tokens at a time: `kernels/cross_entropy/cross_entropy.h` between two
//! products.

use bytemuck::NoUninit;
use candle_core::{DType, Result, Tensor};

use super::super::{Processor, addresses};
use super::product::{Was, multiply};
use super::view::View;
use super::{Extent, SCRATCH, launch, of_type, off_tape, order_free, plain, sums, unwritten};
use crate::cross_entropy::{check_shapes, check_targets};
use crate::order_free::to_grid;

/// `CROSS_ENTROPY_THREADS`.
const THREADS: u32 = 512;

/// Rows of logits start at multiples of so many elements: 16 bytes of any type.
const ALIGNED: usize = 8;

/// `CrossEntropyArguments`.
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

/// See [`crate::linear_cross_entropy`].
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

/// See [`crate::linear_cross_entropy_loss`]: the host waits for it.
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

/// See [`crate::linear_cross_entropy_gradients`]: the loss, for which the host waits, the gradient of x, and that of the weight where
/// it is `trained`.
pub(crate) fn linear_cross_entropy_gradients(
    processor: &dyn Processor,
    x: &Tensor,
    weight: &Tensor,
    (targets, chunk): (&Tensor, usize),
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
        multiply(processor, &dx_chunk, &dlogits, &weight, Was::Nothing)?;
    }
    Ok((pass.loss()?, dx.reshape(x.shape())?, dw))
}

/// What all chunks share.
struct Pass<'a> {
    processor: &'a dyn Processor,
    chunk: usize,
    /// [tokens, D].
    x: Tensor,
    /// [V, D].
    weight: Tensor,
    /// i64 [tokens].
    targets: Tensor,
    /// f64 [tokens].
    losses: Tensor,
    /// f32 [chunk, V] of one chunk after another, its rows a little apart. In the inputs' 16 bits a logit of thirty would be off by
    /// a sixteenth.
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
        // To look at others the host would have to wait: whoever makes them holds them to the classes, and one that is of none makes
        // the loss NaN.
        if targets.device().is_cpu() {
            check_targets(&targets.flatten_all()?.to_vec1()?, rows)?;
        }
        let tokens = targets.elem_count();
        // Those of whole blocks, at least one, where sums are order-free.
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

    /// The losses of all chunks, without gradients.
    fn losses_alone(&self) -> Result<()> {
        for start in self.starts() {
            self.logits(start)?;
            self.turn(start, None)?;
        }
        Ok(())
    }

    /// The sum of all losses; of every block rounded, where sums are order-free, so that those add up exactly.
    fn loss(&self) -> Result<f64> {
        let Some(block) = self.processor.block() else {
            return sums::total(self.processor, &self.losses)?.to_scalar();
        };
        let losses: Vec<f64> = self.losses.to_vec1()?;
        Ok(losses.chunks(block).map(|of_block| to_grid(of_block.iter().sum())).sum())
    }

    /// What gradients of the weight are added to: f32 [V, D], or a table of order-free sums.
    fn no_gradient(&self) -> Result<Tensor> {
        match self.processor.block() {
            Some(_) => order_free::nothing(self.processor, self.weight.elem_count()),
            None => Tensor::zeros(self.weight.shape(), DType::F32, self.processor.device()),
        }
    }

    /// Adds that of a chunk, of gradients of logits and rows of x.
    fn add_to_weight(&self, dw: &Tensor, dlogits: &Tensor, x: &Tensor) -> Result<()> {
        let (dlogits, x) = (View::of(dlogits)?, View::of(x)?);
        match self.processor.block() {
            Some(block) => order_free::add_products(self.processor, dw, (&dlogits, &x), block),
            None => multiply(self.processor, dw, &dlogits.t(), &x, Was::Sum),
        }
    }

    /// Where chunks start.
    fn starts(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.losses.elem_count()).step_by(self.chunk)
    }

    /// Where the gradients of logits go, in the type of x: [chunk, V].
    fn gradients(&self) -> Result<Tensor> {
        if self.x.dtype() == DType::F32 {
            return Ok(self.logits.clone());
        }
        let (chunk, rows) = self.logits.dims2()?;
        let shape = (chunk, rows.next_multiple_of(ALIGNED));
        // SAFETY: the kernel writes what is read.
        unsafe { unwritten(self.processor, shape, self.x.dtype()) }?.narrow(1, 0, rows)
    }

    /// Makes the logits of the chunk from `start` on; gives its rows of x.
    fn logits(&self, start: usize) -> Result<Tensor> {
        let tokens = self.chunk.min(self.losses.elem_count() - start);
        let x = self.x.narrow(0, start, tokens)?;
        let logits = self.logits.narrow(0, 0, tokens)?;
        let weight = View::of(&self.weight)?.t();
        multiply(self.processor, &logits, &View::of(&x)?, &weight, Was::Nothing)?;
        Ok(x)
    }

    /// Makes the losses of the chunk from `start` on, and turns its logits to their gradients, where those are wanted.
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
