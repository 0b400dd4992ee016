// The gradients of the RMS norm. The row's scale is made again: its sum of squares comes with the other sum that is needed.
#pragma once
#include "forward.h"

// dx = onto + r (dy w) - x r^3 mean(dy w x), and the sums over a block's rows of dy x r, which `sum_partials` adds up.
// Grid: `ceiling_divide(rows, rows_per_block)`. To have the same bits everywhere, let rows_per_block follow from `rows` alone.
// Shared memory: TEAM_SCRATCH + 4 * width * (threads / the team's threads).
struct RmsNormBackwardArguments {
  const void* x;         // [rows, width]: what was normalised
  const void* weight;    // [width]
  const void* dy;        // [rows, width]
  const void* onto;      // [rows, width], or null: the gradient of the residual stream
  void* dx;              // [rows, width]; may be dy or onto
  float* partials;       // [grid, width]
  int64_t rows;
  int width;
  int rows_per_block;
  float epsilon;
};

// N columns of sums in shared memory += values.
template <int N> DEVICE void add_shared(uint32_t address, const float (&values)[N]) {
  if constexpr (N == 1) {
    store_shared(address, load_shared<float>(address) + values[0]);
  } else {
    UNROLL
    for (int i = 0; i < N; i += 4) {
      const uint32_t at = address + 4u * static_cast<uint32_t>(i);
      Float4 sum = load_shared<Float4>(at);
      sum.x += values[i], sum.y += values[i + 1], sum.z += values[i + 2], sum.w += values[i + 3];
      store_shared(at, sum);
    }
  }
}

// What a row's gradient needs to know of the row.
struct RmsNormRow {
  float scale;   // r
  float back;    // r^3 mean(dy w x)
};

template <typename T, int N, int Warps>
DEVICE RmsNormRow rms_norm_sums(const RmsNormBackwardArguments& arguments, int64_t start, const unsigned char* scratch) {
  using Workers = Team<Warps>;
  const int width = arguments.width;
  float squares = 0.0f, along = 0.0f;
  for_columns<N>(width, Workers::thread(), Workers::THREADS, [&](int column) {
    float x[N], w[N], dy[N];
    read(static_cast<const T*>(arguments.x) + start + column, x);
    read(static_cast<const T*>(arguments.weight) + column, w);
    read(static_cast<const T*>(arguments.dy) + start + column, dy);
    UNROLL
    for (int i = 0; i < N; i++) {
      squares = multiply_add(x[i], x[i], squares);
      along = multiply_add(dy[i] * w[i], x[i], along);
    }
  });
  const float r = rms_scale(Workers::sum(squares, scratch), width, arguments.epsilon);
  return {r, r * r * r * Workers::sum(along, scratch) / static_cast<float>(width)};
}

template <typename T, int N, int Warps>
DEVICE void rms_norm_row_backward(const RmsNormBackwardArguments& arguments, int64_t row, const unsigned char* shared,
                                  uint32_t sums) {
  using Workers = Team<Warps>;
  const int64_t start = row * arguments.width;
  const RmsNormRow of_row = rms_norm_sums<T, N, Warps>(arguments, start, shared);
  for_columns<N>(arguments.width, Workers::thread(), Workers::THREADS, [&](int column) {
    float x[N], w[N], dy[N], onto[N] = {};
    read(static_cast<const T*>(arguments.x) + start + column, x);
    read(static_cast<const T*>(arguments.weight) + column, w);
    read(static_cast<const T*>(arguments.dy) + start + column, dy);
    if (arguments.onto) read(static_cast<const T*>(arguments.onto) + start + column, onto);
    UNROLL
    for (int i = 0; i < N; i++) {
      w[i] = multiply_add(of_row.scale * w[i], dy[i], -(of_row.back * x[i])) + onto[i];
      x[i] = dy[i] * of_row.scale * x[i];
    }
    write(static_cast<T*>(arguments.dx) + start + column, w);
    add_shared(sums + 4u * static_cast<uint32_t>(column), x);
  });
}

// The rows of a block; each thread keeps the sums of its columns, a team those of its rows, and the teams are added in order.
template <typename T, int N, int Warps> DEVICE void rms_norm_rows_backward(const RmsNormBackwardArguments& arguments) {
  SHARED_MEMORY(shared);
  using Workers = Team<Warps>;
  const int width = arguments.width;
  const uint32_t all_sums = shared_address(shared) + TEAM_SCRATCH, pitch = 4u * static_cast<uint32_t>(width);
  const uint32_t sums = all_sums + pitch * static_cast<uint32_t>(Workers::index());
  for_columns<N>(width, Workers::thread(), Workers::THREADS, [&](int column) {
    UNROLL
    for (int i = 0; i < N; i++) store_shared(sums + 4u * static_cast<uint32_t>(column + i), 0.0f);
  });
  const int64_t first = static_cast<int64_t>(blockIdx.x) * arguments.rows_per_block;
  const int count = static_cast<int>(min(arguments.rows - first, static_cast<int64_t>(arguments.rows_per_block)));
  for (int row = Workers::index(); row < count; row += Workers::count()) {
    rms_norm_row_backward<T, N, Warps>(arguments, first + row, shared, sums);
  }
  __syncthreads();
  float* partials = arguments.partials + static_cast<int64_t>(blockIdx.x) * width;
  for (int column = static_cast<int>(threadIdx.x); column < width; column += static_cast<int>(blockDim.x)) {
    float sum = 0.0f;
    for (int team = 0; team < Workers::count(); team++) {
      sum += load_shared<float>(all_sums + pitch * static_cast<uint32_t>(team) + 4u * static_cast<uint32_t>(column));
    }
    store_global(partials + column, sum);
  }
}

template <typename T, int Warps> DEVICE void rms_norm_backward(const RmsNormBackwardArguments& arguments) {
  constexpr int N = GROUP<T>;
  const bool grouped = aligned(arguments.x, arguments.weight, arguments.dy, arguments.onto, arguments.dx);
  if (grouped && arguments.width % N == 0) {
    rms_norm_rows_backward<T, N, Warps>(arguments);
  } else {
    rms_norm_rows_backward<T, 1, Warps>(arguments);
  }
}
