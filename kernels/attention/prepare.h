// Before the first tile of backward: delta = sum of out * gradient of each row (Dao 2023, arXiv 2307.08691, algorithm 2, line 4),
// and the log-sum-exp as the kernels want it. Eight lanes to a row.
#pragma once
#include "../operators/groups.h"
#include "rows.h"

constexpr float LOG2_E = 1.4426950408889634f;
constexpr int PREPARE_LANES = 8;

// The part of a row's sum that this one of its lanes makes.
template <typename T> DEVICE float products_of_row(const T* out, const T* gradient, int dim, int lane) {
  constexpr int N = 16 / sizeof(T);
  float sum = 0.0f;
  if (dim % N != 0 || !aligned(out, gradient)) {
    for (int column = lane; column < dim; column += PREPARE_LANES) {
      sum = multiply_add(to_float(load_global(out + column)), to_float(load_global(gradient + column)), sum);
    }
    return sum;
  }
  for (int column = lane * N; column < dim; column += PREPARE_LANES * N) {
    float left[N], right[N];
    read(out + column, left);
    read(gradient + column, right);
    UNROLL
    for (int i = 0; i < N; ++i) sum = multiply_add(left[i], right[i], sum);
  }
  return sum;
}

template <typename T, int...> DEVICE void prepare_rows(const PrepareArguments& arguments) {
  const int64_t rows = static_cast<int64_t>(arguments.batch) * arguments.heads * arguments.rows;
  const int64_t to = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / PREPARE_LANES;
  // Lanes past the last row make its sum again: all take part in the shuffles.
  const int64_t of = min(to, rows - 1), head_of_all = of / arguments.rows;
  const int row = static_cast<int>(of % arguments.rows), lane = lane_index() % PREPARE_LANES;
  const int batch = static_cast<int>(head_of_all / arguments.heads), head = static_cast<int>(head_of_all % arguments.heads);
  const T* out = row_start<T>(arguments.out, arguments.out_strides, batch, head, row);
  const T* gradient = row_start<T>(arguments.gradient, arguments.gradient_strides, batch, head, row);
  float delta = products_of_row(out, gradient, arguments.dim, lane);
  UNROLL
  for (int apart = PREPARE_LANES / 2; apart > 0; apart /= 2) delta += shuffle_xor(delta, apart);
  if (lane != 0 || to >= rows) return;
  // A row that saw nothing has no score above -inf: its weights are 0.
  const float lse = arguments.lse[to];
  arguments.lse_log2[to] = lse == -infinity() ? 0.0f : lse * LOG2_E;
  arguments.delta[to] = delta;
}
