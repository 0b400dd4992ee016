// `x / sqrt(mean(x^2) + epsilon) * weight` over the last dimension (Zhang and Sennrich, arXiv 1910.07467).
//
// A warp or a whole block takes a row. The row is read twice, the second time from the cache it has just come through: so any
// width fits, and memory is read once.
#pragma once
#include "../operators/teams.h"

// Grid: `ceiling_divide(rows, rows_per_block)`, rows_per_block of any number; shared memory: TEAM_SCRATCH.
struct RmsNormForwardArguments {
  const void* x;        // [rows, width]
  const void* added;    // [rows, width], or null: what is added to x first
  void* sum;            // [rows, width]: x + added, rounded, where `added` is not null; may be either of them
  const void* weight;   // [width]
  void* y;              // [rows, width]
  int64_t rows;
  int width;
  int rows_per_block;
  float epsilon;
};

// 1 / sqrt(mean of squares + epsilon).
DEVICE float rms_scale(float squares, int width, float epsilon) {
  return 1.0f / sqrt_exact(squares / static_cast<float>(width) + epsilon);
}

// N columns of the row that is normalised. With `added` the sum is made, and kept, at the first reading.
template <typename T, int N>
DEVICE void rms_norm_sum(const RmsNormForwardArguments& arguments, int64_t at, float (&x)[N]) {
  read(static_cast<const T*>(arguments.x) + at, x);
  if (!arguments.added) return;
  float added[N];
  read(static_cast<const T*>(arguments.added) + at, added);
  UNROLL
  for (int i = 0; i < N; i++) x[i] = rounded<T>(x[i] + added[i]);
  write(static_cast<T*>(arguments.sum) + at, x);
}

template <typename T, int N, int Warps>
DEVICE void rms_norm_row(const RmsNormForwardArguments& arguments, int64_t row, const unsigned char* scratch) {
  using Workers = Team<Warps>;
  const T* weight = static_cast<const T*>(arguments.weight);
  const int64_t start = row * arguments.width;
  float squares = 0.0f;
  for_columns<N>(arguments.width, Workers::thread(), Workers::THREADS, [&](int column) {
    float x[N];
    rms_norm_sum<T>(arguments, start + column, x);
    UNROLL
    for (int i = 0; i < N; i++) squares = multiply_add(x[i], x[i], squares);
  });
  const float scale = rms_scale(Workers::sum(squares, scratch), arguments.width, arguments.epsilon);
  const T* normalised = static_cast<const T*>(arguments.added ? arguments.sum : arguments.x) + start;
  for_columns<N>(arguments.width, Workers::thread(), Workers::THREADS, [&](int column) {
    float x[N], w[N];
    read(normalised + column, x);
    read(weight + column, w);
    UNROLL
    for (int i = 0; i < N; i++) x[i] = x[i] * scale * w[i];
    write(static_cast<T*>(arguments.y) + start + column, x);
  });
}

template <typename T, int N, int Warps> DEVICE void rms_norm_rows(const RmsNormForwardArguments& arguments) {
  SHARED_MEMORY(shared);
  using Workers = Team<Warps>;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * arguments.rows_per_block;
  const int64_t end = min(arguments.rows, first + arguments.rows_per_block);
  for (int64_t row = first + Workers::index(); row < end; row += Workers::count()) {
    rms_norm_row<T, N, Warps>(arguments, row, shared);
  }
}

template <typename T, int Warps> DEVICE void rms_norm_forward(const RmsNormForwardArguments& arguments) {
  constexpr int N = GROUP<T>;
  const bool grouped = aligned(arguments.x, arguments.added, arguments.sum, arguments.weight, arguments.y);
  if (grouped && arguments.width % N == 0) {
    rms_norm_rows<T, N, Warps>(arguments);
  } else {
    rms_norm_rows<T, 1, Warps>(arguments);
  }
}
