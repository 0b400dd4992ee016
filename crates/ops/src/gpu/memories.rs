//! Memories of emulated processors, which are all the host's: whose a tensor is, and whether what happens to it is in order.
//!
//! A tensor is the processor's that first computes with it, and stays so. A kernel, or a product, that reaches another's is refused,
//! as it is that of a GPU. What is copied between them is held to the order that marks make, as a GPU would not be: every processor
//! counts what it starts, and knows of every other how far it has waited for it (vector clocks; Fidge 1988, Mattern 1989). A copy must
//! know of what wrote the tensor, and what writes over it must know of the copy.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use candle_core::{Result, Tensor, bail};

/// The memories of so many processors.
#[derive(Debug)]
pub(super) struct Memories(Mutex<State>);

#[derive(Debug)]
struct State {
    /// By processor, how much each has started, as far as it knows.
    clocks: Vec<Vec<u64>>,
    /// By storage.
    blocks: HashMap<usize, Block>,
}

#[derive(Debug)]
struct Block {
    owner: usize,
    /// Of some of it, when its owner wrote that last.
    written: Vec<(Range<usize>, u64)>,
    /// Of some of it, which processor copied it, and when.
    copied: Vec<(Range<usize>, usize, u64)>,
    /// For as long as this is looked at no other block is where it is.
    _held: Tensor,
}

/// A tensor that a launch is lent: which storage it is in, between which bytes of that, and whether it is written.
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

    /// What a processor has started, and knows to be behind.
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

    /// A processor computes with these.
    pub(super) fn compute(&self, own: usize, all: &[Touched]) -> Result<()> {
        self.with(|state| {
            let now = state.starts(own);
            all.iter().try_for_each(|touched| state.touch(own, now, touched))
        })
    }

    /// A processor copies what is another's into what will be its own.
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
        then(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
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
        // What has no elements is nowhere.
        if touched.tensor.elem_count() == 0 {
            return Ok(());
        }
        let known = self.clocks[own].clone();
        let block = self.block(own, touched);
        if block.owner != own {
            let shape = touched.tensor.dims();
            bail!("found a tensor {shape:?} in memory {}, wanted one in memory {own}", block.owner);
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

/// Whether they have an element in common.
fn meet(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}
