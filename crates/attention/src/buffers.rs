//! The buffers of a rank during a pass, by block.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::iter::zip;

use annulus_ops::{Backend, accumulate, readable};
use annulus_sequence::{Block, Extent, Part, Tiles};
use candle_core::{Result, Tensor, bail};

/// The tensors of a block, with heads and rows along dimensions 1 and 2.
///
/// Queries forward: q. Backward: q, the gradient of the output, and what the kernel prepared per row. Outputs: out and
/// log-sum-exp. Keys and values, and their gradients: two. Keys or values alone, gradients of queries: one.
pub(crate) type Tensors = Vec<Tensor>;

/// The buffers of one rank in one pass.
#[derive(Debug)]
pub(crate) struct Buffers {
    rank: usize,
    backend: Backend,
    held: BTreeMap<Block, Tensors>,
}

impl Buffers {
    /// Buffers without a block.
    pub(crate) fn of(rank: usize, backend: Backend) -> Buffers {
        Buffers { rank, backend, held: BTreeMap::new() }
    }

    /// The tensors of a block that is lent to others, without gaps.
    pub(crate) fn lend(&self, block: Block) -> Result<Tensors> {
        self.parts(block)?.iter().map(Tensor::contiguous).collect()
    }

    /// The tensors of a block for computing.
    pub(crate) fn read(&self, block: Block) -> Result<Tensors> {
        self.parts(block)?.iter().map(|part| readable(&self.backend, part)).collect()
    }

    /// The tensors of a block, as parts of the buffer that contains it.
    fn parts(&self, block: Block) -> Result<Tensors> {
        let Some((held, tensors)) = self.containing(block) else { return missing(block) };
        let tensors = match block.part {
            Part::Key if held.part == Part::KeyValue => &tensors[..1],
            Part::Value if held.part == Part::KeyValue => &tensors[1..],
            _ => &tensors[..],
        };
        tensors.iter().map(|tensor| slice(tensor, *held, block)).collect()
    }

    /// The keys and values of tiles, or their gradients, each block once.
    pub(crate) fn keys(&self, tiles: &Tiles) -> Result<BTreeMap<Block, Tensors>> {
        let mut keys = BTreeMap::new();
        for tile in tiles.iter() {
            // Reading may copy.
            if let Entry::Vacant(entry) = keys.entry(tile.keys) {
                entry.insert(self.read(tile.keys)?);
            }
        }
        Ok(keys)
    }

    /// Removes a block, which is sent away or freed; an error where it is not here.
    pub(crate) fn take(&mut self, block: Block) -> Result<Tensors> {
        self.held.remove(&block).map_or_else(|| missing(block), Ok)
    }

    /// Removes a block; `None` where it is not here.
    pub(crate) fn remove(&mut self, block: Block) -> Option<Tensors> {
        self.held.remove(&block)
    }

    /// Inserts a block that was computed or received. If it is a sum (a gradient) of which there is a part here already, the two are added,
    /// in place, as a sum that was sent away is no longer used by its sender. At its owner the new part is added to the buffer here;
    /// elsewhere the buffer here is added to the new part, which replaces it and travels on.
    pub(crate) fn insert_or_add(&mut self, block: Block, tensors: Tensors) -> Result<()> {
        let backend = &self.backend;
        if let (true, Some(same)) = (block.part.is_sum(), self.held.get(&block)) {
            let add = |(to, from): (&Tensor, &Tensor)| accumulate(backend, to, from);
            if block.owner == self.rank {
                return zip(same, &tensors).try_for_each(add);
            }
            zip(&tensors, same).try_for_each(add)?;
        } else if let (true, Some((held, sums))) = (block.part.is_sum(), self.containing(block)) {
            let at = [block.heads.start - held.heads.start, block.rows.start - held.rows.start];
            return zip(sums, &tensors).try_for_each(|(to, from)| add(backend, to, at, from));
        }
        self.held.insert(block, tensors);
        Ok(())
    }

    /// Takes all pieces of `whole` that are here, put together.
    pub(crate) fn assemble(&mut self, whole: Block) -> Result<Option<Tensors>> {
        let pieces: Vec<Block> = self.held.keys().copied().filter(|b| whole.contains(*b)).collect();
        let mut of_heads: Vec<Tensors> = Vec::new();
        for pieces in pieces.chunk_by(|a, b| a.heads == b.heads) {
            let taken = pieces.iter().map(|piece| self.take(*piece)).collect::<Result<_>>()?;
            of_heads.push(joined(taken, 2)?);
        }
        if of_heads.is_empty() { Ok(None) } else { joined(of_heads, 1).map(Some) }
    }

    /// Whether the block, or one that contains it, is here.
    pub(crate) fn has(&self, block: Block) -> bool {
        self.containing(block).is_some()
    }

    /// The block here that contains `block`: of the same part, or of the whole that its part is one half of.
    fn containing(&self, block: Block) -> Option<(&Block, &Tensors)> {
        let of_part = |part: Part| {
            let least = Block { part, heads: Extent::all(0), rows: Extent::all(0), ..block };
            let alike = move |held: &Block| (held.part, held.owner) == (part, block.owner);
            let mut of_owner = self.held.range(least..).take_while(move |(held, _)| alike(held));
            of_owner.find(|(held, _)| held.contains(block))
        };
        of_part(block.part).or_else(|| of_part(block.part.whole()))
    }
}

/// The heads and rows of `block` within `tensor`, which is of `held` and contains it.
fn slice(tensor: &Tensor, held: Block, block: Block) -> Result<Tensor> {
    let (heads, rows) = (block.heads, block.rows);
    let tensor = tensor.narrow(1, heads.start - held.heads.start, heads.len())?;
    tensor.narrow(2, rows.start - held.rows.start, rows.len())
}

/// Adds `from` to the heads and rows of `to` that begin at `at`. On a CPU the rows of one head must be contiguous, on a GPU all of `to`.
pub(crate) fn add(backend: &Backend, to: &Tensor, at: [usize; 2], from: &Tensor) -> Result<()> {
    if let Backend::Gpu(_) = backend {
        return add_slices(backend, to, at, from);
    }
    let to = part(to, at, from)?;
    for batch in 0..to.dim(0)? {
        for head in 0..to.dim(1)? {
            let rows = |tensor: &Tensor| tensor.narrow(0, batch, 1)?.narrow(1, head, 1);
            accumulate(backend, &rows(&to)?, &rows(from)?)?;
        }
    }
    Ok(())
}

/// As [`add`], in a few launches however many heads there are: a part that is not contiguous is copied, added to, and copied back.
fn add_slices(backend: &Backend, to: &Tensor, at: [usize; 2], from: &Tensor) -> Result<()> {
    // Some heads of several sequences are not rows of one matrix.
    let each = if from.dim(1)? == to.dim(1)? { from.dim(0)? } else { 1 };
    for first in (0..from.dim(0)?).step_by(each) {
        let [to, from] = [to, from].map(|tensor| tensor.narrow(0, first, each));
        let (to, from) = (to?, from?.contiguous()?);
        let own = part(&to, at, &from)?;
        if own.is_contiguous() {
            accumulate(backend, &own, &from)?;
            continue;
        }
        let sum = own.contiguous()?;
        accumulate(backend, &sum, &from)?;
        to.narrow(1, at[0], from.dim(1)?)?.slice_set(&sum, 2, at[1])?;
    }
    Ok(())
}

/// The part of `to` that begins at this head and row, as large as `like`.
fn part(to: &Tensor, [head, row]: [usize; 2], like: &Tensor) -> Result<Tensor> {
    to.narrow(1, head, like.dim(1)?)?.narrow(2, row, like.dim(2)?)
}

/// Joins the first tensors of all pieces along a dimension, then the second ones.
fn joined(mut pieces: Vec<Tensors>, dimension: usize) -> Result<Tensors> {
    if pieces.len() == 1 {
        return Ok(pieces.remove(0));
    }
    let tensors = pieces[0].len();
    let join = |index| {
        let column: Vec<&Tensor> = pieces.iter().map(|piece: &Tensors| &piece[index]).collect();
        if dimension == 2 && column.iter().all(|piece| !piece.is_contiguous()) {
            // Rows in token order stay so.
            let by_token = column.iter().map(|piece| piece.transpose(1, 2));
            let by_token = by_token.collect::<Result<Vec<_>>>()?;
            return Tensor::cat(&by_token, 1)?.transpose(1, 2);
        }
        Tensor::cat(&column, dimension)
    };
    (0..tensors).map(join).collect()
}

fn missing<T>(block: Block) -> Result<T> {
    bail!("attention: {block} are not here")
}
