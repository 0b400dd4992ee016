//! Requests that are under way: MPI is asked about all of them at once, for every question of it looks at the network.

use std::collections::HashMap;

use crate::library::Handle;

/// A part of a message: no two have the same number.
pub(crate) type Piece = u64;

/// The requests of one [`crate::Session`].
#[derive(Default)]
pub(crate) struct Requests {
    under_way: Vec<Handle>,
    /// Of which piece each is, and whether that is received.
    pieces: Vec<(Piece, bool)>,
    /// Bytes of those that are done and not yet taken.
    done: HashMap<Piece, usize>,
    next: Piece,
}

impl Requests {
    /// Of a piece that MPI was just handed, to be received or sent.
    pub(crate) fn add(&mut self, request: Handle, is_received: bool) -> Piece {
        let piece = self.next;
        self.next += 1;
        self.under_way.push(request);
        self.pieces.push((piece, is_received));
        piece
    }

    /// All that are under way, to ask about.
    pub(crate) fn under_way(&mut self) -> &mut [Handle] {
        &mut self.under_way
    }

    /// Whether the one at `index` is of a piece that is received.
    pub(crate) fn is_received(&self, index: usize) -> bool {
        self.pieces[index].1
    }

    /// The one at `index` is done; so many bytes came.
    pub(crate) fn end(&mut self, index: usize, came: usize) {
        self.under_way.swap_remove(index);
        let (piece, _) = self.pieces.swap_remove(index);
        self.done.insert(piece, came);
    }

    /// The bytes of a piece that is done: it is forgotten.
    pub(crate) fn take(&mut self, piece: Piece) -> Option<usize> {
        self.done.remove(&piece)
    }

    /// The request of a piece, if it is not done: nobody is to ask about it any more.
    pub(crate) fn remove(&mut self, piece: Piece) -> Option<Handle> {
        let index = self.pieces.iter().position(|(one, _)| *one == piece)?;
        self.pieces.swap_remove(index);
        Some(self.under_way.swap_remove(index))
    }
}
