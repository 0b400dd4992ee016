//! Numbers that are valid and too large.

use super::{Case, case};

pub(super) const CASES: &[Case] = &[
    case("E a continuation of 2^64 - 1 tokens", "annulus generate tuned.yaml --prompt a --tokens 18446744073709551615", &[2, 5], &["--tokens"]).short(),
    case("E a continuation of 10^12 tokens", "annulus generate tuned.yaml --prompt a --tokens 1000000000000", &[2, 5], &[]),
    ranks("E 256 ranks by heads", "attention.strategy=ulysses model.num_attention_heads=256 model.num_key_value_heads=256 model.hidden_size=2048").within(10),
    ranks("E 256 ranks, chosen", "attention.strategy=auto").within(10),
    ranks("E 256 ranks by stripes", "attention.strategy=striped").within(10).short(),
    ranks("E 256 ranks in one step", "attention.strategy=ring"),
    case("E a trace of 256 ranks", "annulus trace tiny.yaml mesh.sequence=256 data.tokens=4096 >shown", &[0, 2], &[]),
    case("E proofs of 256 ranks", "annulus prove tiny.yaml mesh.sequence=256 data.tokens=4096 >shown", &[0, 2], &[]),
    case("E ranks beyond all bounds", "annulus plan tiny.yaml mesh.sequence=1000000000", &[2], &["mesh.sequence"]),
    case("E a model that no machine holds", "annulus train tiny.yaml output=out model.hidden_size=65536 model.num_hidden_layers=1000", &[2, 5], &[]),
    case("E plan and train agree", "annulus check tiny.yaml model.hidden_size=65536 model.num_hidden_layers=1000 || annulus plan tiny.yaml model.hidden_size=65536 model.num_hidden_layers=1000", &[2, 5], &[]),
    case("E a layout of 10^12 positions", "annulus layout striped --ranks 4 --tokens 1000000000000 >shown", &[0, 2], &[]),
    case("E a layout of 10^6 ranks", "annulus layout ring --ranks 1000000 --tokens 1000000 --hops >shown", &[0, 2], &[]),
];

const fn ranks(name: &'static str, what: &'static str) -> Case {
    case(
        name,
        "annulus plan tiny.yaml mesh.sequence=256 data.tokens=16384 $t >shown",
        &[0, 2, 3, 5],
        &[],
    )
    .variable(what)
}
