// Small matrices of f32, by vectors of four that every processor has: the sums inside of the tensor cores.
#pragma once
#include "numbers.h"

namespace emulator {

typedef float Floats __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(16)));

// The lower halves of four words as floats; they are f16, or bf16.
inline void widen_lower(const Words& words, bool is_bf16, float* wide) {
  Words bits = words << 16;
  if (!is_bf16) {   // as `float_of_f16`
    const Words magnitude = (words & 0x7fffu) << 13;
    const Floats scaled = reinterpret_cast<Floats>(magnitude) * float_of_bits((127 + 112) << 23);
    const Words special = reinterpret_cast<Words>(magnitude >= 0x0f800000u) & 0x7f800000u;
    bits = reinterpret_cast<Words>(scaled) | special | (words & 0x8000u) << 16;
  }
  std::memcpy(wide, &bits, sizeof bits);
}

// Pairs that lie in four words: the lower halves, and the upper ones.
inline void widen_pairs(const uint32_t* pairs, bool is_bf16, float* lower, float* upper) {
  Words words;
  std::memcpy(&words, pairs, sizeof words);
  widen_lower(words, is_bf16, lower);
  widen_lower(words >> 16, is_bf16, upper);
}

// Eight 16-bit numbers that lie one after the other.
inline void widen(const uint16_t* half, bool is_bf16, float* wide) {
  widen_lower(Words{half[0], half[1], half[2], half[3]}, is_bf16, wide);
  widen_lower(Words{half[4], half[5], half[6], half[7]}, is_bf16, wide + 4);
}

// Four rows of a times 16 x 8 of b, of which a row is `pitch` long.
inline void multiply_rows(const float (*a)[16], const float* b, uint32_t pitch, float (*sums)[8]) {
  Floats left[4] = {}, right[4] = {};
#pragma GCC unroll 4
  for (uint32_t k = 0; k < 16; ++k) {
    Floats low, high;
    std::memcpy(&low, b + k * pitch, sizeof low);
    std::memcpy(&high, b + k * pitch + 4, sizeof high);
#pragma GCC unroll 4
    for (uint32_t row = 0; row < 4; ++row) {
      left[row] += a[row][k] * low;
      right[row] += a[row][k] * high;
    }
  }
#pragma GCC unroll 4
  for (uint32_t row = 0; row < 4; ++row) {
    std::memcpy(sums[row], &left[row], sizeof left[row]);
    std::memcpy(sums[row] + 4, &right[row], sizeof right[row]);
  }
}

// sums = a b for 16 x 16 times 16 x 8.
inline void multiply(const float (&a)[16][16], const float* b, uint32_t pitch, float (&sums)[16][8]) {
  for (uint32_t row = 0; row < 16; row += 4) multiply_rows(a + row, b, pitch, sums + row);
}

}  // namespace emulator
