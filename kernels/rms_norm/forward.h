// `x / sqrt(mean(x^2) + epsilon) * weight` over the last dimension (Zhang and Sennrich, arXiv 1910.07467).
//
// A warp or a whole block takes a row. The row is read twice, the second time from the cache it has just come through: so any
// width fits, and memory is read once.
#pragma once
#include "../operators/teams.h"

// Grid: `ceiling_divide(rows, teams of a block)`; shared memory: TEAM_SCRATCH.
struct RmsNormForwardArguments {
  const void* x;        // [rows, width]
  const void* weight;   // [width]
  void* y;              // [rows, width]
  int64_t rows;
  int width;
  float epsilon;
};

// 1 / sqrt(mean of squares + epsilon).
DEVICE float rms_scale(float squares, int width, float epsilon) {
  return 1.0f / sqrt_exact(squares / static_cast<float>(width) + epsilon);
}

template <typename T, int N, int Warps>
DEVICE void rms_norm_row(const RmsNormForwardArguments& arguments, int64_t row, const unsigned char* scratch) {
  using Workers = Team<Warps>;
  const T* weight = static_cast<const T*>(arguments.weight);
  const int64_t start = row * arguments.width;
  const T* of_row = static_cast<const T*>(arguments.x) + start;
  float squares = 0.0f;
  for_columns<N>(arguments.width, Workers::thread(), Workers::THREADS, [&](int column) {
    float x[N];
    read(of_row + column, x);
    UNROLL
    for (int i = 0; i < N; i++) squares = multiply_add(x[i], x[i], squares);
  });
  const float scale = rms_scale(Workers::sum(squares, scratch), arguments.width, arguments.epsilon);
  for_columns<N>(arguments.width, Workers::thread(), Workers::THREADS, [&](int column) {
    float x[N], w[N];
    read(of_row + column, x);
    read(weight + column, w);
    UNROLL
    for (int i = 0; i < N; i++) x[i] = x[i] * scale * w[i];
    write(static_cast<T*>(arguments.y) + start + column, x);
  });
}

template <typename T, int N, int Warps> DEVICE void rms_norm_rows(const RmsNormForwardArguments& arguments) {
  SHARED_MEMORY(shared);
  using Workers = Team<Warps>;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * Workers::count() + Workers::index();
  if (row < arguments.rows) rms_norm_row<T, N, Warps>(arguments, row, shared);
}

template <typename T, int Warps> DEVICE void rms_norm_forward(const RmsNormForwardArguments& arguments) {
  constexpr int N = GROUP<T>;
  const bool grouped = aligned(arguments.x, arguments.weight, arguments.y);
  if (grouped && arguments.width % N == 0) {
    rms_norm_rows<T, N, Warps>(arguments);
  } else {
    rms_norm_rows<T, 1, Warps>(arguments);
  }
}
