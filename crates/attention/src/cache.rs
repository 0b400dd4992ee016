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

use crate::seen::one_softmax;
use crate::{Attention, Place, Qkv};

/// Cached keys and values of one rank, by layer.
#[derive(Debug, Default)]
pub struct Cache(Mutex<BTreeMap<usize, Rows>>);

/// Keys and values [B, Hkv, S, D] of ascending positions.
#[derive(Clone, Debug)]
struct Rows {
    positions: Vec<usize>,
    kept: Option<[Tensor; 2]>,
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
    fn put(&self, layer: usize, positions: &Positions, rows: [Tensor; 2]) {
        let kept = (positions.tokens() > 0).then_some(rows);
        self.with(|layers| {
            layers.insert(layer, Rows { positions: positions.iter().collect(), kept })
        });
    }

    /// The rows of a layer, after adding a token's where `own` says that this rank keeps it.
    fn grown(&self, layer: usize, own: Option<usize>, qkv: &Qkv) -> Result<Rows> {
        self.with(|layers| {
            let Some(rows) = layers.get_mut(&layer) else {
                bail!("attention: layer {layer} grows, but has read no prompt");
            };
            if let Some(position) = own {
                let with = |old: &Tensor, new: &Tensor| Tensor::cat(&[old, new], 2);
                rows.kept = Some(match &rows.kept {
                    Some([k, v]) => [with(k, &qkv.k)?, with(v, &qkv.v)?],
                    None => [qkv.k.clone(), qkv.v.clone()],
                });
                rows.positions.push(position);
            }
            Ok(rows.clone())
        })
    }

    fn with<T>(&self, act: impl FnOnce(&mut BTreeMap<usize, Rows>) -> T) -> T {
        act(&mut self.0.lock())
    }
}

impl Attention {
    /// Caches the rows of a prompt.
    pub(crate) fn remember(&self, place: Place, qkv: &Qkv) -> Result<()> {
        if let Some(Growing::Prompt(cache)) = &self.growing {
            cache.put(place.layer, self.positions(), self.lent(qkv)?);
        }
        Ok(())
    }

    /// The attention of the token at `position` over all ranks' rows.
    pub(crate) fn add(
        &self,
        place: Place,
        cache: &Cache,
        position: usize,
        qkv: &Qkv,
    ) -> Result<Attended> {
        let [k, v] = self.lent(qkv)?;
        let q = self.rounded(annulus_sequence::Part::Query, &qkv.q)?.to_dtype(qkv.q.dtype())?;
        let own = (position % self.comm.world() == self.comm.rank()).then_some(position);
        let rows = cache.grown(place.layer, own, &Qkv { q: q.clone(), k, v })?;
        let found = self.look(&q, position, &rows)?;
        let Place { step, layer } = place;
        let label = |hop| Label { step, layer, pass: "adding", hop };
        let outs = self.comm.all_gather(label(0), &found.out)?;
        let sums = self.comm.all_gather(label(1), &found.lse)?;
        let mut parts = outs.into_iter().zip(sums).map(|(out, lse)| Attended { out, lse });
        let Some(first) = parts.next() else { bail!("attention: nobody has a row") };
        parts.try_fold(first, |all, part| one_softmax(&all, &part))
    }

    /// The attention of the token at `position` over this rank's rows.
    fn look(&self, q: &Tensor, position: usize, rows: &Rows) -> Result<Attended> {
        let (Some([k, v]), Some(keys)) = (&rows.kept, Positions::from_list(&rows.positions)) else {
            let (batch, heads, one, _) = q.dims4()?;
            let lse = Tensor::full(f32::NEG_INFINITY, (batch, heads, one), q.device())?;
            return Ok(Attended { out: q.zeros_like()?, lse: lse.to_dtype(DType::F32)? });
        };
        let Some(query) = Positions::from_list(&[position]) else {
            bail!("attention: no position {position}");
        };
        let views = View::all(&self.mask, &query, &keys);
        let mut state = self.kernel.begin(q, self.scale)?;
        for view in &views {
            let part = |tensor: &Tensor| crate::seen::rows(tensor, view.keys.rows);
            let (k, v) = (part(k)?, part(v)?);
            let tile = Tile::new(&k, &v, &view.visibility);
            self.kernel.forward(&[tile], &mut *state, &|| Ok(()))?;
        }
        self.kernel.finish(state)
    }
}
