//! NEON: vectors of 4 floats, 32 registers.
#![expect(unsafe_code, reason = "vector instructions")]
#![expect(
    clippy::inline_always,
    reason = "inlined, code is compiled for the caller's instructions"
)]

use std::arch::aarch64::{
    float32x4_t, vaddq_f32, vbslq_f32, vcgtq_f32, vcltq_f32, vdupq_n_f32, vfmaq_f32, vld1q_f32,
    vmulq_f32, vreinterpretq_f32_u32, vreinterpretq_u32_f32, vshlq_n_u32, vst1q_f32, vsubq_f32,
};

use super::product::{Product, in_tiles};
use super::{Instructions, Leaf, Machine, PANEL};

/// The machine of NEON: vectors of 4 floats.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neon(());

impl Neon {
    /// The machine, if the processor has NEON.
    pub(crate) fn detect() -> Option<Neon> {
        Instructions::Neon.is_available().then_some(Neon(()))
    }
}

type Panel = [float32x4_t; 4];

/// The instructions, applied to each of four vectors.
macro_rules! each {
    ($index:ident => $instructions:expr) => {{
        // SAFETY: a token of this machine is made only where the processor has its instructions; memory is reached through
        // references to whole panels.
        unsafe {
            [
                { let $index = 0; $instructions },
                { let $index = 1; $instructions },
                { let $index = 2; $instructions },
                { let $index = 3; $instructions },
            ]
        }
    }};
}

impl Machine for Neon {
    const UNIT: usize = 1;
    type Panel = Panel;

    fn call<L: Leaf>(self, leaf: L) {
        #[target_feature(enable = "neon")]
        fn inner<L: Leaf>(machine: Neon, leaf: L) {
            leaf.run(machine);
        }
        // SAFETY: the token is made only where the processor has NEON.
        unsafe { inner(self, leaf) }
    }
    #[inline(always)]
    fn multiply(self, product: &mut Product<'_>) {
        in_tiles::<Neon, 6, 1>(self, product);
    }
    #[inline(always)]
    fn splat(self, value: f32) -> Panel {
        each!(_index => vdupq_n_f32(value))
    }
    #[inline(always)]
    fn load(self, from: &[f32; PANEL]) -> Panel {
        each!(index => vld1q_f32(from[4 * index..].as_ptr()))
    }
    #[inline(always)]
    fn store(self, panel: Panel, to: &mut [f32; PANEL]) {
        each!(index => vst1q_f32(to[4 * index..].as_mut_ptr(), panel[index]));
    }
    #[inline(always)]
    fn add(self, a: Panel, b: Panel) -> Panel {
        each!(index => vaddq_f32(a[index], b[index]))
    }
    #[inline(always)]
    fn subtract(self, a: Panel, b: Panel) -> Panel {
        each!(index => vsubq_f32(a[index], b[index]))
    }
    #[inline(always)]
    fn multiplied(self, a: Panel, b: Panel) -> Panel {
        each!(index => vmulq_f32(a[index], b[index]))
    }
    #[inline(always)]
    fn multiply_add(self, a: Panel, b: Panel, c: Panel) -> Panel {
        each!(index => vfmaq_f32(c[index], a[index], b[index]))
    }
    #[inline(always)]
    fn larger(self, a: Panel, b: Panel) -> Panel {
        each!(index => vbslq_f32(vcgtq_f32(a[index], b[index]), a[index], b[index]))
    }
    #[inline(always)]
    fn zero_below(self, limit: f32, x: Panel, value: Panel) -> Panel {
        each!(index => vbslq_f32(vcltq_f32(x[index], vdupq_n_f32(limit)), vdupq_n_f32(0.0), value[index]))
    }
    #[inline(always)]
    fn exponent(self, bits: Panel) -> Panel {
        each!(index => vreinterpretq_f32_u32(vshlq_n_u32::<23>(vreinterpretq_u32_f32(bits[index]))))
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
