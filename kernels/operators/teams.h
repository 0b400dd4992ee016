// Sums over the threads that share a row: a warp, or the whole block. Their order is fixed.
#pragma once
#include "groups.h"

// Shared memory of a team's sums, in bytes: whatever else a kernel keeps there comes after.
constexpr int TEAM_SCRATCH = 128;

// `Warps` warps on one row at a time: 1, or all of the block's.
template <int Warps> struct Team {
  static constexpr int THREADS = 32 * Warps;
  // Teams of the block, which one this is, and which of its threads.
  static DEVICE int count() { return static_cast<int>(blockDim.x) / THREADS; }
  static DEVICE int index() { return static_cast<int>(threadIdx.x) / THREADS; }
  static DEVICE int thread() { return static_cast<int>(threadIdx.x) % THREADS; }
  // The sum over the team, known to all its threads.
  static DEVICE float sum(float value, const unsigned char* scratch) {
    if constexpr (Warps == 1) {
      return warp_sum(value);
    } else {
      return block_sum(value, shared_address(scratch));
    }
  }
};

// The sum over the block in f64, for thread 0 alone; at `scratch` is an f64 per thread, whose number is a power of two.
DEVICE double block_sum_wide(double value, uint32_t scratch) {
  const uint32_t thread = threadIdx.x, own = scratch + 8 * thread;
  store_shared(own, value);
  for (uint32_t half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) store_shared(own, value += load_shared<double>(own + 8 * half));
  }
  return value;
}
