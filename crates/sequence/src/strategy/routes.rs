//! What a strategy leaves open: Megatron's exchanges, and backward routes.

/// How Megatron context parallelism brings queries and keys together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Exchange {
    /// A ring: `p2p`.
    #[default]
    PointToPoint,
    /// Keys and values gathered: `all-gather`.
    AllGather,
    /// Heads for positions: `a2a`.
    AllToAll,
    /// Heads for positions among some ranks, a ring among those: `a2a+p2p`.
    Both {
        /// As of [`Strategy::Usp`](crate::Strategy::Usp).
        shape: Option<[usize; 2]>,
    },
}

/// What is sent backward in a ring, and how gradients are reduced to their owners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Route {
    /// Gradients travel with their keys and values all the way round: as many moves as ranks.
    Travelling,
    /// The own part never leaves, and the ring runs against the forward one: a move less.
    #[default]
    Reversed,
    /// As before, but every visitor's part goes straight home and is added there: no more bytes, and
    /// in a narrow type a part is rounded once, not once per move of the sum.
    Direct,
    /// Keys, values and their gradients stay; queries travel with the gradient of their output,
    /// and their own gradient in the wake. Fewer bytes where there are few query heads to a
    /// key/value head.
    Queries,
}

impl Route {
    /// All of them.
    pub const ALL: [Route; 4] = [Route::Travelling, Route::Reversed, Route::Direct, Route::Queries];
}

impl Exchange {
    /// All of them, as one writes them first.
    pub const ALL: [Exchange; 4] = [
        Exchange::PointToPoint,
        Exchange::AllGather,
        Exchange::AllToAll,
        Exchange::Both { shape: None },
    ];
    /// The word one writes: `p2p`, `all-gather`, `a2a`, `a2a+p2p`.
    pub fn name(self) -> &'static str {
        match self {
            Exchange::PointToPoint => "p2p",
            Exchange::AllGather => "all-gather",
            Exchange::AllToAll => "a2a",
            Exchange::Both { .. } => "a2a+p2p",
        }
    }
    /// The reverse of [`Exchange::name`].
    pub fn from_name(name: &str) -> Option<Exchange> {
        Exchange::ALL.into_iter().find(|exchange| exchange.name() == name)
    }
}
