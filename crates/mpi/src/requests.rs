//! Requests that are under way: MPI is asked about all of them in one call, since every call polls the network.

use std::collections::HashMap;

use crate::library::Handle;

/// The number of a piece of a message, which no other piece has.
pub(crate) type Piece = u64;

/// The requests of one [`crate::Session`].
#[derive(Default)]
pub(crate) struct Requests {
    under_way: Vec<Handle>,
    /// The piece of each request, and whether it is received.
    pieces: Vec<(Piece, bool)>,
    /// The bytes of pieces that are done and not yet taken.
    done: HashMap<Piece, usize>,
    next: Piece,
}

impl Requests {
    /// Adds the request of a new piece, which is received or sent.
    pub(crate) fn add(&mut self, request: Handle, is_received: bool) -> Piece {
        let piece = self.next;
        self.next += 1;
        self.under_way.push(request);
        self.pieces.push((piece, is_received));
        piece
    }

    /// All requests that are under way, to ask MPI about.
    pub(crate) fn under_way(&mut self) -> &mut [Handle] {
        &mut self.under_way
    }

    /// Whether the request at `index` is a receive.
    pub(crate) fn is_received(&self, index: usize) -> bool {
        self.pieces[index].1
    }

    /// Notes that the request at `index` is done; a receive got `came` bytes.
    pub(crate) fn end(&mut self, index: usize, came: usize) {
        self.under_way.swap_remove(index);
        let (piece, _) = self.pieces.swap_remove(index);
        self.done.insert(piece, came);
    }

    /// Forgets a piece that is done, and returns its bytes; `None`: it is not done.
    pub(crate) fn take(&mut self, piece: Piece) -> Option<usize> {
        self.done.remove(&piece)
    }

    /// Removes the request of a piece, if it is not done: MPI is not asked about it any more.
    pub(crate) fn remove(&mut self, piece: Piece) -> Option<Handle> {
        let index = self.pieces.iter().position(|(one, _)| *one == piece)?;
        self.pieces.swap_remove(index);
        Some(self.under_way.swap_remove(index))
    }
}
