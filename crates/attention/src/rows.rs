//! The rows that a rank hands over: picked from a whole tensor by position, and checked before anything is computed.

use annulus_sequence::{Part, Positions};
use candle_core::{D, DType, Device, Result, Tensor, bail};

use crate::cache::Growing;
use crate::{Attention, Qkv};

/// The rows at `positions` of a tensor of the whole sequence, which has its tokens along `dim`: what a rank holds of it, in any layout.
///
/// ```
/// # use annulus_attention::rows_at;
/// # use annulus_sequence::Layout;
/// # use candle_core::{Device, Tensor};
/// let stripes = Layout::Striped { width: 1 }.shard(8, 4)?;
/// let tokens = Tensor::arange(0u32, 8, &Device::Cpu)?;
/// assert_eq!(rows_at(&tokens, 0, &stripes[1])?.to_vec1::<u32>()?, [1, 5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// When the tensor has fewer rows than the positions reach.
pub fn rows_at(tensor: &Tensor, dim: usize, positions: &Positions) -> Result<Tensor> {
    let (rows, end) = (tensor.dim(dim)?, positions.extent().end);
    if end > rows {
        bail!(
            "rows_at: found {rows} rows, expected {end}: positions are those of the whole sequence"
        );
    }
    tensor.contiguous()?.index_select(&indices(positions.iter(), tensor.device())?, dim)
}

/// Indices of rows as a tensor.
pub(crate) fn indices(rows: impl Iterator<Item = usize>, device: &Device) -> Result<Tensor> {
    let rows: Vec<u32> = rows.map(|row| row as u32).collect();
    let len = rows.len();
    Tensor::from_vec(rows, len, device)
}

impl Attention {
    /// Checks that queries, keys and values have the heads of the schedules and `rows` rows: what is too much would be left out. Checks
    /// also what a kernel would, since not every strategy has it compute the whole pass.
    pub(crate) fn check(&self, qkv: &Qkv, rows: usize) -> Result<()> {
        let Qkv { q, k, v } = qkv;
        check(q, "q", &self.shape(Part::Query, q, rows)?)?;
        let wanted = self.shape(Part::KeyValue, q, rows)?;
        check(k, "k", &wanted)?;
        check(v, "v", &wanted)?;
        let (batch, width) = (q.dim(0)?, q.dim(D::Minus1)?);
        if batch == 0 || width == 0 {
            bail!("attention: found q {:?}, expected a batch and a width of at least 1", q.dims());
        }
        for (name, tensor) in [("q", q), ("k", k), ("v", v)] {
            check_float(name, tensor.dtype())?;
        }
        self.check_setting(batch)?;
        self.check_kernel(q, rows)
    }

    /// Checks what does not depend on elements: the factor of scores, the comm dtypes, and the mask of a batch.
    fn check_setting(&self, batch: usize) -> Result<()> {
        let (scale, of_rows) = (self.scale, self.mask.rows());
        if !(scale.is_finite() && scale > 0.0) {
            bail!("attention: the scale of scores is {scale}, expected a finite number above 0");
        }
        if of_rows != 1 && of_rows != batch {
            bail!("attention: found a mask for {of_rows} batch rows, expected 1 or {batch}");
        }
        let dtypes = self.wire.all().into_iter().flatten();
        dtypes.into_iter().try_for_each(|dtype| check_float("comm dtypes", dtype))
    }

    /// Checks that the kernel takes such queries, where scores are kept: it does not compute with them then.
    fn check_kernel(&self, q: &Tensor, rows: usize) -> Result<()> {
        if rows == 0 || !self.keeps_scores() {
            return Ok(());
        }
        if !self.kernel.is_plain_softmax() {
            bail!(
                "attention: a strategy that keeps scores until values arrive computes them itself, as `softmax(scale q kᵀ) v`: found the \
                 kernel {:?}, whose `is_plain_softmax` says that it computes otherwise; choose another strategy, such as `ring`",
                self.kernel
            );
        }
        let one = q.detach().narrow(0, 0, 1)?.narrow(1, 0, 1)?.narrow(2, 0, 1)?;
        self.kernel.begin(&one, self.scale).map(drop)
    }

    /// Checks that a backward pass can follow.
    pub(crate) fn check_backward(&self) -> Result<()> {
        match self.growing {
            Some(Growing::Token(..)) => {
                bail!("attention: a token that is added to a cache has no backward pass")
            }
            _ => Ok(()),
        }
    }

    /// Checks that a tensor with the shape of the output of `q` has it.
    pub(crate) fn check_output(&self, tensor: &Tensor, name: &str, q: &Tensor) -> Result<()> {
        check(tensor, name, &self.shape(Part::Output, q, self.positions().tokens())?)
    }

    /// The shape of a part, with batch and width of `q`: [B, H, S, D].
    fn shape(&self, part: Part, q: &Tensor, rows: usize) -> Result<[usize; 4]> {
        Ok([q.dim(0)?, self.heads().of(part).len(), rows, q.dim(D::Minus1)?])
    }
}

/// Checks that a dtype is one of floats that attention is computed in or sent as.
fn check_float(name: &str, dtype: DType) -> Result<()> {
    match dtype {
        DType::F16 | DType::BF16 | DType::F32 | DType::F64 => Ok(()),
        _ => bail!("attention: found {name} of {dtype:?}, expected floats: F32, BF16, F16 or F64"),
    }
}

fn check(tensor: &Tensor, name: &str, wanted: &[usize; 4]) -> Result<()> {
    if tensor.dims() == wanted {
        return Ok(());
    }
    let found = tensor.dims();
    bail!(
        "attention: found {name} {found:?}, expected {wanted:?}: [batch, heads, rows of the positions on \
         this rank, width]; `rows_at` takes those rows from a whole tensor"
    )
}
