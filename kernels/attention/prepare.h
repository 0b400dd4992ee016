// Before the first tile of backward: delta = sum of out * gradient of each row (Dao 2023, arXiv 2307.08691, algorithm 2, line 4),
// and the log-sum-exp as the kernels want it. One warp per row.
#pragma once
#include "../vocabulary/reductions.h"
#include "rows.h"

constexpr float LOG2_E = 1.4426950408889634f;

template <typename T, int...> DEVICE void prepare_rows(const PrepareArguments& arguments) {
  const int64_t to = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + warp_index();
  if (to >= static_cast<int64_t>(arguments.batch) * arguments.heads * arguments.rows) return;
  const int row = static_cast<int>(to % arguments.rows);
  const int64_t head_of_all = to / arguments.rows;
  const int batch = static_cast<int>(head_of_all / arguments.heads), head = static_cast<int>(head_of_all % arguments.heads);
  const T* out = row_start<T>(arguments.out, arguments.out_strides, batch, head, row);
  const T* gradient = row_start<T>(arguments.gradient, arguments.gradient_strides, batch, head, row);
  float delta = 0.0f;
  for (int column = lane_index(); column < arguments.dim; column += 32) {
    delta = multiply_add(to_float(load_global(out + column)), to_float(load_global(gradient + column)), delta);
  }
  delta = warp_sum(delta);
  if (lane_index() != 0) return;
  // A row that saw nothing has no score above -inf: its weights are 0.
  const float lse = arguments.lse[to];
  arguments.lse_log2[to] = lse == -infinity() ? 0.0f : lse * LOG2_E;
  arguments.delta[to] = delta;
}
