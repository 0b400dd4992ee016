// The norm of all gradients: `norm_squares` leaves a sum of squares per chunk, `sum_f64` adds them up in order. The host makes the clip
// factor of the total, to which ranks that hold parts add theirs.
#pragma once
#include "../operators/chunks.h"
#include "../operators/teams.h"

// One gradient, in a table in device memory.
struct alignas(16) NormTensor {
  const float* values;   // [count]
  int64_t count;
};

// squares[i] = the sum of squares of chunk i, in f64. Grid: chunks. Shared memory: 2 KiB.
struct NormSquaresArguments {
  const NormTensor* tensors;
  const Chunk* chunks;
  double* squares;   // [chunks]
};

DEVICE void norm_squares(const NormSquaresArguments& arguments) {
  SHARED_MEMORY(shared);
  const Chunk chunk = load_global(arguments.chunks + blockIdx.x);
  const NormTensor tensor = load_global(arguments.tensors + chunk.tensor);
  double sum = 0.0;
  for_chunk<GROUP<float>>(chunk, tensor.count, aligned(tensor.values), [&](int64_t at, auto lanes) {
    constexpr int N = decltype(lanes)::COUNT;
    float x[N];
    read(tensor.values + at, x);
    UNROLL
    for (int i = 0; i < N; i++) sum = fma(static_cast<double>(x[i]), static_cast<double>(x[i]), sum);
  });
  sum = block_sum_wide(sum, shared_address(shared));
  if (threadIdx.x == 0) store_global(arguments.squares + blockIdx.x, sum);
}
