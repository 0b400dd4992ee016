//! A cache of keys and values, so that a sequence can grow by one token at a time.
//!
//! A prompt is attended to by its schedule, and every rank keeps the rows of its own positions. A new token is computed by all ranks alike;
//! one of them keeps its row, each attends to its own rows, and the results are merged into one softmax in the order of ranks: the same
//! bits on all.

use std::collections::BTreeMap;
use std::sync::Arc;

use annulus_comm::Label;
use annulus_ops::attention::{Attended, Tile};
use annulus_sequence::{Positions, View};
use candle_core::{DType, Result, Tensor, bail};
use parking_lot::Mutex;

use crate::tile_views::one_softmax;
use crate::{Attention, CallSite, Qkv};

/// Cached keys and values of one rank, by layer.
#[derive(Debug, Default)]
pub struct Cache(Mutex<BTreeMap<usize, Rows>>);

/// A rank's rows of one layer. Rows of new tokens are in tensors of their own, so that the long prompt is not copied for each token.
#[derive(Clone, Debug, Default)]
struct Rows {
    prompt: Option<Block>,
    added: Option<Block>,
    /// The position after all that ranks hold together, the same on all.
    next: usize,
}

/// Keys and values [B, Hkv, S, D] of ascending positions.
#[derive(Clone, Debug)]
struct Block {
    positions: Positions,
    kv: [Tensor; 2],
}

/// How an attention uses its cache.
#[derive(Clone, Debug)]
pub(crate) enum Growing {
    /// The rows of a prompt are put into the cache.
    Prompt(Arc<Cache>),
    /// The token at this position is added, and attends to the cache.
    Token(Arc<Cache>, usize),
}

impl Cache {
    fn put(&self, layer: usize, positions: &Positions, next: usize, kv: [Tensor; 2]) {
        let prompt = (positions.tokens() > 0).then(|| Block { positions: positions.clone(), kv });
        self.with(|layers| layers.insert(layer, Rows { prompt, added: None, next }));
    }

    /// The rows of a layer, after adding those of the token at `position` if this rank `keeps` it. Every rank calls this for every token,
    /// which shows whether all ranks are at the same position.
    fn grown(&self, layer: usize, position: usize, keeps: bool, kv: &[Tensor; 2]) -> Result<Rows> {
        self.with(|layers| {
            let Some(rows) = layers.get_mut(&layer) else {
                bail!("attention: layer {layer} grows, but has read no prompt");
            };
            if position != rows.next {
                bail!(
                    "attention: layer {layer} grows at position {position}, expected {}: the one after all \
                     that its cache holds, on every rank",
                    rows.next
                );
            }
            if keeps {
                rows.added = Some(Block::grown(rows.added.as_ref(), position, kv)?);
            }
            rows.next += 1;
            Ok(rows.clone())
        })
    }

    fn with<T>(&self, act: impl FnOnce(&mut BTreeMap<usize, Rows>) -> T) -> T {
        act(&mut self.0.lock())
    }
}

impl Block {
    /// `block` with the token at `position` behind it.
    fn grown(block: Option<&Block>, position: usize, [k, v]: &[Tensor; 2]) -> Result<Block> {
        let old = block.map(|block| block.positions.iter()).into_iter().flatten();
        let all: Vec<usize> = old.chain([position]).collect();
        let Some(positions) = Positions::from_list(&all) else {
            bail!("attention: position {position} was added before");
        };
        let kv = match block {
            Some(Block { kv: [old_k, old_v], .. }) => {
                [Tensor::cat(&[old_k, k], 2)?, Tensor::cat(&[old_v, v], 2)?]
            }
            None => [k.clone(), v.clone()],
        };
        Ok(Block { positions, kv })
    }
}

impl Attention {
    /// Caches the rows of a prompt.
    pub(crate) fn remember(&self, site: CallSite, qkv: &Qkv) -> Result<()> {
        if let Some(Growing::Prompt(cache)) = &self.growing {
            cache.put(site.layer, self.positions(), self.end(), self.lent(qkv)?);
        }
        Ok(())
    }

    /// The attention of the token at `position` over all ranks' rows.
    pub(crate) fn add(
        &self,
        site: CallSite,
        cache: &Cache,
        position: usize,
        qkv: &Qkv,
    ) -> Result<Attended> {
        let kv = self.lent(qkv)?;
        let q = self.rounded(annulus_sequence::Part::Query, &qkv.q)?.to_dtype(qkv.q.dtype())?;
        let keeps = position % self.comm.world_size() == self.comm.rank();
        let rows = cache.grown(site.layer, position, keeps, &kv)?;
        let found = self.look(&q, position, &rows)?;
        let CallSite { step, layer } = site;
        let label = |hop| Label { step, layer, pass: "adding", hop };
        let outs = self.comm.all_gather(label(0), &found.out)?;
        let sums = self.comm.all_gather(label(1), &found.lse)?;
        let mut parts = outs.into_iter().zip(sums).map(|(out, lse)| Attended { out, lse });
        let Some(first) = parts.next() else { bail!("attention: nobody has a row") };
        parts.try_fold(first, |all, part| one_softmax(&all, &part))
    }

    /// The attention of the token at `position` over this rank's rows.
    fn look(&self, q: &Tensor, position: usize, rows: &Rows) -> Result<Attended> {
        if rows.prompt.is_none() && rows.added.is_none() {
            let (batch, heads, one, _) = q.dims4()?;
            let lse = Tensor::full(f32::NEG_INFINITY, (batch, heads, one), q.device())?;
            return Ok(Attended { out: q.zeros_like()?, lse: lse.to_dtype(DType::F32)? });
        }
        let Some(query) = Positions::from_list(&[position]) else {
            bail!("attention: no position {position}");
        };
        let mut state = self.kernel.begin(q, self.scale)?;
        for block in [&rows.prompt, &rows.added].into_iter().flatten() {
            for view in &View::all(&self.mask, &query, &block.positions) {
                let part = |tensor: &Tensor| crate::tile_views::rows(tensor, view.keys.rows);
                let (k, v) = (part(&block.kv[0])?, part(&block.kv[1])?);
                let tile = Tile::new(&k, &v, &view.visibility);
                self.kernel.forward(&[tile], &mut *state, &|| Ok(()))?;
            }
        }
        self.kernel.finish(state)
    }
}
