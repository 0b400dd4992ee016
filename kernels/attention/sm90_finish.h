// The gradients of queries that kernels of sm_90a leave in the order of `lane_order`, brought into rows.
#pragma once
#include "sm90_fragments.h"

// One warp per 16 rows of `padded`.
template <typename, int...> DEVICE void finish_queries_lanes(const FinishQueriesArguments& arguments) {
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + warp_index()) * 16;
  if (first >= static_cast<int64_t>(arguments.batch) * arguments.heads * arguments.padded) return;
  const float* from = arguments.accumulated + first * arguments.columns + 4 * lane_index();
  const int64_t head = first / arguments.padded;
  const int row = static_cast<int>(first % arguments.padded) + lane_index() / 4;
  float* to = arguments.dq + (head * arguments.rows + row) * arguments.dim + lane_index() % 4 * 2;
  for (int column = 0; column < arguments.dim; column += 8, from += 128) {
    const Float4 sums = load_global(reinterpret_cast<const Float4*>(from));
    const Float2 upper{sums.x * arguments.scale, sums.y * arguments.scale};
    const Float2 lower{sums.z * arguments.scale, sums.w * arguments.scale};
    if (row < arguments.rows) store_global(reinterpret_cast<Float2*>(to + column), upper);
    if (row + 8 < arguments.rows) store_global(reinterpret_cast<Float2*>(to + 8 * arguments.dim + column), lower);
  }
}
