// Before the first tile of backward: delta = sum of out * gradient of each row (Dao 2023, arXiv 2307.08691, algorithm 2, line 4),
// and the log-sum-exp as the kernels want it. One warp per row of the padded arrays.
#pragma once
#include "../vocabulary/reductions.h"
#include "rows.h"

constexpr float LOG2_E = 1.4426950408889634f;

template <typename T, int...> DEVICE void prepare_rows(const PrepareArguments& arguments) {
  const int64_t to = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + warp_index();
  const int64_t rows = static_cast<int64_t>(arguments.batch) * arguments.heads * arguments.padded;
  if (to >= rows) return;
  const int row = static_cast<int>(to % arguments.padded);
  const int64_t head_of_all = to / arguments.padded;
  const int batch = static_cast<int>(head_of_all / arguments.heads), head = static_cast<int>(head_of_all % arguments.heads);
  float delta = 0.0f, lse_log2 = infinity();   // past the last row: no weight is left of exp2(score - infinity)
  if (row < arguments.rows) {
    const T* out = row_start<T>(arguments.out, arguments.out_strides, batch, head, row);
    const T* gradient = row_start<T>(arguments.gradient, arguments.gradient_strides, batch, head, row);
    for (int column = lane_index(); column < arguments.dim; column += 32) {
      delta = multiply_add(to_float(load_global(out + column)), to_float(load_global(gradient + column)), delta);
    }
    const float lse = arguments.lse[head_of_all * arguments.rows + row];
    lse_log2 = lse == -infinity() ? 0.0f : lse * LOG2_E;   // a row that saw nothing has no score above -inf: its weights are 0
  }
  delta = warp_sum(delta);
  if (lane_index() != 0) return;
  arguments.lse_log2[to] = lse_log2;
  arguments.delta[to] = delta;
}
