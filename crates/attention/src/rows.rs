//! The rows that a rank hands over: picked from a whole tensor by position, and checked before anything is computed.

use annulus_sequence::{Part, Positions};
use candle_core::{D, Device, Result, Tensor, bail};

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
            "rows_at: found {rows} rows, wanted {end}: positions are those of the whole sequence"
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
    /// Checks that queries, keys and values have the heads of the schedules and `rows` rows: what is too much would be left out.
    pub(crate) fn check(&self, qkv: &Qkv, rows: usize) -> Result<()> {
        let Qkv { q, k, v } = qkv;
        check(q, "q", &self.shape(Part::Query, q, rows)?)?;
        let wanted = self.shape(Part::KeyValue, q, rows)?;
        check(k, "k", &wanted)?;
        check(v, "v", &wanted)
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

fn check(tensor: &Tensor, name: &str, wanted: &[usize; 4]) -> Result<()> {
    if tensor.dims() == wanted {
        return Ok(());
    }
    let found = tensor.dims();
    bail!(
        "attention: found {name} {found:?}, wanted {wanted:?}: [batch, heads, rows of the positions on \
         this rank, width]; `rows_at` takes those rows from a whole tensor"
    )
}
