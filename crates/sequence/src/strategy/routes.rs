//! Variants of strategies: Megatron's exchanges, and backward routes.

/// How Megatron context parallelism brings queries and keys together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Exchange {
    /// A ring: `p2p`.
    #[default]
    PointToPoint,
    /// Gathering keys and values: `all-gather`.
    AllGather,
    /// Exchanging heads for positions: `a2a`.
    AllToAll,
    /// Exchanging heads for positions within groups, and a ring between groups: `a2a+p2p`.
    Both {
        /// The shape, as of [`Strategy::Usp`](crate::Strategy::Usp).
        shape: Option<[usize; 2]>,
    },
}

/// The backward route: what is sent backward in a ring, and how gradients are reduced to their owners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Route {
    /// Gradients travel with their keys and values all the way round: as many moves as ranks.
    Travelling,
    /// The owner's part never leaves, and the ring runs against the forward one: one move less.
    #[default]
    Reversed,
    /// As [`Route::Reversed`], but every visitor's part goes straight to the owner and is added there: as many bytes, and in a narrow dtype
    /// a part is rounded once, not once per move of the sum.
    Direct,
    /// Keys, values and their gradients stay; queries travel with the gradient of their output, followed by their own gradient. Fewer bytes
    /// where few query heads share a KV head.
    Queries,
}

impl Route {
    /// All backward routes.
    pub const ALL: [Route; 4] = [Route::Travelling, Route::Reversed, Route::Direct, Route::Queries];
}

impl Exchange {
    /// All exchanges, in the order of the documentation.
    pub const ALL: [Exchange; 4] = [
        Exchange::PointToPoint,
        Exchange::AllGather,
        Exchange::AllToAll,
        Exchange::Both { shape: None },
    ];
    /// The word of the exchange: `p2p`, `all-gather`, `a2a`, `a2a+p2p`.
    pub fn name(self) -> &'static str {
        match self {
            Exchange::PointToPoint => "p2p",
            Exchange::AllGather => "all-gather",
            Exchange::AllToAll => "a2a",
            Exchange::Both { .. } => "a2a+p2p",
        }
    }
    /// The exchange of a word, as in [`Exchange::ALL`].
    pub fn from_name(name: &str) -> Option<Exchange> {
        Exchange::ALL.into_iter().find(|exchange| exchange.name() == name)
    }
}
