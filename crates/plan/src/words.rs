//! How strategies are written.

use annulus_sequence::{Exchange, Strategy};

/// The name of a strategy with its shape: `usp 4 x 2`, `megatron a2a`.
pub fn label(strategy: Strategy) -> String {
    let name = strategy.name();
    let label = match strategy {
        Strategy::Striped { width } if width > 1 => format!("{name} of {width}"),
        Strategy::AllGather { groups } if groups > 1 => format!("{name} in {groups} groups"),
        Strategy::Megatron { exchange } if exchange != Exchange::PointToPoint => {
            format!("{name} {}", exchange.name())
        }
        _ => name.to_owned(),
    };
    match strategy.shape() {
        Some([first, second]) => format!("{label} {first} x {second}"),
        None => label,
    }
}
