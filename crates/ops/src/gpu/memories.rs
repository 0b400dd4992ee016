//! Memories of emulated processors, all of which are the host's: which processor owns a tensor, and whether accesses to it are ordered.
//!
//! A tensor belongs to the processor that first computes with it, for good. A kernel, or a product, that reaches another's is refused, as
//! on a GPU. Copies between memories are checked against the order that marks make, which a GPU would not do: every processor counts what
//! it starts, and knows of every other how far it has waited for it (vector clocks; Fidge 1988, Mattern 1989). A copy must know of what
//! wrote the tensor, and what overwrites it must know of the copy.

use std::collections::HashMap;
use std::ops::Range;

use candle_core::{Result, Tensor, bail};
use parking_lot::Mutex;

/// The memories of several processors.
#[derive(Debug)]
pub(super) struct Memories(Mutex<State>);

#[derive(Debug)]
struct State {
    /// By processor, the number of operations that it knows each processor to have started.
    clocks: Vec<Vec<u64>>,
    /// What is known of each storage.
    blocks: HashMap<usize, Block>,
}

#[derive(Debug)]
struct Block {
    owner: usize,
    /// The owner's last writes, by range of bytes.
    written: Vec<(Range<usize>, u64)>,
    /// Copies by other processors, by range of bytes: which processor, and when.
    copied: Vec<(Range<usize>, usize, u64)>,
    /// Held so that no other storage gets the same address.
    _held: Tensor,
}

/// A tensor that a launch accesses: its storage, its bytes in it, and whether it is written.
#[derive(Clone, Debug)]
pub(super) struct Touched {
    pub(super) storage: usize,
    pub(super) bytes: Range<usize>,
    pub(super) writes: bool,
    pub(super) tensor: Tensor,
}

impl Memories {
    pub(super) fn of(processors: usize) -> Memories {
        let clocks = vec![vec![0; processors]; processors];
        Memories(Mutex::new(State { clocks, blocks: HashMap::new() }))
    }

    /// A mark: what a processor has started, and what it knows to have waited for.
    pub(super) fn mark(&self, own: usize) -> Vec<u64> {
        self.with(|state| state.clocks[own].clone())
    }

    pub(super) fn wait_for(&self, own: usize, mark: &[u64]) {
        self.with(|state| {
            for (known, of_mark) in state.clocks[own].iter_mut().zip(mark) {
                *known = (*known).max(*of_mark);
            }
        });
    }

    /// Records that a processor computes with these tensors.
    pub(super) fn compute(&self, own: usize, all: &[Touched]) -> Result<()> {
        self.with(|state| {
            let now = state.starts(own);
            all.iter().try_for_each(|touched| state.touch(own, now, touched))
        })
    }

    /// Records that a processor copies another's tensor to its own memory.
    pub(super) fn copy(
        &self,
        own: usize,
        owner: usize,
        from: &Touched,
        to: &Touched,
    ) -> Result<()> {
        self.with(|state| {
            let now = state.starts(own);
            let known = state.clocks[own][owner];
            let block = state.block(owner, from);
            if block.owner != owner {
                bail!("memory {} was given as memory {owner}'s", block.owner);
            }
            if block.written.iter().any(|(part, at)| *at > known && meet(part, &from.bytes)) {
                bail!("memory {own} copies what memory {owner} may not have written yet");
            }
            block.copied.push((from.bytes.clone(), own, now));
            state.touch(own, now, to)
        })
    }

    fn with<T>(&self, then: impl FnOnce(&mut State) -> T) -> T {
        then(&mut self.0.lock())
    }
}

impl State {
    fn starts(&mut self, own: usize) -> u64 {
        self.clocks[own][own] += 1;
        self.clocks[own][own]
    }

    fn block(&mut self, owner: usize, touched: &Touched) -> &mut Block {
        self.blocks.entry(touched.storage).or_insert_with(|| Block {
            owner,
            written: Vec::new(),
            copied: Vec::new(),
            _held: touched.tensor.clone(),
        })
    }

    fn touch(&mut self, own: usize, now: u64, touched: &Touched) -> Result<()> {
        // A tensor without elements has no place.
        if touched.tensor.elem_count() == 0 {
            return Ok(());
        }
        let known = self.clocks[own].clone();
        let block = self.block(own, touched);
        if block.owner != own {
            let shape = touched.tensor.dims();
            bail!(
                "found a tensor {shape:?} in memory {}, expected one in memory {own}",
                block.owner
            );
        }
        if touched.writes {
            block.copied.retain(|(_, other, at)| *at > known[*other]);
            let early = block.copied.iter().find(|(part, ..)| meet(part, &touched.bytes));
            if let Some((_, other, _)) = early {
                bail!("memory {own} writes over what memory {other} may not have copied yet");
            }
            block.written.retain(|(part, _)| *part != touched.bytes);
            block.written.push((touched.bytes.clone(), now));
        }
        Ok(())
    }
}

/// Whether two ranges have an element in common.
fn meet(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}
