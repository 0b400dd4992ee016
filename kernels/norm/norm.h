// The norm of all gradients, and the factor that the optimizer multiplies them by; the host need not wait for either.
//
// `norm_squares` leaves a sum of squares per chunk, `sum_f64` adds them up in order, `clip_factor` makes the rest of the total.
// Between the last two, ranks that hold parts may add theirs.
#pragma once
#include "../operators/chunks.h"
#include "../operators/teams.h"

// One gradient, in a table in device memory.
struct alignas(16) NormTensor {
  const void* values;   // [count]
  int64_t count;
};

// squares[i] = the sum of squares of chunk i, in f64. Grid: chunks. Shared memory: 2 KiB.
struct NormSquaresArguments {
  const NormTensor* tensors;
  const Chunk* chunks;
  double* squares;   // [chunks]
};

// norm = sqrt(squares) / divisor     factor = min(1, clip / (norm + 1e-6)) / divisor, and 1 / divisor where clip is 0.
// A norm that is not finite makes the factor NaN. Grid: 1.
struct ClipFactorArguments {
  const double* squares;
  double* norm;
  float* factor;
  double divisor;
  double clip;
};

template <typename T> DEVICE void norm_squares(const NormSquaresArguments& arguments) {
  SHARED_MEMORY(shared);
  const Chunk chunk = load_global(arguments.chunks + blockIdx.x);
  const NormTensor tensor = load_global(arguments.tensors + chunk.tensor);
  const T* values = static_cast<const T*>(tensor.values);
  double sum = 0.0;
  for_chunk<GROUP<T>>(chunk, tensor.count, aligned(values), [&](int64_t at, auto lanes) {
    constexpr int N = decltype(lanes)::COUNT;
    float x[N];
    read(values + at, x);
    UNROLL
    for (int i = 0; i < N; i++) sum = fma(static_cast<double>(x[i]), static_cast<double>(x[i]), sum);
  });
  sum = block_sum_wide(sum, shared_address(shared));
  if (threadIdx.x == 0) store_global(arguments.squares + blockIdx.x, sum);
}

DEVICE void norm_factor(const ClipFactorArguments& arguments) {
  if (threadIdx.x > 0) return;
  const double norm = sqrt(load_global(arguments.squares)) / arguments.divisor;
  const double ratio = arguments.clip / (norm + 1e-6);
  double factor = arguments.clip > 0.0 && ratio < 1.0 ? ratio : 1.0;
  // inf - inf and NaN - NaN are NaN, all else is 0.
  factor += norm - norm;
  store_global(arguments.norm, norm);
  store_global(arguments.factor, static_cast<float>(factor / arguments.divisor));
}
