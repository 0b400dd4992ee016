//! Views of a tile, and merging the results of queries that see it in parts.
//!
//! A kernel takes at most two intervals for every row. A mask that shows more is cut into views of all rows or of the rows of
//! one residue class; a class of queries has a running state of its own, and in the end all of a row's results are one softmax.

use annulus_ops::Backend;
use annulus_ops::attention::{Attended, Dropout, Dropped, Tile};
use annulus_ops::order_free::{add_sums, is_order_free};
use annulus_sequence::{Block, Rows, TilePlan, View};
use candle_core::{DType, Device, Result, Tensor};

/// A view of a block's keys, with the rows that it is for.
pub(crate) struct Seen {
    /// The block of the keys.
    pub(crate) of: Block,
    view: View,
    k: Tensor,
    v: Tensor,
    /// The dropout of weights, and the number of the first query head.
    dropped: Option<(Dropout, usize)>,
}

impl Seen {
    /// A view of a tile with keys and values [B, H, S, D].
    pub(crate) fn new(
        tile: &TilePlan,
        view: View,
        [k, v]: [&Tensor; 2],
        dropout: Option<Dropout>,
    ) -> Result<Seen> {
        let [k, v] = [rows(k, view.keys.rows)?, rows(v, view.keys.rows)?];
        let dropped = dropout.map(|dropout| (dropout, dropout.head + tile.queries.heads.start));
        Ok(Seen { of: tile.keys, view, k, v, dropped })
    }
    /// The query rows of the view.
    pub(crate) fn queries(&self) -> Rows {
        self.view.queries.rows
    }
    /// The key rows of the view.
    pub(crate) fn keys(&self) -> Rows {
        self.view.keys.rows
    }
    /// Whether the view has all keys of the block.
    pub(crate) fn is_of_all_keys(&self) -> bool {
        self.keys().are_all_of(self.of.rows.len())
    }
    pub(crate) fn tile(&self) -> Tile<'_> {
        let View { queries, keys, visibility } = &self.view;
        let (queries, keys) = (&queries.positions, &keys.positions);
        let dropped = self.dropped.map(|(dropout, head)| Dropped { dropout, head, queries, keys });
        let positions = Some([queries, keys]);
        Tile { dropped, positions, ..Tile::new(&self.k, &self.v, visibility) }
    }
}

/// Rows of [B, H, S, ..]: the same storage where they are all.
pub(crate) fn rows(tensor: &Tensor, which: Rows) -> Result<Tensor> {
    if which.are_all_of(tensor.dim(2)?) {
        return Ok(tensor.clone());
    }
    tensor.contiguous()?.index_select(&indices(which.iter(), tensor.device())?, 2)
}

/// `to` with `parts` added at their rows.
pub(crate) fn added(backend: &Backend, to: &Tensor, parts: &[(Rows, Tensor)]) -> Result<Tensor> {
    if parts.is_empty() {
        return Ok(to.clone());
    }
    if is_order_free(to) {
        return sums_added(backend, to, parts);
    }
    let all: Vec<&Tensor> = parts.iter().map(|(_, part)| part).collect();
    let index = indices(parts.iter().flat_map(|(rows, _)| rows.iter()), to.device())?;
    to.index_add(&index, &Tensor::cat(&all, 2)?, 2)
}

/// `to` with `parts` added at their rows, where they are tables of order-free sums. No row is in two parts of one residue class.
fn sums_added(backend: &Backend, to: &Tensor, parts: &[(Rows, Tensor)]) -> Result<Tensor> {
    let all = to.copy()?;
    for (rows, part) in parts {
        let mut from: Vec<u32> = vec![part.dim(2)? as u32; all.dim(2)?];
        rows.iter().zip(0..).for_each(|(row, at)| from[row] = at);
        let from = Tensor::new(from, to.device())?;
        // A row that nothing was added to follows the part's rows.
        let nothing = part.narrow(2, 0, 1)?.zeros_like()?;
        let spread = Tensor::cat(&[part, &nothing], 2)?.index_select(&from, 2)?;
        add_sums(backend, &all, &spread)?;
    }
    Ok(all)
}

/// Merges the results of all rows with those of some rows over other keys, as one softmax.
pub(crate) fn joined(whole: Attended, parts: &[(Rows, Attended)]) -> Result<Attended> {
    let mut all = whole;
    for layer in layers(parts, all.out.dim(2)?) {
        all = one_softmax(&all, &spread(&layer, parts, &all)?)?;
    }
    Ok(all)
}

/// By row, which parts it is in and where: one layer for each time that a row may occur.
fn layers(parts: &[(Rows, Attended)], rows: usize) -> Vec<Vec<Option<usize>>> {
    let mut layers: Vec<Vec<Option<usize>>> = Vec::new();
    let mut before = 0;
    for (part, _) in parts {
        let free = |layer: &Vec<Option<usize>>| part.iter().all(|row| layer[row].is_none());
        let index = layers.iter().position(free).unwrap_or(layers.len());
        if index == layers.len() {
            layers.push(vec![None; rows]);
        }
        part.iter().enumerate().for_each(|(at, row)| layers[index][row] = Some(before + at));
        before += part.count;
    }
    layers
}

/// A layer as results of all rows, empty where a row is not in it.
fn spread(
    layer: &[Option<usize>],
    parts: &[(Rows, Attended)],
    like: &Attended,
) -> Result<Attended> {
    let nothing = |tensor: &Tensor, value: f64| {
        let one = tensor.narrow(2, 0, 1)?;
        Tensor::full(value, one.dims(), one.device())?.to_dtype(one.dtype())
    };
    let (out, lse) = (nothing(&like.out, 0.0)?, nothing(&like.lse, f64::NEG_INFINITY)?);
    let last: usize = parts.iter().map(|(rows, _)| rows.count).sum();
    let index = layer.iter().map(|at| at.unwrap_or(last));
    let index = indices(index, like.out.device())?;
    let all = |of: fn(&Attended) -> &Tensor, nothing: &Tensor| {
        let tensors = parts.iter().map(|(_, part)| of(part)).chain([nothing]);
        let all = Tensor::cat(&tensors.collect::<Vec<_>>(), 2)?.contiguous()?;
        all.index_select(&index, 2)
    };
    Ok(Attended { out: all(|part| &part.out, &out)?, lse: all(|part| &part.lse, &lse)? })
}

/// Merges results over disjoint keys, weighted by their sums of exponentials.
pub(crate) fn one_softmax(a: &Attended, b: &Attended) -> Result<Attended> {
    // Rows that see nothing have -inf in both: a finite stand-in leaves them weights of 0.
    let most = a.lse.maximum(&b.lse)?.maximum(f64::from(f32::MIN))?;
    let [of_a, of_b] = [&a.lse, &b.lse].map(|lse| (lse - &most)?.exp());
    let (of_a, of_b) = (of_a?, of_b?);
    let sum = (&of_a + &of_b)?;
    let some = sum.maximum(f64::from(f32::MIN_POSITIVE))?;
    let weighed = |of: &Attended, weight: Tensor| {
        let weight = (weight / &some)?.unsqueeze(3)?;
        of.out.to_dtype(DType::F32)?.broadcast_mul(&weight)
    };
    let out = (weighed(a, of_a)? + weighed(b, of_b)?)?.to_dtype(a.out.dtype())?;
    Ok(Attended { out, lse: (most + sum.log()?)? })
}

fn indices(rows: impl Iterator<Item = usize>, device: &Device) -> Result<Tensor> {
    let rows: Vec<u32> = rows.map(|row| row as u32).collect();
    let len = rows.len();
    Tensor::from_vec(rows, len, device)
}
