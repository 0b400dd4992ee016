// Sums whose order follows from the sizes alone: over rows, and of a list of numbers.
#pragma once
#include "../operators/teams.h"

// Sums of columns over each `rows_per_block` rows, f32, [ceiling_divide(rows, rows_per_block), width]: of a bias, the gradient's
// first half. Grid: x that many blocks, y blocks share the columns, `ceiling_divide(width, 256)` or any other number. To have the
// same bits everywhere, let rows_per_block follow from `rows` alone. Shared memory: 8 KiB.
struct SumRowsArguments {
  const void* x;   // [rows, width]
  float* partials;
  int64_t rows;
  int width;
  int rows_per_block;
};

// totals = sums over the rows of partials [count, width], made in f64.
// Grid: `ceiling_divide(width, 32)`. Shared memory: 2 KiB.
struct SumPartialsArguments {
  const float* partials;
  float* totals;   // [width]
  int64_t count;
  int width;
};

// total = the sum of values. Grid: 1. Shared memory: 2 KiB.
struct SumArguments {
  const double* values;
  double* total;
  int64_t count;
};

constexpr int SUM_WARPS = OPERATOR_THREADS / 32;

// A warp's sums of 32 N columns, one warp after the other in shared memory.
template <typename T, int N>
DEVICE void sum_rows_of_warp(const SumRowsArguments& arguments, int column, int64_t first, int64_t end, uint32_t to) {
  float sums[N] = {};
  if (column < arguments.width) {
    for (int64_t row = first + warp_index(); row < end; row += SUM_WARPS) {
      float x[N];
      read(static_cast<const T*>(arguments.x) + row * arguments.width + column, x);
      UNROLL
      for (int i = 0; i < N; i++) sums[i] += x[i];
    }
  }
  UNROLL
  for (int i = 0; i < N; i++) store_shared(to + 4u * static_cast<uint32_t>(threadIdx.x * N + i), sums[i]);
}

template <typename T, int N> DEVICE void sum_rows_of_block(const SumRowsArguments& arguments) {
  SHARED_MEMORY(shared);
  constexpr int Columns = 32 * N;
  const uint32_t sums = shared_address(shared);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * arguments.rows_per_block;
  const int64_t end = min(arguments.rows, first + arguments.rows_per_block);
  float* partials = arguments.partials + static_cast<int64_t>(blockIdx.x) * arguments.width;
  const int step = static_cast<int>(gridDim.y) * Columns, mine = static_cast<int>(threadIdx.x);
  for (int start = static_cast<int>(blockIdx.y) * Columns; start < arguments.width; start += step) {
    sum_rows_of_warp<T, N>(arguments, start + lane_index() * N, first, end, sums);
    __syncthreads();
    if (mine < Columns && start + mine < arguments.width) {
      float sum = 0.0f;
      UNROLL
      for (int warp = 0; warp < SUM_WARPS; warp++) {
        sum += load_shared<float>(sums + 4u * static_cast<uint32_t>(warp * Columns + mine));
      }
      store_global(partials + start + mine, sum);
    }
    __syncthreads();
  }
}

template <typename T> DEVICE void sum_rows(const SumRowsArguments& arguments) {
  constexpr int N = GROUP<T>;
  if (aligned(arguments.x) && arguments.width % N == 0) {
    sum_rows_of_block<T, N>(arguments);
  } else {
    sum_rows_of_block<T, 1>(arguments);
  }
}

// Each warp takes every 8th row of 32 columns; the warps' sums are added in order.
DEVICE void sum_partials(const SumPartialsArguments& arguments) {
  SHARED_MEMORY(shared);
  const uint32_t own = shared_address(shared) + 8 * threadIdx.x;
  const int column = static_cast<int>(blockIdx.x) * 32 + lane_index();
  double sum = 0.0;
  if (column < arguments.width) {
    const float* partials = arguments.partials + column;
    for (int64_t row = warp_index(); row < arguments.count; row += SUM_WARPS) {
      sum += static_cast<double>(load_global(partials + row * arguments.width));
    }
  }
  store_shared(own, sum);
  __syncthreads();
  if (warp_index() > 0 || column >= arguments.width) return;
  for (uint32_t warp = 1; warp < SUM_WARPS; warp++) sum += load_shared<double>(own + 8 * 32 * warp);
  store_global(arguments.totals + column, static_cast<float>(sum));
}

DEVICE void sum_list(const SumArguments& arguments) {
  SHARED_MEMORY(shared);
  double sum = 0.0;
  for (int64_t at = threadIdx.x; at < arguments.count; at += blockDim.x) sum += load_global(arguments.values + at);
  sum = block_sum_wide(sum, shared_address(shared));
  if (threadIdx.x == 0) store_global(arguments.total, sum);
}
