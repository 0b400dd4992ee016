//! Plain arithmetic for any processor: loops of fixed length that compilers turn into whatever vectors there are.
#![expect(clippy::inline_always, reason = "inlined, loops of fixed length become vectors")]

use std::array::from_fn;

use super::product::{Product, in_tiles};
use super::{Leaf, Machine, PANEL};

/// The machine without particular instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Portable;

type Panel = [f32; PANEL];

impl Machine for Portable {
    const UNIT: usize = 1;
    type Panel = Panel;

    fn call<L: Leaf>(self, leaf: L) {
        leaf.run(self);
    }
    #[inline(always)]
    fn multiply(self, product: &mut Product<'_>) {
        in_tiles::<Portable, 2, 1>(self, product);
    }
    #[inline(always)]
    fn splat(self, value: f32) -> Panel {
        [value; PANEL]
    }
    #[inline(always)]
    fn load(self, from: &Panel) -> Panel {
        *from
    }
    #[inline(always)]
    fn store(self, panel: Panel, to: &mut Panel) {
        *to = panel;
    }
    #[inline(always)]
    fn add(self, a: Panel, b: Panel) -> Panel {
        from_fn(|lane| a[lane] + b[lane])
    }
    #[inline(always)]
    fn subtract(self, a: Panel, b: Panel) -> Panel {
        from_fn(|lane| a[lane] - b[lane])
    }
    #[inline(always)]
    fn multiplied(self, a: Panel, b: Panel) -> Panel {
        from_fn(|lane| a[lane] * b[lane])
    }
    /// The sum `a b + c`, rounded twice: without an instruction for it, rounding once would take a hundred times longer.
    #[inline(always)]
    fn multiply_add(self, a: Panel, b: Panel, c: Panel) -> Panel {
        from_fn(|lane| a[lane] * b[lane] + c[lane])
    }
    #[inline(always)]
    fn larger(self, a: Panel, b: Panel) -> Panel {
        from_fn(|lane| if a[lane] > b[lane] { a[lane] } else { b[lane] })
    }
    #[inline(always)]
    fn zero_below(self, limit: f32, x: Panel, value: Panel) -> Panel {
        from_fn(|lane| if x[lane] < limit { 0.0 } else { value[lane] })
    }
    #[inline(always)]
    fn exponent(self, bits: Panel) -> Panel {
        from_fn(|lane| f32::from_bits(bits[lane].to_bits() << 23))
    }
    #[inline(always)]
    fn units(self, first: Panel, _: Panel) -> Panel {
        first
    }
    #[inline(always)]
    fn neighbours(self, low: Panel, _: Panel) -> Panel {
        low
    }
}
