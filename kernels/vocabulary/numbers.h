// Numbers: 16-bit floats and their conversions, pairs in one register, and the fast and the accurate functions of f32.
#pragma once
#include "gpu.h"
#if !ON_GPU
#include <math.h>
#endif

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

struct alignas(8) Float2 {
  float x, y;
};
struct alignas(16) Float4 {
  float x, y, z, w;
};
struct alignas(16) Int4 {
  int x, y, z, w;
};

// Which of the two 16-bit formats a type is: picks instructions at compile time.
template <typename T> struct Format;
template <> struct Format<Bf16> {
  static constexpr bool is_bf16 = true;
};
template <> struct Format<F16> {
  static constexpr bool is_bf16 = false;
};

DEVICE float to_float(float value) { return value; }
DEVICE float to_float(Bf16 value) { return bits_as<float>(static_cast<uint32_t>(value.bits) << 16); }
DEVICE float to_float(F16 value) {
#if ON_GPU
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
#else
  return emulator::float_of_f16(value.bits);
#endif
}

// Two numbers in one register, `low` in the lower half, rounded to nearest even (PTX ISA, cvt: the first source becomes the
// upper half).
template <typename T> DEVICE uint32_t pack(float low, float high) {
#if ON_GPU
  uint32_t pair;
  if constexpr (Format<T>::is_bf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
#else
  if constexpr (Format<T>::is_bf16) {
    return emulator::bf16_of_float(low) | static_cast<uint32_t>(emulator::bf16_of_float(high)) << 16;
  } else {
    return emulator::f16_of_float(low) | static_cast<uint32_t>(emulator::f16_of_float(high)) << 16;
  }
#endif
}

template <typename T> DEVICE Float2 unpack(uint32_t pair) {
  return {to_float(T{static_cast<uint16_t>(pair)}), to_float(T{static_cast<uint16_t>(pair >> 16)})};
}

template <typename T> struct FromFloat {
  static DEVICE T convert(float value) { return T{static_cast<uint16_t>(pack<T>(value, 0.0f))}; }
};
template <> struct FromFloat<float> {
  static DEVICE float convert(float value) { return value; }
};

// Rounds to nearest even.
template <typename T> DEVICE T from_float(float value) { return FromFloat<T>::convert(value); }

// 2^x to about two units in the last place; 0 for -inf, results below 2^-126 are 0 (PTX ISA, ex2.approx.ftz.f32).
DEVICE float exp2_fast(float x) {
#if ON_GPU
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return emulator::exp2_flushed(x);
#endif
}

// a * b + c, rounded once.
DEVICE float multiply_add(float a, float b, float c) {
#if ON_GPU
  return __fmaf_rn(a, b, c);
#else
  return emulator::fused_multiply_add(a, b, c);
#endif
}

// a * b, rounded: no compiler makes one operation of it and a sum.
DEVICE float multiply(float a, float b) {
#if ON_GPU
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

// The next integer that is not below.
DEVICE float ceiling(float x) { return ceilf(x); }

// Accurate forms: within one or two units in the last place over the whole range, on the GPU too (no fast-math flags are used).
DEVICE float exp_exact(float x) { return expf(x); }
DEVICE float log_exact(float x) { return logf(x); }
DEVICE float sqrt_exact(float x) { return sqrtf(x); }
DEVICE float absolute(float x) { return fabsf(x); }
