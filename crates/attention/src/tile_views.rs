//! Views of a tile, and merging the results of queries that see it in several views.
//!
//! A kernel takes at most two intervals of keys per query row. Where a mask shows more, a tile is cut into views: each of all query rows, or
//! of those of one residue class (every n-th position). A class has its own running softmax state, and at the end the results of each row
//! are merged by their log-sum-exp.

use std::iter::{once, zip};

use annulus_ops::attention::{Attended, Dropout, Dropped, Tile};
use annulus_ops::order_free::is_order_free;
use annulus_ops::{Backend, accumulate};
use annulus_sequence::{Block, Rows, TilePlan, View};
use candle_core::{DType, Result, Tensor};

use crate::buffers::add;
use crate::rows::indices;

/// A view of a block's keys, with the rows that it is for.
pub(crate) struct TileView {
    /// The block of the keys.
    pub(crate) of: Block,
    view: View,
    k: Tensor,
    v: Tensor,
    /// The dropout of weights, and the number of the first query head.
    dropped: Option<(Dropout, usize)>,
}

impl TileView {
    /// A view of a tile with keys and values [B, H, S, D].
    pub(crate) fn new(
        tile: &TilePlan,
        view: View,
        [k, v]: [&Tensor; 2],
        dropout: Option<Dropout>,
    ) -> Result<TileView> {
        let [k, v] = [rows(k, view.keys.rows)?, rows(v, view.keys.rows)?];
        let dropped = dropout.map(|dropout| (dropout, dropout.head + tile.queries.heads.start));
        Ok(TileView { of: tile.keys, view, k, v, dropped })
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

/// `to`, which nobody else has, with `parts` added at their rows.
pub(crate) fn added(backend: &Backend, to: Tensor, parts: Vec<(Rows, Tensor)>) -> Result<Tensor> {
    let (runs, apart): (Vec<_>, Vec<_>) = parts.into_iter().partition(|(rows, _)| is_run(*rows));
    for (rows, part) in runs {
        add(backend, &to, [0, rows.offset], &part)?;
    }
    if apart.is_empty() {
        return Ok(to);
    }
    let on_cpu = matches!(backend, Backend::Cpu(_));
    if on_cpu && !is_order_free(&to) {
        let all: Vec<&Tensor> = apart.iter().map(|(_, part)| part).collect();
        let index = indices(apart.iter().flat_map(|(rows, _)| rows.iter()), to.device())?;
        return to.index_add(&index, &Tensor::cat(&all, 2)?, 2);
    }
    // Each addition takes memory on a CPU, and launches on a GPU.
    let together = if on_cpu {
        apart.into_iter().map(|part| vec![part]).collect()
    } else {
        layers(apart, to.dim(2)?)
    };
    for parts in together {
        accumulate(backend, &to, &spread(&to, &parts)?)?;
    }
    Ok(to)
}

/// Whether the rows follow one another.
fn is_run(rows: Rows) -> bool {
    rows.stride == 1 || rows.count == 1
}

/// `parts` as a tensor of all rows of `to`, 0 where there is no part. No row is in two of them.
fn spread(to: &Tensor, parts: &[(Rows, Tensor)]) -> Result<Tensor> {
    let rows: usize = parts.iter().map(|(rows, _)| rows.count).sum();
    let mut from: Vec<u32> = vec![rows as u32; to.dim(2)?];
    zip(parts.iter().flat_map(|(rows, _)| rows.iter()), 0..).for_each(|(row, at)| from[row] = at);
    let from = Tensor::new(from, to.device())?;
    // A row that nothing was added to follows those of the parts.
    let nothing = parts[0].1.narrow(2, 0, 1)?.zeros_like()?;
    let all: Vec<&Tensor> = parts.iter().map(|(_, part)| part).chain(once(&nothing)).collect();
    Tensor::cat(&all, 2)?.index_select(&from, 2)
}

/// Merges the results of all rows, which nobody else has, with those of some rows over other keys, as one softmax.
pub(crate) fn joined(whole: Attended, parts: Vec<(Rows, Attended)>) -> Result<Attended> {
    let mut all = whole;
    for layer in layers(parts, all.out.dim(2)?) {
        let (mut outs, mut lses) = (Vec::new(), Vec::new());
        for (which, part) in layer {
            let same = Attended { out: rows(&all.out, which)?, lse: rows(&all.lse, which)? };
            let Attended { out, lse } = one_softmax(&same, &part)?;
            outs.push((which, out));
            lses.push((which, lse));
        }
        all = Attended { out: replaced(all.out, outs)?, lse: replaced(all.lse, lses)? };
    }
    Ok(all)
}

/// The parts in layers, in none of which a row occurs twice.
fn layers<T>(parts: Vec<(Rows, T)>, rows: usize) -> Vec<Vec<(Rows, T)>> {
    let mut layers: Vec<(Vec<bool>, Vec<(Rows, T)>)> = Vec::new();
    for part in parts {
        let free = |(taken, _): &(Vec<bool>, _)| part.0.iter().all(|row| !taken[row]);
        let index = layers.iter().position(free).unwrap_or(layers.len());
        if index == layers.len() {
            layers.push((vec![false; rows], Vec::new()));
        }
        part.0.iter().for_each(|row| layers[index].0[row] = true);
        layers[index].1.push(part);
    }
    layers.into_iter().map(|(_, parts)| parts).collect()
}

/// `all`, which nobody else has, with some rows replaced by those of `parts`.
fn replaced(all: Tensor, parts: Vec<(Rows, Tensor)>) -> Result<Tensor> {
    let (runs, apart): (Vec<_>, Vec<_>) = parts.into_iter().partition(|(rows, _)| is_run(*rows));
    // A kernel may leave its output by token.
    let all = if runs.is_empty() { all } else { all.contiguous()? };
    for (rows, part) in runs {
        all.slice_set(&part.contiguous()?, 2, rows.offset)?;
    }
    if apart.is_empty() {
        return Ok(all);
    }
    let mut from: Vec<usize> = (0..all.dim(2)?).collect();
    let new = apart.iter().flat_map(|(rows, _)| rows.iter());
    new.zip(all.dim(2)?..).for_each(|(row, at)| from[row] = at);
    let from = indices(from.into_iter(), all.device())?;
    let tensors: Vec<Tensor> =
        [all].into_iter().chain(apart.into_iter().map(|(_, part)| part)).collect();
    let both = Tensor::cat(&tensors, 2)?.contiguous()?;
    drop(tensors);
    both.index_select(&from, 2)
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
