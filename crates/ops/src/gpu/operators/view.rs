//! Views of matrices in memory, which join neighbours into one, so that several products become one.

use candle_core::{Result, Tensor, bail};

/// A matrix in the memory of tensors that follow one another.
#[derive(Clone, Debug)]
pub(super) struct View<'a> {
    /// The tensors; the first one has the first element.
    pub(super) tensors: Vec<&'a Tensor>,
    /// The numbers of rows and columns.
    pub(super) dims: [usize; 2],
    /// The distance of rows, and of columns, in elements.
    pub(super) strides: [usize; 2],
}

impl<'a> View<'a> {
    /// The view of a tensor of two dimensions, with any strides.
    pub(super) fn of(x: &'a Tensor) -> Result<View<'a>> {
        let (rows, columns) = x.dims2()?;
        let strides = [x.stride()[0], x.stride()[1]];
        Ok(View { tensors: vec![x], dims: [rows, columns], strides })
    }

    /// The rows of `x` [.., columns], each contiguous, with or without gaps between them; `None` where gaps differ, or rows overlap.
    pub(super) fn rows(x: &'a Tensor) -> Option<View<'a>> {
        let (&columns, outer) = x.dims().split_last()?;
        let (&column, strides) = x.stride().split_last()?;
        let mut outer = outer.iter().zip(strides).rev().filter(|(size, _)| **size != 1);
        let (rows, row) = outer.next().map_or((1, columns), |(size, stride)| (*size, *stride));
        let (rows, _) = outer.try_fold((rows, rows * row), |(rows, next), (size, stride)| {
            (*stride == next).then_some((rows * size, next * size))
        })?;
        let is_fit = (column == 1 || columns <= 1) && (row >= columns || rows <= 1);
        let view = View { tensors: vec![x], dims: [rows, columns], strides: [row, 1] };
        is_fit.then_some(view)
    }

    /// The transposed view.
    pub(super) fn t(self) -> View<'a> {
        let ([rows, columns], [row, column]) = (self.dims, self.strides);
        View { dims: [columns, rows], strides: [column, row], ..self }
    }

    /// All views as one, where along dimension `dim` each begins where the one before it ends.
    pub(super) fn joined(all: &[View<'a>], dim: usize) -> Option<View<'a>> {
        let (first, rest) = all.split_first()?;
        let mut whole = first.clone();
        let (begin, storage) = place(first.first());
        for next in rest {
            let end = begin + whole.dims[dim] * whole.strides[dim];
            // With a single row, the row distance does not matter.
            let one_row = dim == 1 && whole.dims[0] == 1;
            let follows = place(next.first()) == (end, storage)
                && next.dims[1 - dim] == whole.dims[1 - dim]
                && (one_row || next.strides == whole.strides);
            if !follows {
                return None;
            }
            whole.dims[dim] += next.dims[dim];
            if one_row {
                whole.strides[0] = whole.dims[1];
            }
            whole.tensors.extend(&next.tensors);
        }
        let is_apart = whole.dims[0] <= 1 || whole.strides[0] >= whole.dims[1];
        is_apart.then_some(whole)
    }

    /// The tensor with the first element.
    pub(super) fn first(&self) -> &'a Tensor {
        self.tensors[0]
    }

    /// Elements between the end of a row and the next row.
    pub(super) fn gap(&self) -> usize {
        if self.dims[0] <= 1 { 0 } else { self.strides[0] - self.dims[1] }
    }

    /// Elements from the first to past the last, of which there must be some.
    pub(super) fn reach(&self) -> usize {
        let all = self.dims.iter().zip(self.strides);
        all.map(|(size, stride)| (size - 1) * stride).sum::<usize>() + 1
    }
}

/// The view of `x` as rows; an error where it is not.
pub(super) fn rows(x: &Tensor) -> Result<View<'_>> {
    match View::rows(x) {
        Some(view) => Ok(view),
        None => bail!("found {:?} of strides {:?}, expected rows", x.shape(), x.stride()),
    }
}

/// The storage of a tensor, and where it begins in it.
fn place(x: &Tensor) -> (usize, usize) {
    let (storage, layout) = x.storage_and_layout();
    (layout.start_offset(), std::ptr::from_ref(&*storage) as usize)
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    fn zeros(shape: &[usize]) -> Result<Tensor> {
        Tensor::zeros(shape, DType::F32, &Device::Cpu)
    }

    #[test]
    fn rows_may_have_gaps_of_one_width_between_them() -> Result<()> {
        let x = zeros(&[2, 3, 4])?;
        let found = |x: &Tensor| View::rows(x).map(|one| (one.dims, one.strides, one.gap()));
        assert_eq!(found(&x), Some(([6, 4], [4, 1], 0)));
        assert_eq!(found(&x.narrow(2, 1, 3)?), Some(([6, 3], [4, 1], 1)));
        assert_eq!(found(&x.narrow(0, 0, 1)?.narrow(1, 1, 1)?), Some(([1, 4], [4, 1], 0)));
        assert_eq!(found(&x.narrow(1, 1, 1)?), Some(([2, 4], [12, 1], 8)));
        assert_eq!(found(&x.narrow(1, 1, 1)?.narrow(2, 2, 1)?), Some(([2, 1], [12, 1], 11)));
        assert_eq!(found(&zeros(&[7])?), Some(([1, 7], [7, 1], 0)));
        assert_eq!(found(&zeros(&[0, 4])?), Some(([0, 4], [4, 1], 0)));
        // Two different gaps, columns, and overlapping rows.
        assert_eq!(found(&x.narrow(1, 1, 2)?), None);
        assert_eq!(found(&x.transpose(1, 2)?), None);
        assert_eq!(found(&zeros(&[1, 4])?.broadcast_as((3, 4))?), None);
        Ok(())
    }

    #[test]
    fn neighbours_are_one_along_the_dimension_where_they_touch() -> Result<()> {
        let x = zeros(&[6, 8])?;
        let lines = |begin, many| x.narrow(0, begin, many);
        let columns = |begin, many| x.narrow(1, begin, many);
        let joined = |all: &[Tensor], dim| {
            let views = all.iter().map(rows).collect::<Result<Vec<_>>>().expect("rows");
            View::joined(&views, dim).map(|one| (one.dims, one.strides, one.tensors.len()))
        };
        let all = [lines(0, 1)?, lines(1, 3)?, lines(4, 2)?];
        assert_eq!(joined(&all, 0), Some(([6, 8], [8, 1], 3)));
        let all = [columns(0, 1)?, columns(1, 5)?, columns(6, 2)?];
        assert_eq!(joined(&all, 1), Some(([6, 8], [8, 1], 3)));
        assert_eq!(joined(&[columns(2, 1)?, columns(3, 4)?], 1), Some(([6, 5], [8, 1], 2)));
        let row = zeros(&[9])?;
        let parts = [row.narrow(0, 0, 2)?, row.narrow(0, 2, 6)?, row.narrow(0, 8, 1)?];
        assert_eq!(joined(&parts, 1), Some(([1, 9], [9, 1], 3)));
        // Not in order, not touching, of another storage, and rows beside each other.
        assert_eq!(joined(&[lines(1, 3)?, lines(0, 1)?], 0), None);
        assert_eq!(joined(&[lines(0, 1)?, lines(2, 3)?], 0), None);
        assert_eq!(joined(&[lines(0, 1)?, zeros(&[6, 8])?.narrow(0, 1, 3)?], 0), None);
        assert_eq!(joined(&[lines(0, 2)?, lines(1, 2)?], 1), None);
        assert_eq!(joined(&[columns(0, 1)?, columns(1, 5)?], 0), None);
        Ok(())
    }
}
