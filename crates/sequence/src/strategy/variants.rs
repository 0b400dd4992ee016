//! All variants that a strategy's name can mean for a number of ranks and heads.

use crate::{Exchange, Heads, Strategy};

impl Strategy {
    /// Every strategy with every exchange, shape and number of groups that these ranks and heads allow, with stripes of one position;
    /// runnable or not.
    pub fn variants(world: usize, heads: Heads) -> Vec<Strategy> {
        let exchanges = Strategy::ALL.into_iter().flat_map(Strategy::exchanges);
        let shaped = exchanges.flat_map(|strategy| strategy.shapes(world));
        shaped.flat_map(|strategy| strategy.groupings(heads)).collect()
    }

    /// The strategy with each of its exchanges; itself where it has none.
    pub fn exchanges(self) -> Vec<Strategy> {
        match self {
            Strategy::Megatron { .. } => {
                Exchange::ALL.map(|exchange| Strategy::Megatron { exchange }).to_vec()
            }
            plain => vec![plain],
        }
    }

    /// The strategy with its shape left open, then in every shape of `world` ranks; itself where it has no shape.
    pub fn shapes(self, world: usize) -> Vec<Strategy> {
        let with = |shape| match self {
            Strategy::Usp { .. } => Some(Strategy::Usp { shape }),
            Strategy::DoubleRing { .. } => Some(Strategy::DoubleRing { shape }),
            Strategy::Megatron { exchange: Exchange::Both { .. } } => {
                Some(Strategy::Megatron { exchange: Exchange::Both { shape } })
            }
            _ => None,
        };
        let Some(open) = with(None) else { return vec![self] };
        let shapes = divisors(world).map(|first| Some([first, world / first]));
        [open].into_iter().chain(shapes.filter_map(with)).collect()
    }

    /// The equal strategy under its own name, with the same layout and schedules: `usp` for `megatron` with both exchanges; else itself.
    #[must_use]
    pub fn plain(self) -> Strategy {
        match self {
            Strategy::Megatron { exchange: Exchange::Both { shape } } => Strategy::Usp { shape },
            other => other,
        }
    }

    /// The two numbers of the strategy's shape; `None` where it has none or leaves it open.
    pub fn shape(self) -> Option<[usize; 2]> {
        match self {
            Strategy::Usp { shape }
            | Strategy::DoubleRing { shape }
            | Strategy::Megatron { exchange: Exchange::Both { shape } } => shape,
            _ => None,
        }
    }

    /// The ranks of an inner group, where there is a shape: those that exchange heads, or that share a node.
    pub fn inner_group(self) -> Option<usize> {
        let [first, second] = self.shape()?;
        Some(if matches!(self, Strategy::DoubleRing { .. }) { second } else { first })
    }

    /// The strategy with every number of groups that its heads can be gathered in; itself where it has none.
    fn groupings(self, heads: Heads) -> Vec<Strategy> {
        match self {
            Strategy::AllGather { .. } => {
                divisors(heads.key_value).map(|groups| Strategy::AllGather { groups }).collect()
            }
            plain => vec![plain],
        }
    }
}

fn divisors(number: usize) -> impl Iterator<Item = usize> {
    (1..=number).filter(move |divisor| number.is_multiple_of(*divisor))
}
