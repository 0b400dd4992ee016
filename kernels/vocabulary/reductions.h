// Values from lane to lane: shuffles, and the sums and maxima made of them. Reached by all lanes of a warp.
#pragma once
#include "memory.h"

// The value of lane `lane ^ mask`. T: float, int or uint32_t.
template <typename T> DEVICE T shuffle_xor(T value, int mask) {
#if ON_GPU
  return __shfl_xor_sync(0xffffffffu, value, mask);
#else
  return bits_as<T>(emulator::shuffle_xor(bits_as<uint32_t>(value), mask));
#endif
}

// The value of lane `lane + delta`; the lane's own where there is none.
template <typename T> DEVICE T shuffle_down(T value, int delta) {
#if ON_GPU
  return __shfl_down_sync(0xffffffffu, value, delta);
#else
  return bits_as<T>(emulator::shuffle_down(bits_as<uint32_t>(value), delta));
#endif
}

// The value of lane `lane`.
template <typename T> DEVICE T shuffle_from(T value, int lane) {
#if ON_GPU
  return __shfl_sync(0xffffffffu, value, lane);
#else
  return bits_as<T>(emulator::shuffle_from(bits_as<uint32_t>(value), lane));
#endif
}

// Bit i: whether it holds for lane i.
DEVICE uint32_t warp_ballot(bool holds) {
#if ON_GPU
  return __ballot_sync(0xffffffffu, holds);
#else
  return emulator::ballot(holds);
#endif
}

DEVICE bool warp_any(bool holds) { return warp_ballot(holds) != 0; }
DEVICE bool warp_all(bool holds) { return warp_ballot(holds) == 0xffffffffu; }

// Over the four lanes that hold one row of a fragment.
DEVICE float quad_max(float value) {
  value = max(value, shuffle_xor(value, 1));
  return max(value, shuffle_xor(value, 2));
}
DEVICE float quad_sum(float value) {
  value += shuffle_xor(value, 1);
  return value + shuffle_xor(value, 2);
}

// Over the warp, the same in every lane.
DEVICE float warp_max(float value) {
  UNROLL
  for (int mask = 16; mask > 0; mask /= 2) value = max(value, shuffle_xor(value, mask));
  return value;
}
DEVICE float warp_sum(float value) {
  UNROLL
  for (int mask = 16; mask > 0; mask /= 2) value += shuffle_xor(value, mask);
  return value;
}

// Over the block, the same in every thread; `scratch` is the address of 32 floats of shared memory. All threads of the block.
DEVICE float block_sum(float value, uint32_t scratch) {
  const int warps = static_cast<int>(blockDim.x) / 32;
  value = warp_sum(value);
  if (lane_index() == 0) store_shared(scratch + 4u * static_cast<uint32_t>(warp_index()), value);
  __syncthreads();
  value = warp_sum(lane_index() < warps ? load_shared<float>(scratch + 4u * static_cast<uint32_t>(lane_index())) : 0.0f);
  __syncthreads();
  return value;
}
DEVICE float block_max(float value, uint32_t scratch) {
  const int warps = static_cast<int>(blockDim.x) / 32;
  value = warp_max(value);
  if (lane_index() == 0) store_shared(scratch + 4u * static_cast<uint32_t>(warp_index()), value);
  __syncthreads();
  const bool mine = lane_index() < warps;
  value = warp_max(mine ? load_shared<float>(scratch + 4u * static_cast<uint32_t>(lane_index())) : -infinity());
  __syncthreads();
  return value;
}
