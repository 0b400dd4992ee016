//! AVX2 and fused multiply-add.

use std::arch::x86_64::{
    __m256, _CMP_LT_OQ, _mm256_add_epi32, _mm256_add_ps, _mm256_and_si256, _mm256_andnot_ps,
    _mm256_castps_si256, _mm256_castsi256_ps, _mm256_cmp_ps, _mm256_fmadd_ps, _mm256_loadu_ps,
    _mm256_loadu_si256, _mm256_max_epu32, _mm256_max_ps, _mm256_mul_ps, _mm256_set1_epi32,
    _mm256_set1_ps, _mm256_slli_epi32, _mm256_storeu_ps, _mm256_storeu_si256, _mm256_sub_epi32,
    _mm256_sub_ps,
};

use super::super::product::{Product, in_tiles};
use super::{Instructions, Leaf, Machine, PANEL};

/// Vectors of 8 floats, 16 registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// Where the processor has AVX2 and fused multiply-add.
    pub(crate) fn detect() -> Option<Avx2> {
        Instructions::Avx2.is_available().then_some(Avx2(()))
    }
}

impl Machine for Avx2 {
    const UNIT: usize = 1;
    type Panel = [__m256; 2];

    fn call<L: Leaf>(self, leaf: L) {
        #[target_feature(enable = "avx2,fma")]
        fn inner<L: Leaf>(machine: Avx2, leaf: L) {
            leaf.run(machine);
        }
        proven!(inner(self, leaf));
    }
    #[inline(always)]
    fn multiply(self, product: &mut Product<'_>) {
        in_tiles::<Avx2, 6, 1>(self, product);
    }
    #[inline(always)]
    fn splat(self, value: f32) -> [__m256; 2] {
        proven!([_mm256_set1_ps(value); 2])
    }
    #[inline(always)]
    fn load(self, from: &[f32; PANEL]) -> [__m256; 2] {
        proven!([_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from[8..].as_ptr())])
    }
    #[inline(always)]
    fn store(self, panel: [__m256; 2], to: &mut [f32; PANEL]) {
        proven!({
            _mm256_storeu_ps(to.as_mut_ptr(), panel[0]);
            _mm256_storeu_ps(to[8..].as_mut_ptr(), panel[1]);
        });
    }
    #[inline(always)]
    fn add(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        proven!([_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn subtract(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        proven!([_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn multiplied(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        proven!([_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn multiply_add(self, a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        proven!([_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])])
    }
    #[inline(always)]
    fn larger(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        proven!([_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn zero_below(self, limit: f32, x: [__m256; 2], value: [__m256; 2]) -> [__m256; 2] {
        proven!({
            let limit = _mm256_set1_ps(limit);
            [
                _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(x[0], limit), value[0]),
                _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(x[1], limit), value[1]),
            ]
        })
    }
    #[inline(always)]
    fn exponent(self, bits: [__m256; 2]) -> [__m256; 2] {
        proven!([
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_castps_si256(bits[0]))),
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_castps_si256(bits[1]))),
        ])
    }
    #[inline(always)]
    fn magnitudes(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        proven!({
            let most = |a: __m256, b: __m256| {
                let a = _mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(i32::MAX));
                _mm256_castsi256_ps(_mm256_max_epu32(a, _mm256_castps_si256(b)))
            };
            [most(a[0], b[0]), most(a[1], b[1])]
        })
    }
    #[inline(always)]
    fn add_bits(self, a: [__m256; 2], b: [__m256; 2], to: &mut [u32; PANEL]) {
        for (half, to) in to.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            proven!({
                let (a, b) = (_mm256_castps_si256(a[half]), _mm256_castps_si256(b[half]));
                let sum = _mm256_loadu_si256(to.as_ptr().cast());
                let sum = _mm256_add_epi32(sum, _mm256_sub_epi32(a, b));
                _mm256_storeu_si256(to.as_mut_ptr().cast(), sum);
            });
        }
    }
    #[inline(always)]
    fn units(self, first: [__m256; 2], _: [__m256; 2]) -> [__m256; 2] {
        first
    }
    #[inline(always)]
    fn neighbours(self, low: [__m256; 2], _: [__m256; 2]) -> [__m256; 2] {
        low
    }
}
