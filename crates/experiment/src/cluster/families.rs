//! The strategies there are to choose from, in all their shapes.

use annulus_sequence::{Exchange, Strategy};

/// Every strategy and every exchange, each with the shapes it can have on `world` ranks.
pub(super) fn families(world: usize) -> Vec<Vec<Strategy>> {
    let mut families = Vec::new();
    for strategy in Strategy::ALL {
        families.push(shapes(strategy, world));
        if let Strategy::Megatron { exchange: first } = strategy {
            let others = Exchange::ALL.into_iter().filter(|exchange| *exchange != first);
            let other = |exchange| shapes(Strategy::Megatron { exchange }, world);
            families.extend(others.map(other));
        }
    }
    families
}

/// A strategy in all shapes that it can have on `world` ranks.
pub(super) fn shapes(strategy: Strategy, world: usize) -> Vec<Strategy> {
    let divisors = (2..world).filter(|first| world.is_multiple_of(*first));
    let shapes = divisors.map(|first| Some([first, world / first]));
    let shaped: Vec<Strategy> = match strategy {
        Strategy::Usp { .. } => shapes.map(|shape| Strategy::Usp { shape }).collect(),
        Strategy::DoubleRing { .. } => shapes.map(|shape| Strategy::DoubleRing { shape }).collect(),
        Strategy::Megatron { exchange: Exchange::Both { .. } } => {
            let both = |shape| Strategy::Megatron { exchange: Exchange::Both { shape } };
            shapes.map(both).collect()
        }
        _ => Vec::new(),
    };
    if shaped.is_empty() { vec![bare(strategy)] } else { shaped }
}

/// A strategy whose shape is open.
pub(super) fn bare(strategy: Strategy) -> Strategy {
    let shape = None;
    match strategy {
        Strategy::Usp { .. } => Strategy::Usp { shape },
        Strategy::DoubleRing { .. } => Strategy::DoubleRing { shape },
        Strategy::Megatron { exchange: Exchange::Both { .. } } => {
            Strategy::Megatron { exchange: Exchange::Both { shape } }
        }
        shaped => shaped,
    }
}

/// What a strategy is called in its shape: `usp 4 x 2`, `megatron a2a`.
pub fn label(strategy: Strategy) -> String {
    let name = strategy.name();
    let shaped = |shape: Option<[usize; 2]>, name: &str| match shape {
        Some([first, second]) => format!("{name} {first} x {second}"),
        None => name.to_owned(),
    };
    match strategy {
        Strategy::Striped { width } if width > 1 => format!("{name} of {width}"),
        Strategy::AllGather { groups } if groups > 1 => format!("{name} in {groups} groups"),
        Strategy::Usp { shape } | Strategy::DoubleRing { shape } => shaped(shape, name),
        Strategy::Megatron { exchange: Exchange::PointToPoint } => name.to_owned(),
        Strategy::Megatron { exchange: Exchange::Both { shape } } => {
            shaped(shape, &format!("{name} {}", Exchange::Both { shape }.name()))
        }
        Strategy::Megatron { exchange } => format!("{name} {}", exchange.name()),
        _ => name.to_owned(),
    }
}
