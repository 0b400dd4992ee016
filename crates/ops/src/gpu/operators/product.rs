//! Matrix products: by cuBLAS on a GPU, by the CPU's micro-tiles on the emulator.
//!
//! Candle's product would suffice but for two things: its result for 16-bit matrices has 16 bits, where gradients of weights must be f32;
//! and it cannot add to an existing result. cuBLAS is asked for both here, through Candle's handle.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, InplaceOp3, Layout, Result, bail};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::super::Processor;
use super::order_free;
use super::view::View;
use crate::Pool;
use crate::matrix::{self, Matrix};

/// What becomes of the result's earlier values: the beta of BLAS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output {
    /// They are overwritten: `c = a b`, beta 0.
    Overwrite,
    /// They are added to: `c += a b`, beta 1.
    Accumulate,
}

/// Multiplies `a` [M, K] by `b` [K, N] into `c` [M, N], summed in f32 and rounded once, except where it is added to a `c` of 16 bits:
/// cuBLAS rounds the product, then the sum. Rows or columns of each matrix are contiguous; `a` and `b` have one dtype, `c` that or f32.
/// Order-free sums use a kernel of our own: a library chooses its order of summation by the number of rows.
pub(super) fn multiply(
    processor: &dyn Processor,
    c: &View<'_>,
    a: &View<'_>,
    b: &View<'_>,
    output: Output,
) -> Result<()> {
    if processor.block().is_some() {
        return product(c, a, b, output, Some(processor));
    }
    processor.touches(&[&a.tensors[..], &b.tensors].concat(), &c.tensors)?;
    product(c, a, b, output, None)
}

/// `a` [M, K] times `b` [K, N] into `c` [M, N], by a kernel of our own or a library.
fn product(
    c: &View<'_>,
    a: &View<'_>,
    b: &View<'_>,
    output: Output,
    processor: Option<&dyn Processor>,
) -> Result<()> {
    let ([rows, inner], [other, columns]) = (a.dims, b.dims);
    if c.dims != [rows, columns] || inner != other {
        bail!("product: found {:?} for {:?} times {:?}", c.dims, a.dims, b.dims);
    }
    let types = [a.first().dtype(), b.first().dtype(), c.first().dtype()];
    if types[0] != types[1] || !matches!(types[2], t if t == types[0] || t == DType::F32) {
        bail!("product: found {types:?}, expected two of one type, and the result of that or F32");
    }
    match (rows * columns, inner, output) {
        (0, ..) | (_, 0, Output::Accumulate) => Ok(()),
        (_, 0, Output::Overwrite) => c.tensors.iter().try_for_each(|c| c.zero_set()),
        _ => match processor {
            Some(processor) => order_free::multiply(processor, c.first(), a, b, output),
            None => c.first().inplace_op3(a.first(), b.first(), &Multiply { a, b, output }),
        },
    }
}

/// A product of views, given by their first tensors.
struct Multiply<'a> {
    a: &'a View<'a>,
    b: &'a View<'a>,
    output: Output,
}

impl InplaceOp3 for Multiply<'_> {
    fn name(&self) -> &'static str {
        "product"
    }
    fn cpu_fwd(
        &self,
        c: &mut CpuStorage,
        c_layout: &Layout,
        a: &CpuStorage,
        a_layout: &Layout,
        b: &CpuStorage,
        b_layout: &Layout,
    ) -> Result<()> {
        let call = Call::new(c_layout, self.a, self.b)?;
        let first = wide(b, b_layout.start_offset(), self.b.reach())?;
        let second = wide(a, a_layout.start_offset(), self.a.reach())?;
        let start = c_layout.start_offset();
        let mut sums = wide(c, start, (call.n - 1) * call.step + call.m)?;
        call.run(&first, &second, &mut sums, c.dtype(), self.output);
        call.put(&sums, c, start)
    }
    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        c: &mut candle_core::CudaStorage,
        c_layout: &Layout,
        a: &candle_core::CudaStorage,
        a_layout: &Layout,
        b: &candle_core::CudaStorage,
        b_layout: &Layout,
    ) -> Result<()> {
        let call = Call::new(c_layout, self.a, self.b)?;
        super::cublas::multiply(&call, (b, b_layout), (a, a_layout), (c, c_layout), self.output)
    }
}

/// The product as BLAS sees it, for which all matrices are column-major: c transposed is b transposed times a transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    /// The number of columns of c.
    pub(super) m: usize,
    /// The number of rows of c.
    pub(super) n: usize,
    /// The depth, which is summed over.
    pub(super) k: usize,
    /// The operands: b, then a.
    pub(super) operands: [Operand; 2],
    /// Elements from one row of c to the next.
    pub(super) step: usize,
}

/// A matrix in memory, as BLAS sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operand {
    /// Whether its columns are contiguous instead of its rows.
    pub(super) transposed: bool,
    /// Elements from one contiguous row or column to the next.
    pub(super) step: usize,
}

impl Call {
    fn new(c: &Layout, a: &View<'_>, b: &View<'_>) -> Result<Call> {
        let ([n, k], [_, m]) = (a.dims, b.dims);
        let operands = [Operand::new(b.dims, b.strides)?, Operand::new(a.dims, a.strides)?];
        let &[row, column] = c.stride() else { bail!("product: found no matrix") };
        let Operand { transposed: false, step } = Operand::new([n, m], [row, column])? else {
            bail!("product: found a result with gaps in its rows, of strides {:?}", c.stride());
        };
        Ok(Call { m, n, k, operands, step })
    }

    /// The error of this product, which failed, of inputs and a result of these types: cuBLAS names neither sizes nor types.
    #[cfg(any(test, feature = "cuda"))]
    pub(super) fn failed(
        &self,
        [inputs, result]: [DType; 2],
        why: impl std::fmt::Display,
    ) -> candle_core::Error {
        let Call { m, n, k, .. } = self;
        candle_core::Error::Msg(format!(
            "product of {inputs:?} into {result:?}, m = {m}, n = {n}, k = {k}: {why}"
        ))
    }

    /// Multiplies by the CPU's micro-tiles, rounded as cuBLAS does where `c` is of `dtype`.
    fn run(&self, first: &[f32], second: &[f32], c: &mut [f32], dtype: DType, output: Output) {
        let [[b_row, b_column], [a_row, a_column]] = self.operands.map(Operand::strides);
        let a = Matrix::strided(second, [self.n, self.k], [a_row, a_column]);
        let b = Matrix::strided(first, [self.k, self.m], [b_row, b_column]);
        let mut product = vec![0.0; self.n * self.m];
        matrix::multiply(&Pool::serial(), vec![matrix::Product::new(a, b, &mut product)]);
        for (c, product) in c.chunks_mut(self.step).zip(product.chunks(self.m)) {
            let sums = c.iter_mut().zip(product);
            match output {
                Output::Accumulate => sums.for_each(|(c, product)| *c += rounded(*product, dtype)),
                Output::Overwrite => sums.for_each(|(c, product)| *c = *product),
            }
        }
    }

    /// Rounds the rows of a result into `c` from `start` on.
    fn put(&self, sums: &[f32], c: &mut CpuStorage, start: usize) -> Result<()> {
        for row in 0..self.n {
            let from = &sums[row * self.step..][..self.m];
            let to = start + row * self.step..start + row * self.step + self.m;
            match c {
                CpuStorage::F32(c) => c[to].copy_from_slice(from),
                CpuStorage::BF16(c) => c[to].convert_from_f32_slice(from),
                CpuStorage::F16(c) => c[to].convert_from_f32_slice(from),
                other => bail!("product: found {:?}, expected F32, BF16 or F16", other.dtype()),
            }
        }
        Ok(())
    }
}

impl Operand {
    fn new([rows, columns]: [usize; 2], [row, column]: [usize; 2]) -> Result<Operand> {
        // A dimension of one element has any stride.
        if (column == 1 || columns <= 1) && (row >= columns || rows <= 1) {
            return Ok(Operand { transposed: false, step: row.max(columns).max(1) });
        }
        if (row == 1 || rows <= 1) && (column >= rows || columns <= 1) {
            return Ok(Operand { transposed: true, step: column.max(rows).max(1) });
        }
        bail!("product: found a matrix of strides {row} and {column}, expected one of them 1")
    }

    /// The distance of columns, and of rows, of the transposed matrix that BLAS multiplies.
    fn strides(self) -> [usize; 2] {
        if self.transposed { [1, self.step] } else { [self.step, 1] }
    }
}

/// The nearest number of a dtype.
fn rounded(number: f32, dtype: DType) -> f32 {
    match dtype {
        DType::BF16 => bf16::from_f32(number).to_f32(),
        DType::F16 => f16::from_f32(number).to_f32(),
        _ => number,
    }
}

/// `many` elements from `start` on, as f32.
fn wide(storage: &CpuStorage, start: usize, many: usize) -> Result<Vec<f32>> {
    let range = start..start + many;
    match storage {
        CpuStorage::F32(values) => Ok(values[range].to_vec()),
        CpuStorage::BF16(values) => Ok(<[bf16]>::to_f32_vec(&values[range])),
        CpuStorage::F16(values) => Ok(<[f16]>::to_f32_vec(&values[range])),
        other => bail!("product: found {:?}, expected F32, BF16 or F16", other.dtype()),
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor};

    use super::*;
    use crate::testing::{error, random};

    fn product(c: &Tensor, a: &Tensor, b: &Tensor, output: Output) -> Result<()> {
        super::product(&View::of(c)?, &View::of(a)?, &View::of(b)?, output, None)
    }

    /// A view of `rows` by `columns`, contiguous by rows or by columns, inside of something larger.
    fn view(name: &str, rows: usize, columns: usize, by_columns: bool) -> Result<Tensor> {
        let [outer, inner] = if by_columns { [columns, rows] } else { [rows, columns] };
        let view =
            random(name, &[outer + 2, inner + 3])?.narrow(0, 1, outer)?.narrow(1, 2, inner)?;
        if by_columns { view.t() } else { Ok(view) }
    }

    #[test]
    fn any_order_of_any_matrix_is_multiplied() -> Result<()> {
        for (m, n, k) in [(5, 7, 3), (1, 4, 6), (4, 1, 6), (4, 6, 1), (1, 1, 1), (33, 65, 17)] {
            for order in 0..4 {
                let (a, b) = (view("a", m, k, order & 1 > 0)?, view("b", k, n, order & 2 > 0)?);
                let wanted = a.contiguous()?.matmul(&b.contiguous()?)?;
                let c = view("c", m, n, false)?;
                let before = c.copy()?;
                product(&c, &a, &b, Output::Overwrite)?;
                assert!(error(&c, &wanted)? < 1e-6, "{m} {n} {k} {order}");
                product(&c, &a, &b, Output::Accumulate)?;
                assert!(error(&c, &(wanted * 2.0)?)? < 1e-6, "{m} {n} {k} {order}, twice");
                assert!(error(&c, &before)? > 0.0);
            }
        }
        Ok(())
    }

    #[test]
    fn what_lies_between_the_rows_of_a_result_stays() -> Result<()> {
        let whole = Tensor::ones((4, 6), DType::F32, &Device::Cpu)?;
        let (a, b) = (random("a", &[4, 3])?, random("b", &[3, 5])?);
        product(&whole.narrow(1, 0, 5)?, &a, &b, Output::Overwrite)?;
        assert_eq!(whole.narrow(1, 5, 1)?.flatten_all()?.to_vec1::<f32>()?, [1.0; 4]);
        assert!(error(&whole.narrow(1, 0, 5)?, &a.matmul(&b)?)? < 1e-6);
        Ok(())
    }

    #[test]
    fn sixteen_bits_are_summed_in_f32_and_rounded_once() -> Result<()> {
        for dtype in [DType::BF16, DType::F16] {
            let narrow = |name, shape: &[usize]| random(name, shape)?.to_dtype(dtype);
            let (a, b) = (narrow("a", &[9, 300])?, narrow("b", &[300, 8])?);
            let wanted = a.to_dtype(DType::F32)?.matmul(&b.to_dtype(DType::F32)?)?;
            for to in [DType::F32, dtype] {
                let c = Tensor::zeros((9, 8), to, &Device::Cpu)?;
                product(&c, &a, &b, Output::Overwrite)?;
                let off = error(&c, &wanted)?;
                let most = if to == dtype { 1.0 / 256.0 } else { 1e-6 };
                assert!(off <= most, "{to:?}: {off:e}");
            }
        }
        Ok(())
    }

    #[test]
    fn a_failed_product_is_named_with_its_sizes_and_types() -> Result<()> {
        let layout = Layout::contiguous((2, 3));
        let (a, b) = (random("a", &[2, 5])?, random("b", &[5, 3])?);
        let call = Call::new(&layout, &View::of(&a)?, &View::of(&b)?)?;
        let said = call.failed([DType::BF16, DType::F32], "no memory").to_string();
        assert_eq!(said, "product of BF16 into F32, m = 3, n = 2, k = 5: no memory");
        Ok(())
    }

    #[test]
    fn nothing_to_sum_is_zero_and_what_does_not_fit_is_refused() -> Result<()> {
        let c = random("c", &[2, 3])?.copy()?;
        let empty = |shape: (usize, usize)| Tensor::zeros(shape, DType::F32, &Device::Cpu);
        product(&c, &empty((2, 0))?, &empty((0, 3))?, Output::Accumulate)?;
        assert!(error(&c, &random("c", &[2, 3])?)? == 0.0);
        product(&c, &empty((2, 0))?, &empty((0, 3))?, Output::Overwrite)?;
        assert_eq!(c.flatten_all()?.to_vec1::<f32>()?, [0.0; 6]);
        let message = product(&c, &c, &c, Output::Overwrite).unwrap_err().to_string();
        assert!(message.contains("found [2, 3] for [2, 3] times [2, 3]"), "{message}");
        let wide = random("a", &[2, 2])?.to_dtype(DType::F64)?;
        assert!(product(&c, &wide, &random("b", &[2, 3])?, Output::Overwrite).is_err());
        Ok(())
    }
}
