// 16-bit floats on a CPU, bit by bit, so that the results are the same with every compiler and processor.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace emulator {

constexpr uint32_t UNDER_WAY = 0x7fa3a5c7;   // a signalling NaN, of what is not there yet: whatever computes with it makes another one

inline float float_of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline uint32_t bits_of_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of_bf16(uint16_t bits) { return float_of_bits(static_cast<uint32_t>(bits) << 16); }

// To nearest, ties to even; a NaN becomes the one that cvt.rn writes (PTX ISA, cvt: 0x7fff).
inline uint16_t bf16_of_float(float value) {
  if (value != value) return 0x7fff;
  const uint32_t bits = bits_of_float(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// The exponent is moved by 112 with a product, which also makes subnormals normal; infinities and NaN keep theirs. No branch, so
// that whole matrices are converted by vectors.
inline float float_of_f16(uint16_t bits) {
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fff) << 13;
  const float scaled = float_of_bits(magnitude) * float_of_bits((127 + 112) << 23);
  const uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0;
  return float_of_bits(bits_of_float(scaled) | special | static_cast<uint32_t>(bits & 0x8000) << 16);
}

// To nearest, ties to even; beyond 65504 by half a step or more: infinity.
inline uint16_t f16_of_float(float value) {
  if (value != value) return 0x7fff;
  const uint16_t sign = static_cast<uint16_t>(bits_of_float(value) >> 16 & 0x8000);
  const float magnitude = std::fabs(value);
  if (magnitude >= 65520.0f) return sign | 0x7c00;
  if (magnitude < 6.103515625e-5f) return sign | static_cast<uint16_t>(std::nearbyint(magnitude * 16777216.0f));
  const uint32_t bits = bits_of_float(magnitude);
  return sign | static_cast<uint16_t>((bits + 0xfff + (bits >> 13 & 1) - (112u << 23)) >> 13);
}

inline float flushed(float value) { return std::fabs(value) < 1.17549435e-38f ? std::copysign(0.0f, value) : value; }

inline float exp2_flushed(float x) { return flushed(std::exp2(flushed(x))); }
inline float fused_multiply_add(float a, float b, float c) { return std::fma(a, b, c); }

}  // namespace emulator
