// The sum of squares of all gradients: by exponent of a square, the sum of the 28 highest bits of what stands before it, as
// integers, so in any order.
#pragma once
#include "../norm/norm.h"
#include "bins.h"

constexpr int SQUARE_EXPONENTS = 640, SQUARE_FIRST = -300, SQUARE_BITS = 28;
constexpr int SQUARE_SUMS = SQUARE_EXPONENTS + 1, SQUARE_WARPS = OPERATOR_THREADS / 32;

// sums[exponent + 300] += what stands before the exponent of the square of an f32; the last counts what is not finite.
// Grid: chunks. Shared memory: 8 * 641 * 8 bytes.
struct ExactSquaresArguments {
  const NormTensor* tensors;
  const Chunk* chunks;
  int64_t* sums;   // [641]
};

struct Square {
  int which;        // of the sums; -1: none, of 0
  uint32_t amount;
};

DEVICE Square square_of(float x) {
  if ((magnitude_bits(x) >> 23) == 255) return {SQUARE_EXPONENTS, 1};
  if (x == 0.0f) return {-1, 0};
  const uint64_t bits = bits_as<uint64_t>(static_cast<double>(x) * static_cast<double>(x));
  const uint64_t mantissa = (bits & ((1ull << 52) - 1)) | 1ull << 52;
  return {static_cast<int>(bits >> 52) - 1023 - SQUARE_FIRST, static_cast<uint32_t>(mantissa >> (53 - SQUARE_BITS))};
}

// Adds those of a warp to its sums in shared memory, exponent after exponent. All lanes of the warp.
DEVICE void add_squares(Square square, uint32_t sums) {
  for (uint32_t left = warp_ballot(square.which >= 0); left != 0;) {
    int leader = 0;
    while ((left >> leader & 1) == 0) ++leader;
    const int which = shuffle_from(square.which, leader);
    const bool is_same = square.which == which;
    uint32_t low = is_same ? square.amount & 0xffff : 0, high = is_same ? square.amount >> 16 : 0;
    UNROLL
    for (int mask = 16; mask > 0; mask /= 2) {
      low += shuffle_xor(low, mask);
      high += shuffle_xor(high, mask);
    }
    if (lane_index() == 0) {
      const uint32_t at = sums + 8u * static_cast<uint32_t>(which);
      store_shared(at, load_shared<uint64_t>(at) + low + (static_cast<uint64_t>(high) << 16));
    }
    left &= ~warp_ballot(is_same);
  }
}

DEVICE void exact_squares(const ExactSquaresArguments& arguments) {
  SHARED_MEMORY(shared);
  const uint32_t all = shared_address(shared), thread = threadIdx.x;
  for (uint32_t i = thread; i < SQUARE_WARPS * SQUARE_SUMS; i += OPERATOR_THREADS) store_shared(all + 8 * i, uint64_t{0});
  __syncthreads();
  const Chunk chunk = load_global(arguments.chunks + blockIdx.x);
  const NormTensor tensor = load_global(arguments.tensors + chunk.tensor);
  const float* values = static_cast<const float*>(tensor.values);
  const uint32_t own = all + 8u * static_cast<uint32_t>(warp_index() * SQUARE_SUMS);
  const int64_t first = chunk.index * CHUNK_ELEMENTS, end = min(first + CHUNK_ELEMENTS, tensor.count);
  for (int64_t at = first; at < end; at += OPERATOR_THREADS) {
    add_squares(square_of(at + thread < end ? load_global(values + at + thread) : 0.0f), own);
  }
  __syncthreads();
  for (uint32_t which = thread; which < SQUARE_SUMS; which += OPERATOR_THREADS) {
    uint64_t sum = 0;
    for (uint32_t warp = 0; warp < SQUARE_WARPS; ++warp) sum += load_shared<uint64_t>(all + 8 * (warp * SQUARE_SUMS + which));
    if (sum != 0) add_global(arguments.sums + which, static_cast<int64_t>(sum));
  }
}
