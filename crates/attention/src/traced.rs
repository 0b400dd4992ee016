//! Records a pass for traces: what the rank just did, by hop, block and tile.

use annulus_comm::{Form, bytes_of};
use annulus_sequence::{
    Block, BlockShape, Hop, Move, Part, Pass, Wire, order_free_row, pairs_between,
};
use annulus_trace::{self as trace, Activity, Begun, Moved};
use candle_core::{DType, Device, Result, Tensor};

use crate::{Attention, CallSite};

/// The place of a pass, and the sizes of its blocks.
#[derive(Clone, Copy)]
pub(crate) struct Scene<'a> {
    pub(crate) attention: &'a Attention,
    pub(crate) pass: Pass,
    pub(crate) site: CallSite,
    pub(crate) shape: BlockShape,
    /// The comm dtypes of parts.
    wire: Wire<DType>,
}

impl<'a> Scene<'a> {
    /// A scene whose queries have these dimensions: [B, Hq, S, D].
    pub(crate) fn new(
        attention: &'a Attention,
        pass: Pass,
        site: CallSite,
        q: &Tensor,
    ) -> Result<Scene<'a>> {
        let (batch, _, _, head_dim) = q.dims4()?;
        let wire = attention
            .wire
            .map(|part, dtype| dtype.unwrap_or(if part.is_sum() { DType::F32 } else { q.dtype() }));
        let order_free = attention.kernel.block().is_some();
        let bytes = wire.map(|_, dtype| dtype.size_in_bytes());
        let shape = BlockShape { batch, head_dim, wire: bytes, order_free };
        Ok(Scene { attention, pass, site, shape, wire })
    }

    /// Shapes and dtypes of a block's tensors as they travel; see [`Tensors`].
    pub(crate) fn forms(&self, block: Block) -> Vec<Form> {
        let BlockShape { batch, head_dim, order_free, .. } = self.shape;
        let (heads, rows) = (block.heads.len(), block.rows.len());
        let sums = order_free && block.part.is_sum();
        let width = if sums { order_free_row(head_dim) } else { head_dim };
        let dtype = if sums { DType::U32 } else { self.wire.of(block.part) };
        let elements = || Form { dtype, shape: (batch, heads, rows, width).into() };
        let by_row = || Form { dtype: DType::F32, shape: (batch, heads, rows).into() };
        match block.part {
            Part::Query if self.pass == Pass::Backward => {
                vec![elements(), elements(), by_row(), by_row()]
            }
            Part::Query | Part::Key | Part::Value | Part::QueryGradient => vec![elements()],
            Part::KeyValue | Part::Gradient => vec![elements(), elements()],
            Part::Output => vec![elements(), by_row()],
        }
    }

    pub(crate) fn at(&self, hop: usize) -> trace::Place {
        trace::Place { layer: self.site.layer, pass: self.pass.into(), hop }
    }

    /// The record of a block that travels as `bytes`.
    pub(crate) fn moved(&self, moved: &Move, bytes: u64) -> Moved {
        let Move { block, from, to, .. } = *moved;
        let [from, to] = [from, to].map(|rank| self.attention.comm.global_rank(rank));
        let planned_bytes = self.shape.bytes(block, self.pass);
        Moved { block: block.into(), from, to, bytes, planned_bytes }
    }

    /// The record of a hop's tiles, with the pairs that the batch's mask shows.
    pub(crate) fn computed(&self, index: usize, hop: &Hop) -> Activity {
        let (mask, positions) = (&self.attention.mask, self.attention.sharded());
        // Where rows of the batch have masks of their own, their pairs are counted together.
        let sequences = if mask.rows() == 1 { self.shape.batch } else { 1 };
        let scored = hop.tiles.iter().filter(|tile| tile.keys.part != Part::Value);
        let pairs = scored.map(|tile| {
            let [q, k] = [tile.queries, tile.keys]
                .map(|block| positions[block.owner].rows(block.rows.range()));
            pairs_between(mask, &q, &k) * (tile.queries.heads.len() * sequences) as u64
        });
        let tiles = hop.tiles.iter().map(Into::into).collect();
        Activity::Compute { place: self.at(index), tiles, pairs: pairs.sum() }
    }

    pub(crate) fn finished(&self, index: usize, hop: &Hop) -> Activity {
        let queries = hop.finishes.iter().map(|block| (*block).into()).collect();
        Activity::Finish { place: self.at(index), queries }
    }
}

/// Bytes of payload of some tensors.
pub(crate) fn size<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> u64 {
    tensors.into_iter().map(bytes_of).sum()
}

/// Waits for a GPU before a span is recorded, since it runs asynchronously.
pub(crate) fn settle(begun: Begun, device: &Device) -> Result<()> {
    if begun.is_recorded() { device.synchronize() } else { Ok(()) }
}
