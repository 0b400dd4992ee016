//! How a sequence is split, in words: under `attention` in a file, or on a command line. The one place that knows which words go together.

use annulus_sequence::{Exchange, Strategy};

use crate::LayoutKeys;
use crate::unused::means_nothing;

/// A strategy as it is written: its word, and the words beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrategyAsWritten<'a> {
    /// The strategy that the word of `strategy` alone means.
    pub strategy: Strategy,
    /// The word of `exchange`.
    pub exchange: Option<Exchange>,
    /// The value of the key `shape`.
    pub shape: Option<&'a [usize]>,
    /// The value of the key `groups`.
    pub groups: Option<usize>,
    /// The word of the key `layout`.
    pub layout: Option<&'a str>,
    /// The value of the key `stripe`.
    pub stripe: Option<usize>,
}

/// Words that do not go together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contradiction {
    /// The key to drop or change.
    pub key: &'static str,
    /// The message: what was found.
    pub message: String,
    /// The hint: what to write instead.
    pub hint: String,
}

impl StrategyAsWritten<'_> {
    /// The word of a strategy with nothing beside it.
    pub fn bare(strategy: Strategy) -> Self {
        let (exchange, shape, groups, layout, stripe) = (None, None, None, None, None);
        StrategyAsWritten { strategy, exchange, shape, groups, layout, stripe }
    }

    /// The strategy that the words mean, and the layout if it is not the strategy's own.
    ///
    /// # Errors
    /// The first contradiction between two words.
    pub fn resolve(self) -> Result<(Strategy, Option<LayoutKeys>), Contradiction> {
        let shape = self.pair()?;
        let strategy = self.with_exchange()?;
        let layout = self.layout.and_then(|word| LayoutKeys::from_word(word, self.stripe));
        let striped = matches!(strategy, Strategy::Striped { .. });
        self.numbers(strategy, layout)?;
        let strategy = match strategy {
            Strategy::Striped { .. } => Strategy::Striped { width: self.stripe.unwrap_or(1) },
            Strategy::AllGather { groups } => {
                Strategy::AllGather { groups: self.groups.unwrap_or(groups) }
            }
            Strategy::Usp { .. } => Strategy::Usp { shape },
            Strategy::DoubleRing { .. } => Strategy::DoubleRing { shape },
            Strategy::Megatron { exchange: Exchange::Both { .. } } => {
                Strategy::Megatron { exchange: Exchange::Both { shape } }
            }
            other if shape.is_none() => other,
            other => return Err(shapeless(other)),
        };
        match layout {
            Some(LayoutKeys::Striped { .. }) if striped => Ok((strategy, None)),
            Some(other) if striped => Err(Contradiction {
                key: "layout",
                message: format!(
                    "`striped` has the layout `striped`, but `layout` is `{}`",
                    other.word()
                ),
                hint: "use `ring`, which sends the same with any layout".to_owned(),
            }),
            layout => Ok((strategy, layout)),
        }
    }

    /// Refuses the numbers of stripes and groups where there are none.
    fn numbers(self, strategy: Strategy, layout: Option<LayoutKeys>) -> Result<(), Contradiction> {
        let striped = matches!(strategy, Strategy::Striped { .. });
        let takes_stripe = layout.map_or(striped, |sharded| {
            !matches!(sharded, LayoutKeys::Contiguous | LayoutKeys::Zigzag)
        });
        let name = strategy.name();
        if self.stripe.is_some() && !takes_stripe {
            let holder = layout
                .map_or(format!("`{name}`"), |layout| format!("the layout `{}`", layout.word()));
            let why = format!("{holder} has no stripes");
            return Err(nothing("stripe", &why, "remove it, or use `striped`"));
        }
        if self.groups.is_some() && !matches!(strategy, Strategy::AllGather { .. }) {
            let why = format!("`{name}` has no groups");
            return Err(nothing("groups", &why, "remove it, or use `all-gather`"));
        }
        Ok(())
    }

    /// The two numbers of `shape`.
    fn pair(self) -> Result<Option<[usize; 2]>, Contradiction> {
        let Some(shape) = self.shape else { return Ok(None) };
        let pair = <[usize; 2]>::try_from(shape);
        pair.map(Some).map_err(|_| Contradiction {
            key: "shape",
            message: format!("a `shape` of {}, expected two numbers", shape.len()),
            hint: "two numbers whose product is the number of ranks, such as `[2, 4]`".to_owned(),
        })
    }

    fn with_exchange(self) -> Result<Strategy, Contradiction> {
        let Some(exchange) = self.exchange else { return Ok(self.strategy) };
        match self.strategy {
            Strategy::Megatron { .. } => Ok(Strategy::Megatron { exchange }),
            // These strategies exchange point to point anyway.
            ring @ (Strategy::Ring | Strategy::Striped { .. })
                if exchange == Exchange::PointToPoint =>
            {
                Ok(ring)
            }
            other => Err(Contradiction {
                key: "exchange",
                message: format!(
                    "`{}` has no `exchange: {}` to choose",
                    other.name(),
                    exchange.name()
                ),
                hint: "remove it, or use `megatron`, which has all four".to_owned(),
            }),
        }
    }
}

fn nothing(key: &'static str, why: &str, hint: &str) -> Contradiction {
    Contradiction { key, message: means_nothing(key, why), hint: hint.to_owned() }
}

fn shapeless(strategy: Strategy) -> Contradiction {
    let message = format!("`{}` has no `shape`", strategy.name());
    let hint = "remove it, or use `usp`, `double-ring`, or `megatron` with `exchange: a2a+p2p`";
    Contradiction { key: "shape", message, hint: hint.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(
        change: impl Fn(&mut StrategyAsWritten<'static>),
    ) -> Result<(Strategy, Option<LayoutKeys>), &'static str> {
        let mut words = StrategyAsWritten::bare(Strategy::MEGATRON);
        change(&mut words);
        words.resolve().map_err(|contradiction| contradiction.key)
    }

    #[test]
    fn words_are_strategies() {
        let both = Exchange::Both { shape: None };
        let shaped = Exchange::Both { shape: Some([2, 4]) };
        let megatron =
            settled(|words| (words.exchange, words.shape) = (Some(both), Some(&[2, 4][..])));
        assert_eq!(megatron, Ok((Strategy::Megatron { exchange: shaped }, None)));
        let stripes = |words: &mut StrategyAsWritten<'static>| {
            (words.strategy, words.stripe) = (Strategy::STRIPED, Some(3));
        };
        assert_eq!(settled(stripes), Ok((Strategy::Striped { width: 3 }, None)));
        let balanced = Some(LayoutKeys::Balanced { width: None });
        let ring = settled(|w| (w.strategy, w.layout) = (Strategy::Ring, Some("balanced")));
        assert_eq!(ring, Ok((Strategy::Ring, balanced)));
        for strategy in Strategy::ALL {
            assert_eq!(StrategyAsWritten::bare(strategy).resolve(), Ok((strategy, None)));
        }
    }

    #[test]
    fn words_that_do_not_go_together_are_named() {
        let ring = |change: fn(&mut StrategyAsWritten<'static>)| {
            settled(move |words| {
                words.strategy = Strategy::Ring;
                change(words);
            })
        };
        assert_eq!(ring(|words| words.exchange = Some(Exchange::AllToAll)), Err("exchange"));
        assert_eq!(ring(|words| words.shape = Some(&[2, 2])), Err("shape"));
        assert_eq!(settled(|words| words.shape = Some(&[2, 2])), Err("shape"));
        assert_eq!(ring(|words| words.shape = Some(&[2])), Err("shape"));
        assert_eq!(ring(|words| words.groups = Some(2)), Err("groups"));
        assert_eq!(ring(|words| words.stripe = Some(2)), Err("stripe"));
        let zigzag = settled(|w| (w.strategy, w.layout) = (Strategy::STRIPED, Some("zigzag")));
        assert_eq!(zigzag, Err("layout"));
    }
}
