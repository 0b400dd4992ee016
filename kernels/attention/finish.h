// After the last tile: the only division and the only rounding of forward; the gradients of queries brought into rows.
#pragma once
#include "arguments.h"
#include "sm80_scores.h"

// One warp per row.
template <typename T, int...> DEVICE void finish_rows(const FinishArguments& arguments) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + warp_index();
  if (row >= arguments.rows) return;
  const float sum = arguments.sum[row];
  const float share = sum > 0.0f ? 1.0f / sum : 0.0f;
  const float* out = arguments.out + row * arguments.dim;
  T* result = static_cast<T*>(arguments.result) + row * arguments.dim;
  for (int column = lane_index(); column < arguments.dim; column += 32) {
    result[column] = from_float<T>(load_global(out + column) * share);
  }
  if (lane_index() != 0) return;
  arguments.lse[row] = sum > 0.0f ? multiply_add(arguments.maximum[row], arguments.scale, log_exact(sum)) : -infinity();
}

// From rows of `padded`: one warp per row.
template <typename, int...> DEVICE void finish_queries_rows(const FinishQueriesArguments& arguments) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + warp_index();
  if (row >= static_cast<int64_t>(arguments.batch) * arguments.heads * arguments.rows) return;
  const int64_t from_row = row / arguments.rows * arguments.padded + row % arguments.rows;
  const float* from = arguments.accumulated + from_row * arguments.dim;
  float* to = arguments.dq + row * arguments.dim;
  for (int column = lane_index(); column < arguments.dim; column += 32) to[column] = load_global(from + column) * arguments.scale;
}

// From columns (`sm100_backward.h`): 128 rows of `padded` to a block, eight columns of a row to a thread.
template <typename, int...> DEVICE void finish_queries_columns(const FinishQueriesArguments& arguments) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * 128, head = first / arguments.padded;
  const int own = static_cast<int>(threadIdx.x) % 128, row = static_cast<int>(first % arguments.padded) + own;
  if (row >= arguments.rows) return;
  const float* from = arguments.accumulated + first * arguments.columns + own;
  float* to = arguments.dq + (head * arguments.rows + row) * arguments.dim;
  const int step = static_cast<int>(blockDim.x) / 128 * 8;
  for (int column = static_cast<int>(threadIdx.x) / 128 * 8; column < arguments.dim; column += step) {
    UNROLL
    for (int i = column; i < column + 8; i += 4) {
      const float* of = from + i * 128;
      const Float4 four{load_global(of) * arguments.scale, load_global(of + 128) * arguments.scale,
                        load_global(of + 256) * arguments.scale, load_global(of + 384) * arguments.scale};
      store_global(reinterpret_cast<Float4*>(to + i), four);
    }
  }
}

// From fragments (`sm80_scores.h`): one warp per 16 rows of `padded`.
template <typename, int...> DEVICE void finish_queries_fragments(const FinishQueriesArguments& arguments) {
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + warp_index()) * 16;
  if (first >= static_cast<int64_t>(arguments.batch) * arguments.heads * arguments.padded) return;
  const float* from = arguments.accumulated + first * arguments.columns + lane_index();
  const int64_t head = first / arguments.padded;
  const int row = static_cast<int>(first % arguments.padded) + fragment_row(0);
  float* to = arguments.dq + (head * arguments.rows + row) * arguments.dim + fragment_column();
  for (int column = 0; column < arguments.dim; column += 8, from += FRAGMENT_ELEMENTS) {
    UNROLL
    for (int half = 0; half < 2; ++half) {
      if (row + 8 * half >= arguments.rows) continue;
      const Float2 pair{load_global(from + 64 * half) * arguments.scale, load_global(from + 64 * half + 32) * arguments.scale};
      *reinterpret_cast<Float2*>(to + 8 * half * arguments.dim + column) = pair;
    }
  }
}
