//! The machines of AVX-512 (with and without products of bf16 pairs) and AVX2.
#![expect(unsafe_code, reason = "vector instructions")]
#![expect(
    clippy::inline_always,
    reason = "inlined, code is compiled for the caller's instructions"
)]

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _CMP_LT_OQ, _MM_HINT_T0, _mm_prefetch, _mm512_add_epi32,
    _mm512_add_ps, _mm512_and_si512, _mm512_castps_si512, _mm512_castsi512_ps, _mm512_cmp_ps_mask,
    _mm512_cvtne2ps_pbh, _mm512_dpbf16_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_mask_mov_ps, _mm512_max_epu32, _mm512_max_ps, _mm512_mul_ps, _mm512_permutexvar_epi16,
    _mm512_permutexvar_ps, _mm512_reduce_add_ps, _mm512_reduce_max_epu32, _mm512_reduce_max_ps,
    _mm512_scalef_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_slli_epi32,
    _mm512_storeu_ps, _mm512_storeu_si512, _mm512_sub_epi32, _mm512_sub_ps,
};
use std::f32::consts::{LN_2, SQRT_2};
use std::mem::transmute;

use super::product::{Product, in_tiles};
use super::{Instructions, Leaf, Machine, PANEL};

/// The machine of AVX-512: vectors of 16 floats, 32 registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512(());

/// The machine of AVX-512 for factors that are bf16: vectors of 16 floats.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512Bf16(Avx512);

impl Avx512 {
    /// The machine, if the processor has AVX-512.
    pub(crate) fn detect() -> Option<Avx512> {
        Instructions::Avx512.is_available().then_some(Avx512(()))
    }
}

impl Avx512Bf16 {
    /// The machine, if the processor has AVX-512 and its bf16 products.
    pub(crate) fn detect() -> Option<Avx512Bf16> {
        let wide = Avx512::detect()?;
        Instructions::Avx512Bf16.is_available().then_some(Avx512Bf16(wide))
    }
}

/// Prefetches `floats`, a cache line at a time.
#[inline(always)]
pub(crate) fn prefetch(floats: &[f32]) {
    for line in floats.chunks(PANEL) {
        // SAFETY: every x86-64 processor has the instruction, and it reads nothing that a program can see.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) }
    }
}

/// Instructions that the token proves to be there.
macro_rules! proven {
    ($instructions:expr) => {{
        // SAFETY: a token of this machine is made only where the processor has its instructions; memory is reached through
        // references to whole panels.
        unsafe { $instructions }
    }};
}

mod avx2;

pub(crate) use avx2::Avx2;

impl Machine for Avx512 {
    const UNIT: usize = 1;
    type Panel = __m512;

    fn call<L: Leaf>(self, leaf: L) {
        #[target_feature(enable = "avx512f,avx512bw")]
        fn inner<L: Leaf>(machine: Avx512, leaf: L) {
            leaf.run(machine);
        }
        proven!(inner(self, leaf));
    }
    #[inline(always)]
    fn multiply(self, product: &mut Product<'_>) {
        in_tiles::<Avx512, 12, 2>(self, product);
    }
    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        proven!(_mm512_set1_ps(value))
    }
    #[inline(always)]
    fn load(self, from: &[f32; PANEL]) -> __m512 {
        proven!(_mm512_loadu_ps(from.as_ptr()))
    }
    #[inline(always)]
    fn store(self, panel: __m512, to: &mut [f32; PANEL]) {
        proven!(_mm512_storeu_ps(to.as_mut_ptr(), panel));
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        proven!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn subtract(self, a: __m512, b: __m512) -> __m512 {
        proven!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn multiplied(self, a: __m512, b: __m512) -> __m512 {
        proven!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn multiply_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        proven!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn larger(self, a: __m512, b: __m512) -> __m512 {
        proven!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn zero_below(self, limit: f32, x: __m512, value: __m512) -> __m512 {
        proven!({
            let below = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, _mm512_set1_ps(limit));
            _mm512_mask_mov_ps(value, below, _mm512_setzero_ps())
        })
    }
    #[inline(always)]
    fn exponent(self, bits: __m512) -> __m512 {
        proven!(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_castps_si512(bits))))
    }
    #[inline(always)]
    fn magnitudes(self, a: __m512, b: __m512) -> __m512 {
        proven!({
            let a = _mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(i32::MAX));
            _mm512_castsi512_ps(_mm512_max_epu32(a, _mm512_castps_si512(b)))
        })
    }
    #[inline(always)]
    fn most_bits(self, panel: __m512) -> u32 {
        proven!(_mm512_reduce_max_epu32(_mm512_castps_si512(panel)))
    }
    #[inline(always)]
    fn add_bits(self, a: __m512, b: __m512, to: &mut [u32; PANEL]) {
        proven!({
            let difference = _mm512_sub_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b));
            let sum = _mm512_add_epi32(_mm512_loadu_si512(to.as_ptr().cast()), difference);
            _mm512_storeu_si512(to.as_mut_ptr().cast(), sum);
        });
    }
    #[inline(always)]
    fn units(self, first: __m512, _: __m512) -> __m512 {
        first
    }
    #[inline(always)]
    fn neighbours(self, low: __m512, _: __m512) -> __m512 {
        low
    }
    #[inline(always)]
    fn highest(self, panel: __m512) -> f32 {
        proven!(_mm512_reduce_max_ps(panel))
    }
    #[inline(always)]
    fn total(self, panel: __m512) -> f32 {
        proven!(_mm512_reduce_add_ps(panel))
    }
    /// The power 2^x as x = k / 16 + f with |f| <= 1/32: a power from a table in a register, a short series, and an instruction that
    /// scales. It has half the multiplications of the long series, which compete with the products for the same units.
    #[inline(always)]
    fn exp2(self, x: __m512) -> __m512 {
        proven!({
            // The second operand is the result where either is NaN. 2^-150 is 0.
            let x = _mm512_max_ps(_mm512_set1_ps(-150.0), x);
            let rounded = _mm512_add_ps(x, _mm512_set1_ps(SIXTEENTHS));
            // The lowest four bits of k choose the power, and the others scale it.
            let sixteenths = _mm512_sub_ps(rounded, _mm512_set1_ps(SIXTEENTHS));
            let power = _mm512_permutexvar_ps(_mm512_castps_si512(rounded), self.load(&POWERS));
            let f = _mm512_sub_ps(x, sixteenths);
            let series = _mm512_fmadd_ps(_mm512_set1_ps(SERIES[2]), f, _mm512_set1_ps(SERIES[1]));
            let series = _mm512_fmadd_ps(series, f, _mm512_set1_ps(SERIES[0]));
            let above_one = _mm512_mul_ps(series, f);
            _mm512_scalef_ps(_mm512_fmadd_ps(power, above_one, power), sixteenths)
        })
    }
}

/// Added to x, it rounds to a sixteenth and leaves the number of sixteenths in the lowest bits: 1.5 * 2^19.
const SIXTEENTHS: f32 = 786_432.0;
/// Coefficients of (2^f - 1) / f: ln 2, (ln 2)^2 / 2, (ln 2)^3 / 6, off by 9e-9 of 2^f for |f| <= 1/32.
const SERIES: [f32; 3] = [LN_2, 0.240_226_5, 0.055_504_11];
/// The powers 2^(k / 16).
const POWERS: [f32; PANEL] = [
    1.0,
    1.044_273_7,
    1.090_507_7,
    1.138_788_6,
    1.189_207_1,
    1.241_857_8,
    1.296_839_6,
    1.354_255_6,
    SQRT_2,
    1.476_826_2,
    1.542_210_8,
    1.610_490_3,
    1.681_792_9,
    1.756_252_2,
    1.834_008_1,
    1.915_206_6,
];

impl Machine for Avx512Bf16 {
    const UNIT: usize = 2;
    type Panel = __m512;

    fn call<L: Leaf>(self, leaf: L) {
        #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
        fn inner<L: Leaf>(machine: Avx512Bf16, leaf: L) {
            leaf.run(machine);
        }
        proven!(inner(self, leaf));
    }
    #[inline(always)]
    fn multiply(self, product: &mut Product<'_>) {
        in_tiles::<Avx512Bf16, 12, 2>(self, product);
    }
    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        self.0.splat(value)
    }
    #[inline(always)]
    fn load(self, from: &[f32; PANEL]) -> __m512 {
        self.0.load(from)
    }
    #[inline(always)]
    fn store(self, panel: __m512, to: &mut [f32; PANEL]) {
        self.0.store(panel, to);
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        self.0.add(a, b)
    }
    #[inline(always)]
    fn subtract(self, a: __m512, b: __m512) -> __m512 {
        self.0.subtract(a, b)
    }
    #[inline(always)]
    fn multiplied(self, a: __m512, b: __m512) -> __m512 {
        self.0.multiplied(a, b)
    }
    #[inline(always)]
    fn multiply_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        self.0.multiply_add(a, b, c)
    }
    #[inline(always)]
    fn larger(self, a: __m512, b: __m512) -> __m512 {
        self.0.larger(a, b)
    }
    #[inline(always)]
    fn zero_below(self, limit: f32, x: __m512, value: __m512) -> __m512 {
        self.0.zero_below(limit, x, value)
    }
    #[inline(always)]
    fn exponent(self, bits: __m512) -> __m512 {
        self.0.exponent(bits)
    }
    #[inline(always)]
    fn exp2(self, x: __m512) -> __m512 {
        self.0.exp2(x)
    }
    #[inline(always)]
    fn highest(self, panel: __m512) -> f32 {
        self.0.highest(panel)
    }
    #[inline(always)]
    fn total(self, panel: __m512) -> f32 {
        self.0.total(panel)
    }
    #[inline(always)]
    fn magnitudes(self, a: __m512, b: __m512) -> __m512 {
        self.0.magnitudes(a, b)
    }
    #[inline(always)]
    fn most_bits(self, panel: __m512) -> u32 {
        self.0.most_bits(panel)
    }
    #[inline(always)]
    fn add_bits(self, a: __m512, b: __m512, to: &mut [u32; PANEL]) {
        self.0.add_bits(a, b, to);
    }
    #[inline(always)]
    fn dot(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        proven!(_mm512_dpbf16_ps(c, pairs(a), pairs(b)))
    }
    /// Rounds 32 floats, `second`'s to the upper half of the vector, then interleaves the halves.
    #[inline(always)]
    fn units(self, first: __m512, second: __m512) -> __m512 {
        const ORDER: [i16; 32] = {
            let mut order = [0; 32];
            let mut lane = 0;
            while lane < 32 {
                order[lane] = (lane / 2 + lane % 2 * 16) as i16;
                lane += 1;
            }
            order
        };
        proven!({
            let halves = transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(second, first));
            let order = transmute::<[i16; 32], __m512i>(ORDER);
            _mm512_castsi512_ps(_mm512_permutexvar_epi16(order, halves))
        })
    }
    #[inline(always)]
    fn neighbours(self, low: __m512, high: __m512) -> __m512 {
        proven!(transmute::<__m512bh, __m512>(_mm512_cvtne2ps_pbh(high, low)))
    }
}

/// The bits of `units` as pairs of bf16.
#[inline(always)]
fn pairs(units: __m512) -> __m512bh {
    // SAFETY: both are 64 bytes in which every pattern of bits is a value.
    unsafe { transmute(units) }
}
